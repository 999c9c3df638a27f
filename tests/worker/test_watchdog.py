"""A worker that takes nothing while tasks wait has its connection cut, and ends itself when that does not help."""

import os
import signal
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from tests.worker.conftest import Desk
from worker.watchdog import Watchdog


@pytest.fixture
def ours() -> Any:
    """The two ends of the connection that a consumer reads from."""
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


def a_watchdog(desk: Desk, end: socket.socket) -> Watchdog:
    """Of a consumer with one open connection, as kombu keeps it."""
    pool = SimpleNamespace(_in_use_connections=[SimpleNamespace(_sock=end)])
    consumer = SimpleNamespace(connection=SimpleNamespace(channels=[SimpleNamespace(_async_pool=pool)]))
    return Watchdog(desk.context, consumer)


def test_a_connection_on_which_nothing_comes_is_cut_once(
    sqlite_desk: Desk, ours: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = sqlite_desk
    monkeypatch.setattr("worker.watchdog.CUT_AFTER_S", 0.0)
    watchdog = a_watchdog(desk, ours[0])
    watchdog.look()
    assert watchdog.hung_since is None  # nothing waits
    desk.context.redis.rpush(desk.context.queue_key("runs"), b"a task")
    watchdog.look()
    watchdog.look()
    assert ours[1].recv(1) == b""  # the other end sees the end


def test_a_worker_that_takes_tasks_is_left_alone(sqlite_desk: Desk, ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = sqlite_desk
    monkeypatch.setattr("worker.watchdog.CUT_AFTER_S", 0.0)
    watchdog = a_watchdog(desk, ours[0])
    desk.context.redis.rpush(desk.context.queue_key("runs"), b"a task")
    for _ in range(3):
        desk.context.taken.set()
        watchdog.look()
        assert watchdog.hung_since is None
    desk.context.draining.set()
    watchdog.look()
    assert watchdog.hung_since is None


def test_it_ends_itself_only_without_runs(sqlite_desk: Desk, ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = sqlite_desk
    monkeypatch.setattr("worker.watchdog.CUT_AFTER_S", 0.0)
    monkeypatch.setattr("worker.watchdog.END_AFTER_S", 0.0)
    signals: list[int] = []
    monkeypatch.setattr(
        "worker.watchdog.os", SimpleNamespace(getpid=os.getpid, kill=lambda pid, number: signals.append(number))
    )
    watchdog = a_watchdog(desk, ours[0])
    desk.context.redis.rpush(desk.context.queue_key("runs"), b"a task")
    run_id = desk.submit(desk.session(), [{"block": True}])
    desk.start(run_id)
    desk.wait(lambda: desk.context.live_runs.get(run_id), what="a run")
    for _ in range(4):
        watchdog.look()
    assert signals == []
    desk.context.live_runs.get(run_id).shut_down()
    desk.wait(lambda: not len(desk.context.live_runs), what="the end of the run")
    watchdog.look()
    assert signals == [signal.SIGTERM]
