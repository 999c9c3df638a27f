"""The queue of a session as one transaction saw it, and the event that tells a change of it."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from shared.models import Run
from shared.protocol.events import QueueUpdated
from shared.queue_events import queue_told
from shared.store import chat_sessions, runs


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
        return QueueUpdated(session_id=self.session_id, data=queue_told(self.runs, self.held))

    def changed(self, queue_id: str | None) -> QueueChanged:
        return QueueChanged(queue_id, len(self.runs), self.held)


def queue_of(db: Session, session_id: str) -> Queue:
    """The queue as this transaction sees it."""
    session = chat_sessions.get(db, session_id, with_deleted=True)
    return Queue(session_id, tuple(runs.queue(db, session_id)), session.held_reason)
