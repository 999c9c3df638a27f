"""A flag that other threads set and a thread in `poll` sees: one file descriptor, no thread of its own."""

import contextlib
import os
import threading

HAS_EVENTFD = hasattr(os, "eventfd")


class Wakeup:
    """`fileno()` is readable from `set` until `clear`. `set` after `close` is harmless."""

    __slots__ = ("_is_set", "_lock", "_read_fd", "_write_fd")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = False
        if HAS_EVENTFD:
            self._read_fd = self._write_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._read_fd, self._write_fd = os.pipe()
            os.set_blocking(self._read_fd, False)
            os.set_blocking(self._write_fd, False)

    def set(self) -> None:
        if self._is_set:
            return  # whoever clears it looks at everything afterwards
        with self._lock:
            if not self._is_set and self._write_fd >= 0:
                self._is_set = True
                os.write(self._write_fd, b"\1\0\0\0\0\0\0\0")

    def clear(self) -> None:
        """Called by the owner, before it looks at what it was woken for."""
        with self._lock:
            self._is_set = False
            with contextlib.suppress(BlockingIOError):
                os.read(self._read_fd, 64)

    def fileno(self) -> int:
        return self._read_fd

    def close(self) -> None:
        with self._lock:
            fds, self._read_fd, self._write_fd = {self._read_fd, self._write_fd}, -1, -1
            for fd in fds:
                if fd >= 0:
                    os.close(fd)
