"""The queue of a session: submitted once, changed while it waits, held and let go on."""

import pytest
from sqlalchemy.orm import Session

from shared.errors import Conflict, NotFound, QueueFull
from shared.models import ChatSession, Run
from shared.run_state import EndReason, RunState
from shared.store import chat_sessions, messages, runs, users
from tests.factories import a_queued_run, a_run, a_session

S = RunState


def submit(
    db: Session, session: ChatSession, text: str, queue_id: str, *, limit: int = 100, body: str | None = None
) -> runs.Enqueued:
    user = users.get(db, session.owner_id)
    return runs.enqueue(
        db, session=session, user=user, input=text, source="api_server",
        queue_id=queue_id, body_hash=runs.hash_body(input=body or text), limit=limit,
    )  # fmt: skip


def order(db: Session, session: ChatSession) -> list[str]:
    return [run.input for run in runs.queue(db, session.id)]


def fail(db: Session, run: Run, *, state: RunState = S.FAILED, reason: EndReason | None = None) -> runs.Finished:
    return runs.finish(db, run.id, S.RUNNING, state, fence=run.fence, reason=reason, content="half", transcript=None)


# ---- submitting


def test_a_submit_makes_a_run_and_the_users_message(db: Session) -> None:
    session = a_session(db)
    made = submit(db, session, "Hello", "q1")
    assert made.created
    assert (made.place, made.queue_length, made.held, made.titled) == (0, 1, None, True)
    assert (made.message.role, made.message.status, made.message.content) == ("USER", "SENT", "Hello")
    assert (made.run.state, made.run.fence, made.run.position, session.next_position) == (S.QUEUED, 0, 1, 2)
    assert session.last_message_at == made.run.created_at


def test_the_same_key_and_body_is_the_same_run(db: Session) -> None:
    session = a_session(db)
    first = submit(db, session, "Hello", "q1")
    again = submit(db, session, "Hello", "q1")
    assert (again.run.id, again.message.id, again.created, again.place) == (first.run.id, first.message.id, False, 0)
    assert len(messages.page(db, session.id)) == 1
    assert session.next_position == 2
    a_run(db, session, state=S.COMPLETED)
    runs.cancel_queued(db, first.run.id, by=None)
    assert submit(db, session, "Hello", "q1").run.id == first.run.id, "also when it has ended"


def test_the_same_key_with_another_body_is_a_conflict(db: Session) -> None:
    session = a_session(db)
    first = submit(db, session, "Hello", "q1")
    with pytest.raises(Conflict) as refused:
        submit(db, session, "Good bye", "q1")
    assert refused.value.code == "queue_id_reused"
    assert first.run.input == "Hello"
    assert submit(db, a_session(db), "Good bye", "q1").created, "keys are a session's own"


def test_the_hash_of_a_body_is_that_of_its_meaning() -> None:
    assert runs.hash_body(input="a", model=None) == runs.hash_body(input="a")
    assert runs.hash_body(input="a", model="m") == runs.hash_body(model="m", input="a")
    assert runs.hash_body(input="a") != runs.hash_body(input="b")
    assert runs.hash_body(input="a", model="m") != runs.hash_body(input="a", source="m")


def test_a_full_queue_takes_no_more_but_still_knows_what_it_has(db: Session) -> None:
    session = a_session(db)
    for number in range(3):
        submit(db, session, "x", f"q{number}", limit=3)
    with pytest.raises(QueueFull):
        submit(db, session, "x", "q3", limit=3)
    assert not submit(db, session, "x", "q1", limit=3).created


def test_places_in_the_queue_are_told(db: Session) -> None:
    session = a_session(db)
    assert [submit(db, session, "x", f"q{n}").place for n in range(3)] == [0, 2, 3]
    busy = a_session(db)
    a_run(db, busy, state=S.RUNNING)
    assert [submit(db, busy, "x", f"q{n}").place for n in range(2)] == [1, 2]
    assert [submit(db, busy, "x", f"q{n}").place for n in range(2)] == [1, 2], "and again"


def test_a_turn_joins_the_end_of_a_held_queue_and_is_told_so(db: Session) -> None:
    made = submit(db, a_session(db, held_reason="interrupted"), "x", "q")
    assert (made.place, made.held) == (1, "interrupted")


def test_the_title_comes_from_the_first_message_only(db: Session) -> None:
    session = a_session(db)
    submit(db, session, "👨‍👩‍👧‍👦" * 40, "q1")
    assert session.title == "👨‍👩‍👧‍👦" * 30
    assert not submit(db, session, "Another", "q2").titled
    edited = a_session(db, title="Mine", title_edited=True)
    submit(db, edited, "Another", "q1")
    assert edited.title == "Mine"


def test_nothing_is_submitted_to_a_deleted_session(db: Session) -> None:
    session = a_session(db)
    chat_sessions.delete(db, session.id)
    with pytest.raises(NotFound):
        submit(db, session, "x", "q")


# ---- changing what waits


def test_a_waiting_turn_can_be_edited_and_a_late_repetition_of_its_submit_is_still_the_same(db: Session) -> None:
    session = a_session(db)
    made = submit(db, session, "Helo", "q1")
    assert runs.edit_queued(db, session.id, "q1", input="Hello").input == "Hello"
    assert made.message.content == "Hello"
    assert submit(db, session, "Helo", "q1").run.id == made.run.id
    assert made.run.input == "Hello"


@pytest.mark.parametrize("state", [S.STARTING, S.RUNNING, S.COMPLETED, S.CANCELLED])
def test_a_turn_that_started_or_ended_cannot_be_changed(db: Session, state: RunState) -> None:
    session = a_session(db)
    run = a_run(db, session, state=state)
    for change in (
        lambda: runs.edit_queued(db, session.id, run.queue_id, input="late"),
        lambda: runs.move_queued(db, session.id, run.queue_id, 1),
    ):
        with pytest.raises(Conflict) as refused:
            change()
        assert refused.value.code == "not_queued"
    assert not runs.cancel_queued(db, run.id, by="Ann")
    assert (run.input, run.state) == ("Hello", state)


def test_a_turn_of_another_session_is_not_found(db: Session) -> None:
    run = a_queued_run(db)
    with pytest.raises(NotFound):
        runs.edit_queued(db, a_session(db).id, run.queue_id, input="x")


@pytest.mark.parametrize(
    ("moved", "place", "then"),
    [
        ("c", 1, ["c", "a", "b", "d"]),
        ("a", 4, ["b", "c", "d", "a"]),
        ("b", 99, ["a", "c", "d", "b"]),
        ("d", 0, ["d", "a", "b", "c"]),
        ("b", 2, ["a", "b", "c", "d"]),
    ],
)
def test_a_move_gives_new_numbers_above_the_highest(db: Session, moved: str, place: int, then: list[str]) -> None:
    session = a_session(db)
    a_run(db, session, state=S.RUNNING)
    for name in "abcd":
        submit(db, session, name, name)
    assert [run.input for run in runs.move_queued(db, session.id, moved, place)] == then
    assert order(db, session) == then
    assert [run.position for run in runs.queue(db, session.id)] == [6, 7, 8, 9]
    assert session.next_position == 10
    shown = [m.content for m in messages.page(db, session.id) if m.role == "USER"]
    assert shown == ["Hello", *then], "the messages follow"
    assert submit(db, session, "e", "e").run.position == 10


def test_runs_start_in_the_order_a_person_gave_them(db: Session) -> None:
    session = a_session(db)
    for name in "abc":
        submit(db, session, name, name)
    runs.move_queued(db, session.id, "c", 1)
    started = []
    while (head := runs.head(db, session.id)) is not None:
        fence = runs.claim(db, head.id, worker_id="w", lease_s=90)
        assert fence is not None
        runs.begin(db, head.id, fence=fence)
        runs.finish(db, head.id, S.RUNNING, S.COMPLETED, fence=fence, content="", transcript=None)
        started.append(head.input)
    assert started == ["c", "a", "b"]


def test_a_withdrawn_turn_leaves_its_message_marked(db: Session) -> None:
    session = a_session(db)
    made = submit(db, session, "a", "a")
    assert runs.cancel_queued(db, made.run.id, by="Ann")
    assert (made.run.state, made.run.abort_by, made.message.status) == (S.CANCELLED, "Ann", "CANCELLED")
    assert not runs.cancel_queued(db, made.run.id, by="Bob")
    assert made.run.abort_by == "Ann"


# ---- after a failure


@pytest.mark.parametrize(
    ("state", "reason", "held"),
    [(S.FAILED, None, "failed"), (S.INTERRUPTED, EndReason.WORKER_LOST, "worker_lost")],
)
def test_after_a_failure_the_queue_is_held_until_a_person_says_go_on(
    db: Session, state: RunState, reason: EndReason | None, held: str
) -> None:
    session = a_session(db)
    run = a_run(db, session, state=S.RUNNING)
    waits = a_queued_run(db, session)
    assert fail(db, run, state=state, reason=reason).held
    assert (session.held_reason, session.held_by_run_id) == (held, run.id)
    assert session.held_at is not None
    assert runs.head(db, session.id) is None
    assert runs.release_queue(db, session.id)
    assert (session.held_reason, session.held_by_run_id, session.held_at_db) == (None, None, None)
    assert runs.head(db, session.id) is waits
    assert not runs.release_queue(db, session.id), "it was not held"


def test_a_failure_with_an_empty_queue_holds_nothing(db: Session) -> None:
    session = a_session(db)
    assert not fail(db, a_run(db, session, state=S.RUNNING)).held
    assert session.held_reason is None


def test_with_continue_the_queue_goes_on(db: Session) -> None:
    session = a_session(db, on_failure="continue")
    run = a_run(db, session, state=S.RUNNING)
    waits = a_queued_run(db, session)
    assert not fail(db, run).held
    assert runs.head(db, session.id) is waits


def test_with_cancel_all_that_waits_is_cancelled(db: Session) -> None:
    session = a_session(db, on_failure="cancel")
    run = a_run(db, session, state=S.RUNNING)
    waiting = [a_queued_run(db, session) for _ in range(2)]
    assert [r.id for r in fail(db, run).cancelled] == [r.id for r in waiting]
    assert {r.state for r in waiting} == {S.CANCELLED}
    assert [m.status for m in messages.page(db, session.id)] == ["SENT", "FAILED", "CANCELLED", "CANCELLED"]


@pytest.mark.parametrize("policy", ["hold", "cancel"])
@pytest.mark.parametrize(("source", "target"), [(S.ABORTING, S.ABORTED), (S.RUNNING, S.COMPLETED)])
def test_after_an_abort_or_a_good_end_the_queue_goes_on(
    db: Session, policy: str, source: RunState, target: RunState
) -> None:
    session = a_session(db, on_failure=policy)
    run = a_run(db, session, state=source)
    waits = a_queued_run(db, session)
    runs.finish(db, run.id, source, target, fence=1, content="", transcript=None)
    assert runs.head(db, session.id) is waits
