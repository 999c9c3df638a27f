"""The bridge in real Celery workers with the real hermes-agent: what operators see and do, which worker takes a
session's next turn, and what a worker's end leaves behind.

Workers and agents take seconds to start: a test goes on with those that live, and starts what it needs beside them."""

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from celery import Celery

from shared import task_names
from shared.models import ChatSession
from shared.store import pauses, users
from shared.store import runs as run_store
from tests.rig import operator
from tests.rig.bridge import HermesHome, running, wait_for
from tests.rig.hermes import ScriptedModel
from tests.rig.portal import is_alive
from tests.rig.redis_server import RedisServer
from tests.rig.worker_process import WorkerProcess
from tests.worker.conftest import Desk, a_desk
from worker.celery_config import make_app

APP = "worker.celery_app"


class Bridges:
    """Workers of the real app, and the broker as the web process uses it."""

    def __init__(self, desk: Desk, home: HermesHome) -> None:
        self.desk = desk
        self.home = home
        self.app: Celery = make_app(desk.settings)
        self.stack = ExitStack()
        self._all: list[WorkerProcess] = []

    @property
    def workers(self) -> list[WorkerProcess]:
        """Those that live."""
        return [worker for worker in self._all if worker.process.poll() is None]

    def need(self, count: int) -> list[WorkerProcess]:
        """Just that many workers."""
        for surplus in self.workers[count:]:
            surplus.kill_group()
        more = {"PORTAL_SHUTDOWN_GRACE_S": "1", "PORTAL_JANITOR_EVERY_S": "3600"}  # none sends a turn to another worker
        environ = {**self.desk.environ, **self.home.environ, **more}
        for _ in range(count - len(self.workers)):
            self._all.append(self.stack.enter_context(WorkerProcess(environ, app=APP, wait=False)))
        for worker in self.workers:
            worker.wait_ready()
        return self.workers

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
        self.desk.wait_final(run_id, timeout_s=180.0)  # it may have to start an agent first
        assert self.desk.state(run_id) == "completed", self.desk.row(run_id).error
        return run_id

    def seen(self) -> list[list[dict[str, Any]]]:
        """What `celery inspect portal_bridge` tells, by worker."""

        def answering() -> list[list[dict[str, Any]]] | None:
            told = self._asked("portal_bridge")
            return told if all(facts.get("answers", True) for child in told for facts in child) else None

        found: list[list[dict[str, Any]]] = wait_for(answering, "children that answer, on a machine that may be busy")
        return found

    def child(self) -> dict[str, Any]:
        """The one child there is, once those before it are gone and its version is known."""

        def the_one() -> dict[str, Any] | None:
            found = [facts for answer in self.seen() for facts in answer if facts.get("pid")]
            return dict(found[0]) if len(found) == 1 and found[0]["version"] else None

        only: dict[str, Any] = wait_for(the_one, "that there is one child")
        return only

    def tell(self, command: str, **arguments: Any) -> list[str]:
        return [str(answer["ok"]) for answer in self._asked(command, **arguments)]

    def refused(self, command: str, profile: str) -> str:
        (answer,) = self._asked(command, profile=profile)
        return str(answer["error"])

    def _asked(self, command: str, **arguments: Any) -> list[Any]:
        """The answers of all workers, which may have one name."""
        return operator.asked(self.app.control, command, arguments, workers=len(self.workers))


@pytest.fixture(scope="module")
def bridges(
    hermes_model: ScriptedModel, shared_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bridges]:
    shared_redis.client.flushall()
    folder = tmp_path_factory.mktemp("control")
    home = HermesHome(hermes_model)
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        contextmanager(a_desk)(f"sqlite:///{folder / 'portal.db'}", shared_redis.url, folder, monkeypatch) as desk,
    ):
        made = Bridges(desk, home)
        with made.stack:
            yield made
        made.app.close()
        wait_for(lambda: running(str(home.path)) == [], "the end of all children")
    home.close()


def roles(bridges: Bridges, run_id: str) -> int:
    """How many messages the model was told, of an answer to [[echo:roles]]."""
    return bridges.desk.answer(run_id).content.count('"') // 2


def test_operators_see_the_children_and_what_they_hold(bridges: Bridges) -> None:
    bridges.need(1)
    held = sum(child["sessions"] for child in bridges.seen()[0])
    session_id = bridges.desk.session(source="cli")
    bridges.run("[[say:A secret of Ada.]]", session_id)
    child = bridges.child()
    assert child["endpoint"].startswith("ipc:///")
    assert is_alive(child["pid"])
    assert (child["profile"], child["state"], child["version"]) == (None, "ready", "0.19.0")
    assert (child["sessions"], child["busy"], child["idle"], child["runs"]) == (held + 1, 0, held + 1, 0)
    assert 40 < child["memory_mb"] < 1_000
    assert "secret" not in str(child).lower()
    slow = bridges.submit("[[stream:9000:20]]", session_id)
    bridges.send(slow)
    bridges.desk.wait(lambda: bridges.desk.seen_text(slow), what="some text")
    child = bridges.child()
    assert (child["sessions"], child["busy"], child["idle"], child["runs"]) == (held + 1, 1, held, 1)
    with bridges.desk.db() as db:
        run_store.request_abort(db, slow, by_name="Ada")
    assert bridges.desk.wait_final(slow) == "aborted"


def test_an_operator_may_drop_a_session_and_it_is_told_its_history(bridges: Bridges) -> None:
    bridges.need(1)
    session_id = bridges.desk.session(source="cli")
    bridges.run("[[say:My name is Ada.]]", session_id)
    held = bridges.child()["sessions"]
    assert bridges.tell("portal_drop_session", session_id=session_id) == ["dropped"]
    assert bridges.child()["sessions"] == held - 1
    assert bridges.tell("portal_drop_session", session_id=session_id) == ["nothing of it is held here"]
    assert roles(bridges, bridges.run("[[echo:roles]]", session_id)) == 4


@pytest.mark.parametrize("at_once", [False, True])
def test_an_operator_may_start_the_children_again(bridges: Bridges, at_once: bool) -> None:
    bridges.need(1)
    desk = bridges.desk
    session_id = desk.session(source="cli", on_failure="continue")
    bridges.run("[[say:My name is Ada.]]", session_id)
    old = bridges.child()["pid"]
    slow = bridges.submit("[[say:Wait.]] [[clarify:Which?|a|b]]", session_id)
    bridges.send(slow)
    pause = desk.wait(lambda: desk.pause(slow), what="the question")
    assert "There is no profile 'nobody'. There are: default" in bridges.refused("portal_bridge_restart", "nobody")
    (told,) = bridges.tell("portal_bridge_restart", at_once=at_once)
    assert told == f"1 started again; 1 turns {'are ended' if at_once else 'go on to their end'}"
    if not at_once:
        with desk.db() as db:
            pauses.answer(db, pause.id, user=users.get(db, desk.user_id), answer="a")
    desk.wait_final(slow)
    assert desk.state(slow) == ("interrupted" if at_once else "completed")
    if at_once:
        assert "by an operator" in (desk.row(slow).error or "")
    wait_for(lambda: not is_alive(old), "the end of the old child")
    assert roles(bridges, bridges.run("[[echo:roles]]", session_id)) == 6
    assert bridges.child()["pid"] != old


def test_the_turns_of_a_session_stay_with_the_worker_that_holds_its_agent_while_it_lives(bridges: Bridges) -> None:
    workers = bridges.need(2)
    desk = bridges.desk
    session_id = desk.session(source="cli", on_failure="continue")
    runs = [bridges.run("[[echo:roles]]", session_id) for _ in range(5)]
    drivers = {desk.row(run_id).worker_id for run_id in runs}
    assert len(drivers) == 1
    (driver,) = drivers
    worker = next(each for each in workers if f"-{each.pid}-" in str(driver))
    assert all(each.process.poll() is None for each in workers), "another could have taken them"
    worker.kill_group()
    wait_for(lambda: not desk.context.presence.takes_turns(str(driver)), "the end of its heartbeat")
    last = bridges.run("[[echo:roles]]", session_id)
    assert desk.row(last).worker_id != driver
    assert roles(bridges, last) == 12, "the same quality: the history is whole"


@pytest.mark.parametrize("how", ["kill -9", "SIGTERM"])
def test_a_worker_that_ends_takes_its_child_and_the_childs_tools_along(bridges: Bridges, how: str) -> None:
    """F8, C19."""
    (worker,) = bridges.need(1)
    mark = f"sleep 7{secrets.randbelow(10**8):08d}"
    run_id = bridges.submit(
        f'[[say:Wait.]] [[tool:terminal:{{"command":"{mark}"}}]]', bridges.desk.session(source="cli")
    )
    bridges.send(run_id)
    wait_for(lambda: running(mark), "the tool", timeout_s=180.0)
    child = bridges.child()["pid"]
    if how == "SIGTERM":
        worker.terminate()
    else:
        os.kill(worker.pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(child) and running(mark) == [], "the end of the child and its tool")
    worker.process.wait(60)
    if how == "SIGTERM":
        assert (bridges.desk.state(run_id), bridges.desk.row(run_id).reason) == ("interrupted", "shutdown")
