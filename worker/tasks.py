"""The Celery tasks: unpack the arguments, call a plain function, nothing else. The list is fixed (S45)."""

from shared import task_names
from worker import lifecycle, retention
from worker.celery_app import celery_app
from worker.runs.claim import hand_on
from worker.runs.execute import execute


@celery_app.task(name=task_names.RUN_TURN, max_retries=0)  # type: ignore[untyped-decorator]
def run_turn(run_id: str, **labels: object) -> None:
    """One turn. The labels are for operators' eyes; unknown ones are ignored."""
    context = lifecycle.current()
    context.taken.set()
    if context.draining.is_set():
        hand_on(run_id, context)
    else:
        execute(run_id, context)


@celery_app.task(name=task_names.UPKEEP, max_retries=0)  # type: ignore[untyped-decorator]
def upkeep() -> None:
    retention.tidy(lifecycle.current())
