"""What a worker says of itself, for other processes to see that it lives and what it does."""

import os
import socket
from datetime import datetime

from shared import task_names
from shared.relay.connection import relay_errors
from shared.relay.presence import WorkerFacts
from worker.context import WorkerContext


def facts_of(context: WorkerContext, started_at: datetime) -> WorkerFacts:
    """Runs whose lease is lost are not named: their heartbeat must end."""
    served = context.served.seen
    queues = [] if context.draining.is_set() else [task_names.RUNS_QUEUE, task_names.worker_queue(context.worker_id)]
    return WorkerFacts(
        worker_id=context.worker_id,
        host=socket.gethostname(),
        pid=os.getpid(),
        started_at=started_at,
        concurrency=context.settings.worker_concurrency,
        queues=queues,
        runs=[live.run_id for live in context.live_runs.all() if not live.gone],
        draining=context.draining.is_set(),
        backends=context.backends.names(),
        sources=list(served.sources),
        profiles=list(served.profiles),
        keys=dict(served.keys),
        looked_at=served.looked_at,
    )


def sign_off(context: WorkerContext, worker_id: str) -> None:
    """A worker is gone: drop its queue, its mailbox and its name. What waited there is in the database, and a janitor
    sends it to others. Raises RelayDown."""
    queue = task_names.worker_queue(worker_id)
    with relay_errors():
        context.redis.delete(context.queue_key(queue), context.queue_key(f"_kombu.binding.{queue}"))
    context.presence.leave_worker(worker_id)
    context.presence.forget_worker(worker_id)


def beat(context: WorkerContext, started_at: datetime) -> None:
    """One heartbeat. Raises RelayDown."""
    context.presence.beat_worker(facts_of(context, started_at))
