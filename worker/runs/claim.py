"""Take a queued run when it is its turn, and wake the worker for the next one.

A task is only a wake-up call: the claim in the database decides, so a doubled, late or lost task changes nothing
(RELIABILITY 2.2).
"""

from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from shared import logs, task_names
from shared.database import in_transaction, transaction
from shared.models import ChatSession, Run
from shared.store import chat_sessions
from shared.store import runs as run_store
from shared.transcript_items import Transcript
from shared.transcript_json import to_json
from worker.context import WorkerContext

log = logs.get(__name__)


@dataclass(frozen=True)
class Claimed:
    """The rows as they were when the run was claimed. `message_id`: of the answer, when it has begun already."""

    run: Run
    session: ChatSession
    fence: int
    message_id: str | None = None


def claim(run_id: str, context: WorkerContext) -> Claimed | None:
    """Claim the run; None when it is not its turn, or another has it. Raises Unavailable.

    Where its backend is at hand there is nothing to start, and it begins in the same transaction: one commit less
    between a person's turn and the first byte to the backend.
    """

    def work(db: Session) -> Claimed | None:
        fence = run_store.claim(db, run_id, worker_id=context.worker_id, lease_s=context.settings.lease_s)
        if fence is None:
            return None
        run = run_store.get(db, run_id)
        claimed = Claimed(run, chat_sessions.get(db, run.session_id), fence)
        if not context.backends.is_made(run.source, claimed.session.profile):
            return claimed
        return replace(claimed, message_id=begin(db, claimed))

    return in_transaction(context.factory, work)


def begin(db: Session, claimed: Claimed) -> str:
    """starting -> running; gives the id of the answer's message. To be committed before anything is sent. Raises
    LeaseLost."""
    message = run_store.begin(
        db,
        claimed.run.id,
        fence=claimed.fence,
        model=claimed.run.model or claimed.session.model,
        skill_folder=claimed.run.skill_folder or claimed.session.skill_folder,
        transcript=to_json(Transcript(run_id=claimed.run.id)),
    )
    return message.id


def dispatch(run: Run, context: WorkerContext, *, warm_worker: str | None = None, marked: bool = False) -> None:
    """Send the task of a queued run. Never raises: what is not sent now, the janitor sends later.

    `marked`: the caller has already noted the dispatch in the database.
    """
    try:
        queue = task_names.turn_queue(run.source, warm_worker, context.presence.takes_turns)
        if not marked:
            with transaction(context.factory) as db:
                run_store.mark_dispatched(db, run.id)
        labels = {"session": run.session_id, "user": run.user_name, "backend": run.source}
        context.send_task(run.id, queue, labels)
    except Exception as error:  # noqa: BLE001 - Unavailable, or what kombu raises for a broker that is away
        log.warning("run.dispatch_failed", run_id=run.id, error=type(error).__name__)


def hand_on(run_id: str, context: WorkerContext) -> None:
    """This worker takes no turns any more: leave the task to another. Never raises."""
    try:
        context.send_task(run_id, task_names.RUNS_QUEUE, {})
    except Exception as error:  # noqa: BLE001 - what kombu raises; a janitor sends it again
        log.warning("run.not_handed_on", run_id=run_id, error=type(error).__name__)
