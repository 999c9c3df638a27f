"""The open sockets and event streams of a web process: how many there may be, and how they are told to end."""

import threading
from collections import Counter
from collections.abc import Callable

from shared.errors import TooManyRequests, Unavailable
from webapp.auth import Principal

GOING_AWAY = 1012
"""Service restart: come back. Never 1000 or 1001, on which the page would stay away (STACK 3, fault 3)."""
TRY_LATER = 1013
POLICY = 1008
"""The sign-in has ended: coming back by itself would be of no use."""
RETRY_AFTER_S = 5


class Connection:
    """One of them. Its thread looks at `ending` whenever it is woken."""

    def __init__(self, principal: Principal, *, is_socket: bool) -> None:
        self.principal = principal
        self.is_socket = is_socket
        self.ending: int | None = None  # the close code
        self.is_used = False  # by a command, since the watch last looked
        self.wake: Callable[[], None] = lambda: None

    def end(self, code: int) -> None:
        """Have it closed with `code`; the first reason given stays."""
        if self.ending is None:
            self.ending = code
        self.wake()


class Connections:
    """All of them in this process. Each holds a thread of gunicorn, hence the limit (STACK 3, fault 5)."""

    def __init__(self, *, limit: int, limit_per_user: int) -> None:
        self._limit = limit
        self._limit_per_user = limit_per_user  # sockets only; 0: none
        self._lock = threading.Lock()
        self._open: set[Connection] = set()
        self._sockets: Counter[str] = Counter()
        self._closing = False

    def admit(self, principal: Principal, *, is_socket: bool) -> Connection:
        """A place, to be given back by `release`. Raises Unavailable when there is none, TooManyRequests when this
        user has enough sockets."""
        user = principal.user_id
        with self._lock:
            if self._closing:
                raise Unavailable("The portal is restarting.", retry_after_s=1)
            if len(self._open) >= self._limit:
                raise Unavailable(
                    "Too many open pages. Try again soon.", retry_after_s=RETRY_AFTER_S, code="too_many_sockets"
                )
            if is_socket:
                if self._limit_per_user and self._sockets[user] >= self._limit_per_user:
                    raise TooManyRequests("You have too many pages open.", retry_after_s=RETRY_AFTER_S)
                self._sockets[user] += 1
            connection = Connection(principal, is_socket=is_socket)
            self._open.add(connection)
        return connection

    def release(self, connection: Connection) -> None:
        """Give the place back. Doing so twice is harmless."""
        with self._lock:
            if connection not in self._open:
                return
            self._open.discard(connection)
            if connection.is_socket:
                user = connection.principal.user_id
                self._sockets[user] -= 1
                if self._sockets[user] <= 0:
                    del self._sockets[user]

    def all(self) -> list[Connection]:
        with self._lock:
            return list(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def close_all(self) -> None:
        """The process is to stop: no more places, and everybody is asked to come back (to the next process)."""
        with self._lock:
            self._closing = True
            still_open = list(self._open)
        for connection in still_open:
            connection.end(GOING_AWAY)
