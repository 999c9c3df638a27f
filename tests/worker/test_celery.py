"""Real Celery workers: what they take, and what their deaths, pauses and stops leave behind."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from shared import task_names
from shared.run_state import RunState
from shared.store import catalogue, chat_sessions, pauses
from shared.store import runs as run_store
from tests.rig import operator
from tests.rig.redis_server import RedisServer
from tests.rig.standstill import stop_between_writes
from tests.rig.worker_process import SHORT_LEASES, WorkerProcess
from tests.worker.conftest import Desk, a_desk
from tests.worker.scripted_backend import STALLED
from worker.celery_config import make_app


class Shop:
    """A desk with real workers, and the broker as the web process uses it."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.app: Celery = make_app(desk.settings)
        self.stack = ExitStack()

    def worker(self, **environ: str) -> WorkerProcess:
        return self.stack.enter_context(WorkerProcess({**self.desk.environ, **environ}))

    def beat(self) -> WorkerProcess:
        return self.stack.enter_context(WorkerProcess(self.desk.environ, role="beat"))

    def send(self, run_id: str, queue: str = task_names.RUNS_QUEUE) -> None:
        self.app.send_task(
            task_names.RUN_TURN, args=[run_id], kwargs={"session": "s", "new": 1}, task_id=run_id, queue=queue
        )

    def submit(self, steps: Any, session_id: str | None = None, **columns: Any) -> str:
        run_id = self.desk.submit(session_id or self.desk.session(**columns), steps, dispatched=True)
        self.send(run_id)
        return run_id

    def begun(self, steps: Any, **columns: Any) -> str:
        run_id = self.submit(steps, **columns)
        self.desk.wait(lambda: self.desk.turns(run_id), what="the turn at its backend")
        return run_id

    def worker_of(self, run_id: str, workers: list[WorkerProcess]) -> WorkerProcess:
        pid = (self.desk.row(run_id).worker_id or "").split("-")[-3]
        return next(worker for worker in workers if str(worker.pid) == pid)


@pytest.fixture
def shop(desk: Desk) -> Iterator[Shop]:
    shop = Shop(desk)
    with shop.stack:
        yield shop
    shop.app.close()


@pytest.fixture
def sqlite_shop(sqlite_desk: Desk) -> Iterator[Shop]:
    shop = Shop(sqlite_desk)
    with shop.stack:
        yield shop
    shop.app.close()


WORDS = [{"text": "word# ", "times": 2_000, "every_s": 0.01}]
NO_HURRY = {
    "PORTAL_LEASE_S": "3600",
    "PORTAL_LEASE_RENEW_S": "900",
    "PORTAL_LEASE_GIVE_UP_S": "3000",
    "PORTAL_JANITOR_EVERY_S": "900",
    "PORTAL_DISPATCH_AGAIN_S": "900",
    "PORTAL_SHUTDOWN_GRACE_S": "900",
}


# ---- deliveries


def test_a_message_delivered_ten_times_begins_one_turn(shop: Shop) -> None:
    """F4, with the labels of another version."""
    shop.worker(), shop.worker()
    run_id = shop.desk.submit(shop.desk.session(), [{"text": "hello"}, {"sleep": 0.5}])
    for _ in range(10):
        shop.send(run_id)
    assert shop.desk.wait_final(run_id) == "completed"
    assert shop.desk.answer(run_id).content == "hello"
    time.sleep(0.5)
    assert shop.desk.turns(run_id) == 1


def test_a_redelivery_after_the_visibility_timeout_changes_nothing(sqlite_shop: Shop) -> None:
    """F6 in short: the message comes again while the run goes on, and after it has ended."""
    desk = sqlite_shop.desk
    sqlite_shop.worker()
    run_id = sqlite_shop.begun([{"text": "a"}, {"sleep": 1}])
    sqlite_shop.send(run_id)
    assert desk.wait_final(run_id) == "completed"
    sqlite_shop.send(run_id)
    time.sleep(0.7)
    assert (desk.turns(run_id), desk.state(run_id)) == (1, "completed")
    desk.wait(lambda: operator.asked(sqlite_shop.app.control, "active") == [[]], what="the end of both tasks")


def test_the_queue_of_a_session_goes_through_its_worker_in_order(sqlite_shop: Shop) -> None:
    desk = sqlite_shop.desk
    sqlite_shop.worker()
    session_id = desk.session()
    runs = [sqlite_shop.submit([{"text": str(n)}], session_id) for n in range(6)]
    for run_id in runs:
        assert desk.wait_final(run_id) == "completed"
    assert [line for line in desk.effects() if line.startswith("turn")] == [f"turn {run_id}" for run_id in runs]


def test_a_worker_takes_what_is_sent_to_it_alone(sqlite_shop: Shop) -> None:
    desk = sqlite_shop.desk
    workers = [sqlite_shop.worker(**NO_HURRY), sqlite_shop.worker(**NO_HURRY)]  # no janitor sends it to both
    facts = desk.wait(lambda: len(found := desk.context.presence.workers()) == 2 and found, what="two workers")
    for known in facts:
        run_id = desk.submit(desk.session(), "hello", dispatched=True)
        sqlite_shop.send(run_id, task_names.worker_queue(known.worker_id))
        assert desk.wait_final(run_id) == "completed"
        assert desk.row(run_id).worker_id == known.worker_id
        assert sqlite_shop.worker_of(run_id, workers).pid == known.pid


def test_a_full_worker_keeps_no_turn_that_a_free_one_could_take(sqlite_shop: Shop) -> None:
    desk = sqlite_shop.desk
    busy = sqlite_shop.worker(PORTAL_WORKER_CONCURRENCY="2")
    blocked = [sqlite_shop.begun([{"block": True}]) for _ in range(2)]
    waiting = [sqlite_shop.submit("hello") for _ in range(3)]
    time.sleep(0.5)
    assert {desk.state(run_id) for run_id in waiting} == {"queued"}
    free = sqlite_shop.worker()
    for run_id in waiting:
        assert desk.wait_final(run_id) == "completed"
        assert sqlite_shop.worker_of(run_id, [busy, free]) is free
    assert {desk.state(run_id) for run_id in blocked} == {"running"}


# ---- deaths


def test_a_worker_killed_in_mid_text_leaves_all_that_was_seen(shop: Shop) -> None:
    """F7, C5."""
    desk = shop.desk
    first = shop.worker(**SHORT_LEASES)
    run_id = shop.begun(WORDS)
    desk.wait(lambda: len(desk.seen_text(run_id)) > 200, what="some text")
    first.kill()
    seen = desk.seen_text(run_id)
    shop.worker()
    assert desk.wait_final(run_id) == "interrupted"
    row = desk.row(run_id)
    assert (row.reason, row.fence) == ("worker_lost", 2)
    assert desk.answer(run_id).content == seen
    assert "".join(f"word{n} " for n in range(2_000)).startswith(seen)
    assert desk.turns(run_id) == 1
    desk.wait(lambda: desk.names(run_id)[-1] == "run.interrupted", what="the end told")


def test_a_killed_worker_group_lets_the_queue_go_on(sqlite_shop: Shop) -> None:
    """F8: in mid-tool, with `continue`."""
    desk = sqlite_shop.desk
    first = sqlite_shop.worker(**SHORT_LEASES)
    session_id = desk.session(on_failure="continue")
    run_id = sqlite_shop.submit([{"text": "a"}, {"tool": "sleep", "takes_s": 60}], session_id)
    after = sqlite_shop.submit("next", session_id)
    desk.wait(lambda: "tool.started" in desk.names(run_id), what="the tool")
    first.kill_group()
    sqlite_shop.worker()
    assert desk.wait_final(run_id) == "interrupted"
    assert desk.wait_final(after) == "completed"
    desk.wait(lambda: desk.names(run_id)[-1] == "run.interrupted", what="the end told")
    last = desk.events(run_id)[-1]
    assert [(tool.name, tool.finished) for tool in last.data.tools_already_run] == [("sleep", False)]


def test_a_worker_killed_while_it_starts_a_run_lets_it_start_elsewhere(shop: Shop) -> None:
    """F9, C4."""
    desk = shop.desk
    first = shop.worker(**SHORT_LEASES)
    with desk.db() as db:
        catalogue.put_profile(db, name=STALLED)
    session_id = desk.session(profile=STALLED)
    run_id = shop.submit("hello", session_id)
    desk.wait(lambda: desk.state(run_id) == "starting", what="the start")
    first.kill()
    clear_profile(desk, session_id)
    shop.worker()
    assert desk.wait_final(run_id) == "completed"
    assert (desk.turns(run_id), desk.row(run_id).attempt) == (1, 1)


def test_a_turn_is_never_sent_after_a_death_between_commit_and_send(sqlite_shop: Shop) -> None:
    """F10: `running` was committed, nothing was sent, nobody can know: it is interrupted."""
    desk = sqlite_shop.desk
    first = sqlite_shop.worker(**SHORT_LEASES)
    run_id = sqlite_shop.submit([{"kill": True}, {"text": "never"}])
    assert first.process.wait(60) == -9
    sqlite_shop.worker()
    assert desk.wait_final(run_id) == "interrupted"
    assert desk.turns(run_id) == 0


def test_a_paused_worker_is_fenced_out(shop: Shop) -> None:
    """F11, C6."""
    desk = shop.desk
    paused = shop.worker(**SHORT_LEASES)
    run_id = shop.begun(WORDS)
    desk.wait(lambda: len(desk.seen_text(run_id)) > 100, what="some text")
    stop_between_writes(paused.pid, desk.context.engine)
    shop.worker()
    assert desk.wait_final(run_id) == "interrupted"
    desk.wait(lambda: desk.names(run_id)[-1] == "run.interrupted", what="the end told")
    seen = desk.seen_text(run_id)
    paused.resume()
    next_run = shop.submit("hello")
    assert desk.wait_final(next_run) == "completed"
    time.sleep(1)
    assert desk.state(run_id) == "interrupted"
    assert desk.answer(run_id).content == desk.seen_text(run_id) == seen
    assert desk.names(run_id)[-1] == "run.interrupted"
    desk.wait(lambda: '"run.lease' in paused.log() or '"run.lost' in paused.log(), what="the worker to notice")


def test_an_abort_of_a_dead_workers_run_is_carried_out(sqlite_shop: Shop) -> None:
    """F37."""
    desk = sqlite_shop.desk
    first = sqlite_shop.worker(**SHORT_LEASES)
    run_id = sqlite_shop.begun([{"text": "a"}, {"block": True}])
    first.kill()
    with desk.db() as db:
        assert run_store.request_abort(db, run_id, by_name="Ada") == RunState.ABORTING
    sqlite_shop.worker()
    assert desk.wait_final(run_id) == "aborted"


def test_redis_killed_without_its_data_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F14, C7: the run goes on, the queue is rebuilt from the database."""
    server = RedisServer()
    for desk in a_desk(f"sqlite:///{tmp_path / 'portal.db'}", server.url, tmp_path, monkeypatch):
        shop = Shop(desk)
        with shop.stack:
            shop.worker()
            run_id = shop.begun([{"text": "word# ", "times": 100, "every_s": 0.05}])
            waits = desk.submit(desk.row(run_id).session_id, "next")
            other = desk.submit(desk.session(), "other")
            server.kill()
            time.sleep(1)
            server.start()
            for each in (run_id, waits, other):
                assert desk.wait_final(each) == "completed"
            assert desk.answer(run_id).content == "".join(f"word{n} " for n in range(100))
            assert desk.turns(run_id) == 1
        shop.app.close()
    server.close()


def test_beat_mends_without_a_worker_and_a_second_does_no_harm(sqlite_shop: Shop) -> None:
    """F50, C16 the other way round: only beats are left."""
    desk = sqlite_shop.desk
    worker = sqlite_shop.worker(**SHORT_LEASES)
    begun = sqlite_shop.begun([{"text": "so far."}, {"block": True}])
    desk.wait(lambda: desk.seen_text(begun) == "so far.", what="the text")
    worker.kill()
    waits = desk.submit(desk.session(), "hello")
    sqlite_shop.beat(), sqlite_shop.beat()
    assert desk.wait_final(begun) == "interrupted"
    assert desk.answer(begun).content == "so far."
    desk.wait(lambda: desk.row(waits).dispatches, what="a dispatch by beat")
    sqlite_shop.worker()
    assert desk.wait_final(waits) == "completed"
    assert (desk.turns(waits), desk.turns(begun)) == (1, 1)


# ---- stops


def test_a_deploy_gives_runs_their_grace_and_leaves_the_queue_alone(sqlite_shop: Shop) -> None:
    """F12, C19."""
    desk = sqlite_shop.desk
    worker = sqlite_shop.worker(PORTAL_SHUTDOWN_GRACE_S="6")
    long = sqlite_shop.begun([{"text": "long"}, {"block": True}])
    quick = sqlite_shop.begun([{"text": "soon "}, {"sleep": 1}, {"text": "done"}])
    session_id = desk.row(long).session_id
    queued = [sqlite_shop.submit("later", session_id) for _ in range(3)]
    worker.terminate()
    assert worker.process.wait(60) == 0
    assert (desk.state(quick), desk.answer(quick).content) == ("completed", "soon done")
    row = desk.row(long)
    assert (row.state, row.reason) == ("interrupted", "shutdown")
    assert {desk.state(run_id) for run_id in queued} == {"queued"}
    with desk.db() as db:
        run_store.release_queue(db, session_id)
    sqlite_shop.worker()
    for run_id in queued:
        assert desk.wait_final(run_id) == "completed"
    assert desk.turns(long) == 1


def test_a_draining_worker_takes_nothing_more_and_ends_what_it_has(sqlite_shop: Shop) -> None:
    desk = sqlite_shop.desk
    sqlite_shop.worker()
    running = sqlite_shop.begun([{"text": "a"}, {"sleep": 3}])
    control = sqlite_shop.app.control
    operator.asked(control, "portal_drain")
    waits = sqlite_shop.submit("hello")
    assert desk.wait_final(running) == "completed"
    time.sleep(1)
    assert desk.state(waits) == "queued"
    status = desk.wait(
        lambda: next((each for each in operator.asked(control, "portal_status") if not each["runs"]), None),
        what="a worker without runs",
    )
    assert (status["draining"], status["queues"]) == (True, [])
    operator.asked(control, "portal_drain", {"on": False})
    assert desk.wait_final(waits) == "completed"


@pytest.mark.parametrize("how", ["portal_drain", "SIGTERM"])
def test_what_was_sent_to_a_worker_that_drains_goes_to_another_at_once(sqlite_shop: Shop, how: str) -> None:
    """Neither at its next heartbeat nor by a janitor: both are far away."""
    desk, control = sqlite_shop.desk, sqlite_shop.app.control
    worker = sqlite_shop.worker(**NO_HURRY, PORTAL_WORKER_CONCURRENCY="1")
    busy = sqlite_shop.begun([{"block": True}])
    worker_id = str(desk.row(busy).worker_id)

    def send() -> str:
        run_id = desk.submit(desk.session(), "hello", dispatched=True)
        sqlite_shop.send(run_id, task_names.worker_queue(worker_id))
        return run_id

    sent = [send()]
    if how == "SIGTERM":
        worker.terminate()
    else:
        operator.asked(control, "portal_drain")
    desk.wait(lambda: not desk.context.presence.takes_turns(worker_id), what="that it says so")
    sent.append(send())  # by who had not heard of it yet
    desk.wait(lambda: desk.context.redis.llen(desk.context.queue_key(task_names.RUNS_QUEUE)) == 2, what="both for all")
    if how == "portal_drain":
        operator.asked(control, "portal_drain", {"on": False})
        desk.wait(lambda: desk.context.presence.takes_turns(worker_id), what="that it takes turns again")
    other = sqlite_shop.worker(**NO_HURRY)
    for run_id in sent:
        assert desk.wait_final(run_id) == "completed"
        assert sqlite_shop.worker_of(run_id, [worker, other]) is other
    assert desk.state(busy) == "running"


# ---- what operators see and do


def test_inspect_tells_of_runs_without_their_contents(sqlite_shop: Shop) -> None:
    desk = sqlite_shop.desk
    sqlite_shop.worker(**NO_HURRY)
    run_id = sqlite_shop.begun([{"text": "canary"}, {"approval": "rm canary"}])
    desk.wait(lambda: "approval.requested" in desk.names(run_id), what="the approval")
    (runs,) = answers = operator.asked(sqlite_shop.app.control, "portal_runs")
    (run,) = runs
    assert (run["run_id"], run["user"], run["source"], run["waits_for_people"]) == (run_id, "Ada", "api_server", 1)
    assert "canary" not in json.dumps(answers)
    active = operator.asked(sqlite_shop.app.control, "active")[0]
    assert [task["id"] for task in active] == [run_id]
    assert "canary" not in json.dumps(active)


def test_who_watches_events_sees_each_turn_come_and_go_also_the_last_before_a_stop(sqlite_shop: Shop) -> None:
    """What `celery events` and Flower read; the worker tells them together, half a second late."""
    desk, seen = sqlite_shop.desk, list[tuple[str, str]]()
    with sqlite_shop.app.connection() as connection:
        receiver = sqlite_shop.app.events.Receiver(
            connection, handlers={"*": lambda event: seen.append((event["type"], event.get("uuid", "")))}
        )
        events = receiver.itercapture(limit=None, timeout=60, wakeup=False)
        sqlite_shop.stack.callback(events.close)
        next(events)  # it listens

        def until(kind: str, run_id: str) -> None:
            while (kind, run_id) not in seen:
                next(events)

        worker = sqlite_shop.worker(**NO_HURRY)  # a janitor in a hurry would send a turn a second time
        first = sqlite_shop.submit("one")
        until("task-sent", first)  # is told by us, after the task: the worker may have told its part before
        until("task-succeeded", first)
        kinds = [kind for kind, run_id in seen if run_id == first]
        assert kinds.count("task-sent") == 1
        assert [kind for kind in kinds if kind != "task-sent"] == ["task-received", "task-started", "task-succeeded"]
        last = sqlite_shop.begun([{"text": "a"}, {"sleep": 1}])
        worker.terminate()
        until("task-succeeded", last)
    assert desk.state(last) == "completed"


def test_a_revoked_turn_that_waits_is_cancelled(sqlite_shop: Shop) -> None:
    desk = sqlite_shop.desk
    worker = sqlite_shop.worker()
    running = sqlite_shop.begun([{"approval": "to go on"}])
    waits = sqlite_shop.submit("never", desk.row(running).session_id)
    operator.asked(sqlite_shop.app.control, "revoke", {"task_id": [waits, running]})
    desk.wait(lambda: desk.state(waits) == "cancelled", what="the cancellation")
    desk.wait(lambda: desk.names(waits) == ["run.dequeued", "run.cancelled"], what="its events")
    pause = desk.wait(lambda: desk.pause(running), what="the approval")
    with desk.db() as db:
        pauses.answer(db, pause.id, user=None, choice="once")
    assert desk.wait_final(running) == "completed"
    assert desk.turns(waits) == 0
    worker.terminate()
    worker.process.wait(60)
    unseen = desk.submit(desk.session(), "never")
    sqlite_shop.worker()
    operator.asked(sqlite_shop.app.control, "revoke", {"task_id": [unseen]})
    sqlite_shop.send(unseen)
    desk.wait(lambda: desk.state(unseen) in ("cancelled", "completed"), what="its end")


def test_messages_that_are_not_json_or_of_unknown_tasks_are_dropped(sqlite_shop: Shop) -> None:
    """S45."""
    desk = sqlite_shop.desk
    worker = sqlite_shop.worker()
    pickled = Celery("evil", broker=sqlite_shop.app.conf.broker_url)
    pickled.conf.broker_transport_options = sqlite_shop.app.conf.broker_transport_options
    pickled.send_task(task_names.RUN_TURN, args=["x"], queue="runs", serializer="pickle")
    sqlite_shop.app.send_task("os.system", args=["true"], queue="runs")
    run_id = sqlite_shop.submit("hello")
    assert desk.wait_final(run_id) == "completed"
    assert worker.process.poll() is None
    pickled.close()


def clear_profile(desk: Desk, session_id: str) -> None:
    with desk.db() as db:
        chat_sessions.get(db, session_id).profile = None
