"""`/chat-run?view=html`: what the session page is told, as frames of HTML that each name the events in them."""

import json
import re
import threading
import time
from typing import Any
from urllib.parse import urlencode

import pytest
import websocket

from tests.webapp.live_portal import Portal, ask
from tests.webapp.live_rig import Turn, wait_for

CURSOR = re.compile(
    r'<i id="cursor" hidden data-kind="(\w+)" data-epoch="(\w*)" data-first="(\d+)" data-last="(\d+)"'
)  # fmt: skip


class PageSocket:
    """Opens the page's socket and keeps its frames; `cursors`: (kind, epoch, first, last) of those that have one."""

    def __init__(self, portal: Portal, session_id: str, **place: Any) -> None:
        query = urlencode({"view": "html", "session_id": session_id, **place})
        self.ws = websocket.create_connection(f"{portal.web.socket_url}?{query}", timeout=60, origin=portal.web.url)
        self.frames: list[str] = []
        self.cursors: list[tuple[str, str, int, int]] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, **fields: str) -> None:
        """As htmx sends a form: all values text, and HEADERS beside them."""
        self.ws.send(json.dumps({**fields, "HEADERS": {"HX-Request": "true"}}))

    def wait(self, text: str) -> str:
        """The first frame that holds `text`."""

        def look() -> str | None:
            with self._lock:
                return next((frame for frame in self.frames if text in frame), None)

        return wait_for(look, what=text)

    @property
    def last(self) -> int:
        with self._lock:
            return self.cursors[-1][3] if self.cursors else -1

    def _read(self) -> None:
        try:
            while frame := self.ws.recv():
                found = CURSOR.search(str(frame))
                with self._lock:
                    self.frames.append(str(frame))
                    if found:
                        kind, epoch, first, last = found.groups()
                        self.cursors.append((kind, epoch, int(first), int(last)))
        except (OSError, websocket.WebSocketException):
            return


@pytest.fixture
def turn(portal: Portal) -> Turn:
    return portal.turn(portal.new_session())


def test_events_are_gathered_to_25_frames_a_second_and_none_is_left_out(portal: Portal, turn: Turn) -> None:
    page = PageSocket(portal, turn.session_id)
    wait_for(lambda: page.cursors)
    assert page.cursors[0][0] == "snapshot"
    began = len(page.cursors)
    started = time.monotonic()
    for n in range(300):
        turn.say(f"word{n} ")
        time.sleep(0.003)
    wait_for(lambda: page.last == turn.seq)
    turn.finish()
    wait_for(lambda: page.last == turn.seq)
    took = time.monotonic() - started
    told = page.cursors[began:]
    assert {kind for kind, *_ in told} == {"events"}
    assert len(told) <= 25 * (took + 1)
    last = page.cursors[began - 1][3]
    for _, epoch, first, end in told:
        assert (epoch, first) == (turn.epoch, last + 1)
        last = end
    html = "".join(page.frames)
    assert all(f"word{n} " in html or f"word{n}<" in html for n in range(300))


def test_a_page_that_was_drawn_a_moment_ago_is_told_only_what_came_since(portal: Portal, turn: Turn) -> None:
    turn.say("drawn ")
    drawn_at = turn.seq
    turn.say("missed ")
    page = PageSocket(portal, turn.session_id, last_seq=drawn_at, epoch=turn.epoch)
    wait_for(lambda: page.last == turn.seq)
    assert page.cursors[0][0] == "resume"
    assert page.cursors[0][2] == drawn_at + 1
    turn.say("afterwards")
    page.wait("afterwards")
    assert page.cursors[-1] == ("events", turn.epoch, turn.seq, turn.seq)


@pytest.mark.parametrize(
    "place", [{"last_seq": "-4"}, {"last_seq": "x"}, {"last_seq": "9" * 20}, {"last_seq": "1", "epoch": "<b>"}, {}]
)
def test_a_forged_place_gets_a_snapshot(portal: Portal, turn: Turn, place: dict[str, str]) -> None:
    turn.say("text")
    page = PageSocket(portal, turn.session_id, **place)
    page.wait("text")
    assert page.cursors[0][0] == "snapshot"


def test_forms_are_commands_and_their_answers_are_fragments(portal: Portal) -> None:
    session_id = portal.new_session()
    page = PageSocket(portal, session_id)
    page.send(event="run", id="c1", input="Hello", queue_id="q-1", model="", skill_folder="", csrf_token="t")
    ack = page.wait('id="ack"')
    assert 'data-id="c1"' in ack
    assert 'data-queue-id="q-1"' in ack
    page.wait("Hello")
    page.send(event="run", id="c2", input="", queue_id="q-2")
    assert "c2" in page.wait("notice")
    page.send(event="dance", id="c3")
    page.wait("c3")
    page.send(event="cancel_queued_run", id="c4", queue_id="q-1")
    page.wait('data-id="c4"')


def test_a_page_may_not_listen_to_another_session_by_its_socket(portal: Portal) -> None:
    page = PageSocket(portal, portal.new_session())
    other = portal.turn(portal.new_session())
    page.send(event="resume", id="r1", session_id=other.session_id)
    page.wait("r1")
    other.say("a secret")
    time.sleep(0.3)
    assert not any("a secret" in frame for frame in page.frames)


def test_a_foreign_or_missing_session_gets_no_socket(portal: Portal) -> None:
    for session_id in ("nobody", ""):
        with pytest.raises(websocket.WebSocketBadStatusException) as refused:
            PageSocket(portal, session_id)
        assert refused.value.status_code == 404


def test_programs_and_pages_see_the_same_turn(portal: Portal, turn: Turn) -> None:
    page, ws = PageSocket(portal, turn.session_id), portal.dial()
    assert ask(ws, event="resume", session_id=turn.session_id)["snapshot"]
    wait_for(lambda: page.cursors)
    turn.say("for both")
    page.wait("for both")
    while (heard := json.loads(ws.recv()))["event"] != "message.delta":
        pass
    assert (heard["data"]["text"], heard["seq"]) == ("for both", page.last)
    ws.close()
