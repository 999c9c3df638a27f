"""What a session's events should have told by now, read from the database for many sessions at once.

The live side compares it with what the events did tell: a commit whose event was never appended shows as a difference
(RELIABILITY 3, "Lost publishes").
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from shared.models import ChatSession, Pause, Run
from shared.run_state import ACTIVE, RunState

BATCH = 500  # ids in one statement


@dataclass(frozen=True, slots=True)
class SessionState:
    """`begun`: the active run has passed `starting`, which no event tells."""

    waiting: frozenset[str] = frozenset()  # ids of queued runs
    active: str | None = None
    begun: bool = False
    pauses: frozenset[str] = frozenset()  # ids of open ones
    held: bool = False
    title: str = ""
    archived: bool = False
    deleted: bool = False
    owner_id: str = ""


def states_of(db: Session, session_ids: Iterable[str]) -> dict[str, SessionState]:
    """The states of these sessions; one that is not there is left out."""
    found: dict[str, SessionState] = {}
    ids = list(session_ids)
    for start in range(0, len(ids), BATCH):
        found.update(_states(db, ids[start : start + BATCH]))
    return found


def _states(db: Session, ids: Sequence[str]) -> dict[str, SessionState]:
    waiting: dict[str, set[str]] = {}
    active: dict[str, tuple[str, bool]] = {}
    in_play = [RunState.QUEUED.value, *(state.value for state in ACTIVE)]
    for session_id, run_id, state in db.execute(
        select(Run.session_id, Run.id, Run.state).where(Run.session_id.in_(ids), Run.state.in_(in_play))
    ):
        if state == RunState.QUEUED:
            waiting.setdefault(session_id, set()).add(run_id)
        else:
            active[session_id] = (run_id, state != RunState.STARTING)
    pauses: dict[str, set[str]] = {}
    for session_id, pause_id in db.execute(
        select(Pause.session_id, Pause.id).where(Pause.session_id.in_(ids), Pause.state == "pending")
    ):
        pauses.setdefault(session_id, set()).add(pause_id)
    rows = select(
        ChatSession.id,
        ChatSession.held_reason,
        ChatSession.title,
        ChatSession.status,
        ChatSession.deleted_at,
        ChatSession.owner_id,
    ).where(ChatSession.id.in_(ids))
    return {
        row.id: SessionState(
            waiting=frozenset(waiting.get(row.id, ())),
            active=active.get(row.id, (None, False))[0],
            begun=active.get(row.id, (None, False))[1],
            pauses=frozenset(pauses.get(row.id, ())),
            held=row.held_reason is not None,
            title=row.title,
            archived=row.status == "ARCHIVED",
            deleted=row.deleted_at is not None,
            owner_id=row.owner_id,
        )
        for row in db.execute(rows)
    }
