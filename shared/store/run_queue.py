"""The queue of a session: submit once, change what waits, hold and go on. Use it as `shared.store.runs`.

Whatever changes a queue locks the row of its session first, so that two of them, a claim and the end of a run follow
each other.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import bindparam, case, exists, func, select, update
from sqlalchemy.orm import Session

from shared import clock, ids
from shared.database import db_now, rows_changed
from shared.errors import Conflict, LeaseLost, NotFound, QueueFull
from shared.models import ChatMessage, ChatSession, Run, User
from shared.run_state import RunState
from shared.store import messages
from shared.store.run_moves import active, get, is_active, is_queued, move, state_and_fence
from shared.titles import title_from


@dataclass(frozen=True)
class Enqueued:
    """`place`: 0 when it starts at once, else its place in the queue. `held`: why the queue waits for a person.
    `titled`: the session got its title from this message."""

    run: Run
    message: ChatMessage
    created: bool
    place: int
    queue_length: int
    held: str | None = None
    titled: bool = False


def hash_body(**fields: Any) -> str:
    """SHA-256 of what was submitted, whatever the order of its fields; None counts as absent."""
    given = {name: value for name, value in fields.items() if value is not None}
    text = json.dumps(given, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def lock(db: Session, session_id: str) -> ChatSession:
    """The session, its row locked until the end of the transaction and read anew. Raises NotFound."""
    session = db.scalars(_LOCKED, {"session_id": session_id}).one_or_none()
    if session is None:
        raise NotFound("There is no such session.")
    return session


# Asked with every turn that is submitted: put together once, SQLAlchemy knows them again.
_LOCKED: Final = (
    select(ChatSession)
    .where(ChatSession.id == bindparam("session_id"))
    .with_for_update(key_share=True)
    .execution_options(populate_existing=True)
)
_BY_KEY: Final = select(Run).where(Run.session_id == bindparam("session_id"), Run.queue_id == bindparam("queue_id"))
_STANDING: Final = select(
    select(Run.id)
    .where(Run.session_id == bindparam("session_id"), Run.queue_id == bindparam("queue_id"))
    .scalar_subquery()
    .label("known"),
    select(func.count())
    .where(Run.session_id == bindparam("session_id"), is_queued())
    .scalar_subquery()
    .label("waiting"),
    exists().where(Run.session_id == bindparam("session_id"), is_active()).label("one_runs"),
)


# ---- reading


def queue(db: Session, session_id: str) -> list[Run]:
    """The runs that wait, in the order in which they will start."""
    wanted = select(Run).where(Run.session_id == session_id, is_queued()).order_by(Run.position)
    return list(db.scalars(wanted))


def head(db: Session, session_id: str) -> Run | None:
    """The run that may be claimed next; None when one is active, the queue is held or nothing waits."""
    wanted = (
        select(Run)
        .join(ChatSession, ChatSession.id == Run.session_id)
        .where(Run.session_id == session_id, is_queued())
        .where(ChatSession.held_reason.is_(None), ChatSession.deleted_at.is_(None))
        .order_by(Run.position)
        .limit(1)
    )
    return None if active(db, session_id) is not None else db.scalars(wanted).one_or_none()


def by_queue_id(db: Session, session_id: str, queue_id: str) -> Run:
    """The run of that key. Raises NotFound."""
    run = _find(db, session_id, queue_id)
    if run is None:
        raise NotFound("There is no such turn in this session.")
    return run


def _find(db: Session, session_id: str, queue_id: str) -> Run | None:
    return db.scalars(_BY_KEY, {"session_id": session_id, "queue_id": queue_id}).one_or_none()


# ---- submitting


def enqueue(
    db: Session,
    *,
    session: ChatSession,
    user: User,
    input: str,
    source: str,
    queue_id: str,
    body_hash: str,
    limit: int,
    blocks: list[Any] | None = None,
    instructions: str | None = None,
    model: str | None = None,
    skill_folder: str | None = None,
    background: bool = False,
    max_iterations: int | None = None,
    retry_of: str | None = None,
    dispatched: bool = False,
) -> Enqueued:
    """Insert a queued run and the user's message, or find the run of the same key and body.

    `dispatched`: where it starts at once, note that its task was sent, as the caller does after the commit.
    Raises Conflict `queue_id_reused` for the same key with another body, QueueFull when `limit` runs wait already.
    """
    session = lock(db, session.id)
    if session.deleted_at is not None:
        raise NotFound("There is no such session.")
    known, waiting, one_runs = db.execute(_STANDING, {"session_id": session.id, "queue_id": queue_id}).one()
    if known is not None:
        return _known(db, session, get(db, known), body_hash)
    if waiting >= limit:
        raise QueueFull(f"{waiting} turns wait in this session already. Wait for one, or cancel one.")
    is_next = not waiting and session.held_reason is None and not one_runs
    run = Run(
        id=ids.new_id(),
        session_id=session.id,
        position=session.next_position,
        queue_id=queue_id,
        body_hash=body_hash,
        state=RunState.QUEUED.value,
        queued_at_db=db_now(),
        dispatched_at_db=db_now() if is_next and dispatched else None,
        dispatches=int(is_next and dispatched),
        retry_of=retry_of,
        user_id=user.id,
        user_name=user.name,
        input=input,
        blocks=blocks,
        instructions=instructions,
        model=model,
        skill_folder=skill_folder,
        source=source,
        background=background,
        max_iterations=max_iterations,
        created_at=clock.now(),
    )
    db.add(run)
    session.next_position += 1
    session.last_message_at = session.updated_at = run.created_at
    titled = not session.title and not session.title_edited
    if titled:
        session.title = title_from(input)
    message = messages.add_question(db, run, text=input, blocks=blocks)
    return Enqueued(run, message, True, 0 if is_next else waiting + 1, waiting + 1, session.held_reason, titled)


def _known(db: Session, session: ChatSession, run: Run, body_hash: str) -> Enqueued:
    if run.body_hash != body_hash:
        raise Conflict("This queue_id was used for another message in this session.", code="queue_id_reused")
    message = messages.question_of(db, run.id)
    if message is None:
        raise NotFound("The message of this turn is gone.")
    waiting = queue(db, session.id)
    place = next((n for n, waits in enumerate(waiting, 1) if waits.id == run.id), 0)
    if place == 1 and session.held_reason is None and active(db, session.id) is None:
        place = 0
    return Enqueued(run, message, False, place, len(waiting), session.held_reason)


# ---- changing what waits


def edit_queued(
    db: Session,
    session_id: str,
    queue_id: str,
    *,
    input: str,
    blocks: list[Any] | None = None,
) -> Run:
    """Change the text of a turn that waits. Its body hash stays: a late repetition of the submit is still the same.

    Raises NotFound, Conflict `not_queued` when it has started or ended.
    """
    lock(db, session_id)
    run = by_queue_id(db, session_id, queue_id)
    edit = update(Run).where(Run.id == run.id, Run.state == RunState.QUEUED).values(input=input, blocks=blocks)
    if rows_changed(db, edit.execution_options(synchronize_session=False)) != 1:
        raise _not_queued()
    message = messages.question_of(db, run.id)
    if message is not None:
        message.content, message.blocks = input, blocks
    db.flush()
    db.refresh(run)
    return run


def move_queued(db: Session, session_id: str, queue_id: str, place: int) -> list[Run]:
    """Put a waiting turn at a place (1 is the next to start); gives the queue in its new order.

    All waiting runs get new numbers above the highest, and their messages follow. Raises NotFound, Conflict
    `not_queued`.
    """
    session = lock(db, session_id)
    run = by_queue_id(db, session_id, queue_id)
    waiting = list(
        db.scalars(
            select(Run)
            .where(Run.session_id == session_id, is_queued())
            .order_by(Run.position)
            .with_for_update(key_share=True)
            .execution_options(populate_existing=True)
        )
    )
    if run not in waiting:
        raise _not_queued()
    waiting.remove(run)
    waiting.insert(max(place, 1) - 1, run)
    for waits in waiting:
        waits.position = session.next_position
        session.next_position += 1
        db.flush()
        question = messages.question_of(db, waits.id)
        if question is not None:
            question.position = messages.question_position(waits.position)
            db.flush()
    session.updated_at = clock.now()
    db.flush()
    return waiting


def cancel_queued(db: Session, run_id: str, *, by: str | None) -> bool:
    """Withdraw a turn that waits; False when it has started or ended. Nothing of it was ever sent."""
    state, fence = state_and_fence(db, run_id)
    if state != RunState.QUEUED:
        return False
    lock(db, get(db, run_id).session_id)
    return _cancel(db, run_id, fence, by)


def cancel_all_queued(db: Session, session_id: str, *, by: str | None) -> list[Run]:
    """Withdraw every turn that waits in a session whose row this transaction has locked; gives them."""
    return [run for run in queue(db, session_id) if _cancel(db, run.id, run.fence, by)]


def _cancel(db: Session, run_id: str, fence: int, by: str | None) -> bool:
    try:
        move(db, run_id, RunState.QUEUED, RunState.CANCELLED, fence=fence, reason="user", abort_by=by)
    except LeaseLost:
        return False
    question = messages.question_of(db, run_id)
    if question is not None:
        question.status = "CANCELLED"
        db.flush()
    return True


def _not_queued() -> Conflict:
    return Conflict("This turn has started already.", code="not_queued")


# ---- holding


def hold(db: Session, session: ChatSession, *, reason: str, run_id: str) -> None:
    """Let the queue of a locked session wait for a person."""
    session.held_reason = reason
    session.held_by_run_id = run_id
    session.held_at = clock.now()
    session.held_at_db = db_now()
    db.flush()
    db.refresh(session)


def release_queue(db: Session, session_id: str) -> bool:
    """Let a held queue go on; False when it was not held. The time held does not count towards the 24 hours."""
    session = lock(db, session_id)
    if session.held_reason is None:
        return False
    held_since = session.held_at_db or 0.0
    since = case((Run.queued_at_db > held_since, Run.queued_at_db), else_=held_since)
    db.execute(
        update(Run)
        .where(Run.session_id == session_id, is_queued())
        .values(held_seconds=Run.held_seconds + db_now() - since)
        .execution_options(synchronize_session=False)
    )
    session.held_reason = session.held_by_run_id = session.held_at = session.held_at_db = None
    session.updated_at = clock.now()
    db.flush()
    for run in queue(db, session_id):
        db.refresh(run)
    return True
