"""What a janitor looks for, and what it does to runs that never began. Use it as `shared.store.runs`.

Everything found here may have changed when it is acted upon: every act is a compare-and-set on state and fence, so any
number of janitors may run.
"""

from typing import Final

from sqlalchemy import case, func, or_, select, update
from sqlalchemy.orm import Session

from shared.database import db_now
from shared.models import ChatSession, Run
from shared.run_state import ACTIVE, EndReason, RunState
from shared.store.run_endings import MAX_STARTS, Finished, finish
from shared.store.run_moves import get, is_active, is_next, is_queued, move, reread

MAX_WAIT_S: Final = 24 * 3600.0  # in the queue, time held not counted (P3)
LONGEST_GAP_S: Final = 600.0
LOST_AT_ONCE_S: Final = 5.0  # with an empty broker, a message sent this long ago is lost


def to_dispatch(db: Session, *, again_s: float, is_broker_empty: bool = False, limit: int = 1000) -> list[Run]:
    """Heads of their sessions that no task may be under way for: never dispatched, or `again_s` ago (2, 4, 8 ... times
    that after more dispatches, at most 10 minutes) and unclaimed. An empty broker has lost them all."""
    wanted = (
        select(Run)
        .where(is_queued(), *is_next())
        .where(or_(Run.dispatched_at_db.is_(None), Run.dispatched_at_db < db_now() - _gap(again_s, is_broker_empty)))
        .order_by(Run.queued_at_db)
        .limit(limit)
    )
    return list(db.scalars(wanted))


def _gap(again_s: float, is_broker_empty: bool) -> object:
    if is_broker_empty:
        return min(again_s, LOST_AT_ONCE_S)
    gaps = [(Run.dispatches <= n + 1, min(again_s * 2**n, LONGEST_GAP_S)) for n in range(6)]
    return case(*gaps, else_=max(again_s, LONGEST_GAP_S))


def unclaimed(db: Session, *, longer_than_s: float) -> list[Run]:
    """Heads of their sessions that were submitted longer ago than that, and that nobody has taken."""
    wanted = select(Run).where(is_queued(), *is_next(), Run.queued_at_db < db_now() - longer_than_s)
    return list(db.scalars(wanted.limit(1000)))


def mark_dispatched(db: Session, run_id: str) -> None:
    """A task was sent for this run, now."""
    db.execute(
        update(Run)
        .where(Run.id == run_id, Run.state == RunState.QUEUED)
        .values(dispatched_at_db=db_now(), dispatches=Run.dispatches + 1)
        .execution_options(synchronize_session=False)
    )
    reread(db, run_id)


def mark_unsent(db: Session, run_id: str) -> None:
    """The task that was noted could not be sent: a janitor is to send it as soon as it can."""
    db.execute(
        update(Run)
        .where(Run.id == run_id, Run.state == RunState.QUEUED)
        .values(dispatched_at_db=None, dispatches=case((Run.dispatches > 0, Run.dispatches - 1), else_=0))
        .execution_options(synchronize_session=False)
    )
    reread(db, run_id)


def back_to_queue(db: Session, run_id: str, fence: int) -> Finished | None:
    """starting -> queued: surely nothing was sent. After the third failed start the run fails instead: its end is
    given then. Raises LeaseLost."""
    attempt = get(db, run_id).attempt + 1
    move(
        db, run_id, RunState.STARTING, RunState.QUEUED,
        fence=fence, raise_fence=True, attempt=attempt,
        worker_id=None, lease_until_db=None, dispatched_at_db=None, dispatches=0,
    )  # fmt: skip
    if attempt < MAX_STARTS:
        return None
    return finish(
        db, run_id, RunState.QUEUED, RunState.FAILED,
        fence=fence + 1, reason=EndReason.START_FAILED, content=None, transcript=None,
        error_code=EndReason.START_FAILED, error=f"The turn could not be started, {MAX_STARTS} times.",
    )  # fmt: skip


def too_old(db: Session, *, max_wait_s: float = MAX_WAIT_S) -> list[Run]:
    """Runs that waited longer than that, the time held not counted; those of a held queue never are."""
    wanted = (
        select(Run)
        .join(ChatSession, ChatSession.id == Run.session_id)
        .where(is_queued(), ChatSession.held_reason.is_(None))
        .where(db_now() - Run.queued_at_db - Run.held_seconds > max_wait_s)
    )
    return list(db.scalars(wanted))


def expired_leases(db: Session) -> list[Run]:
    """Active runs whose worker has not renewed its lease in time."""
    return list(db.scalars(select(Run).where(is_active(), Run.lease_until_db < db_now())))


def overdue_aborts(db: Session, force_s: float) -> list[Run]:
    """Runs that were asked to stop longer ago than that, and still have not."""
    wanted = select(Run).where(Run.state == RunState.ABORTING, Run.abort_requested_at_db < db_now() - force_s)
    return list(db.scalars(wanted))


def counts(db: Session) -> dict[str, int]:
    """How many runs are in each state that is not final, for metrics and the operators' page."""
    wanted = select(Run.state, func.count()).where(Run.state.in_({*ACTIVE, RunState.QUEUED})).group_by(Run.state)
    return {str(state): number for state, number in db.execute(wanted)}
