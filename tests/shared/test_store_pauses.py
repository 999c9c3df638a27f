"""Approvals and clarifications: decided once, by the database's clock, and only while the run still waits."""

import pytest
from sqlalchemy.orm import Session

from shared.database import db_now, db_time
from shared.errors import AlreadyDecided, Expired, LeaseLost, NotFound
from shared.models import Pause, Run
from shared.run_state import EndReason, RunState
from shared.store import pauses, runs, users
from tests.factories import a_run, a_session, a_user

S = RunState


def ask(db: Session, run: Run, *, kind: pauses.Kind = "approval", timeout_s: float | None = 60) -> Pause:
    return pauses.open(
        db, run_id=run.id, fence=run.fence, session_id=run.session_id, kind=kind, tool="shell",
        request={"command": "rm -r build", "choices": ["once", "deny"]}, timeout_s=timeout_s,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "state"), [("approval", S.AWAITING_APPROVAL), ("clarification", S.AWAITING_CLARIFICATION)]
)
def test_a_run_waits_until_it_is_answered(db: Session, kind: pauses.Kind, state: RunState) -> None:
    run = a_run(db, state=S.RUNNING)
    pause = ask(db, run, kind=kind)
    assert (run.state, pause.state, pause.fence) == (state, "pending", run.fence)
    assert pause.expires_at_db == pytest.approx(db_time(db) + 60, abs=2)
    assert pause.args_hash == pauses.hash_request(pause.request)
    assert not pauses.resume_run(db, run.id, run.fence), "nobody has answered"
    person = a_user(db)
    answered = pauses.answer(db, pause.id, user=person, choice="once", reason="fine")
    assert (answered.state, answered.choice, answered.by_id, answered.by_name) == (
        "answered", "once", person.id, person.name,
    )  # fmt: skip
    assert answered.decided_at is not None
    assert pauses.resume_run(db, run.id, run.fence)
    assert run.state == S.RUNNING
    assert not pauses.resume_run(db, run.id, run.fence), "it runs already"


@pytest.mark.parametrize("none", [None, 0])
def test_without_a_limit_it_never_expires(db: Session, none: float | None) -> None:
    pause = ask(db, a_run(db, state=S.RUNNING), timeout_s=none)
    assert pause.expires_at_db is None
    assert pauses.expire_due(db) == []
    assert not pauses.expire(db, pause.id)
    assert pauses.answer(db, pause.id, user=None, choice="deny").state == "answered"


def test_the_second_answer_is_told_who_was_first(db: Session) -> None:
    pause = ask(db, a_run(db, state=S.RUNNING))
    pauses.answer(db, pause.id, user=a_user(db, login="ann"), choice="deny")
    with pytest.raises(AlreadyDecided, match="Ann has decided this already: deny"):
        pauses.answer(db, pause.id, user=a_user(db, login="bob"), choice="always")
    assert pauses.get(db, pause.id).choice == "deny"


def test_an_answer_after_the_deadline_is_refused_though_nobody_closed_it_yet(db: Session) -> None:
    pause = ask(db, a_run(db, state=S.RUNNING))
    pause.expires_at_db = db_time(db) - 0.5
    db.flush()
    with pytest.raises(Expired):
        pauses.answer(db, pause.id, user=None, choice="once")
    assert [p.id for p in pauses.expire_due(db)] == [pause.id]
    assert pauses.expire_due(db) == []
    with pytest.raises(Expired):
        pauses.answer(db, pause.id, user=None, choice="once")
    assert (pause.state, pause.choice) == ("expired", None)


def test_only_what_is_due_expires(db: Session) -> None:
    due, later = ask(db, a_run(db, state=S.RUNNING)), ask(db, a_run(db, state=S.RUNNING))
    due.expires_at_db = db_now() - 1
    db.flush()
    assert not pauses.expire(db, later.id)
    assert pauses.expire(db, due.id)
    assert not pauses.expire(db, due.id)
    assert later.state == "pending"


def test_an_answer_after_an_abort_is_refused(db: Session) -> None:
    run = a_run(db, state=S.RUNNING)
    pause = ask(db, run)
    runs.request_abort(db, run.id, by_name="Ann")
    with pytest.raises(AlreadyDecided, match="no longer waits"):
        pauses.answer(db, pause.id, user=None, choice="once")
    ended = runs.finish(db, run.id, S.ABORTING, S.ABORTED, fence=1, content=None, transcript=None)
    assert [p.id for p in ended.withdrawn] == [pause.id]
    assert pauses.get(db, pause.id).state == "withdrawn"


def test_an_answer_for_an_old_fence_is_refused(db: Session) -> None:
    run = a_run(db, state=S.RUNNING)
    pause = ask(db, run)
    pause.fence = run.fence - 1
    db.flush()
    with pytest.raises(AlreadyDecided):
        pauses.answer(db, pause.id, user=None, choice="once")


def test_when_a_run_ends_what_it_waited_for_is_withdrawn(db: Session) -> None:
    run = a_run(db, state=S.RUNNING)
    pause = ask(db, run)
    runs.finish(
        db, run.id, S.AWAITING_APPROVAL, S.INTERRUPTED,
        fence=1, reason=EndReason.BACKEND_LOST, content=None, transcript=None,
    )  # fmt: skip
    assert pauses.get(db, pause.id).state == "withdrawn"
    assert pauses.open_pauses(db, run.session_id) == []


def test_a_run_with_two_open_goes_on_when_both_are_decided(db: Session) -> None:
    run = a_run(db, state=S.RUNNING)
    first, second = ask(db, run), ask(db, run, kind="clarification", timeout_s=None)
    assert run.state == S.AWAITING_APPROVAL
    assert [p.id for p in pauses.open_pauses(db, run.session_id)] == [first.id, second.id]
    pauses.answer(db, first.id, user=None, choice="once")
    assert not pauses.resume_run(db, run.id, run.fence)
    assert pauses.withdraw(db, second.id)
    assert not pauses.withdraw(db, second.id)
    assert pauses.resume_run(db, run.id, run.fence)


@pytest.mark.parametrize("state", [S.STARTING, S.ABORTING, S.COMPLETED])
def test_a_run_that_does_not_run_cannot_ask(db: Session, state: RunState) -> None:
    run = a_run(db, state=state)
    with pytest.raises(LeaseLost):
        ask(db, run)
    with pytest.raises(LeaseLost):
        pauses.resume_run(db, run.id, run.fence)


def test_an_unknown_one_is_not_found(db: Session) -> None:
    with pytest.raises(NotFound):
        pauses.answer(db, "nothing", user=None, choice="once")


def test_the_inbox_holds_what_waits_in_my_sessions(db: Session) -> None:
    session = a_session(db)
    mine = ask(db, a_run(db, session, state=S.RUNNING))
    ask(db, a_run(db, state=S.RUNNING))
    deleted = a_session(db, owner=users.get(db, session.owner_id))
    ask(db, a_run(db, deleted, state=S.RUNNING))
    deleted.deleted_at = deleted.created_at
    answered = ask(db, a_run(db, a_session(db, owner=users.get(db, session.owner_id)), state=S.RUNNING))
    pauses.answer(db, answered.id, user=None, choice="once")
    found = pauses.open_for(db, users.get(db, session.owner_id))
    assert [(pause.id, of.id) for pause, of in found] == [(mine.id, session.id)]
