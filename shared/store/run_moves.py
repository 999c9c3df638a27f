"""The one function that changes a run's state, the claim, and what a worker writes while it drives a run.

Use it as `shared.store.runs`. Every statement carries state and fence in its WHERE (RELIABILITY 2.2): of two writers
one wins, and the other learns of it.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Float, Select, Update, bindparam, exists, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, aliased
from sqlalchemy.orm.util import identity_key
from sqlalchemy.sql.dml import ReturningUpdate

from shared import clock
from shared.database import db_now, rows_changed
from shared.errors import IllegalMove, LeaseLost, NotFound
from shared.models import ChatMessage, ChatSession, Run
from shared.run_state import ACTIVE, FINAL, RunState, is_legal
from shared.store import messages

_ACTIVE_IN_ORDER = [state.value for state in RunState if state in ACTIVE]

# ---- reading


def get(db: Session, run_id: str) -> Run:
    """The run. Raises NotFound."""
    run = db.get(Run, run_id)
    if run is None:
        raise NotFound("There is no such run.")
    return run


def active(db: Session, session_id: str) -> Run | None:
    """The run that a worker drives in this session now."""
    return db.scalars(_active_one(), {"session_id": session_id}).one_or_none()


@cache
def _active_one() -> Select[Run]:
    return select(Run).where(Run.session_id == bindparam("session_id"), is_active())


def previous(db: Session, run: Run) -> Run | None:
    """The run before it in its session, as an agent may remember it: not one that was cancelled."""
    wanted = select(Run).where(
        Run.session_id == run.session_id, Run.position < run.position, Run.state != RunState.CANCELLED
    )
    return db.scalars(wanted.order_by(Run.position.desc()).limit(1)).one_or_none()


def state_and_fence(db: Session, run_id: str) -> tuple[RunState, int]:
    """As the database has them now, whatever this `db` has read before. Raises NotFound."""
    row = db.execute(select(Run.state, Run.fence).where(Run.id == run_id)).one_or_none()
    if row is None:
        raise NotFound("There is no such run.")
    return RunState(row.state), row.fence


def is_active(run: type[Run] = Run) -> ColumnElement[bool]:
    """Written out as in the partial index of active runs: only then SQLite uses that index."""
    return run.state.in_(bindparam(None, _ACTIVE_IN_ORDER, expanding=True, literal_execute=True))


def is_queued(run: type[Run] = Run) -> ColumnElement[bool]:
    """Written out too, for the partial index of queued runs."""
    return run.state == bindparam(None, RunState.QUEUED.value, literal_execute=True)


@cache
def is_next() -> tuple[ColumnElement[bool], ...]:
    """The conditions, beside `queued`, under which a run may be claimed (RELIABILITY 2.1)."""
    active_one, earlier = aliased(Run), aliased(Run)
    return (
        ~exists().where(active_one.session_id == Run.session_id, is_active(active_one)),
        ~exists().where(
            earlier.session_id == Run.session_id,
            is_queued(earlier),
            earlier.position < Run.position,
        ),
        exists().where(
            ChatSession.id == Run.session_id, ChatSession.held_reason.is_(None), ChatSession.deleted_at.is_(None)
        ),
    )


# ---- moving


def move(
    db: Session,
    run_id: str,
    source: RunState,
    target: RunState,
    *,
    fence: int,
    raise_fence: bool = False,
    **columns: Any,
) -> None:
    """Change a run's state; `columns` are set by the same statement. The time of the new state is set too.

    `raise_fence` takes the run away from whoever drives it. Raises IllegalMove when the table of run_state.py forbids
    the move, LeaseLost when another writer was first.
    """
    if raise_fence:
        columns["fence"] = fence + 1
    statement = _change(run_id, source, target, columns).where(Run.fence == fence)
    if rows_changed(db, statement) != 1:
        raise LeaseLost(f"Run {run_id} is no longer {source} under fence {fence}.")
    reread(db, run_id)


def claim(db: Session, run_id: str, *, worker_id: str, lease_s: float) -> int | None:
    """Take a queued run that is the head of its session, while none is active there and the queue is not held.

    Gives the new fence; None when the delivery is late, doubled or out of order: drop it silently.
    """
    _lock_session_of(db, run_id)
    given = {"the_run": run_id, "the_worker": worker_id, "lease_s": lease_s, "at": clock.now()}
    try:
        with db.begin_nested():
            fence = db.execute(_claim_it(), given).scalar_one_or_none()
    except IntegrityError:  # one_active_run_per_session: another run was claimed at the same moment
        return None
    reread(db, run_id)
    return fence


@cache
def _claim_it() -> ReturningUpdate[int]:
    columns = {
        "fence": Run.fence + 1,
        "worker_id": bindparam("the_worker"),
        "lease_until_db": db_now() + bindparam("lease_s", type_=Float),
        "starting_at": bindparam("at", type_=Run.starting_at.type),
    }
    changed = _change(bindparam("the_run"), RunState.QUEUED, RunState.STARTING, columns)
    return changed.where(*is_next()).returning(Run.fence)


def _lock_session_of(db: Session, run_id: str) -> None:
    """Let changes of the queue end first. PostgreSQL looks again only at the row that it updates, not at the others
    that its conditions name: without this, a run could be claimed by the order before a person's move."""
    db.execute(_lock_it(), {"run_id": run_id})


@cache
def _lock_it() -> Select[str]:
    session_id = select(Run.session_id).where(Run.id == bindparam("run_id")).scalar_subquery()
    return select(ChatSession.id).where(ChatSession.id == session_id).with_for_update(key_share=True)


def _change(run_id: str | BindParameter[str], source: RunState, target: RunState, columns: dict[str, Any]) -> Update:
    """The only statement that sets `run.state`."""
    if not is_legal(source, target):
        raise IllegalMove(f"A run cannot go from {source} to {target}.")
    values = {**columns, "state": target.value}
    if target == RunState.STARTING:
        values.setdefault("starting_at", clock.now())
    elif source == RunState.STARTING and target == RunState.RUNNING:
        values["begun_at"] = clock.now()
    elif target in FINAL:
        values.update(ended_at=clock.now(), lease_until_db=None)
    return (
        update(Run)
        .where(Run.id == run_id, Run.state == source.value)
        .values(values)
        .execution_options(synchronize_session=False)
    )


def reread(db: Session, run_id: str) -> None:
    """Bring the run that this `db` may already hold up to what a statement has just written."""
    held = db.identity_map.get(identity_key(Run, run_id))
    if held is not None:
        db.refresh(held)


# ---- what the worker of a run writes


def begin(
    db: Session,
    run_id: str,
    *,
    fence: int,
    model: str | None = None,
    skill_folder: str | None = None,
    transcript: dict[str, Any] | None = None,
) -> ChatMessage:
    """starting -> running, and the answer's empty message. Commit it before the first byte goes to the backend."""
    move(db, run_id, RunState.STARTING, RunState.RUNNING, fence=fence)
    run = get(db, run_id)
    return messages.add_answer(db, run, status="RUNNING", model=model, skill_folder=skill_folder, transcript=transcript)


def save_progress(
    db: Session, run_id: str, *, fence: int, content: str, transcript: dict[str, Any], epoch: str | None, seq: int
) -> None:
    """Keep the text so far and the cursor in the event log that it reaches to. Raises LeaseLost."""
    statement = (
        update(Run)
        .where(Run.id == run_id, Run.fence == fence, is_active())
        .values(flushed_epoch=epoch, flushed_seq=seq)
        .execution_options(synchronize_session=False)
    )
    if rows_changed(db, statement) != 1:
        raise LeaseLost(f"Run {run_id} is no longer ours under fence {fence}.")
    reread(db, run_id)
    messages.save_answer(db, run_id, content=content, transcript=transcript)


def renew_leases(db: Session, held: Iterable[tuple[str, int]], lease_s: float) -> set[str]:
    """Prolong the leases of these (run id, fence); gives the runs that are still ours. Stop the others."""
    pairs: Sequence[tuple[str, int]] = list(held)
    if not pairs:
        return set()
    statement = (
        update(Run)
        .where(tuple_(Run.id, Run.fence).in_(pairs), is_active())
        .values(lease_until_db=db_now() + lease_s)
        .returning(Run.id)
        .execution_options(synchronize_session=False)
    )
    ours = set(db.scalars(statement))
    for run_id in ours:
        reread(db, run_id)
    return ours
