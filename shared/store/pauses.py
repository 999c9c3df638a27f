"""Approvals and clarifications: opened by the run that waits, decided once (RELIABILITY 2.2).

Deadlines are the database's; a decision is one compare-and-set in which the pause is still open, its run still waits
under the same fence, and the deadline has not passed.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any, Literal

from sqlalchemy import ColumnElement, exists, or_, select, update
from sqlalchemy.orm import Session

from shared import clock, ids
from shared.database import db_now, db_time, rows_changed
from shared.errors import AlreadyDecided, Expired, LeaseLost, NotFound
from shared.models import ChatSession, Pause, Run, User
from shared.run_state import WAITING, RunState
from shared.store import approval_grants
from shared.store.run_moves import move, state_and_fence

Kind = Literal["approval", "clarification"]

LATE_BETWEEN = "\n\n"  # two answers that came too late
_STATE_OF = {"approval": RunState.AWAITING_APPROVAL, "clarification": RunState.AWAITING_CLARIFICATION}


def hash_request(request: Mapping[str, Any]) -> str:
    """SHA-256 of the exact content shown, checked again when the answer is delivered (S18)."""
    return hashlib.sha256(json.dumps(request, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()


def open(
    db: Session,
    *,
    run_id: str,
    fence: int,
    session_id: str,
    kind: Kind,
    tool: str,
    request: Mapping[str, Any],
    timeout_s: float | None,
) -> Pause:
    """Let a run wait for a person; `timeout_s` of None or 0 sets no limit.

    A run may have several open: it waits in the state of the first until all are decided. Raises LeaseLost when the
    run was taken away, ended or is to stop.
    """
    state, current = state_and_fence(db, run_id)
    if state == RunState.RUNNING:
        move(db, run_id, RunState.RUNNING, _STATE_OF[kind], fence=fence)
    elif state not in WAITING or current != fence:
        raise LeaseLost(f"Run {run_id} cannot wait for a person: it is {state}.")
    pause = Pause(
        id=ids.new_id(),
        run_id=run_id,
        session_id=session_id,
        fence=fence,
        kind=kind,
        tool=tool,
        request=dict(request),
        args_hash=hash_request(request),
        expires_at_db=db_now() + timeout_s if timeout_s else None,
        state="pending",
        created_at=clock.now(),
    )
    db.add(pause)
    db.flush()
    db.refresh(pause)
    return pause


def get(db: Session, pause_id: str) -> Pause:
    """The pause as the database has it now. Raises NotFound."""
    pause = db.get(Pause, pause_id, populate_existing=True)
    if pause is None:
        raise NotFound("There is no such question.")
    return pause


def open_pauses(db: Session, session_id: str) -> list[Pause]:
    """What waits for a person in this session, oldest first."""
    wanted = select(Pause).where(Pause.session_id == session_id, Pause.state == "pending")
    return list(db.scalars(wanted.order_by(Pause.created_at, Pause.id)))


def open_for(db: Session, user: User, *, limit: int = 200) -> list[tuple[Pause, ChatSession]]:
    """What waits in all sessions of this person, oldest first: the inbox."""
    wanted = (
        select(Pause, ChatSession)
        .join(ChatSession, ChatSession.id == Pause.session_id)
        .where(ChatSession.owner_id == user.id, ChatSession.deleted_at.is_(None), Pause.state == "pending")
        .order_by(Pause.created_at, Pause.id)
        .limit(limit)
    )
    return [(pause, session) for pause, session in db.execute(wanted)]


def of_run(db: Session, run_id: str) -> list[Pause]:
    """All pauses of a run, decided or not, oldest first."""
    return list(db.scalars(select(Pause).where(Pause.run_id == run_id).order_by(Pause.created_at, Pause.id)))


# ---- deciding


def answer(
    db: Session,
    pause_id: str,
    *,
    user: User | None,
    choice: str | None = None,
    answer: str | None = None,
    reason: str | None = None,
) -> Pause:
    """Decide an open pause: `choice` of an approval, `answer` of a clarification. What is allowed always is kept for
    the profile of the session in the same transaction.

    Raises NotFound, AlreadyDecided (its message says how and by whom, or that the run no longer waits), Expired when
    the deadline has passed.
    """
    is_awaited = exists().where(Run.id == Pause.run_id, Run.fence == Pause.fence, Run.state.in_(WAITING))
    in_time = or_(Pause.expires_at_db.is_(None), Pause.expires_at_db > db_now())
    decide = (
        update(Pause)
        .where(Pause.id == pause_id, Pause.state == "pending", is_awaited, in_time)
        .values(
            state="answered",
            choice=choice,
            answer=answer,
            reason=reason,
            by_id=None if user is None else user.id,
            by_name=None if user is None else user.name,
            decided_at=clock.now(),
        )
        .execution_options(synchronize_session=False)
    )
    is_first = rows_changed(db, decide) == 1
    pause = get(db, pause_id)
    if is_first:
        if pause.choice == "always":
            _grant(db, pause, user)
        return pause
    raise _refusal(db, pause)


def _grant(db: Session, pause: Pause, user: User | None) -> None:
    """`patterns`: none where the agent itself remembers what is allowed always."""
    session = db.get_one(ChatSession, pause.session_id)
    for pattern in pause.request.get("patterns", ()):
        approval_grants.add(
            db,
            profile=session.profile,
            pattern_key=pattern,
            user=user,
            description=pause.request.get("description", ""),
            command=pause.request.get("command", ""),
            reason=pause.reason,
        )


def _refusal(db: Session, pause: Pause) -> AlreadyDecided | Expired:
    if pause.state == "answered":
        what = pause.choice or "answered"
        return AlreadyDecided(f"{pause.by_name or 'Somebody'} has decided this already: {what}.")
    if pause.state == "expired" or (pause.expires_at_db is not None and pause.expires_at_db <= db_time(db)):
        return Expired("The time for this answer is over.")
    return AlreadyDecided("The turn no longer waits for this.")


def keep_late(db: Session, pause_id: str, answer: str, *, max_chars: int) -> bool:
    """Keep an answer that came when the question was no longer open, beside those that were kept before. False for the
    very answer that was taken (it came twice), and when all would be more than a turn can be."""
    pause = get(db, pause_id)
    if pause.answer == answer:
        return False
    kept = (pause.late_answer or "").split(LATE_BETWEEN) if pause.late_answer else []
    if answer in kept:
        return True
    whole = LATE_BETWEEN.join([*kept, answer])
    if len(whole) > max_chars:
        return False
    pause.late_answer = whole
    db.flush()
    return True


def late_answers(db: Session, run_ids: Collection[str]) -> dict[str, str]:
    """Pause id -> the late answer that is kept of it, in these runs."""
    wanted = select(Pause.id, Pause.late_answer).where(Pause.run_id.in_(run_ids), Pause.late_answer.is_not(None))
    return {pause_id: answer for pause_id, answer in db.execute(wanted) if answer is not None}


def expire_due(db: Session) -> list[Pause]:
    """Close all that was not decided in time; silence means deny. Gives what was closed now."""
    return _close(db, "expired", Pause.expires_at_db <= db_now())


def expire(db: Session, pause_id: str) -> bool:
    """The same for one, as its worker does; False when it was decided before, or is not yet due."""
    return bool(_close(db, "expired", Pause.id == pause_id, Pause.expires_at_db <= db_now()))


def withdraw(db: Session, pause_id: str) -> bool:
    """Close one that the backend no longer waits for; False when it was decided before."""
    return bool(_close(db, "withdrawn", Pause.id == pause_id))


def withdraw_all(db: Session, run_id: str) -> list[Pause]:
    """Close the open ones of a run that ends or is to stop; gives them."""
    return _close(db, "withdrawn", Pause.run_id == run_id)


def _close(db: Session, state: Literal["expired", "withdrawn"], *which: ColumnElement[bool]) -> list[Pause]:
    closed = db.scalars(
        update(Pause)
        .where(Pause.state == "pending", *which)
        .values(state=state, decided_at=clock.now())
        .returning(Pause.id)
        .execution_options(synchronize_session=False)
    ).all()
    return [get(db, pause_id) for pause_id in closed]


def resume_run(db: Session, run_id: str, fence: int) -> bool:
    """awaiting_* -> running once no pause of the run is open; False while one is, or when it runs already.

    Raises LeaseLost when the run was taken away, ended or is to stop.
    """
    state, _ = state_and_fence(db, run_id)
    if state == RunState.RUNNING:
        return False
    if state not in WAITING:
        raise LeaseLost(f"Run {run_id} is {state}.")
    is_open = exists().where(Pause.run_id == run_id, Pause.state == "pending")
    if db.execute(select(is_open)).scalar_one():
        return False
    move(db, run_id, state, RunState.RUNNING, fence=fence)
    return True
