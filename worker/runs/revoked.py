"""`celery control revoke` of a queued run cancels it. Nothing else relies on revoke (RELIABILITY 2.2)."""

from shared import logs
from shared.database import transaction
from shared.errors import NotFound, Unavailable
from shared.protocol.events import QueueUpdated, to_payload
from shared.queue_events import cancelled_events, queue_told
from shared.relay.connection import RelayDown
from shared.store import audit, chat_sessions
from shared.store import runs as run_store
from worker.context import WorkerContext
from worker.runs.claim import dispatch

BY = "operator"

log = logs.get(__name__)


def cancel_revoked(run_id: str, context: WorkerContext) -> bool:
    """Cancel the run if it still waits, and wake the one behind it; False when there was nothing to cancel. Never
    raises."""
    try:
        with transaction(context.factory) as db:
            if not run_store.cancel_queued(db, run_id, by=BY):
                return False
            run = run_store.get(db, run_id)
            audit.record(db, "run_revoked", session_id=run.session_id, run_id=run.id)
            session = chat_sessions.get(db, run.session_id, with_deleted=True)
            queue = queue_told(run_store.queue(db, run.session_id), session.held_reason)
            next_run = run_store.head(db, run.session_id)
    except (NotFound, Unavailable) as error:
        log.warning("run.not_revoked", run_id=run_id, error=type(error).__name__)
        return False
    events = [*cancelled_events([run], by=BY), QueueUpdated(session_id=run.session_id, data=queue)]
    try:
        context.log.append(run.session_id, [to_payload(event) for event in events])
    except RelayDown:
        context.holes.add(run.session_id)
    log.info("run.revoked", run_id=run_id)
    if next_run is not None:
        dispatch(next_run, context, warm_worker=session.warm_worker)
    return True
