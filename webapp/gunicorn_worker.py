"""gunicorn's gthread worker, with an end to the patience for clients that send their request a byte at a time.

gthread reads head and body of a request with a blocking socket and no limit, so that as many silent clients as there
are threads would stop the portal for everybody, signed in or not (S56). Here a request has to be there in time; what is
not is ended by closing the reading side, by which the waiting thread finds the end of its input.
"""

import contextlib
import socket
import time
from dataclasses import dataclass
from typing import Any

from gunicorn.workers.gthread import TConn, ThreadWorker

HEAD_LIMIT_S = 10.0
BODY_LIMIT_S = 30.0  # of 1 MiB at most: 35 KB/s
STOP_LINGER_S = 1.0  # of a stopping worker for the first byte of a connection; gthread would wait 7 s


@dataclass(frozen=True)
class _Awaited:
    by: float  # monotonic
    body: Any = None  # of the request whose head has come

    def is_missing(self) -> bool:
        """Whether the thread may still wait for the client; a body that was read holds nothing more."""
        if self.body is None:
            return True
        reader = self.body.reader
        return bool(getattr(reader, "length", 0) or getattr(reader, "parser", None))


class PatientWorker(ThreadWorker):  # type: ignore[misc]  # gunicorn has no types
    """Its own thread looks about once a second for requests whose time is over."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._awaited: dict[TConn, _Awaited] = {}
        self._silent_until: float | None = None  # monotonic; set when the worker stops

    def handle(self, conn: TConn) -> Any:
        self._awaited[conn] = _Awaited(time.monotonic() + HEAD_LIMIT_S)
        try:
            return super().handle(conn)
        finally:
            self._awaited.pop(conn, None)

    def handle_request(self, req: Any, conn: TConn) -> Any:
        self._awaited[conn] = _Awaited(time.monotonic() + BODY_LIMIT_S, req.body)
        if not self._awaited[conn].is_missing():
            del self._awaited[conn]
        return super().handle_request(req, conn)

    def murder_pending(self) -> None:
        super().murder_pending()
        now = time.monotonic()
        if not self.alive and self._silent_until is None:
            self._silent_until = now + STOP_LINGER_S
        for conn, awaited in list(self._awaited.items()):
            is_silent = awaited.body is None and not conn.data_ready
            by = min(awaited.by, self._silent_until) if is_silent and self._silent_until is not None else awaited.by
            if now > by and self._awaited.pop(conn, None) is not None and awaited.is_missing():
                with contextlib.suppress(OSError):
                    conn.sock.shutdown(socket.SHUT_RD)
