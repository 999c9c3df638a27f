"""A run while this process drives it: how the other threads reach it, and how it reaches its backend."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from worker.runs.inbox import Inbox, LeaseGone, ShutdownDue, Signal, StopTold


@dataclass
class LiveRun:
    """Also the backend's `Controls`. `renewed_at` (monotonic): when the last good renewal was asked for."""

    run_id: str
    session_id: str
    fence: int
    user_name: str = ""
    source: str = ""
    inbox: Inbox = field(default_factory=Inbox)
    began_at: float = field(default_factory=time.monotonic)
    renewed_at: float = field(default_factory=time.monotonic)
    open_pauses: frozenset[str] = frozenset()  # ids that wait for a decision; replaced, never changed
    abort_seen: bool = False
    gone: bool = False  # the lease is lost: no heartbeat, no renewal
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stops: list[Callable[[], None]] = field(default_factory=list)
    _stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def aborted(self) -> bool:
        return self._stopping.is_set()

    def on_abort(self, stop: Callable[[], None]) -> None:
        with self._lock:
            if not self._stopping.is_set():
                self._stops.append(stop)
                return
        self._in_background(stop)

    def wait_for_stop(self, timeout_s: float) -> bool:
        """Sleep, but no longer than until the turn is to stop; True when it is."""
        return self._stopping.wait(timeout_s)

    def stop_backend(self) -> None:
        """Have the backend told to stop: once, in a thread of its own. Safe from any thread."""
        with self._lock:
            if self._stopping.is_set():
                return
            self._stopping.set()
            stops, self._stops = self._stops, []
        if not stops:
            self.inbox.signal(StopTold())
        for stop in stops:
            self._in_background(stop)

    def signal(self, signal: Signal) -> None:
        self.inbox.signal(signal)

    def lose_lease(self, *, taken: bool) -> None:
        """The run is not ours any more: stop the backend, tell the thread of the run."""
        self.gone = True
        self.inbox.signal(LeaseGone(taken))  # before what the backend says to being stopped
        self.stop_backend()

    def shut_down(self) -> None:
        self.inbox.signal(ShutdownDue())
        self.stop_backend()

    def _in_background(self, stop: Callable[[], None]) -> None:
        def call() -> None:
            try:
                stop()
            except Exception as error:  # noqa: BLE001 - the top of a thread; the run logs it
                self.inbox.signal(StopTold(error))
            else:
                self.inbox.signal(StopTold())

        threading.Thread(target=call, name=f"stop-{self.run_id[:8]}", daemon=True).start()


class LiveRuns:
    """All runs that this process drives. Safe from any thread."""

    def __init__(self) -> None:
        self._runs: dict[str, LiveRun] = {}
        self._lock = threading.Lock()

    def add(self, live: LiveRun) -> None:
        with self._lock:
            self._runs[live.run_id] = live

    def remove(self, run_id: str) -> None:
        with self._lock:
            self._runs.pop(run_id, None)

    def get(self, run_id: str) -> LiveRun | None:
        with self._lock:
            return self._runs.get(run_id)

    def all(self) -> list[LiveRun]:
        with self._lock:
            return list(self._runs.values())

    def __len__(self) -> int:
        with self._lock:
            return len(self._runs)
