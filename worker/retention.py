"""What is kept only for a time: logs of finished runs, and sessions that were deleted a week ago."""

from datetime import timedelta

from shared import clock, logs
from shared.database import transaction
from shared.store import chat_sessions, run_logs
from worker.context import WorkerContext

log = logs.get(__name__)


def tidy(context: WorkerContext) -> None:
    """Remove what is past its time. Raises Unavailable; the next hour makes up for it."""
    before = clock.now() - timedelta(days=context.settings.keep_run_logs_days)
    with transaction(context.factory) as db:
        removed = run_logs.remove_before(db, before)
    with transaction(context.factory) as db:
        gone = chat_sessions.to_purge(db)
        for session in gone:
            chat_sessions.purge(db, session.id)
    if removed or gone:
        log.info("retention.removed", run_logs=removed, sessions=len(gone))
