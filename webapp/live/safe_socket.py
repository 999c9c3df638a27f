"""The TCP connection of a WebSocket, driven by one thread and safe for a peer that does not read.

simple-websocket 1.1.0 starts a reader thread a socket, writes with `send`, which may write a part, and closes with
input unread, by which the peer may lose the close frame (STACK 3, faults 1, 2 and 4). `SafeSock` takes the connection's
place before flask-sock sees it, and the handler reads and feeds simple-websocket by itself: a thread less a socket, and
one writer. Each `send` writes the whole and gives up on a peer that takes nothing.
"""

import contextlib
import select
import socket
import ssl
import time
from typing import Any

from webapp.live.wakeup import Wakeup

STALL_LIMIT_S = 30.0
"""A peer that takes no byte for so long is gone."""
HURRY_S = 2.0
"""What is left to a slow peer to take the frame begun, so that its close code can follow."""
LINGER_S = 2.0
LINGER_QUIET_S = 0.3
LINGER_BYTES = 32 << 20
RECEIVE_BYTES = 1 << 16
SOCKET_KEYS = ("gunicorn.socket", "werkzeug.socket")
PING = b"\x89\x00"
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


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
    """All but `hurry` is called by who has the turn of the socket's handler."""

    def __init__(self, sock: Any) -> None:
        self.sock = sock
        self._hurry_at: float | None = None
        self._poll: select.poll | None = None
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def take_over(self, wakeup: Wakeup) -> None:
        """From now on nothing blocks but `wait`, which `wakeup` ends."""
        self.sock.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self.sock, select.POLLIN)
        self._poll.register(wakeup, select.POLLIN)

    def wait(self, timeout_s: float) -> bool:
        """Wait for input, for the wakeup, or for the time to pass; True when there is input."""
        assert self._poll is not None
        if isinstance(self.sock, ssl.SSLSocket) and self.sock.pending():
            return True
        return any(fd == self.sock.fileno() for fd, _ in self._poll.poll(max(0.0, timeout_s) * 1000))

    def recv(self, size: int = RECEIVE_BYTES) -> bytes | None:
        """What has come; None when nothing has, b"" when the peer has closed. Raises OSError."""
        try:
            received: bytes = self.sock.recv(size)
        except _NOT_NOW:
            return None
        return received

    def send_some(self, data: bytes) -> int:
        """Write what the peer takes at once; how much that was. Raises OSError."""
        try:
            sent: int = self.sock.send(data)
        except _NOT_NOW:
            return 0
        return sent

    def send(self, data: bytes) -> int:
        """Write all of `data`. Raises OSError when the peer has taken nothing for STALL_LIMIT_S."""
        rest = memoryview(data)
        stalled_at: float | None = None
        while rest:
            try:
                rest = rest[self.sock.send(rest) :]
                stalled_at = None
            except _NOT_NOW:
                now = time.monotonic()
                stalled_at = stalled_at or now
                if now - stalled_at > STALL_LIMIT_S or (self._hurry_at is not None and now > self._hurry_at):
                    self.cut()
                    raise TimeoutError("the peer does not read") from None
                _wait_for(self.sock, select.POLLOUT, 0.5)
        return len(data)

    sendall = send

    def hurry(self) -> None:
        """The connection is to end: a write that is under way may take HURRY_S longer, no more."""
        if self._hurry_at is None:
            self._hurry_at = time.monotonic() + HURRY_S

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
        self.cut()

    def cut(self) -> None:
        """End the connection at once."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def _drain(self) -> None:
        deadline = time.monotonic() + LINGER_S
        taken = 0
        while taken < LINGER_BYTES and (left := deadline - time.monotonic()) > 0:
            if not _wait_for(self.sock, select.POLLIN, min(left, LINGER_QUIET_S)):
                return
            received = self.recv()
            if received == b"":
                return
            taken += len(received or b"")


def _wait_for(sock: Any, what: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(sock, what)
    return bool(poll.poll(timeout_s * 1000))
