"""What the thread of a run waits on: the items of its backend and the signals of everybody else, in one line.

One queue, so one thread handoff an item. The backend is held back while too much waits; a signal never is.
"""

import queue
import threading
from dataclasses import dataclass

from worker.backends.base import Item, ToolEnded

MAX_WAITING = 256
HEAVY_CHARS = 256 * 1024  # a tool result of this size waits until the line is empty, so that few are in memory at once
CLOSED_LOOK_S = 1.0


@dataclass(frozen=True)
class StreamEnded:
    """The backend's stream is over; `error` is what it raised, or None when it just ended."""

    error: BaseException | None = None


@dataclass(frozen=True)
class AbortSeen:
    """The database says that the run is to stop. `elapsed_s`: since the request, by the database's clock."""

    by: str | None
    elapsed_s: float


@dataclass(frozen=True)
class StopTold:
    """The backend was told to stop; `error` says why it could not be."""

    error: BaseException | None = None


@dataclass(frozen=True)
class PauseDecided:
    """The pause of that id is no longer pending in the database."""

    pause_id: str


@dataclass(frozen=True)
class AnswerFailed:
    """A person's answer could not be given to the backend; `message` is for people."""

    message: str


@dataclass(frozen=True)
class LeaseGone:
    """The run is no longer ours. `taken`: somebody else has moved it (write nothing); else we could not renew."""

    taken: bool


@dataclass(frozen=True)
class ShutdownDue:
    """The process ends now."""


Signal = StreamEnded | AbortSeen | StopTold | PauseDecided | AnswerFailed | LeaseGone | ShutdownDue


class RunOver(Exception):
    """The run has ended: nobody reads what the backend still says."""


class Inbox:
    """`put` is called by the one pump thread, `signal` by any, `get` by the thread of the run."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Item | Signal] = queue.SimpleQueue()
        self._room = threading.Event()
        self._blocked = False
        self.closed = False

    def put(self, item: Item) -> None:
        """Hand over an item of the backend; waits while the run is behind. Raises RunOver when the run has ended."""
        waiting = self._queue.qsize()
        if waiting >= MAX_WAITING:
            self._wait_until_at_most(MAX_WAITING // 2)
        elif waiting and type(item) is ToolEnded and item.result is not None and len(item.result) > HEAVY_CHARS:
            self._wait_until_at_most(0)
        if self.closed:
            raise RunOver
        self._queue.put(item)

    def signal(self, signal: Signal) -> None:
        self._queue.put(signal)

    def get(self, timeout_s: float) -> Item | Signal | None:
        """The next item or signal, or None when there was none in time."""
        try:
            found = self._queue.get(timeout=timeout_s) if timeout_s > 0 else self._queue.get_nowait()
        except queue.Empty:
            found = None
        if self._blocked:
            self._room.set()
        return found

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    def close(self) -> None:
        """The run is over: the pump is let go and ends."""
        self.closed = True
        self._room.set()

    def _wait_until_at_most(self, waiting: int) -> None:
        self._blocked = True
        while self._queue.qsize() > waiting and not self.closed:
            self._room.wait(CLOSED_LOOK_S)
            self._room.clear()
        self._blocked = False
