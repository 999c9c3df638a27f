"""The names of the Celery tasks and queues, and what may be put in a message: ids, never texts."""

from collections.abc import Callable

RUN_TURN = "portal.run_turn"
"""`run_turn(run_id: str, *, session: str, user: str, backend: str)`; the task id is the run id. The keyword labels are
for operators' eyes and are never read."""

RUNS_QUEUE = "runs"
UPKEEP_QUEUE = "upkeep"


def worker_queue(worker_id: str) -> str:
    """The queue by which a turn reaches the worker that holds its session's warm agent."""
    return f"{RUNS_QUEUE}.{worker_id}"


def turn_queue(source: str, warm_worker: str | None, takes_turns: Callable[[str], bool]) -> str:
    """The queue for a turn: that of the worker which holds its session's warm agent, while it takes turns, else any.

    The gateway (`api_server`) keeps no agent between turns: any worker is as good as another."""
    if warm_worker is None or source == "api_server" or not takes_turns(warm_worker):
        return RUNS_QUEUE
    return worker_queue(warm_worker)


UPKEEP = "portal.upkeep"
"""`upkeep()`: what beat has done every hour: retention."""
