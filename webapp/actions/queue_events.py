"""The queue of a session as one transaction saw it, and the events that tell a change of it."""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from shared.models import Run
from shared.protocol.events import (
    Event,
    QueueItem,
    QueueUpdated,
    QueueUpdatedData,
    RunCancelled,
    RunCancelledData,
    RunDequeued,
    RunDequeuedData,
)
from shared.store import chat_sessions, runs

SHOWN_INPUT = 2_000


@dataclass(frozen=True)
class QueueChanged:
    """How many turns wait now, and why they are held."""

    queue_id: str | None
    queue_length: int
    held: str | None


@dataclass(frozen=True)
class Queue:
    """What waits in a session at one moment, read in the transaction that changed it."""

    session_id: str
    runs: tuple[Run, ...]
    held: str | None

    def event(self) -> QueueUpdated:
        """The event that tells it."""
        items = [
            QueueItem(queue_id=run.queue_id, run_id=run.id, position=n, input=run.input[:SHOWN_INPUT], by=run.user_name)
            for n, run in enumerate(self.runs, 1)
        ]
        return QueueUpdated(session_id=self.session_id, data=QueueUpdatedData(queue=items, held=self.held))

    def changed(self, queue_id: str | None) -> QueueChanged:
        return QueueChanged(queue_id, len(self.runs), self.held)


def queue_of(db: Session, session_id: str) -> Queue:
    """The queue as this transaction sees it."""
    session = chat_sessions.get(db, session_id, with_deleted=True)
    return Queue(session_id, tuple(runs.queue(db, session_id)), session.held_reason)


def cancelled_events(cancelled: Iterable[Run], by: str) -> list[Event]:
    """What tells that waiting runs were withdrawn."""
    told: list[Event] = []
    for run in cancelled:
        dequeued = RunDequeuedData(queue_id=run.queue_id, reason="cancelled")
        told.append(RunDequeued(session_id=run.session_id, run_id=run.id, data=dequeued))
        ended = RunCancelledData(queue_id=run.queue_id, by=by)
        told.append(RunCancelled(session_id=run.session_id, run_id=run.id, data=ended))
    return told
