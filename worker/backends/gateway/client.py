"""HTTP to one gateway: short requests, and streams that another thread may cut.

Every request has a connection of its own. So a failed connection means that nothing was accepted; with a kept one that
the gateway had closed meanwhile nobody could tell. Proxies from the environment are not used, redirects not followed.
"""

import contextlib
import functools
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import certifi
import httpx

from shared.errors import BackendProtocolError, BackendTimeout
from shared.text import storable
from worker.backends.gateway import faults
from worker.backends.gateway.sse import Comment, SseDecoder, SseEvent

MAX_BODY_BYTES = 64 * 1024 * 1024  # of an answer that is no stream
MAX_ERROR_BYTES = 64 * 1024  # read of an answer that is not 2xx
WRITE_TIMEOUT_S = 60.0  # no progress in sending a request


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

    def trace(self, event: str, facts: Mapping[str, Any]) -> None:
        """For httpcore's `trace` extension: learns the socket as soon as it is connected."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            with self._lock:
                self._socket = facts["return_value"].get_extra_info("socket")
                if self._is_cut:
                    self._shut()

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
    """An open 2xx answer. `kind` is its content type; read either `events` or `body`, once."""

    def __init__(self, response: httpx.Response, limit_s: float) -> None:
        self._response = response
        self._limit_s = limit_s
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self.kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()

    def events(self) -> Iterator[SseEvent | Comment]:
        """Until the peer ends the stream. Raises ConnectionCut, BackendTimeout, BackendProtocolError."""
        decoder = SseDecoder()
        for chunk in self._chunks():
            yield from decoder.feed(chunk)
        yield from decoder.close()

    def body(self) -> bytes:
        """The whole body. Raises as `events`."""
        return _limited(self._chunks(), MAX_BODY_BYTES)

    def _chunks(self) -> Iterator[bytes]:
        try:
            yield from self._response.iter_bytes()
        except httpx.TimeoutException as error:
            raise BackendTimeout(
                f"The gateway said nothing for {self._limit_s:.0f} s in the middle of the answer.",
                detail=type(error).__name__,
            ) from error
        except httpx.DecodingError as error:
            raise BackendProtocolError("The gateway's answer is packed in a way that cannot be read.") from error
        except httpx.HTTPError as error:
            raise ConnectionCut(f"{type(error).__name__}: {error}") from error


class GatewayClient:
    """`read_timeout_s`: the longest silence of a stream. `base` is without a trailing slash."""

    def __init__(self, base: str, key: str | None, *, connect_timeout_s: float, read_timeout_s: float) -> None:
        self.base = base.rstrip("/")
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        headers = {"Accept-Encoding": "identity", "User-Agent": "hermes-portal"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        self._http = httpx.Client(
            headers=headers,
            trust_env=False,
            follow_redirects=False,
            verify=_trusted_issuers(),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    def close(self) -> None:
        self._http.close()

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float) -> Reply:
        """One short request; any status. Raises a BackendError when there is no answer within about `timeout_s`."""
        url = self.base + path
        deadline = time.monotonic() + timeout_s
        timeout = httpx.Timeout(timeout_s, connect=min(self._connect_timeout_s, timeout_s), pool=None)
        try:
            with self._http.stream(method, url, **_content(body), timeout=timeout) as response:
                return Reply(
                    response.status_code,
                    response.headers,
                    _limited(response.iter_bytes(), MAX_BODY_BYTES, deadline),
                )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise faults.transport_fault(error, url) from error

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
        """An open stream. Raises a BackendError when it does not come to a 2xx answer, ConnectionCut when `wire` was
        cut meanwhile."""
        url = self.base + path
        timeout = httpx.Timeout(self._read_timeout_s, connect=self._connect_timeout_s, write=WRITE_TIMEOUT_S, pool=None)
        try:
            request = self._http.build_request(
                method,
                url,
                **_content(body, {"Accept": "text/event-stream", "Cache-Control": "no-store"}),
                timeout=timeout,
                extensions={"trace": wire.trace},
            )
            response = self._http.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            if wire.is_cut:
                raise ConnectionCut("cut by us before the answer") from error
            raise faults.transport_fault(error, url) from error
        try:
            if not response.is_success:
                raise faults.status_fault(response.status_code, response.headers, _error_body(response), url)
            yield EventStream(response, self._read_timeout_s)
        finally:
            response.close()


def _content(body: Mapping[str, Any] | None, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """`content` and `headers` for httpx. Not its `json=`, which cannot encode a lone surrogate."""
    if body is None:
        return {"headers": {**(headers or {})}}
    text = storable(json.dumps(body, ensure_ascii=False, separators=(",", ":")))
    return {"content": text.encode(), "headers": {"Content-Type": "application/json", **(headers or {})}}


@functools.cache
def _trusted_issuers() -> ssl.SSLContext:
    """One for the process (it takes 30 ms to make): the system's issuers and those of certifi, for slim containers."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


def _limited(chunks: Iterator[bytes], limit: int, deadline: float | None = None) -> bytes:
    parts: list[bytes] = []
    size = 0
    for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size > limit:
            raise BackendProtocolError(f"The gateway's answer is longer than {limit // (1024 * 1024)} MiB.")
        if deadline is not None and time.monotonic() > deadline:
            raise BackendTimeout("The gateway's answer took too long.")
    return b"".join(parts)


def _error_body(response: httpx.Response) -> bytes:
    """What is said with a bad status, as far as it can be read."""
    parts: list[bytes] = []
    with contextlib.suppress(httpx.HTTPError):  # the status is what counts
        for chunk in response.iter_bytes():
            parts.append(chunk)
            if sum(map(len, parts)) > MAX_ERROR_BYTES:
                break
    return b"".join(parts)
