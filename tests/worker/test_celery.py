"""Real Celery workers: queues, deliveries, deaths."""

import pytest
from celery import Celery

from shared import task_names
from tests.rig.worker_process import WorkerProcess
from tests.worker.conftest import Desk
from worker.celery_config import make_app


@pytest.fixture
def app(desk: Desk) -> Celery:
    """What the web process has to send tasks with."""
    return make_app(desk.settings)


def send(app: Celery, run_id: str, queue: str = task_names.RUNS_QUEUE) -> None:
    app.send_task(task_names.RUN_TURN, args=[run_id], kwargs={"session": "s", "new": 1}, task_id=run_id, queue=queue)


def test_a_worker_process_answers_a_turn(desk: Desk, app: Celery) -> None:
    with WorkerProcess(desk.environ) as worker:
        run_id = desk.submit(desk.session(), [{"text": "hello"}])
        send(app, run_id)
        assert desk.wait_final(run_id) == "completed"
        assert desk.answer(run_id).content == "hello"
        assert desk.row(run_id).worker_id.split("-")[-3] == str(worker.pid)
