"""`/chat-run` as programs speak it, against the real web process."""

import time
from typing import Any

import pytest

from shared.protocol.events import SessionUpdated, SessionUpdatedData, to_payload
from tests.webapp.live_portal import Portal, ask, hear, same_as_stored


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
            page.wait(lambda p, n=n: (p.connects, p.seq) == (1 + n // 60, turn.seq))  # it is back
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
    assert heard == dict.fromkeys(ids[1:], 3)
    ws.close()


@pytest.mark.parametrize(
    "place",
    [{}, {"last_seq": -1}, {"last_seq": 10**15}, {"last_seq": 2**70}, {"last_seq": "x"}, {"last_seq": 1.5},
     {"last_seq": True}, {"last_seq": None}, {"last_seq": [1]}, {"last_seq": 1, "epoch": "elsewhere"},
     {"last_seq": 1, "epoch": "x" * 500}, {"last_seq": 1, "epoch": 7}, {"epoch": "x"}],
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


def test_a_page_that_comes_back_at_any_event_gets_exactly_the_rest(portal: Portal) -> None:
    """F43."""
    session_id = portal.new_session()
    turn = portal.turn(session_id)
    for n in range(40):
        turn.say(f"{n} ")
    turn.finish()
    ws = portal.dial()
    for n in range(turn.seq + 1):
        answer = ask(ws, event="resume", session_id=session_id, last_seq=n, epoch=turn.epoch)
        assert not answer["snapshot"]
        assert [event["seq"] for event in answer["events"]] == list(range(n + 1, turn.seq + 1))
        assert answer["seq"] == turn.seq
    ws.close()


def test_a_deleted_session_is_left(portal: Portal) -> None:
    session_id = portal.new_session()
    ws = portal.dial()
    assert ask(ws, event="resume", session_id=session_id)["event"] == "resumed"
    gone = SessionUpdated(session_id=session_id, data=SessionUpdatedData(deleted=True))
    portal.log.append(session_id, [to_payload(gone)])
    assert hear(ws)["data"] == {"deleted": True}
    portal.turn(session_id).say("late")
    assert ask(ws, event="ping", id=1)["event"] == "pong"
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
