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


def hand_on_queue(context: WorkerContext, worker_id: str) -> None:
    """Put what waits for one worker where any takes it, as kombu keeps its queues: the oldest on the right. Raises
    RelayDown."""
    own, common = (context.queue_key(name) for name in (task_names.worker_queue(worker_id), task_names.RUNS_QUEUE))
    with relay_errors():
        while context.redis.lmove(own, common, src="RIGHT", dest="LEFT") is not None:
            pass


def sign_off(context: WorkerContext, worker_id: str) -> None:
    """A worker is gone: leave what waits for it to others, and drop its mailbox and its name. Raises RelayDown."""
    hand_on_queue(context, worker_id)
    with relay_errors():
        context.redis.delete(context.queue_key(f"_kombu.binding.{task_names.worker_queue(worker_id)}"))
    context.presence.leave_worker(worker_id)
    context.presence.forget_worker(worker_id)


def beat(context: WorkerContext, started_at: datetime) -> None:
    """One heartbeat. Raises RelayDown."""
    context.presence.beat_worker(facts_of(context, started_at))
