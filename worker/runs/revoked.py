"""`celery control revoke` of a queued run cancels it. Nothing else relies on revoke (RELIABILITY 2.2)."""

from shared import logs
from shared.database import transaction
from shared.errors import NotFound, Unavailable
from shared.protocol.events import RunCancelled, RunCancelledData, RunDequeued, RunDequeuedData, to_payload
from shared.relay.connection import RelayDown
from shared.store import runs as run_store
from worker.context import WorkerContext

BY = "operator"

log = logs.get(__name__)


def cancel_revoked(run_id: str, context: WorkerContext) -> bool:
    """Cancel the run if it still waits; False when there was nothing to cancel. Never raises."""
    try:
        with transaction(context.factory) as db:
            if not run_store.cancel_queued(db, run_id, by=BY):
                return False
            run = run_store.get(db, run_id)
    except (NotFound, Unavailable) as error:
        log.warning("run.not_revoked", run_id=run_id, error=type(error).__name__)
        return False
    cancelled = RunCancelledData(queue_id=run.queue_id, by=BY)
    gone = RunDequeuedData(queue_id=run.queue_id, reason="cancelled")
    events = (
        RunDequeued(session_id=run.session_id, run_id=run.id, data=gone),
        RunCancelled(session_id=run.session_id, run_id=run.id, data=cancelled),
    )
    try:
        context.log.append(run.session_id, [to_payload(event) for event in events])
    except RelayDown:
        context.holes.add(run.session_id)
    log.info("run.revoked", run_id=run_id)
    return True
