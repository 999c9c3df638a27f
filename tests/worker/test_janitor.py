"""What a crash, a lost message or silence leaves behind is mended, by any number of janitors."""

import json
import threading
import time
from typing import Any

import pytest

from shared import clock
from shared.database import db_now
from shared.models import ChatSession, Run
from shared.protocol.events import MessageDelta, TextPiece, to_payload
from shared.relay.presence import WorkerFacts
from shared.run_state import RunState
from shared.store import pauses, run_logs
from shared.store import runs as run_store
from shared.transcript import Transcript, fold
from tests import factories
from tests.worker.conftest import Desk
from worker import heartbeat
from worker.runs.execute import execute
from worker.runs.janitor import NOBODY_WORKS, Janitor


def a_janitor(desk: Desk, context: Any = None) -> Janitor:
    """One whose connection is old enough to end leases."""
    janitor = Janitor(context or desk.context)
    janitor._connected_at = time.monotonic() - 100
    return janitor


def a_lost_run(desk: Desk, state: RunState = RunState.RUNNING, **columns: Any) -> str:
    """Of a worker that has not renewed its lease in time."""
    session_id = desk.session(**columns)
    with desk.db() as db:
        session = db.get(ChatSession, session_id)
        return factories.a_run(db, session, state=state, lease_s=-1, answer="saved").id


def change(desk: Desk, run_id: str, **columns: Any) -> None:
    with desk.db() as db:
        run = db.get(Run, run_id)
        for name, value in columns.items():
            setattr(run, name, value)


# ---- what waits


def test_a_run_that_was_never_dispatched_is_sent_once(desk: Desk) -> None:
    """C2."""
    desk.context.settings = desk.settings.model_copy(update={"dispatch_again_s": 300})
    run_id = desk.submit(desk.session(), "hello")
    desk.context.redis.rpush(desk.context.queue_key("runs"), b"something waits there: the broker has lost nothing")
    janitor = a_janitor(desk)
    janitor.sweep()
    janitor.sweep()
    assert desk.sent == [(run_id, "runs")]


def test_it_is_sent_again_when_nobody_claims_it_and_ever_more_rarely(sqlite_desk: Desk) -> None:
    desk = sqlite_desk
    desk.context.settings = desk.settings.model_copy(update={"dispatch_again_s": 100})
    run_id = desk.submit(desk.session(), "hello")
    desk.context.redis.rpush(desk.context.queue_key("runs"), b"something else waits there")
    janitor = a_janitor(desk)
    janitor.sweep()
    assert len(desk.sent) == 1
    for gap_s, dispatches in ((120, 2), (120, 2), (250, 3)):
        change(desk, run_id, dispatched_at_db=desk.row(run_id).dispatched_at_db - gap_s)
        janitor.sweep()
        assert len(desk.sent) == dispatches


def test_a_turn_that_no_worker_takes_says_so_once(desk: Desk) -> None:
    """C17: nothing is dropped, and its page says why it waits."""
    desk.context.settings = desk.settings.model_copy(update={"dispatch_again_s": 300})
    session_id = desk.session()
    run_id, behind = desk.submit(session_id, "hello"), desk.submit(session_id, "then this")
    janitor = a_janitor(desk)
    janitor.sweep()
    assert desk.names(run_id) == []
    change(desk, run_id, queued_at_db=Run.queued_at_db - 310)
    janitor.sweep()
    janitor.sweep()
    [event] = desk.events(run_id)
    assert (event.event, event.data.text) == ("status.updated", NOBODY_WORKS)
    assert desk.names(behind) == []
    execute(run_id, desk.context)
    assert desk.state(run_id) == "completed"
    told = Transcript(run_id=run_id)
    for event in desk.events(run_id):
        fold(told, event)
    assert told.status == "", "once it runs, it waits no more"


def test_while_a_worker_lives_a_turn_waits_in_silence(sqlite_desk: Desk) -> None:
    desk = sqlite_desk
    run_id = desk.submit(desk.session(), "hello")
    change(desk, run_id, queued_at_db=Run.queued_at_db - 31)
    heartbeat.beat(desk.context, clock.now())
    a_janitor(desk).sweep()
    assert desk.names(run_id) == []


def test_only_heads_of_queues_that_go_are_sent(desk: Desk) -> None:
    busy, held, free = desk.session(), desk.session(held_reason="failed"), desk.session()
    with desk.db() as db:
        factories.a_run(db, db.get(ChatSession, busy), state=RunState.RUNNING)
    desk.submit(busy, "waits"), desk.submit(held, "waits")
    first = desk.submit(free, "goes")
    desk.submit(free, "waits")
    a_janitor(desk).sweep()
    assert desk.sent == [(first, "runs")]


def test_what_waited_for_a_day_fails_and_keeps_its_text(desk: Desk) -> None:
    old, held = desk.submit(desk.session(), "old"), desk.submit(desk.session(held_reason="failed"), "held")
    for run_id in (old, held):
        change(desk, run_id, queued_at_db=desk.row(run_id).queued_at_db - 24 * 3600 - 5)
    a_janitor(desk).sweep()
    row = desk.row(old)
    assert (row.state, row.reason) == ("failed", "too_old")
    assert desk.names(old) == ["run.dequeued", "run.failed"]
    assert desk.state(held) == "queued"
    execute(old, desk.context)
    assert desk.turns(old) == 0


# ---- leases


def test_a_lost_run_is_interrupted_with_all_the_text_that_was_seen(desk: Desk) -> None:
    """C5: what is only in the log is copied into the message."""
    run_id = a_lost_run(desk)
    row = desk.row(run_id)
    pieces = ["saved", " and seen", " by the page"]
    offset = 0
    for text in pieces:
        data = TextPiece(part=0, offset=offset, text=text)
        delta = MessageDelta(session_id=row.session_id, run_id=run_id, fence=1, data=data)
        appended = desk.context.log.append(row.session_id, [to_payload(delta)], run_id=run_id, fence=1)
        offset += len(text)
        if text == "saved":
            change(desk, run_id, flushed_epoch=appended.epoch, flushed_seq=appended.last_seq)
            with desk.db() as db:
                saved = {"version": 1, "run_id": run_id, "items": []}
                transcript = desk.transcript_after(run_id, [delta], saved)
                run_store.save_progress(
                    db, run_id, fence=1, content="saved", transcript=transcript, epoch=appended.epoch, seq=1
                )
    driver = WorkerFacts(worker_id="worker-1", host="h", pid=1, started_at=clock.now(), runs=[run_id])
    desk.context.presence.beat_worker(driver)
    janitor = a_janitor(desk)
    janitor.sweep()
    assert desk.state(run_id) == "running"  # somebody is there: its heartbeat says so
    desk.context.redis.delete(desk.context.keys.run_heartbeat(run_id))
    janitor.sweep()
    row = desk.row(run_id)
    assert (row.state, row.reason, row.fence) == ("interrupted", "worker_lost", 2)
    assert desk.answer(run_id).content == "saved and seen by the page" == desk.seen_text(run_id)
    last = desk.events(run_id)[-1]
    assert (last.event, last.fence) == ("run.interrupted", 2)
    with desk.look() as db:
        lines = [json.loads(line) for line in run_logs.lines(run_logs.get(db, run_id))]
    assert [line["event"] for line in lines] == ["message.delta", "run.interrupted"]
    assert lines[0]["data"]["text"] == "saved and seen by the page"


def test_text_that_came_in_between_is_copied_too(sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old worker speaks once more after the janitor has read the log."""
    desk = sqlite_desk
    run_id = a_lost_run(desk)
    session_id = desk.row(run_id).session_id
    finish = run_store.finish

    def speak(text: str, offset: int) -> None:
        data = TextPiece(part=0, offset=offset, text=text)
        delta = MessageDelta(session_id=session_id, run_id=run_id, fence=1, data=data)
        desk.context.log.append(session_id, [to_payload(delta)], run_id=run_id, fence=1)

    def late(*arguments: Any, **given: Any) -> Any:
        speak(" late", 5)
        return finish(*arguments, **given)

    speak("early", 0)
    monkeypatch.setattr(run_store, "finish", late)
    a_janitor(desk).sweep()
    assert desk.answer(run_id).content == "early late"
    assert desk.transcript(run_id)["end"]["state"] == "interrupted"


def test_a_run_lost_before_it_began_goes_back_to_the_queue(desk: Desk) -> None:
    """C4."""
    run_id = a_lost_run(desk, RunState.STARTING)
    a_janitor(desk).sweep()
    row = desk.row(run_id)
    assert (row.state, row.attempt, row.worker_id) == ("queued", 1, None)
    assert desk.sent == [(run_id, "runs")]
    execute(run_id, desk.context)
    assert desk.state(run_id) == "completed"


def test_an_aborting_run_of_a_dead_worker_is_aborted(desk: Desk) -> None:
    """F37."""
    run_id = a_lost_run(desk, RunState.ABORTING)
    a_janitor(desk).sweep()
    assert desk.state(run_id) == "aborted"
    assert desk.names(run_id) == ["abort.completed"]


def test_an_abort_that_its_worker_does_not_carry_out_is_forced(desk: Desk) -> None:
    session_id = desk.session()
    with desk.db() as db:
        run_id = factories.a_run(db, db.get(ChatSession, session_id), state=RunState.ABORTING, abort_by="Ada").id
    a_janitor(desk).sweep()
    assert desk.state(run_id) == "aborting"
    change(desk, run_id, abort_requested_at_db=desk.row(run_id).abort_requested_at_db - 61)
    a_janitor(desk).sweep()
    assert (desk.state(run_id), desk.row(run_id).fence) == ("aborted", 2)
    assert desk.events(run_id)[-1].data.by == "Ada"


def test_a_young_connection_ends_no_leases(desk: Desk) -> None:
    """After an outage of the database workers must have had the time to renew."""
    desk.context.settings = desk.settings.model_copy(update={"janitor_young_s": 300})
    run_id = a_lost_run(desk)
    janitor = Janitor(desk.context)
    janitor.sweep()
    assert desk.state(run_id) == "running"
    janitor._connected_at -= 301
    janitor.sweep()
    assert desk.state(run_id) == "interrupted"


def test_the_policy_of_the_session_holds_for_lost_runs_too(desk: Desk) -> None:
    run_id = a_lost_run(desk)
    session_id = desk.row(run_id).session_id
    waits = desk.submit(session_id, "next")
    a_janitor(desk).sweep()
    with desk.look() as db:
        assert db.get(ChatSession, session_id).held_reason == "worker_lost"
    assert desk.sent == []
    going = a_lost_run(desk, on_failure="continue")
    after = desk.submit(desk.row(going).session_id, "next")
    a_janitor(desk).sweep()
    assert desk.sent == [(after, "runs")]
    assert desk.state(waits) == "queued"


def test_a_worker_that_comes_back_can_write_nothing(desk: Desk) -> None:
    """C6, C20: it completed at the same moment, or a janitor was first; never both."""
    for _ in range(5):
        run_id = desk.submit(desk.session(), [{"text": "a"}, {"sleep": 0.15}, {"text": "b"}])
        thread = desk.start(run_id)
        desk.wait(lambda run_id=run_id: desk.turns(run_id), what="the turn")
        change(desk, run_id, lease_until_db=1.0)
        janitors = [a_janitor(desk, desk.context) for _ in range(3)]
        sweeps = [threading.Thread(target=janitor.sweep) for janitor in janitors]
        for sweep in sweeps:
            sweep.start()
        for sweep in sweeps:
            sweep.join(60)
        thread.join(60)
        state = desk.state(run_id)
        assert state in ("interrupted", "completed")
        ends = [e.event for e in desk.events(run_id) if e.event in ("run.interrupted", "run.completed")]
        assert ends == [f"run.{state}"]
        assert desk.answer(run_id).content == desk.seen_text(run_id)


def test_a_run_that_ended_meanwhile_stays_as_it_ended(desk: Desk) -> None:
    """C20: a janitor with an old view."""
    run_id = a_lost_run(desk)
    with desk.look() as db:
        old_view = run_store.expired_leases(db)
    with desk.db() as db:
        run_store.finish(db, run_id, RunState.RUNNING, RunState.COMPLETED, fence=1, content="whole", transcript=None)
    janitor = a_janitor(desk)
    for run in old_view:
        janitor._try(run, janitor._end_lost)
    assert (desk.state(run_id), desk.answer(run_id).content) == ("completed", "whole")
    assert desk.events(run_id) == []


# ---- the rest


def test_an_approval_that_nobody_answers_expires_without_its_worker(desk: Desk) -> None:
    session_id = desk.session()
    with desk.db() as db:
        run = factories.a_run(db, db.get(ChatSession, session_id), state=RunState.RUNNING)
        pause = pauses.open(
            db, run_id=run.id, fence=1, session_id=session_id, kind="approval", tool="t",
            request={"command": "ls", "description": "", "choices": ["once", "deny"]}, timeout_s=60,
        )  # fmt: skip
        pause.expires_at_db = db_now() - 1
    a_janitor(desk).sweep()
    with desk.look() as db:
        assert pauses.get(db, pause.id).state == "expired"
    resolved = desk.events(run.id)[-1]
    assert (resolved.event, resolved.data.choice, resolved.data.reason) == ("approval.resolved", "deny", "expired")


def test_the_queue_of_a_dead_worker_is_removed_and_what_waits_there_goes_to_all(sqlite_desk: Desk) -> None:
    desk = sqlite_desk
    redis = desk.context.redis
    facts = WorkerFacts(worker_id="gone", host="h", pid=1, started_at="2026-01-01T00:00:00Z")
    desk.context.presence.beat_worker(facts)
    redis.lpush(desk.context.queue_key("runs.gone"), b"first", b"second")
    redis.rpush(desk.context.queue_key("_kombu.binding.runs.gone"), b"x")
    redis.rpush(desk.context.keys.mailbox("gone"), b"x")
    janitor = a_janitor(desk)
    janitor.sweep()
    assert redis.exists(desk.context.queue_key("runs.gone"))
    redis.delete(desk.context.keys.worker("gone"))
    janitor.sweep()
    left = [redis.exists(desk.context.queue_key(key)) for key in ("runs.gone", "_kombu.binding.runs.gone")]
    assert left == [0, 0]
    assert redis.lrange(desk.context.queue_key("runs"), 0, -1) == [b"second", b"first"]
    assert not redis.exists(desk.context.keys.mailbox("gone"))
    assert desk.context.presence.dead_workers() == []


def test_a_run_whose_transcript_cannot_be_read_is_ended_as_it_is(sqlite_desk: Desk) -> None:
    desk = sqlite_desk
    broken, fine = a_lost_run(desk), a_lost_run(desk)
    with desk.db() as db:
        factories.messages.answer_of(db, broken).transcript = {"items": [{"type": "text", "part": "x"}]}
    a_janitor(desk).sweep()
    assert desk.state(fine) == desk.state(broken) == "interrupted"
    assert desk.answer(broken).content == "saved"
