"""The worker's end of the line protocol (docs/bridge-protocol.md): requests, and the stream of a run.

Names, shapes and limits stand in `process/wire.py`. What a child sends is checked as what a stranger sends: the length
of each line, its encoding, its depth.
"""

import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from shared.errors import (
    BackendError,
    BackendLost,
    BackendProtocolError,
    BackendRefused,
    BackendTimeout,
    BackendUnavailable,
)
from worker.backends.bridge.process import wire

CONNECT_TIMEOUT_S = 5.0
CHUNK_BYTES = 128 * 1024
MAX_IDLE = 4  # connections kept for requests


class NotKnown(BackendError):
    """The child answered that it does not take the request; `code` is one of wire.ErrorCode."""


class Cut(BackendLost):
    """The connection is over. `in_a_line`: in the middle of one."""

    def __init__(self, *, in_a_line: bool = False) -> None:
        super().__init__("The connection to the agent's process broke.")
        self.in_a_line = in_a_line


class Lines:
    """Cuts what comes into lines, each byte looked at once. Safe against what never ends."""

    def __init__(self, max_bytes: int = wire.MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()
        self._whole: deque[bytes] = deque()

    @property
    def is_in_a_line(self) -> bool:
        return bool(self._rest)

    def feed(self, chunk: bytes) -> None:
        """Raises BackendProtocolError when a line is too long."""
        start = 0
        while (end := chunk.find(b"\n", start) + 1) > 0:
            self._check(end - start)
            if self._rest:
                self._whole.append(bytes(self._rest) + chunk[start:end])
                self._rest.clear()
            else:
                self._whole.append(chunk[start:end])
            start = end
        if start < len(chunk):
            self._check(len(chunk) - start)
            self._rest += chunk[start:] if start else chunk

    def take(self) -> bytes | None:
        """The next whole line, with its end."""
        return self._whole.popleft() if self._whole else None

    def _check(self, more: int) -> None:
        if len(self._rest) + more > self._max_bytes:
            raise BackendProtocolError("The agent's process sent a line that is too long.", detail="line_too_long")


class Connection:
    """One connection. `ask` and `line` are for one thread; `cut` may come from any."""

    def __init__(self, endpoint: str, secret: str) -> None:
        """Raises BackendUnavailable."""
        self._secret = secret
        self._lines = Lines()
        try:
            self._socket = _connected(endpoint)
        except OSError as error:
            raise BackendUnavailable(
                "The agent's process cannot be reached.", detail=f"{endpoint}: {type(error).__name__}: {error.strerror}"
            ) from error

    def ask(self, action: wire.Action, fields: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request and read its answer. Raises BackendUnavailable when it surely did not get there, NotKnown
        when it was refused, BackendTimeout, Cut, BackendProtocolError."""
        try:
            request = wire.encode({"action": action, "secret": self._secret, **fields})
        except wire.WireError as error:
            raise BackendRefused(
                f"The turn is too large for the agent: {wire.MAX_LINE_BYTES // (1024 * 1024)} MiB at most.",
                detail=error.message,
                retryable=False,
            ) from error
        self._send(request, timeout_s)
        answer = self.line(timeout_s)
        if answer is None:
            raise BackendTimeout(f"The agent's process did not answer in {timeout_s:g} s.", detail=action)
        if answer.get("ok") is True:
            return answer
        raise _refusal(answer, action)

    def line(self, timeout_s: float) -> dict[str, Any] | None:
        """The next object; None when none came in time. Raises Cut, BackendProtocolError."""
        deadline = time.monotonic() + timeout_s
        while (line := self._lines.take()) is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            self._receive(left_s)
        try:
            return wire.decode(line)
        except wire.WireError as error:
            raise BackendProtocolError(
                "The agent's process sent a line that cannot be read.", detail=f"{error.code}: {error.message}"
            ) from error

    @property
    def is_idle(self) -> bool:
        """Whether it may carry another request: nothing came unasked, and the other end has not closed."""
        try:
            return self._lines.take() is None and not select.select([self._socket], [], [], 0)[0]
        except (OSError, ValueError):
            return False

    def cut(self) -> None:
        """End it; who reads from it gets Cut."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        self._socket.close()

    def _send(self, request: bytes, timeout_s: float) -> None:
        """A request that was not sent to its last byte is none: the child takes whole lines only."""
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(request)
        except OSError as error:  # timeouts are among them
            raise BackendUnavailable("The agent's process does not take requests.", detail=str(error)) from error

    def _receive(self, timeout_s: float) -> None:
        try:
            self._socket.settimeout(timeout_s)
            chunk = self._socket.recv(CHUNK_BYTES)
        except TimeoutError:
            return
        except OSError as error:
            raise Cut(in_a_line=self._lines.is_in_a_line) from error
        if not chunk:
            raise Cut(in_a_line=self._lines.is_in_a_line)
        self._lines.feed(chunk)


class BridgeClient:
    """Requests to one child. Safe from any thread."""

    def __init__(self, endpoint: str, secret: str, *, response_timeout_s: float) -> None:
        self.endpoint = endpoint
        self.response_timeout_s = response_timeout_s
        self._secret = secret
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._closed = False

    def __repr__(self) -> str:
        return f"BridgeClient({self.endpoint!r})"

    def open(self) -> Connection:
        """A new connection, to be closed by the caller. Raises BackendUnavailable."""
        return Connection(self.endpoint, self._secret)

    def request(self, action: wire.Action, *, timeout_s: float | None = None, **fields: Any) -> dict[str, Any]:
        """One request and its answer, on a connection kept for that. Raises as Connection.ask."""
        connection = self._borrow()
        try:
            answer = connection.ask(action, fields, timeout_s or self.response_timeout_s)
        except NotKnown as refusal:
            if refusal.code in ("line_too_long", "wrong_secret"):
                connection.close()
            else:
                self._give_back(connection)
            raise
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)
        return answer

    def close(self) -> None:
        """No more is kept. Open streams end by themselves: their process is gone."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _borrow(self) -> Connection:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self.open()
            if connection.is_idle:
                return connection
            connection.close()

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < MAX_IDLE:
                self._idle.append(connection)
                return
        connection.close()


def _connected(endpoint: str) -> socket.socket:
    """Raises OSError, also when another user listens there (RELIABILITY S39)."""
    place = wire.place_of(endpoint)
    if isinstance(place, tuple):
        found = socket.create_connection(place, timeout=CONNECT_TIMEOUT_S)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.settimeout(CONNECT_TIMEOUT_S)
        found.connect(place or "")
        if hasattr(socket, "SO_PEERCRED"):
            size = struct.calcsize("3i")
            _, user, _ = struct.unpack("3i", found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
            if user != os.getuid():
                raise PermissionError(1, f"user {user} listens there")
    except OSError:
        found.close()
        raise
    return found


def _refusal(answer: Mapping[str, Any], action: str) -> BackendError:
    error = answer.get("error")
    if answer.get("ok") is not False or not isinstance(error, dict):
        return BackendProtocolError("The agent's process gave no answer that can be read.", detail=action)
    code, message = str(error.get("code", "")), str(error.get("message", ""))
    return NotKnown(message[: wire.MAX_ERROR_CHARS], code=code[:100], detail=f"{action}: {code}")
