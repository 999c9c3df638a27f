"""What a client has sent by its socket and nobody has read yet: bounded, and no faster than is allowed (S35)."""

import threading
import time
from collections import deque

MESSAGES_PER_S = 20
BURST = 100
"""The average of five seconds counts: a program that follows many sessions asks for them all at once."""
MAX_WAITING_BYTES = 4 << 20


class SocketInput:
    """Takes the place of simple-websocket's `input_buffer`: its reader thread appends, the handler takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._frames: deque[str | bytes] = deque()
        self._bytes = 0
        self._allowance = float(BURST)
        self._counted_at = time.monotonic()
        self.flooded = False

    def append(self, frame: str | bytes) -> None:
        """Called for each whole message."""
        with self._lock:
            if self._count(frame):
                self._frames.append(frame)

    def put_first(self, frames: list[str | bytes]) -> None:
        """What came before this took the buffer's place; empties `frames`."""
        with self._lock:
            while frames:
                frame = frames.pop()
                if self._count(frame):
                    self._frames.appendleft(frame)

    def _count(self, frame: str | bytes) -> bool:
        now = time.monotonic()
        self._allowance = min(BURST, self._allowance + (now - self._counted_at) * MESSAGES_PER_S) - 1
        self._counted_at = now
        self._bytes += len(frame)
        if self._allowance < 0 or self._bytes > MAX_WAITING_BYTES:
            self.flooded = True
            self._frames.clear()
        return not self.flooded

    def take(self) -> str | bytes | None:
        """The next message; None when there is none."""
        with self._lock:
            if not self._frames:
                return None
            frame = self._frames.popleft()
            self._bytes -= len(frame)
            return frame

    def __len__(self) -> int:
        return len(self._frames)
