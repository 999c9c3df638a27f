"""What the hub has for one connection and its thread has not taken yet: the seam between the hub and slow clients."""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from webapp.live.live_event import LiveEvent

MAX_BYTES = 1 << 20
T = TypeVar("T")


class Inbox(Generic[T]):
    """`put` never waits. Above MAX_BYTES it drops everything for good and says so: the client must come back.

    `wake` makes the connection's thread look; it is called from other threads, so it only sets a flag. `hand_on` may
    take what comes while nothing waits, there and then, without that thread; it never waits either."""

    def __init__(
        self,
        wake: Callable[[], None],
        *,
        max_bytes: int = MAX_BYTES,
        hand_on: Callable[[T, Sequence[LiveEvent]], bool] | None = None,
    ) -> None:
        self._wake = wake
        self._hand_on = hand_on
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._waiting: list[tuple[T, Sequence[LiveEvent]]] = []
        self._called: set[T] = set()
        self._bytes = 0
        self.overflowed = False

    def put(self, whose: T, events: Sequence[LiveEvent]) -> None:
        if self._hand_on is not None and not self._waiting and self._hand_on(whose, events):
            return
        size = sum(len(event.frame) for event in events)
        with self._lock:
            if self.overflowed:
                return
            self._bytes += size
            if self._bytes > self._max_bytes:
                self.overflowed = True
                self._waiting.clear()
            else:
                self._waiting.append((whose, events))
        self._wake()

    def take(self) -> list[tuple[T, Sequence[LiveEvent]]]:
        """All that waits, in the order in which it came."""
        if not self._waiting:
            return []
        with self._lock:
            taken, self._waiting, self._bytes = self._waiting, [], 0
        return taken

    def call(self, whose: T) -> None:
        """Have the owner look at `whose`, though nothing was published."""
        with self._lock:
            self._called.add(whose)
        self._wake()

    def called(self) -> set[T]:
        if not self._called:
            return self._called
        with self._lock:
            taken, self._called = self._called, set()
        return taken
