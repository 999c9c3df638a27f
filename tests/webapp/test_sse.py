"""`/api/chat/runs/<id>/stream`: one run's events for programs, against the real web process."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from shared.database import transaction
from shared.store import run_logs
from tests.factories import a_session
from tests.webapp.live_portal import Portal
from tests.webapp.live_rig import Turn, wait_for


class Stream:
    """Reads a stream as the standard says, in a thread of its own. `events`: (id, name, data)."""

    def __init__(self, portal: Portal, run_id: str, *, query: str = "", last_id: str | None = None) -> None:
        self.events: list[tuple[str | None, str, dict[str, Any]]] = []
        self.comments = 0
        self.ended = threading.Event()
        self._connection = http.client.HTTPConnection("127.0.0.1", portal.web.port, timeout=60)
        headers = {} if last_id is None else {"Last-Event-ID": last_id}
        self._connection.request("GET", f"/api/chat/runs/{run_id}/stream{query}", headers=headers)
        self.answer = self._connection.getresponse()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def text(self) -> str:
        return "".join(data["data"]["text"] for _, name, data in self.events if name == "message.delta")

    @property
    def names(self) -> list[str]:
        return [name for _, name, _ in self.events]

    @property
    def last_id(self) -> str | None:
        return next((at for at, _, _ in reversed(self.events) if at is not None), None)

    def wait_end(self) -> "Stream":
        assert self.ended.wait(60), f"the stream did not end: {self.names[-5:]}"
        return self

    def _read(self) -> None:
        fields: dict[str, str] = {}
        try:
            for raw in self.answer:
                line = raw.decode().rstrip("\n")
                if line.startswith(":"):
                    self.comments += 1
                elif line:
                    name, _, value = line.partition(": ")
                    fields[name] = value
                elif fields:
                    self.events.append((fields.get("id"), fields["event"], json.loads(fields["data"])))
                    fields = {}
        except (OSError, http.client.HTTPException, ValueError):
            return
        self.ended.set()


@pytest.fixture
def turn(portal: Portal) -> Iterator[Turn]:
    return portal.turn(portal.new_session())


def keep_log(portal: Portal, turn: Turn, *, joined: int = 1) -> None:
    """Keep the run's events as the worker does: neighbouring deltas joined, each line with its cursor."""
    stream = Stream(portal, turn.run_id, query="?lastEventId=0")
    wait_for(lambda: "run.completed" in stream.names)
    lines: list[dict[str, Any]] = []
    for _, name, data in stream.events:
        if lines and name == "message.delta" == lines[-1]["event"] and lines[-1]["n"] < joined:
            lines[-1]["data"]["text"] += data["data"]["text"]
            lines[-1] |= {"seq": data["seq"], "n": lines[-1]["n"] + 1}
        else:
            lines.append({**data, "first_seq": data["seq"], "n": 1})
    with transaction(portal.factory) as db:
        run_logs.put(
            db, run_id=turn.run_id, session_id=turn.session_id, epoch=turn.epoch or "", first_seq=1, last_seq=turn.seq,
            lines=[json.dumps({key: value for key, value in line.items() if key != "n"}) for line in lines],
        )  # fmt: skip


def test_a_run_is_streamed_from_its_first_event_to_its_last(portal: Portal, turn: Turn) -> None:
    turn.say("before ")
    stream = Stream(portal, turn.run_id)
    assert stream.answer.headers["Content-Type"].startswith("text/event-stream")
    assert stream.answer.headers["X-Accel-Buffering"] == "no"
    assert stream.answer.headers["Cache-Control"] == "no-store"
    for n in range(50):
        turn.say(f"{n} ")
    turn.finish()
    stream.wait_end()
    assert stream.names[0] == "run.started"
    assert stream.names[-1] == "run.completed"
    assert stream.text == turn.text
    seqs = [int(str(at).split("-")[0]) for at, _, _ in stream.events]
    assert seqs == sorted(set(seqs))
    assert all(data["run_id"] == turn.run_id for _, _, data in stream.events)
    assert all(at == f"{data['seq']}-{data['epoch']}" for at, _, data in stream.events)


def test_other_runs_of_the_session_leave_holes(portal: Portal) -> None:
    session_id = portal.new_session()
    first = portal.turn(session_id)
    first.say("first")
    first.finish()
    second = portal.turn(session_id)
    stream = Stream(portal, second.run_id)
    second.say("second")
    second.finish()
    assert stream.wait_end().text == "second"
    assert {data["run_id"] for _, _, data in stream.events} == {second.run_id}


@pytest.mark.parametrize("by", ["header", "query", "bare number"])
def test_a_stream_goes_on_after_the_last_event_that_was_heard(portal: Portal, turn: Turn, by: str) -> None:
    stream = Stream(portal, turn.run_id)
    turn.say("heard ")
    wait_for(lambda: stream.text == "heard ")
    at = stream.last_id or ""
    turn.say("missed ")
    given: dict[str, Any] = {
        "header": {"last_id": at, "query": "?lastEventId=0"},
        "query": {"query": f"?lastEventId={at}"},
        "bare number": {"query": f"?lastEventId={at.split('-')[0]}"},
    }[by]
    rest = Stream(portal, turn.run_id, **given)
    turn.say("live")
    turn.finish()
    assert rest.wait_end().text == "missed live"


@pytest.mark.parametrize("at", ["9999999", "3-elsewhere", "9" * 30])
def test_where_replay_is_impossible_resumed_comes_first(portal: Portal, turn: Turn, at: str) -> None:
    turn.say("text ")
    turn.save()
    stream = Stream(portal, turn.run_id, last_id=at)
    if at == "9" * 30:  # no place at all: from the start
        wait_for(lambda: stream.text == "text ")
        return
    wait_for(lambda: stream.names)
    turn.say("more")
    turn.finish()
    stream.wait_end()
    assert stream.names[0] == "resumed"
    assert stream.events[0][2]["messages"][-1]["content"] == "text "
    assert stream.text == "more"


def test_a_finished_run_plays_from_its_log(portal: Portal, turn: Turn) -> None:
    for n in range(6):
        turn.say(f"{n} ")
    turn.finish()
    keep_log(portal, turn, joined=3)
    portal.log._client.flushall()  # the session's log is long gone
    whole = Stream(portal, turn.run_id).wait_end()
    assert whole.names == ["run.started", "message.delta", "message.delta", "run.completed"]
    assert whole.text == turn.text
    after_first = Stream(portal, turn.run_id, last_id=whole.events[1][0]).wait_end()
    assert after_first.text == "3 4 5 "
    amid = Stream(portal, turn.run_id, last_id=f"4-{turn.epoch}").wait_end()
    assert amid.names == ["resumed", "run.completed"]
    assert amid.events[0][2]["messages"][-1]["content"] == turn.text
    done = Stream(portal, turn.run_id, last_id=whole.last_id).wait_end()
    assert done.events == []


def test_a_stream_shows_at_once_that_it_is_open(portal: Portal, turn: Turn) -> None:
    stream = Stream(portal, turn.run_id, query=f"?lastEventId={turn.seq}")
    wait_for(lambda: stream.comments)
    assert stream.events == []


def test_an_unknown_and_a_foreign_run_are_not_there(portal: Portal) -> None:
    assert Stream(portal, "f" * 32).answer.status == 404
    with transaction(portal.factory) as db:
        session_id = a_session(db).id
    assert Stream(portal, portal.turn(session_id).run_id).answer.status == 404


def test_pages_answer_while_many_streams_are_open(portal: Portal, turn: Turn) -> None:
    streams = [Stream(portal, turn.run_id) for _ in range(100)]
    started = time.monotonic()
    assert Stream(portal, "f" * 32).answer.status == 404
    assert time.monotonic() - started < 20
    turn.say("to all")
    turn.finish()
    for stream in streams:
        assert stream.wait_end().text == "to all"
