"""`/chat-run` as programs speak it, against the real web process."""

import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import websocket
from sqlalchemy.orm import Session, sessionmaker

from shared.database import in_transaction, make_engine, make_session_factory, migrate, transaction
from shared.relay.connection import connect_url
from shared.relay.event_log import EventLog
from shared.relay.keys import Keys
from shared.store import messages, users
from tests.factories import a_session
from tests.rig.recorder import RecorderPage
from tests.rig.redis_server import RedisServer
from tests.rig.web_process import WebProcess
from tests.webapp.live_rig import Turn, wait_for


class Portal:
    """A web process with its database and Redis, and a session of the local administrator."""

    def __init__(self, folder: Path, redis_url: str, **given: Any) -> None:
        url = f"sqlite:///{folder / 'portal.db'}"
        migrate(url)
        self.engine = make_engine(url)
        self.factory: sessionmaker[Session] = make_session_factory(self.engine)
        self.log = EventLog(connect_url(redis_url), Keys(), max_events=given.pop("max_events", 5_000))
        self.owner = in_transaction(self.factory, users.local_administrator)
        self.web = WebProcess(database_url=url, redis_url=redis_url, data_dir=folder, **given)

    def new_session(self) -> str:
        with transaction(self.factory) as db:
            return a_session(db, owner=users.get(db, self.owner.id)).id

    def turn(self, session_id: str) -> Turn:
        return Turn(self.factory, self.log, session_id)

    def page(self, session_id: str) -> RecorderPage:
        page = RecorderPage(self.web.socket_url, session_id)
        page.wait(lambda p: p.state)
        return page

    def dial(self, **given: Any) -> websocket.WebSocket:
        return websocket.create_connection(self.web.socket_url, timeout=10, **given)

    def close(self) -> None:
        self.web.close()
        self.engine.dispose()


@pytest.fixture(scope="module")
def portal(shared_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    shared_redis.client.flushall()
    made = Portal(tmp_path_factory.mktemp("portal"), shared_redis.url)
    yield made
    made.close()


def ask(ws: websocket.WebSocket, **command: Any) -> dict[str, Any]:
    """Send a command; the answer with its id."""
    ws.send(json.dumps(command))
    return hear(ws)


def hear(ws: websocket.WebSocket) -> dict[str, Any]:
    frame: dict[str, Any] = json.loads(ws.recv())
    return frame


def closed_with(ws: websocket.WebSocket) -> int | None:
    """The close code, after whatever was still on its way."""
    while True:
        opcode, data = ws.recv_data()
        if opcode == websocket.ABNF.OPCODE_CLOSE:
            return int.from_bytes(data[:2], "big") if len(data) >= 2 else None


def requests_get(url: str) -> int:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return int(answer.status)


def dials(portal: "Portal") -> bool:
    try:
        portal.dial().close()
    except websocket.WebSocketBadStatusException:
        return False
    return True


def same_as_stored(portal: Portal, page: RecorderPage, run_id: str) -> bool:
    with transaction(portal.factory, write=False) as db:
        answer = messages.answer_of(db, run_id)
        assert answer is not None
        return page.text(run_id) == answer.content


def test_three_pages_see_one_turn(portal: Portal) -> None:
    session_id = portal.new_session()
    pages = [portal.page(session_id) for _ in range(3)]
    turn = portal.turn(session_id)
    for n in range(100):
        turn.say(f"word {n} ")
    turn.finish()
    for page in pages:
        page.wait(lambda p: turn.run_id in p.ended)
        assert same_as_stored(portal, page, turn.run_id)
        assert page.text(turn.run_id) == turn.text
        page.stop()
        assert page.connects == 1
        assert page.misfits == 0


def test_five_cuts_in_one_turn(portal: Portal) -> None:
    session_id = portal.new_session()
    page = portal.page(session_id)
    turn = portal.turn(session_id)
    for n in range(300):
        turn.say(f"word {n} ")
        if n % 60 == 30:
            page.cut()
        if n % 25 == 0:
            turn.save()
        time.sleep(0.002)
    turn.finish()
    page.wait(lambda p: turn.run_id in p.ended)
    assert same_as_stored(portal, page, turn.run_id)
    assert page.connects == 6
    assert page.misfits == 0
    assert len(set(page.seen)) == len(page.seen) == page.seq
    page.stop()


# ---- bad input: an answer with a code, and the socket stays open


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("", "bad_json"),
        ("nonsense", "bad_json"),
        ("[]", "bad_json"),
        ("7", "bad_json"),
        ('{"event":"run"', "bad_json"),
        ("[" * 100_000, "bad_json"),
        ('{"event":' + "[" * 33 + "]" * 33 + "}", "bad_json"),
        ('{"event":NaN}', "bad_json"),
        ("{}", "invalid_command"),
        ('{"event":"dance"}', "invalid_command"),
        ('{"event":"run","session_id":"S"}', "invalid_command"),
        ('{"event":"run","session_id":"S","input":"x","prompt":"y"}', "invalid_command"),
        ('{"event":"run","session_id":"S","input":"x","source":7}', "invalid_command"),
        ('{"event":"resume"}', "invalid_command"),
        ('{"event":"resume","session_id":"nobody"}', "not_found"),
        ('{"event":"run","session_id":"nobody","input":"x"}', "not_found"),
        ('{"event":"abort","session_id":"nobody"}', "not_found"),
        ('{"event":"abort","session_id":"S"}', "nothing_runs"),
        ('{"event":"cancel_queued_run","session_id":"S","queue_id":"q"}', "not_found"),
        ('{"event":"edit_queued_run","session_id":"S","queue_id":"q","input":"x"}', "not_found"),
        ('{"event":"move_queued_run","session_id":"S","queue_id":"q","position":1}', "not_found"),
        ('{"event":"move_queued_run","session_id":"S","queue_id":"q","position":0}', "invalid_command"),
        ('{"event":"approval.respond","session_id":"S","approval_id":"a","choice":"once"}', "not_found"),
        ('{"event":"approval.respond","session_id":"S","approval_id":"a","choice":"maybe"}', "invalid_command"),
        ('{"event":"clarify.respond","session_id":"S","clarify_id":"a","answer":"x"}', "not_found"),
        ('{"event":"run","session_id":"S","input":""}', None),
    ],
)
def test_a_bad_command_is_answered_and_closes_nothing(portal: Portal, frame: str, code: str | None) -> None:
    session_id = portal.new_session()
    ws = portal.dial()
    ws.send(frame.replace('"S"', f'"{session_id}"').replace('{"event"', '{"id":"mine","event"', 1))
    answer = hear(ws)
    assert answer["event"] == "error"
    assert answer["code"] == code or code is None
    assert answer["message"]
    assert answer["id"] == ("mine" if frame.startswith('{"event"') and code != "bad_json" else None)
    assert ask(ws, event="ping", id=7) == {"event": "pong", "id": 7}
    ws.close()


def test_a_binary_frame_is_answered_and_closes_nothing(portal: Portal) -> None:
    ws = portal.dial()
    ws.send_binary(b"\xff\x00")
    assert hear(ws)["code"] == "invalid_command"
    assert ask(ws, event="ping", id="p")["event"] == "pong"
    ws.close()


def test_a_frame_over_the_limit_closes_with_1009(portal: Portal) -> None:
    for size in (1_100_000, 4_000_000):
        ws = portal.dial()
        ws.send("x" * size)
        assert closed_with(ws) == 1009
        ws.close()


def test_a_flood_closes_with_1013_and_others_go_on(portal: Portal) -> None:
    calm, wild = portal.dial(), portal.dial()
    for n in range(300):
        try:
            wild.send(json.dumps({"event": "ping", "id": n}))
        except OSError:
            break
    assert closed_with(wild) == 1013
    assert ask(calm, event="ping", id=1)["event"] == "pong"
    wild.close()
    calm.close()


def test_what_is_no_websocket_frame_ends_the_socket_only(portal: Portal) -> None:
    ws = portal.dial()
    ws.sock.sendall(b"\xff" * 64)
    assert closed_with(ws) in (1002, 1007)
    assert ask(portal.dial(), event="ping", id=1)["event"] == "pong"


def test_a_foreign_origin_gets_no_socket(portal: Portal) -> None:
    for origin in ("https://evil.example", "null"):
        with pytest.raises(websocket.WebSocketBadStatusException) as refused:
            portal.dial(origin=origin)
        assert refused.value.status_code == 403


# ---- commands


def test_a_run_is_acknowledged_and_told_to_all_who_follow(portal: Portal) -> None:
    session_id = portal.new_session()
    page = portal.page(session_id)
    ws = portal.dial()
    ack = ask(ws, event="run", id="r1", session_id=session_id, input="Hello", queue_id="q1")
    assert ack["event"] == "ack"
    assert ack["id"] == "r1"
    assert (ack["queue_id"], ack["position"]) == ("q1", 0)
    assert len(ack["run_id"]) == 32
    assert ack["message_id"]
    again = ask(ws, event="run", id="r2", session_id=session_id, input="Hello", queue_id="q1")
    assert again["run_id"] == ack["run_id"]
    other = ask(ws, event="run", id="r3", session_id=session_id, input="Something else", queue_id="q1")
    assert (other["event"], other["code"]) == ("error", "queue_id_reused")
    second = ask(ws, event="run", id="r4", session_id=session_id, input="Next", queue_id="q2")
    assert second["position"] == 2  # no worker has taken the first
    assert ask(ws, event="edit_queued_run", id=5, session_id=session_id, queue_id="q2", input="Later")["event"] == "ack"
    assert ask(ws, event="move_queued_run", id=6, session_id=session_id, queue_id="q2", position=1)["event"] == "ack"
    assert ask(ws, event="cancel_queued_run", id=7, session_id=session_id, queue_id="q2")["event"] == "ack"
    assert ask(ws, event="continue_queue", id=8, session_id=session_id)["event"] == "ack"
    assert ask(ws, event="abort", id=9, session_id=session_id, run_id=ack["run_id"])["state"] == "cancelled"
    page.wait(lambda p: ack["run_id"] in p.ended and second["run_id"] in p.ended)
    page.stop()
    ws.close()


def test_one_socket_follows_many_sessions_and_leaves_one(portal: Portal) -> None:
    ids = [portal.new_session() for _ in range(5)]
    ws = portal.dial()
    for session_id in ids:
        answer = ask(ws, event="resume", id=session_id, session_id=session_id)
        assert answer["event"] == "resumed"
        assert answer["id"] == answer["session_id"] == session_id
        assert answer["snapshot"]
        assert answer["messages"] == answer["events"] == []
    assert ask(ws, event="leave", id="bye", session_id=ids[0]) == {"event": "ack", "id": "bye"}
    for session_id in ids:
        portal.turn(session_id).say("text")
    heard: dict[str, int] = {}
    while sum(heard.values()) < 12:
        frame = hear(ws)
        heard[frame["session_id"]] = heard.get(frame["session_id"], 0) + 1
    assert heard == {session_id: 3 for session_id in ids[1:]}
    ws.close()


@pytest.mark.parametrize(
    "place",
    [{}, {"last_seq": -1}, {"last_seq": 10**15}, {"last_seq": 2**70}, {"last_seq": "x"}, {"last_seq": 1, "epoch": "elsewhere"},
     {"last_seq": 1, "epoch": "x" * 500}, {"last_seq": 1, "epoch": 7}, {"last_seq": 1.5}, {"last_seq": True}, {"epoch": "x"},
     {"last_seq": None}, {"last_seq": [1]}],
)  # fmt: skip
def test_a_forged_cursor_gets_a_snapshot(portal: Portal, place: dict[str, Any]) -> None:
    """F47."""
    session_id = portal.new_session()
    portal.turn(session_id).say("text")
    ws = portal.dial()
    answer = ask(ws, event="resume", session_id=session_id, **place)
    assert answer["event"] == "resumed"
    assert answer["snapshot"]
    assert len(answer["messages"]) == 2
    ws.close()


def test_a_cursor_without_an_epoch_is_of_the_log_as_it_is(portal: Portal) -> None:
    session_id = portal.new_session()
    turn = portal.turn(session_id)
    turn.say("one ")
    turn.say("two")
    ws = portal.dial()
    whole = ask(ws, event="resume", session_id=session_id, last_seq=0)
    assert not whole["snapshot"]
    assert whole["messages"] == []
    assert [event["seq"] for event in whole["events"]] == [1, 2, 3, 4]
    assert (whole["seq"], whole["epoch"]) == (4, turn.epoch)
    assert whole["isWorking"]
    rest = ask(ws, event="resume", session_id=session_id, last_seq=3)
    assert [event["seq"] for event in rest["events"]] == [4]
    ws.close()


# ---- slow clients, limits, restarts


def test_a_page_that_never_reads_is_closed_and_does_not_hold_up_the_others(portal: Portal) -> None:
    """F45."""
    session_id = portal.new_session()
    good = [portal.page(session_id) for _ in range(2)]
    asleep = portal.dial(sockopt=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)])
    ask(asleep, event="resume", session_id=session_id)
    turn = portal.turn(session_id)
    for _ in range(400):
        turn.say("x" * 16_000)
        turn.save() if len(turn.text) % 640_000 == 0 else None
        time.sleep(0.001)
    turn.finish()
    for page in good:
        page.wait(lambda p: turn.run_id in p.ended)
        assert page.text(turn.run_id) == turn.text
        page.stop()
        assert page.connects == 1
    started = time.monotonic()
    with pytest.raises((websocket.WebSocketException, OSError)):
        while True:
            opcode, data = asleep.recv_data()
            if opcode == websocket.ABNF.OPCODE_CLOSE:
                assert data[:2] == (1013).to_bytes(2, "big")
                raise websocket.WebSocketConnectionClosedException
    assert time.monotonic() - started < 15
    back = portal.page(session_id)
    back.wait(lambda p: p.text(turn.run_id) == turn.text)
    back.stop()


def test_sockets_above_the_cap_get_503_and_pages_still_answer(shared_redis: RedisServer, tmp_path: Path) -> None:
    """F48."""
    portal = Portal(tmp_path, shared_redis.url, environ={"PORTAL_MAX_SOCKETS": "10"})
    try:
        held = [portal.dial() for _ in range(10)]
        for _ in range(5):
            with pytest.raises(websocket.WebSocketBadStatusException) as refused:
                portal.dial()
            assert refused.value.status_code == 503
            assert refused.value.resp_headers["retry-after"]
            started = time.monotonic()
            assert requests_get(f"{portal.web.url}/healthz") == 200
            assert time.monotonic() - started < 1
        held.pop().close()
        wait_for(lambda: dials(portal), timeout_s=5)
    finally:
        portal.close()


def test_a_stopped_web_process_asks_its_pages_to_come_back(shared_redis: RedisServer, tmp_path: Path) -> None:
    """F52: 1012 at once, the process is gone soon, pages go on where they were."""
    portal = Portal(tmp_path, shared_redis.url)
    try:
        session_id = portal.new_session()
        pages = [portal.page(session_id) for _ in range(20)]
        turn = portal.turn(session_id)
        turn.say("before ")
        for page in pages:
            page.wait(lambda p: p.text(turn.run_id) == "before ")
        took = portal.web.stop()
        assert took < 5
        turn.say("while nobody listened ")
        portal.web.start()
        turn.say("after")
        turn.finish()
        for page in pages:
            page.wait(lambda p: turn.run_id in p.ended, timeout_s=20)
            assert page.text(turn.run_id) == turn.text
            assert page.closes == [1012]
            assert page.snapshots == 1
            page.stop()
    finally:
        portal.close()
