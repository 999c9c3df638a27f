"""A run in the hands of a worker: claim, lease, progress, end; and what a janitor finds."""

import time

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session, sessionmaker

from shared.database import db_now, db_time, transaction
from shared.errors import LeaseLost, NotFound
from shared.models import Run
from shared.run_state import ACTIVE, FINAL, EndReason, RunState
from shared.store import chat_sessions, messages, pauses, runs
from tests.factories import a_queued_run, a_run, a_session, a_user

S = RunState


def claim(db: Session, run: Run, worker: str = "w1", lease_s: float = 90) -> int | None:
    return runs.claim(db, run.id, worker_id=worker, lease_s=lease_s)


# ---- the claim


def test_a_claim_gives_a_new_fence_and_a_lease_by_the_database_clock(db: Session) -> None:
    run = a_queued_run(db)
    assert claim(db, run) == 1
    assert (run.state, run.fence, run.worker_id) == (S.STARTING, 1, "w1")
    assert run.lease_until_db == pytest.approx(db_time(db) + 90, abs=2)
    assert run.starting_at is not None


def test_only_the_head_of_the_session_can_be_claimed(db: Session) -> None:
    session = a_session(db)
    first, second = a_queued_run(db, session), a_queued_run(db, session)
    assert claim(db, second) is None
    assert claim(db, first) == 1
    assert claim(db, second) is None, "one is active"
    runs.begin(db, first.id, fence=1)
    runs.finish(db, first.id, S.RUNNING, S.COMPLETED, fence=1, content="done", transcript=None)
    assert claim(db, second) == 1


def test_other_sessions_are_not_in_the_way(db: Session) -> None:
    a_run(db, state=S.RUNNING)
    assert claim(db, a_queued_run(db)) == 1


def test_a_held_queue_gives_nothing(db: Session) -> None:
    session = a_session(db, held_reason="failed")
    run = a_queued_run(db, session)
    assert claim(db, run) is None
    assert runs.head(db, session.id) is None
    runs.release_queue(db, session.id)
    assert runs.head(db, session.id) is run
    assert claim(db, run) == 1


def test_nothing_starts_in_a_deleted_session(db: Session) -> None:
    run = a_queued_run(db)
    chat_sessions.delete(db, run.session_id)
    assert claim(db, run) is None
    assert runs.to_dispatch(db, again_s=30) == []


@pytest.mark.parametrize("state", sorted(ACTIVE | FINAL))
def test_a_late_or_doubled_delivery_changes_nothing(db: Session, state: RunState) -> None:
    run = a_run(db, state=state, fence=3)
    assert claim(db, run) is None
    assert runs.claim(db, "no such run", worker_id="w", lease_s=90) is None
    assert runs.state_and_fence(db, run.id) == (state, 3)


# ---- driving


def test_a_turn_from_claim_to_end(db: Session) -> None:
    session = a_session(db)
    run = a_queued_run(db, session, text="Which day is it?")
    fence = claim(db, run)
    assert fence == 1
    answer = runs.begin(db, run.id, fence=fence, model="m1")
    assert (answer.status, answer.model, answer.position) == ("RUNNING", "m1", run.position * 2 + 1)
    runs.save_progress(db, run.id, fence=fence, content="Mon", transcript={"text": "Mon"}, epoch="e1", seq=7)
    assert (answer.content, run.flushed_epoch, run.flushed_seq) == ("Mon", "e1", 7)
    ended = runs.finish(
        db, run.id, S.RUNNING, S.COMPLETED, fence=fence, content="Monday", transcript={"text": "Monday"},
        usage={"input_tokens": 5, "output_tokens": 2}, epoch="e1", seq=9,
    )  # fmt: skip
    assert (ended.message.status, ended.message.content, ended.message.output_tokens) == ("SUCCESS", "Monday", 2)
    assert messages.transcript_of(ended.message) == {"text": "Monday"}
    assert ended.message.completed_at == run.ended_at is not None
    assert (session.total_input_tokens, session.total_output_tokens) == (5, 2)
    assert [m.role for m in messages.page(db, session.id)] == ["USER", "ASSISTANT"]
    assert session.title == "Which day is it?"


def test_a_worker_that_lost_its_run_can_write_nothing(db: Session) -> None:
    run = a_run(db, state=S.RUNNING, fence=1, answer="kept")
    runs.finish(
        db, run.id, S.RUNNING, S.INTERRUPTED,
        fence=1, raise_fence=True, reason=EndReason.WORKER_LOST, content=None, transcript=None,
    )  # fmt: skip
    assert run.fence == 2
    with pytest.raises(LeaseLost):
        runs.save_progress(db, run.id, fence=1, content="late", transcript={}, epoch="e", seq=1)
    with pytest.raises(LeaseLost):
        runs.finish(db, run.id, S.RUNNING, S.COMPLETED, fence=1, content="late", transcript=None)
    with pytest.raises(LeaseLost):
        pauses.open(
            db, run_id=run.id, fence=1, session_id=run.session_id, kind="approval", tool="t", request={}, timeout_s=1
        )
    assert runs.renew_leases(db, [(run.id, 1), (run.id, 2)], 90) == set()
    answer = messages.answer_of(db, run.id)
    assert answer is not None
    assert (answer.content, answer.status) == ("kept", "INTERRUPTED")


def test_leases_are_renewed_for_what_is_still_ours(db: Session) -> None:
    mine, lost, ended = a_run(db, fence=2, lease_s=1), a_run(db, fence=5, lease_s=1), a_run(db, state=S.COMPLETED)
    assert runs.renew_leases(db, [(mine.id, 2), (lost.id, 4), (ended.id, 1)], 90) == {mine.id}
    assert runs.renew_leases(db, [], 90) == set()
    assert mine.lease_until_db is not None
    assert lost.lease_until_db is not None
    assert mine.lease_until_db > lost.lease_until_db + 80


def test_a_large_transcript_is_kept_compressed(db: Session) -> None:
    run = a_run(db, state=S.RUNNING)
    large = {"text": "流" * 300_000}
    runs.save_progress(db, run.id, fence=1, content="", transcript=large, epoch="e", seq=1)
    answer = messages.answer_of(db, run.id)
    assert answer is not None
    assert answer.transcript is None
    assert answer.transcript_z is not None
    assert len(answer.transcript_z) < 100_000
    assert messages.transcript_of(answer) == large
    runs.save_progress(db, run.id, fence=1, content="", transcript={"text": "small"}, epoch="e", seq=2)
    db.refresh(answer)
    assert answer.transcript_z is None
    assert messages.transcript_of(answer) == {"text": "small"}


def test_a_transaction_that_fails_after_the_end_leaves_nothing_of_it(factory: sessionmaker[Session]) -> None:
    with transaction(factory) as db:
        run = a_run(db, state=S.RUNNING, answer="so far")

    def finish_twice() -> None:
        with transaction(factory) as db:
            for _ in range(2):
                runs.finish(db, run.id, S.RUNNING, S.COMPLETED, fence=1, content="all", transcript={})

    with pytest.raises(LeaseLost):
        finish_twice()
    with transaction(factory) as db:
        assert runs.state_and_fence(db, run.id)[0] == S.RUNNING
        answer = messages.answer_of(db, run.id)
        assert answer is not None
        assert (answer.content, answer.status) == ("so far", "RUNNING")


def test_an_answer_finished_before_the_abort_arrived_is_kept(db: Session) -> None:
    run = a_run(db, state=S.RUNNING)
    assert runs.request_abort(db, run.id, by_name="Ann") == S.ABORTING
    ended = runs.finish(db, run.id, S.ABORTING, S.COMPLETED, fence=1, content="All of it", transcript=None)
    assert (ended.message.status, run.reason, run.abort_by) == ("SUCCESS", None, "Ann")


def test_a_run_stopped_before_it_began_shows_that_it_was_stopped(db: Session) -> None:
    run = a_run(db, state=S.STARTING)
    runs.request_abort(db, run.id, by_name="Ann")
    ended = runs.finish(db, run.id, S.ABORTING, S.ABORTED, fence=1, content=None, transcript=None)
    assert (ended.message.status, ended.message.content, run.reason) == ("STOPPED", "", EndReason.USER)
    assert [m.status for m in messages.page(db, run.session_id)] == ["SENT", "STOPPED"]


# ---- requests to stop


@pytest.mark.parametrize(
    ("state", "then"),
    [
        (S.QUEUED, S.CANCELLED),
        (S.STARTING, S.ABORTING),
        (S.RUNNING, S.ABORTING),
        (S.AWAITING_APPROVAL, S.ABORTING),
        (S.AWAITING_CLARIFICATION, S.ABORTING),
        (S.ABORTING, S.ABORTING),
        *((state, state) for state in sorted(FINAL)),
    ],
)
def test_asking_to_stop_in_each_state(db: Session, state: RunState, then: RunState) -> None:
    run = a_run(db, state=state, fence=4, abort_requested_at_db=5.0 if state == S.ABORTING else None)
    fence = run.fence
    assert runs.request_abort(db, run.id, by_name="Ann") == then
    assert runs.state_and_fence(db, run.id) == (then, fence), "the worker must still be able to say how it ended"
    if then == S.ABORTING != state:
        assert run.abort_requested_at_db == pytest.approx(db_time(db), abs=2)
        assert run.abort_by == "Ann"
    if state == S.ABORTING:
        assert run.abort_requested_at_db == 5.0, "the first request counts"


def test_stopping_a_session_cancels_what_waits_and_aborts_what_runs(db: Session) -> None:
    session = a_session(db)
    running = a_run(db, session, state=S.RUNNING)
    waiting = [a_queued_run(db, session) for _ in range(2)]
    assert {run.id for run in runs.stop_all(db, session.id, by_name="Ann")} == {r.id for r in [running, *waiting]}
    assert [run.state for run in [running, *waiting]] == [S.ABORTING, S.CANCELLED, S.CANCELLED]


def test_all_of_one_user_is_stopped_and_nothing_of_another(db: Session) -> None:
    ada, bob = a_user(db, login="ada"), a_user(db, login="bob")
    hers, other = a_session(db, owner=ada), a_session(db, owner=ada)
    running, waiting = a_run(db, hers), a_queued_run(db, hers)
    elsewhere = a_queued_run(db, other)
    ended = a_run(db, other, state=RunState.COMPLETED)
    his = a_queued_run(db, a_session(db, owner=bob))
    assert runs.stop_all_of_user(db, ada.id, by_name="Ann") == (2, 1)
    assert [runs.get(db, run.id).state for run in (running, waiting, elsewhere, ended, his)] == [
        "aborting", "cancelled", "cancelled", "completed", "queued",
    ]  # fmt: skip
    assert runs.stop_all_of_user(db, ada.id, by_name="Ann") == (0, 1)


def test_an_unknown_run_is_not_found(db: Session) -> None:
    for ask in (runs.get, runs.state_and_fence):
        with pytest.raises(NotFound):
            ask(db, "nobody")
    with pytest.raises(NotFound):
        runs.request_abort(db, "nobody", by_name=None)


# ---- what a janitor looks for


def test_heads_that_were_never_dispatched_are_to_be(db: Session) -> None:
    session = a_session(db)
    first = a_queued_run(db, session)
    a_queued_run(db, session)
    busy = a_session(db)
    a_run(db, busy, state=S.RUNNING)
    a_queued_run(db, busy)
    held = a_session(db, held_reason="failed")
    a_queued_run(db, held)
    other = a_queued_run(db)
    assert [run.id for run in runs.to_dispatch(db, again_s=30)] == [first.id, other.id]


def test_dispatches_are_repeated_after_growing_gaps(db: Session) -> None:
    run = a_queued_run(db)
    runs.mark_dispatched(db, run.id)
    assert run.dispatches == 1

    def is_due(dispatches: int, ago_s: float, **how: bool) -> bool:
        columns = {"dispatches": dispatches, "dispatched_at_db": db_now() - ago_s}
        db.execute(update(Run).where(Run.id == run.id).values(**columns))
        return bool(runs.to_dispatch(db, again_s=30, **how))

    gaps = {1: 30, 2: 60, 3: 120, 4: 240, 5: 480, 6: 600, 40: 600}
    for dispatches, gap_s in gaps.items():
        assert not is_due(dispatches, gap_s - 2)
        assert is_due(dispatches, gap_s + 2)
    assert is_due(40, 8, is_broker_empty=True), "an empty broker has lost the task"
    assert not is_due(40, 1, is_broker_empty=True), "but it may be on its way this moment"


def test_a_start_that_failed_goes_back_and_fails_at_the_third(db: Session) -> None:
    run = a_queued_run(db)
    runs.mark_dispatched(db, run.id)
    for attempt in (1, 2):
        fence = claim(db, run)
        assert fence is not None
        assert runs.back_to_queue(db, run.id, fence) is None
        assert (run.state, run.attempt, run.worker_id, run.dispatched_at_db) == (S.QUEUED, attempt, None, None)
        assert run.fence == fence + 1
    fence = claim(db, run)
    assert fence is not None
    ended = runs.back_to_queue(db, run.id, fence)
    assert ended is not None
    assert (run.state, run.reason, ended.message.status) == (S.FAILED, EndReason.START_FAILED, "FAILED")
    assert ended.message.error
    assert [m.content for m in messages.page(db, run.session_id)] == ["Hello", ""]


def test_a_start_cannot_go_back_under_an_old_fence(db: Session) -> None:
    run = a_run(db, state=S.STARTING, fence=3)
    with pytest.raises(LeaseLost):
        runs.back_to_queue(db, run.id, 2)


def test_leases_end_by_the_database_clock(db: Session) -> None:
    over = [a_run(db, state=state, lease_s=-1) for state in sorted(ACTIVE)]
    a_run(db, state=S.RUNNING, lease_s=5)
    a_run(db, state=S.COMPLETED)
    a_queued_run(db)
    assert {run.id for run in runs.expired_leases(db)} == {run.id for run in over}


def test_overdue_aborts_are_found(db: Session) -> None:
    overdue = a_run(db, state=S.ABORTING, abort_requested_at_db=db_time(db) - 31)
    a_run(db, state=S.ABORTING, abort_requested_at_db=db_time(db) - 29)
    assert [run.id for run in runs.overdue_aborts(db, 30)] == [overdue.id]


def test_time_held_does_not_count_towards_the_24_hours(db: Session) -> None:
    now = db_time(db)
    session = a_session(db, held_reason="failed", held_at_db=now - 20 * 3600)
    waited = a_queued_run(db, session)
    waited.queued_at_db = now - 30 * 3600  # ten hours before the queue was held
    later = a_queued_run(db, session)
    later.queued_at_db = now - 2 * 3600  # while it was
    db.flush()
    assert runs.too_old(db) == [], "the queue is held"
    assert runs.release_queue(db, session.id)
    assert waited.held_seconds == pytest.approx(20 * 3600, abs=5)
    assert later.held_seconds == pytest.approx(2 * 3600, abs=5)
    assert runs.too_old(db) == []
    waited.queued_at_db -= 15 * 3600
    db.flush()
    assert [run.id for run in runs.too_old(db)] == [waited.id]
    ended = runs.finish(
        db, waited.id, S.QUEUED, S.FAILED, fence=0, reason=EndReason.TOO_OLD, content=None, transcript=None
    )
    assert (ended.message.status, ended.held) == ("FAILED", True)


def test_the_database_clock_is_that_of_the_world_and_moves(db: Session) -> None:
    earlier = time.time()
    before = db_time(db)
    assert earlier - 0.1 <= before <= time.time() + 0.1
    time.sleep(0.02)
    assert 0.01 < db_time(db) - before < 60, "it must move within a transaction, with fractions of a second"


def test_counts_by_state(db: Session) -> None:
    a_run(db, state=S.RUNNING)
    a_queued_run(db)
    a_queued_run(db)
    a_run(db, state=S.COMPLETED)
    assert runs.counts(db) == {"running": 1, "queued": 2}
