"""How much a client may send (S35): 20 messages a second, counted over five seconds."""

import time

MESSAGES_PER_S = 20
BURST = 100
"""A program that follows many sessions asks for them all at once."""


class Allowance:
    """Filled as time passes, spent by each message."""

    def __init__(self) -> None:
        self._left = float(BURST)
        self._at = time.monotonic()

    def spend(self) -> bool:
        """Take one message; False when there was none left."""
        now = time.monotonic()
        self._left = min(BURST, self._left + (now - self._at) * MESSAGES_PER_S) - 1
        self._at = now
        return self._left >= 0
