"""The TCP connection of a WebSocket, made safe for two writers and for a peer that does not read.

simple-websocket 1.1.0 writes with `send`, which may write a part, and its reader thread writes pongs and closes with no
lock beside the handler's (STACK 3, faults 1 and 2). `SafeSock` takes the connection's place before flask-sock sees it:
each `send` writes the whole, one at a time, and gives up on a peer that takes nothing.
"""

import contextlib
import select
import socket
import ssl
import threading
import time
from typing import Any

STALL_LIMIT_S = 30.0
"""A peer that takes no byte for so long is gone."""
HURRY_S = 2.0
"""What is left to a slow peer to take the frame begun, so that its close code can follow."""
LINGER_S = 2.0
LINGER_QUIET_S = 0.3
LINGER_BYTES = 32 << 20
SOCKET_KEYS = ("gunicorn.socket", "werkzeug.socket")
PING = b"\x89\x00"


def prepare(environ: dict[str, Any]) -> "SafeSock | None":
    """Put a SafeSock in the place of the request's connection and take permessage-deflate off (STACK D6).

    Called before the upgrade. None where the server gives no connection (a test client).
    """
    environ.pop("HTTP_SEC_WEBSOCKET_EXTENSIONS", None)
    for key in SOCKET_KEYS:
        if key in environ:
            environ[key] = SafeSock(environ[key])
            safe: SafeSock = environ[key]
            return safe
    return None


def text_frame(payload: bytes) -> bytes:
    """A whole unmasked text frame (RFC 6455 5.2): made once an event, sent to every socket."""
    size = len(payload)
    if size < 126:
        return b"\x81" + size.to_bytes(1, "big") + payload
    if size < 1 << 16:
        return b"\x81\x7e" + size.to_bytes(2, "big") + payload
    return b"\x81\x7f" + size.to_bytes(8, "big") + payload


class SafeSock:
    """Writes whole and one at a time; raises OSError when the peer has taken nothing for STALL_LIMIT_S."""

    def __init__(self, sock: Any) -> None:
        self.sock = sock
        self._lock = threading.Lock()
        self._hurry_at: float | None = None
        self._plain = not isinstance(sock, ssl.SSLSocket)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> int:
        """Write all of `data`. Raises OSError."""
        with self._lock:
            if self._plain:
                self._write(memoryview(data))
            else:
                self.sock.sendall(data)
        return len(data)

    sendall = send

    def hurry(self) -> None:
        """The connection is to end: a write that is under way may take HURRY_S longer, no more."""
        if self._hurry_at is None:
            self._hurry_at = time.monotonic() + HURRY_S

    def recv(self, size: int) -> bytes:
        received: bytes = self.sock.recv(size)
        return received

    def fileno(self) -> int:
        number: int = self.sock.fileno()
        return number

    def close(self) -> None:
        """End the connection so that the peer hears what was sent last.

        Closing with unread input makes the kernel send a reset, by which the peer may lose the close frame (a frame
        over the limit is mostly unread): so write nothing more, read what still comes, then close.
        """
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
            self._drain()
        with contextlib.suppress(OSError):
            self.sock.close()

    def cut(self) -> None:
        """End the connection at once; a thread that reads or writes it wakes."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def _write(self, rest: memoryview) -> None:
        stalled_at: float | None = None
        while rest:
            try:
                rest = rest[self.sock.send(rest, socket.MSG_DONTWAIT) :]
                stalled_at = None
            except BlockingIOError:
                now = time.monotonic()
                stalled_at = stalled_at or now
                hurry_at = self._hurry_at
                if now - stalled_at > STALL_LIMIT_S or (hurry_at is not None and now > hurry_at):
                    self.cut()
                    raise TimeoutError("the peer does not read") from None
                _wait_for(self.sock, select.POLLOUT, 0.5)

    def _drain(self) -> None:
        deadline = time.monotonic() + LINGER_S
        taken = 0
        while taken < LINGER_BYTES and (left := deadline - time.monotonic()) > 0:
            if not _wait_for(self.sock, select.POLLIN, min(left, LINGER_QUIET_S)):
                return
            received = self.sock.recv(1 << 16)
            if not received:
                return
            taken += len(received)


def _wait_for(sock: Any, what: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(sock, what)
    return bool(poll.poll(timeout_s * 1000))
