"""Keeps a frozen Redis from freezing every request: after one slow failure it is not asked again for a moment."""

import threading
import time

SLOW_S = 0.5  # a refused connection fails at once and costs nothing; a silent one costs its whole timeout
REST_S = 3.0


class RelayBreaker:
    """One of a web process. Work that can go on without Redis asks `is_open` first and reports its failures."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until = 0.0

    @property
    def is_open(self) -> bool:
        """True while Redis is given a rest: do as if it did not answer."""
        return time.monotonic() < self._until

    def failed(self, begun: float) -> None:
        """A call that began at `begun` (time.monotonic()) did not succeed."""
        now = time.monotonic()
        if now - begun >= SLOW_S:
            with self._lock:
                self._until = now + REST_S
