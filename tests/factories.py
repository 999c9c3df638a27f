"""Rows for tests: each maker gives sensible values and takes those that the test is about."""

from typing import Any

from sqlalchemy.orm import Session

from shared import clock, ids
from shared.database import db_now
from shared.models import ChatMessage, ChatSession, Run, User
from shared.run_state import ACTIVE, FINAL, RunState
from shared.store import chat_sessions, messages, runs, users

ANSWER_STATUS = {
    RunState.COMPLETED: "SUCCESS",
    RunState.FAILED: "FAILED",
    RunState.ABORTED: "STOPPED",
    RunState.INTERRUPTED: "INTERRUPTED",
}


def a_user(db: Session, *, login: str | None = None, role: str = "member", **columns: Any) -> User:
    login = login or f"user{ids.new_id()}"
    user = users.create_user(db, login=login, name=login.title(), role=role, password_hash=None)
    for name, value in columns.items():
        setattr(user, name, value)
    db.flush()
    return user


def a_session(db: Session, *, owner: User | None = None, source: str = "api_server", **columns: Any) -> ChatSession:
    session = chat_sessions.create(db, owner=owner or a_user(db), source=source)
    for name, value in columns.items():
        setattr(session, name, value)
    db.flush()
    return session


def a_queued_run(db: Session, session: ChatSession | None = None, *, text: str = "Hello", **given: Any) -> Run:
    """A run made by the product's own submit."""
    session = session or a_session(db)
    user = users.get(db, session.owner_id)
    queue_id = given.pop("queue_id", None) or ids.new_id()
    given = {"source": session.source, "limit": 10_000, "body_hash": runs.hash_body(input=text), **given}
    return runs.enqueue(db, session=session, user=user, input=text, queue_id=queue_id, **given).run


def a_run(
    db: Session,
    session: ChatSession | None = None,
    *,
    state: RunState = RunState.RUNNING,
    fence: int = 1,
    lease_s: float = 90,
    text: str = "Hello",
    answer: str = "",
    **columns: Any,
) -> Run:
    """A run put straight into a state, with the messages that belong to it."""
    run = a_queued_run(db, session, text=text)
    run.state, run.fence = state.value, fence if state != RunState.QUEUED else 0
    if state in ACTIVE:
        run.worker_id, run.lease_until_db = "worker-1", db_now() + lease_s
        run.starting_at = clock.now()
    if state in ACTIVE - {RunState.STARTING} or state in ANSWER_STATUS:
        run.begun_at = clock.now()
        status = ANSWER_STATUS.get(state, "RUNNING")
        message: ChatMessage = messages.add_answer(db, run, status=status)
        message.content = answer
        message.completed_at = clock.now() if state in FINAL else None
    if state == RunState.ABORTING:
        run.abort_requested_at_db = db_now()
    if state in FINAL:
        run.ended_at = clock.now()
    for name, value in columns.items():
        setattr(run, name, value)
    db.flush()
    db.refresh(run)
    return run
