"""One connection: lines in, lines out, each of limited length and time."""

import contextlib
import socket

from .wire import MAX_LINE_BYTES, WireError

CHUNK_BYTES = 256 * 1024
FIRST_LINE_S = 10.0  # a stranger gets no more
BETWEEN_REQUESTS_S = 3600.0
SEND_S = 60.0  # a reader that takes nothing for so long is cut; it may come back with its cursors


class Gone(Exception):
    """The other end has closed, or was too slow."""


class Connection:
    """For one thread."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._rest = bytearray()
        self._searched = 0  # bytes of `_rest` known to hold no line's end
        self._wait_s = FIRST_LINE_S
        if connected.family != getattr(socket, "AF_UNIX", None):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def trust(self) -> None:
        """It has shown the secret: it may take its time."""
        self._wait_s = BETWEEN_REQUESTS_S

    def read_line(self) -> bytes:
        """The next line, with its end. Raises Gone; WireError "line_too_long", after which nothing can be read."""
        while True:
            end = self._rest.find(b"\n", self._searched) + 1
            if end > MAX_LINE_BYTES or (end == 0 and len(self._rest) >= MAX_LINE_BYTES):
                raise WireError("line_too_long", f"A line has at most {MAX_LINE_BYTES} bytes.")
            if end:
                line = bytes(self._rest[:end])
                del self._rest[:end]
                self._searched = 0
                return line
            self._searched = len(self._rest)
            try:
                self._socket.settimeout(self._wait_s)
                chunk = self._socket.recv(CHUNK_BYTES)
            except OSError as error:  # timeouts are among them
                raise Gone from error
            if not chunk:
                raise Gone
            self._rest += chunk

    def send(self, lines: bytes) -> None:
        """Raises Gone."""
        try:
            self._socket.settimeout(SEND_S)
            self._socket.sendall(lines)
        except OSError as error:
            raise Gone from error

    def is_open(self) -> bool:
        """Whether the other end is still there; it may have sent something meanwhile."""
        try:
            self._socket.settimeout(0)
            return self._socket.recv(1, socket.MSG_PEEK) != b""
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False

    def close(self) -> None:
        """What was sent still arrives, also when the other end has sent more than was read."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.settimeout(1.0)
            for _ in range(64):  # 16 MiB: unread bytes would have the kernel throw our answer away
                if not self._socket.recv(CHUNK_BYTES):
                    break
        self._socket.close()
