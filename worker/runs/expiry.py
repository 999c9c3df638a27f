"""How pauses end without an answer: by their deadline, in any process, or with the run that asked.

The database's clock decides, and one compare-and-set for each pause: who wins appends the event.
"""

from sqlalchemy.orm import Session

from shared import logs
from shared.database import in_transaction
from shared.models import Pause
from shared.pause_events import resolved_event
from shared.protocol.events import (
    AnyEvent,
    ApprovalResolved,
    ApprovalResolvedData,
    ClarifyResolved,
    ClarifyResolvedData,
    to_payload,
)
from shared.relay import mailbox
from shared.relay.connection import RelayDown
from shared.relay.mailbox import Note
from shared.store import pauses as pause_store
from shared.store import runs as run_store
from shared.transcript_items import Approval, Clarification
from worker.context import WorkerContext
from worker.runs.inbox import PauseDecided

log = logs.get(__name__)


def expire_due(context: WorkerContext) -> list[Pause]:
    """Expire what is due and tell its page and its worker; gives what this call has expired. Raises Unavailable."""

    def work(db: Session) -> list[tuple[Pause, str | None]]:
        due = pause_store.expire_due(db)
        return [(pause, run_store.get(db, pause.run_id).worker_id) for pause in due]

    expired = in_transaction(context.factory, work)
    for pause, worker_id in expired:
        try:
            context.log.append(pause.session_id, [to_payload(resolved_event(pause))])
            live = context.live_runs.get(pause.run_id)
            if live is not None:
                live.signal(PauseDecided(pause.id))
            elif worker_id is not None:
                note = Note(run_id=pause.run_id, kind="answer", fence=pause.fence, pause_id=pause.id)
                mailbox.post(context.redis, context.keys, worker_id, note)
        except RelayDown as error:  # the page and the worker look in the database too
            context.holes.add(pause.session_id)
            log.warning("pause.expiry_not_told", pause_id=pause.id, error=type(error).__name__)
    return [pause for pause, _ in expired]


def as_decided(db: Session, run_id: str, withdrawn: list[AnyEvent]) -> list[AnyEvent]:
    """The events by which a run's open pauses end with it; of those that somebody has decided meanwhile, what was
    decided."""
    if not withdrawn:
        return []
    decided = {pause.id: resolved_event(pause) for pause in pause_store.of_run(db, run_id) if pause.state != "pending"}
    return [decided.get(_pause_id(event), event) for event in withdrawn]


def _pause_id(event: AnyEvent) -> str:
    data = event.data
    return data.clarify_id if isinstance(data, ClarifyResolvedData) else getattr(data, "approval_id", "")


def withdrawn_event(session_id: str, run_id: str, fence: int, pause: Approval | Clarification) -> AnyEvent:
    """The event by which a pause ends with its run."""
    if isinstance(pause, Clarification):
        question = ClarifyResolvedData(clarify_id=pause.clarify_id, reason="withdrawn")
        return ClarifyResolved(session_id=session_id, run_id=run_id, fence=fence, data=question)
    approval = ApprovalResolvedData(approval_id=pause.approval_id, reason="withdrawn")
    return ApprovalResolved(session_id=session_id, run_id=run_id, fence=fence, data=approval)
