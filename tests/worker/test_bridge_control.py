"""The bridge in real Celery workers with the real hermes-agent: what operators see and do, which worker takes a
session's next turn, and what a worker's end leaves behind."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from celery import Celery

from shared import task_names
from shared.models import ChatSession
from shared.store import runs as run_store
from tests.rig.bridge import HermesHome, running, wait_for
from tests.rig.portal import is_alive
from tests.rig.worker_process import WorkerProcess
from tests.worker.conftest import Desk
from worker.celery_config import make_app

APP = "worker.celery_app"
TOLD_S = 5.0  # at most: it is over when all have answered


class Bridges:
    """Workers of the real app, and the broker as the web process uses it."""

    def __init__(self, desk: Desk, home: HermesHome) -> None:
        self.desk = desk
        self.home = home
        self.app: Celery = make_app(desk.settings)
        self.stack = ExitStack()
        self.workers: list[WorkerProcess] = []

    def worker(self, **environ: str) -> WorkerProcess:
        environ = {**self.desk.environ, **self.home.environ, "PORTAL_ABORT_GRACE_S": "3", **environ}
        self.workers.append(self.stack.enter_context(WorkerProcess(environ, app=APP)))
        return self.workers[-1]

    def submit(self, text: str, session_id: str, **given: Any) -> str:
        return self.desk.submit(session_id, text, **given)

    def send(self, run_id: str) -> None:
        """As a door does it: to the worker that holds the session, or any."""
        with self.desk.look() as db:
            run = run_store.get(db, run_id)
            warm = db.get_one(ChatSession, run.session_id).warm_worker
        queue = task_names.turn_queue(run.source, warm, self.desk.context.presence.takes_turns)
        self.app.send_task(task_names.RUN_TURN, args=[run_id], task_id=run_id, queue=queue)

    def run(self, text: str, session_id: str, **given: Any) -> str:
        run_id = self.submit(text, session_id, **given)
        self.send(run_id)
        self.desk.wait_final(run_id, 40)
        assert self.desk.state(run_id) == "completed", self.desk.row(run_id).error
        return run_id

    def seen(self) -> list[list[dict[str, Any]]]:
        """What `celery inspect portal_bridge` tells, by worker."""
        return self._asked("portal_bridge")

    def child(self) -> dict[str, Any]:
        """The one child there is."""
        (found,) = [facts for answer in self.seen() for facts in answer if facts.get("pid")]
        return dict(found)

    def tell(self, command: str, **arguments: Any) -> list[str]:
        return [str(answer["ok"]) for answer in self._asked(command, **arguments)]

    def _asked(self, command: str, **arguments: Any) -> list[Any]:
        """The answers of all workers, which may have one name."""
        answers = self.app.control.broadcast(
            command, arguments=arguments, reply=True, timeout=TOLD_S, limit=len(self.workers)
        )
        return [next(iter(answer.values())) for answer in answers]


@pytest.fixture
def bridges(sqlite_desk: Desk, hermes_home: HermesHome) -> Iterator[Bridges]:
    made = Bridges(sqlite_desk, hermes_home)
    with made.stack:
        yield made
    made.app.close()
    wait_for(lambda: running(str(hermes_home.path)) == [], "the end of all children")


def roles(bridges: Bridges, run_id: str) -> int:
    """How many messages the model was told, of an answer to [[echo:roles]]."""
    return bridges.desk.answer(run_id).content.count('"') // 2


def test_operators_see_the_children_and_what_they_hold(bridges: Bridges) -> None:
    bridges.worker()
    assert bridges.seen() == [[]], "none before the first turn"
    session_id = bridges.desk.session(source="cli")
    bridges.run("[[say:A secret of Ada.]]", session_id)
    child = bridges.child()
    assert child["endpoint"].startswith("ipc:///")
    assert is_alive(child["pid"])
    assert (child["profile"], child["state"], child["version"]) == (None, "ready", "0.19.0")
    assert (child["sessions"], child["busy"], child["idle"], child["runs"]) == (1, 0, 1, 0)
    assert 40 < child["memory_mb"] < 1_000
    assert "secret" not in str(child).lower()
    slow = bridges.submit("[[stream:300:20]]", session_id)
    bridges.send(slow)
    bridges.desk.wait(lambda: bridges.desk.seen_text(slow), what="some text")
    child = bridges.child()
    assert (child["sessions"], child["busy"], child["idle"], child["runs"]) == (1, 1, 0, 1)


def test_an_operator_may_drop_a_session_and_it_is_told_its_history(bridges: Bridges) -> None:
    bridges.worker()
    session_id = bridges.desk.session(source="cli")
    bridges.run("[[say:My name is Ada.]]", session_id)
    assert bridges.tell("portal_drop_session", session_id=session_id) == ["dropped"]
    assert bridges.child()["sessions"] == 0
    assert bridges.tell("portal_drop_session", session_id=session_id) == ["nothing of it is held here"]
    assert roles(bridges, bridges.run("[[echo:roles]]", session_id)) == 4


@pytest.mark.parametrize("at_once", [False, True])
def test_an_operator_may_start_the_children_again(bridges: Bridges, at_once: bool) -> None:
    bridges.worker()
    desk = bridges.desk
    session_id = desk.session(source="cli", on_failure="continue")
    bridges.run("[[say:My name is Ada.]]", session_id)
    old = bridges.child()["pid"]
    slow = bridges.submit("[[stream:100:20]]", session_id)
    bridges.send(slow)
    desk.wait(lambda: desk.seen_text(slow), what="some text")
    (told,) = bridges.tell("portal_bridge_restart", at_once=at_once)
    assert told == f"1 started again; 1 turns {'are ended' if at_once else 'go on to their end'}"
    desk.wait_final(slow)
    assert desk.state(slow) == ("interrupted" if at_once else "completed")
    if at_once:
        assert "by an operator" in (desk.row(slow).error or "")
    wait_for(lambda: not is_alive(old), "the end of the old child")
    assert roles(bridges, bridges.run("[[echo:roles]]", session_id)) == 6
    assert bridges.child()["pid"] != old


def test_the_turns_of_a_session_stay_with_the_worker_that_holds_its_agent_while_it_lives(bridges: Bridges) -> None:
    workers = [bridges.worker() for _ in range(2)]
    desk = bridges.desk
    session_id = desk.session(source="cli", on_failure="continue")
    runs = [bridges.run("[[echo:roles]]", session_id) for _ in range(5)]
    drivers = {desk.row(run_id).worker_id for run_id in runs}
    assert len(drivers) == 1
    assert sorted(len(answer) for answer in bridges.seen()) == [0, 1], "the other has no child at all"
    (driver,) = drivers
    worker = next(each for each in workers if f"-{each.pid}-" in str(driver))
    worker.kill_group()
    wait_for(lambda: not desk.context.presence.takes_turns(str(driver)), "the end of its heartbeat")
    last = bridges.run("[[echo:roles]]", session_id)
    assert desk.row(last).worker_id != driver
    assert roles(bridges, last) == 12, "the same quality: the history is whole"


@pytest.mark.parametrize("how", ["kill -9", "SIGTERM"])
def test_a_worker_that_ends_takes_its_child_and_the_childs_tools_along(bridges: Bridges, how: str) -> None:
    """F8, C19."""
    worker = bridges.worker()
    mark = f"sleep 7{os.getpid()}"
    run_id = bridges.submit(
        f'[[say:Wait.]] [[tool:terminal:{{"command":"{mark}"}}]]', bridges.desk.session(source="cli")
    )
    bridges.send(run_id)
    wait_for(lambda: running(mark), "the tool", 30)
    child = bridges.child()["pid"]
    began = time.monotonic()
    if how == "SIGTERM":
        worker.terminate()
    else:
        os.kill(worker.pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(child) and running(mark) == [], "the end of the child and its tool", 10)
    worker.process.wait(10)
    assert time.monotonic() - began < 10
    if how == "SIGTERM":
        assert (bridges.desk.state(run_id), bridges.desk.row(run_id).reason) == ("interrupted", "shutdown")
