"""What the thread of a run waits on: the items of its backend and the signals of everybody else, in one line.

Who works on the run has the turn: its own thread, but for the time in which that one waits here. Meanwhile the thread
that reads the backend may take a short turn for a piece of text, which saves waking the other for each (DESIGN 11). The
backend is held back while too much waits; a signal never is.
"""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from worker.backends.base import Item, Reasoning, Text, ToolEnded

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
    """The pause of that id is no longer pending in the database. `is_told`: pages have heard of it, as far as is
    known."""

    pause_id: str
    is_told: bool = True


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


@dataclass(frozen=True)
class Broke:
    """What was raised in a turn that the backend's thread took."""

    error: Exception


@dataclass(frozen=True)
class Sooner:
    """Something is due before the time for which the run's thread meant to wait."""


Signal = StreamEnded | AbortSeen | StopTold | PauseDecided | AnswerFailed | LeaseGone | ShutdownDue | Broke | Sooner


class RunOver(Exception):
    """The run has ended: nobody reads what the backend still says."""


class Inbox:
    """`put` is called by the one pump thread, `signal` by any, `get` by the thread of the run."""

    def __init__(self) -> None:
        self.take_text: Callable[[Text | Reasoning], None] | None = None  # a turn of the pump thread's; None: never
        self._turn = threading.Lock()
        self._turn.acquire()  # the run's thread has it, but while it waits in `get`
        self._came, self._went = 0, 0  # items put into the line, and taken out of it with the turn
        self._queue: queue.SimpleQueue[Item | Signal] = queue.SimpleQueue()
        self._room = threading.Event()
        self._blocked = False
        self.closed = False

    def put(self, item: Item) -> None:
        """Hand over an item of the backend; waits while the run is behind. Raises RunOver when the run has ended."""
        if type(item) in _TEXT and self._takes(item):
            return
        waiting = self._queue.qsize()
        if waiting >= MAX_WAITING:
            self._wait_until_at_most(MAX_WAITING // 2)
        elif waiting and type(item) is ToolEnded and item.result is not None and len(item.result) > HEAVY_CHARS:
            self._wait_until_at_most(0)
        if self.closed:
            raise RunOver
        self._came += 1
        self._queue.put(item)

    def signal(self, signal: Signal) -> None:
        self._queue.put(signal)

    def get(self, timeout_s: float) -> Item | Signal | None:
        """The next item or signal, or None when there was none in time."""
        self._turn.release()
        try:
            found = self._queue.get(timeout=timeout_s) if timeout_s > 0 else self._queue.get_nowait()
        except queue.Empty:
            found = None
        finally:
            self._turn.acquire()
        if found is not None and not isinstance(found, Signal):
            self._went += 1
        if self._blocked:
            self._room.set()
        return found

    def _takes(self, item: Item) -> bool:
        """Take a turn for a text before which nothing waits, if the run's thread does nothing now."""
        take = self.take_text
        if take is None or self._came != self._went or not self._turn.acquire(blocking=False):
            return False
        try:
            if self.closed:
                raise RunOver
            assert isinstance(item, Text | Reasoning)
            take(item)
        finally:
            self._turn.release()
        return True

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


_TEXT = frozenset({Text, Reasoning})
