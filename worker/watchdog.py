"""Notices a worker that is alive but takes nothing while tasks wait: it hangs on its broker connection (CASES 186).

Its connection is cut, upon which Celery makes a new one; a worker that still takes nothing and has no run ends itself,
so that its supervisor starts another.
"""

import os
import signal
import socket
import time
from typing import Any

from shared import logs, task_names
from shared.relay.connection import relay_errors
from worker.context import WorkerContext

CUT_AFTER_S = 30.0  # without a task, although some wait and a thread is free
END_AFTER_S = 150.0  # Celery's own pause between two tries to connect is up to 30 s

log = logs.get(__name__)


class Watchdog:
    """`look` is called every few seconds by a thread of its own. `hung_since` (monotonic): since when it looks hung."""

    def __init__(self, context: WorkerContext, consumer: Any) -> None:
        self._context = context
        self._consumer = consumer
        self.hung_since: float | None = None
        self._has_cut = False

    def look(self) -> None:
        """Raises RelayDown when Redis does not answer us either: then nothing can be said."""
        context = self._context
        has_taken = context.taken.is_set()
        context.taken.clear()
        is_free = len(context.live_runs) < context.settings.worker_concurrency
        if has_taken or context.draining.is_set() or not is_free or not self._tasks_wait():
            self.hung_since, self._has_cut = None, False
            return
        now = time.monotonic()
        if self.hung_since is None:
            self.hung_since = now
        if now - self.hung_since > CUT_AFTER_S and not self._has_cut:
            self._has_cut = True
            log.warning("worker.takes_nothing", cut=self._cut())
        elif now - self.hung_since > END_AFTER_S and not len(context.live_runs):
            log.error("worker.ends_itself")
            os.kill(os.getpid(), signal.SIGTERM)

    def _tasks_wait(self) -> bool:
        with relay_errors():
            return bool(self._context.redis.llen(self._context.queue_key(task_names.RUNS_QUEUE)))

    def _cut(self) -> int:
        """Shut the sockets that the consumer reads from; its loop sees their end and connects anew."""
        cut = 0
        for channel in list(getattr(self._consumer.connection, "channels", None) or []):
            pool = getattr(channel, "_async_pool", None)
            for connection in list(getattr(pool, "_in_use_connections", ())):
                sock = getattr(connection, "_sock", None)
                if sock is not None:
                    try:
                        sock.shutdown(socket.SHUT_RDWR)
                        cut += 1
                    except OSError:
                        continue
        return cut
