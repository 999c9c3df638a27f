"""The names of the Celery tasks and queues, and what may be put in a message: ids, never texts."""

RUN_TURN = "portal.run_turn"
"""`run_turn(run_id: str, *, session: str, user: str, backend: str)`; the task id is the run id. The keyword labels are
for operators' eyes and are never read."""

RUNS_QUEUE = "runs"
UPKEEP_QUEUE = "upkeep"


def worker_queue(worker_id: str) -> str:
    """The queue by which a turn reaches the worker that holds its session's warm agent."""
    return f"{RUNS_QUEUE}.{worker_id}"


UPKEEP = "portal.upkeep"
"""`upkeep()`: what beat has done every hour: retention."""
