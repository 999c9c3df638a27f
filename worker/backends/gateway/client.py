"""HTTP/1.1 to one gateway: short requests, and streams that another thread may cut.

By the standard library and not by httpx: a worker reads up to 2,500 deltas a second, each a chunk of its own, and httpx
(h11 takes each chunk apart in Python) cost 0.10 s of CPU per 1,000 of them where this costs 0.04. Two more things come
with it: whether the request was surely not accepted is plain, since connecting is a step of its own; and the socket is
at hand for who must cut it. Each request has its own connection: of a kept one nobody could tell whether the gateway
had closed it. Proxies from the environment are not used, redirects not followed.
"""

import contextlib
import functools
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import certifi

from shared import outbound
from shared.errors import BackendProtocolError, BackendRefused, BackendTimeout
from shared.text import storable
from worker.backends.gateway import faults
from worker.backends.gateway.sse import Comment, SseDecoder, SseEvent

READ_BYTES = 65_536  # at most, at a time
MAX_BODY_BYTES = 64 * 1024 * 1024  # of an answer that is no stream
MAX_ERROR_BYTES = 64 * 1024  # read of an answer that is not 2xx
WRITE_TIMEOUT_S = 60.0  # no progress in sending a request
USER_AGENT = "hermes-portal"


class ConnectionCut(Exception):
    """The stream ended in the middle: the gateway closed it, the network broke, or we cut it. `cause` for the log."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class Wire:
    """The connection of one stream, from before it exists. `cut` may be called from any thread, at any time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_cut = False

    @property
    def is_cut(self) -> bool:
        return self._is_cut

    def cut(self) -> None:
        """End the connection: who reads from it sees its end at once."""
        with self._lock:
            self._is_cut = True
            self._shut()

    def connected(self, connection: socket.socket) -> None:
        with self._lock:
            self._socket = connection
            if self._is_cut:
                self._shut()

    def gone(self) -> None:
        """The connection is about to be closed: its number may soon be another's."""
        with self._lock:
            self._socket = None

    def _shut(self) -> None:
        if self._socket is None:
            return
        with contextlib.suppress(OSError):  # it may be gone already
            # Not SSLSocket.shutdown, which would drop its TLS state under the thread that reads.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


@dataclass(frozen=True)
class Reply:
    """A whole answer. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class EventStream:
    """An open answer. `kind` is its content type; read either `events` or `body`, once."""

    def __init__(self, response: http.client.HTTPResponse, limit_s: float) -> None:
        self._response = response
        self._limit_s = limit_s
        self.status = response.status
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.getheaders()}
        self.kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def events(self) -> Iterator[SseEvent | Comment]:
        """Until the peer ends the stream. Raises ConnectionCut, BackendTimeout, BackendProtocolError."""
        decoder = SseDecoder()
        for chunk in self._chunks():
            yield from decoder.feed(chunk)
        yield from decoder.close()

    def body(self, limit: int = MAX_BODY_BYTES) -> bytes:
        """The whole body. Raises as `events`."""
        parts: list[bytes] = []
        size = 0
        for chunk in self._chunks():
            parts.append(chunk)
            size += len(chunk)
            if size > limit:
                raise BackendProtocolError(f"The gateway's answer is longer than {limit // (1024 * 1024)} MiB.")
        return b"".join(parts)

    def beginning(self, size: int) -> bytes:
        """About the first `size` bytes, as far as they can be had."""
        parts: list[bytes] = []
        with contextlib.suppress(ConnectionCut, BackendTimeout):
            for chunk in self._chunks():
                parts.append(chunk)
                if sum(map(len, parts)) >= size:
                    break
        return b"".join(parts)

    def _chunks(self) -> Iterator[bytes]:
        if self.headers.get("content-encoding", "identity").lower() not in ("identity", ""):
            raise BackendProtocolError("The gateway's answer is packed, though we asked for a plain one.")
        read = self._response.read1
        try:
            while chunk := read(READ_BYTES):
                yield chunk
        except TimeoutError as error:
            sentence = f"The gateway said nothing for {self._limit_s:.0f} s in the middle of the answer."
            raise BackendTimeout(sentence, detail="read timeout") from error
        except (http.client.HTTPException, OSError, ValueError) as error:
            raise ConnectionCut(f"{type(error).__name__}: {error}") from error
        if self._response.length:  # the Content-Length was more than what came
            raise ConnectionCut("the answer was shorter than it said")


class GatewayClient:
    """`read_timeout_s`: the longest silence of a stream. `is_typed`: the address was typed in a page, and only public
    ones are asked, unless `allow_private` (S37). Thread-safe; holds nothing open between requests."""

    def __init__(
        self,
        base: str,
        key: str | None,
        *,
        connect_timeout_s: float,
        read_timeout_s: float,
        is_typed: bool = False,
        allow_private: bool = False,
    ) -> None:
        self.base = base.rstrip("/")
        self._is_typed = is_typed
        self._allow_private = allow_private
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._headers = {"Accept-Encoding": "identity", "User-Agent": USER_AGENT, "Connection": "close"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float) -> Reply:
        """One short request; any status. Raises a BackendError when there is no answer within about `timeout_s`."""
        url = self.base + path
        deadline = time.monotonic() + timeout_s
        cutter = Wire()
        timer = threading.Timer(timeout_s, cutter.cut)  # a peer that sends a byte now and then is slow too
        timer.daemon = True
        timer.start()
        try:
            with self._open(method, url, body, {}, cutter, timeout_s) as answer:
                return Reply(answer.status, answer.headers, answer.body())
        except ConnectionCut as cut:
            if time.monotonic() >= deadline:
                raise BackendTimeout("The gateway's answer took too long.", detail=cut.cause) from cut
            raise faults.broken(cut.cause) from cut
        finally:
            timer.cancel()

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float) -> Reply:
        """As `request`, but a status other than 2xx is raised as a BackendError too."""
        reply = self.request(method, path, body, timeout_s=timeout_s)
        if not 200 <= reply.status < 300:
            raise faults.status_fault(reply.status, reply.headers, reply.body, self.base + path)
        return reply

    @contextmanager
    def stream(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, wire: Wire
    ) -> Iterator[EventStream]:
        """An open 2xx answer. Raises a BackendError when it does not come to one, ConnectionCut when `wire` was cut
        meanwhile."""
        url = self.base + path
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        with self._open(method, url, body, headers, wire, self._read_timeout_s) as answer:
            if not 200 <= answer.status < 300:
                raise faults.status_fault(answer.status, answer.headers, answer.beginning(MAX_ERROR_BYTES), url)
            yield answer

    @contextmanager
    def _open(
        self,
        method: str,
        url: str,
        body: Mapping[str, Any] | None,
        headers: Mapping[str, str],
        wire: Wire,
        read_timeout_s: float,
    ) -> Iterator[EventStream]:
        """The head of any answer. Raises as `stream`."""
        try:
            connection = _connection(url, min(self._connect_timeout_s, read_timeout_s))
            if self._is_typed:
                _connect_checked(connection, allow_private=self._allow_private)
            else:
                connection.connect()
        except outbound.RefusedAddress as refused:
            raise BackendRefused(f"The gateway's address is not asked. {refused.message}", retryable=False) from refused
        except (OSError, ValueError) as error:
            raise faults.connect_fault(error, url) from error
        try:
            wire.connected(connection.sock)
            try:
                response = self._exchange(connection, method, url, body, headers, read_timeout_s)
            except (http.client.HTTPException, OSError, ValueError) as error:
                if wire.is_cut:
                    raise ConnectionCut("cut by us before the answer") from error
                raise faults.exchange_fault(error, url) from error
            with contextlib.closing(response):
                yield EventStream(response, read_timeout_s)
        finally:
            wire.gone()
            connection.close()

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        url: str,
        body: Mapping[str, Any] | None,
        headers: Mapping[str, str],
        read_timeout_s: float,
    ) -> http.client.HTTPResponse:
        content, kind = None, {}
        if body is not None:
            # A lone surrogate cannot be encoded; storable() replaces it.
            content = storable(json.dumps(body, ensure_ascii=False, separators=(",", ":"))).encode()
            kind = {"Content-Type": "application/json"}
        parts = urlsplit(url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.sock.settimeout(WRITE_TIMEOUT_S)
        # Who refuses a request may do so before it has read all of it: then the answer is there all the same.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request(method, target, content, {**self._headers, **kind, **headers})
        connection.sock.settimeout(read_timeout_s)
        return connection.getresponse()


def _connection(url: str, connect_timeout_s: float) -> http.client.HTTPConnection:
    """Not connected yet. Raises ValueError for an address that is none."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("no http address")
    if parts.scheme == "http":
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=connect_timeout_s)
    context = _trusted_issuers()
    return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=connect_timeout_s, context=context)


def _connect_checked(connection: http.client.HTTPConnection, *, allow_private: bool) -> None:
    """As `connection.connect`, to an address that was looked at. Raises OSError, RefusedAddress."""
    timeout_s = connection.timeout if isinstance(connection.timeout, int | float) else WRITE_TIMEOUT_S
    made = outbound.connect(connection.host, connection.port, timeout_s, allow_private=allow_private)
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if isinstance(connection, http.client.HTTPSConnection):
            made = _trusted_issuers().wrap_socket(made, server_hostname=connection.host)
    except BaseException:
        made.close()
        raise
    connection.sock = made


@functools.cache
def _trusted_issuers() -> ssl.SSLContext:
    """One for the process (it takes 30 ms to make): the system's issuers and those of certifi, for slim containers."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context
