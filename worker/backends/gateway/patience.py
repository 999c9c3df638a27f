"""How long a stream may give signs of life without content (RELIABILITY 2.2: 2 h). Real silence is the read timeout."""

import time

from shared.errors import BackendTimeout


class Patience:
    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since = time.monotonic()

    def renew(self) -> None:
        """There was content."""
        self._since = time.monotonic()

    def spend(self, *, waits: bool) -> None:
        """There was a sign of life only. Raises BackendTimeout over the limit; waiting for a person is not counted."""
        if waits:
            self.renew()
        elif time.monotonic() - self._since > self._limit_s:
            raise BackendTimeout(f"The gateway sent nothing but signs of life for {self._limit_s:.0f} s.")
