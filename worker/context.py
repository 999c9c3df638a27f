"""What a run needs from its process, and what the threads of the process share."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from shared.relay.connection import Client
from shared.relay.event_log import EventLog
from shared.relay.keys import Keys
from shared.relay.presence import Presence
from shared.settings import Settings
from worker.backends.registry import Backends
from worker.runs.live_run import LiveRuns
from worker.served import Served

SAVER_THREADS = 4


class Holes:
    """Sessions whose log lacks an event that could not be appended: their next append must begin a new epoch."""

    def __init__(self) -> None:
        self._sessions: set[str] = set()
        self._lock = threading.Lock()

    def add(self, session_id: str) -> None:
        with self._lock:
            self._sessions.add(session_id)

    def take(self, session_id: str) -> bool:
        """Whether the session has a hole; the caller now answers for it."""
        with self._lock:
            if session_id not in self._sessions:
                return False
            self._sessions.remove(session_id)
            return True

    def all(self) -> list[str]:
        with self._lock:
            return list(self._sessions)


@dataclass
class WorkerContext:
    """One for each worker process, made and closed by `lifecycle.py`; beat has one too, for its janitor."""

    settings: Settings
    engine: Engine
    factory: sessionmaker[Session]
    redis: Client
    keys: Keys
    log: EventLog
    presence: Presence
    worker_id: str
    backends: Backends
    send_task: Callable[[str, str, dict[str, str]], None]
    """Of a run id, a Celery queue and labels; raises whatever the broker raises."""
    live_runs: LiveRuns = field(default_factory=LiveRuns)
    holes: Holes = field(default_factory=Holes)
    draining: threading.Event = field(default_factory=threading.Event)
    """Set: no new claims."""
    taken: threading.Event = field(default_factory=threading.Event)
    """Set whenever a task arrives; the watchdog clears it."""
    saver: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(max_workers=SAVER_THREADS, thread_name_prefix="saver")
    )

    served: Served = field(init=False)
    """What the worker can serve, for its heartbeat."""

    def __post_init__(self) -> None:
        self.served = Served(self.settings, self.factory, self.backends)

    def queue_key(self, queue: str) -> str:
        """The Redis key of a Celery queue."""
        return self.settings.redis_prefix + queue
