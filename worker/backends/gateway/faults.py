"""What went wrong at the gateway, as one of our exceptions with a sentence for people.

BackendUnavailable only where the turn was surely not accepted (RELIABILITY 2.2): the connection was never made, or the
answer was 429 or 503. Whatever breaks after the request may have left is another BackendError.
"""

import json
import socket
import ssl
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import httpx

from shared import clock
from shared.errors import (
    BackendError,
    BackendLost,
    BackendProtocolError,
    BackendRefused,
    BackendTimeout,
    BackendUnavailable,
)

MAX_CAUSE_CHARS = 500  # of a peer's own words in our sentence


def transport_fault(error: httpx.HTTPError | httpx.InvalidURL, url: str) -> BackendError:
    """The exception for what httpx raised before the head of the answer was there."""
    where = place(url)
    detail = f"{type(error).__name__}: {error}"
    if isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout):
        return BackendUnavailable(f"The gateway at {where} does not answer: is it running?", detail=detail)
    if isinstance(error, httpx.ConnectError):
        return BackendUnavailable(_connect_sentence(error, where), detail=detail)
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol | httpx.LocalProtocolError):
        return BackendRefused(
            f"The gateway's address {where} or its key cannot be used: check HERMES_GATEWAY_URL and "
            "HERMES_GATEWAY_KEY.",
            retryable=False,
            detail=detail,
        )
    if isinstance(error, httpx.TimeoutException):
        return BackendTimeout(
            "The gateway took the request and then said nothing for too long. The turn may have begun there.",
            detail=detail,
        )
    return BackendLost(
        "The gateway closed the connection before it answered. The turn may have begun there.", detail=detail
    )


def _connect_sentence(error: httpx.ConnectError, where: str) -> str:
    for cause in _causes(error):
        if isinstance(cause, socket.gaierror):
            return f"The name of the gateway, {where}, cannot be resolved: check HERMES_GATEWAY_URL."
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"The certificate of the gateway at {where} is not trusted: {cause.verify_message}."
        if isinstance(cause, ssl.SSLError):
            return f"No secure connection to the gateway at {where}: does it speak https there?"
        if isinstance(cause, ConnectionRefusedError):
            return f"Nothing listens at {where}: is the gateway running?"
    return f"The gateway at {where} cannot be reached."


def _causes(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    step: BaseException | None = error
    while step is not None and len(chain) < 10:
        chain.append(step)
        step = step.__cause__ or step.__context__
    return chain


def status_fault(status: int, headers: Mapping[str, str], body: bytes, url: str) -> BackendError:
    """The exception for an answer that is not 2xx."""
    said, code = peer_words(headers, body)
    detail = f"HTTP {status} {code}: {said}"
    told = f" It says: {said}" if said else ""
    if status in (429, 503):
        busy = "is busy" if status == 429 else "is not available at the moment"
        return BackendUnavailable(f"The gateway {busy}.{told}", retry_after_s=retry_after_s(headers), detail=detail)
    if status in (401, 403):
        return BackendRefused(
            f"The gateway refused our key (HTTP {status}): check HERMES_GATEWAY_KEY.{told}",
            code="backend_key_refused",
            retryable=False,
            detail=detail,
        )
    if status in (404, 405):
        return BackendRefused(
            f"The gateway at {place(url)} does not know {urlsplit(url).path} (HTTP {status}): "
            f"check HERMES_GATEWAY_URL.{told}",
            retryable=False,
            detail=detail,
        )
    if 300 <= status < 400:
        target = headers.get("location", "")
        return BackendRefused(
            f"The gateway at {place(url)} sends us on to {place(target) or 'another address'} (HTTP {status}), which "
            "is not followed: set HERMES_GATEWAY_URL to the final address.",
            retryable=False,
            detail=detail,
        )
    if status >= 500:
        return BackendError(f"The gateway failed (HTTP {status}).{told}", detail=detail)
    return BackendRefused(f"The gateway refused the turn (HTTP {status}).{told}", retryable=False, detail=detail)


def wrong_content(headers: Mapping[str, str], body: bytes) -> BackendError:
    """The exception for a 200 that holds no answer."""
    kind = headers.get("content-type", "").partition(";")[0].strip()
    if not body.strip():
        return BackendProtocolError("The gateway answered with nothing at all.", detail=f"empty body, {kind}")
    if kind == "text/html" or body.lstrip()[:1] == b"<":
        return BackendProtocolError(
            "The gateway answered with a web page: HERMES_GATEWAY_URL probably names something else.", detail=kind
        )
    said, code = peer_words(headers, body)
    if said:
        return BackendRefused(f"The gateway refused the turn. It says: {said}", detail=f"HTTP 200 {code}: {said}")
    return BackendProtocolError("The gateway answered with something that is no answer.", detail=kind)


def peer_words(headers: Mapping[str, str], body: bytes) -> tuple[str, str]:
    """The message and the code of an error body; two empty strings for pages and what is no JSON object."""
    try:
        shape = json.loads(body)
    except (ValueError, RecursionError):
        is_text = headers.get("content-type", "").startswith("text/plain") and len(body) <= MAX_CAUSE_CHARS
        return (shown(body.decode("utf-8", "replace")) if is_text else ""), ""
    if not isinstance(shape, dict):
        return "", ""
    error = shape.get("error", shape.get("detail", shape.get("message")))
    if isinstance(error, dict):
        return shown(str(error.get("message") or "")), str(error.get("code") or "")
    return (shown(error), "") if isinstance(error, str) else ("", "")


def shown(words: str) -> str:
    """A peer's words on one line, without control characters, cut to MAX_CAUSE_CHARS."""
    line = " ".join("".join(c if c.isprintable() else " " for c in words).split())
    return line if len(line) <= MAX_CAUSE_CHARS else line[:MAX_CAUSE_CHARS] + "…"


def retry_after_s(headers: Mapping[str, str]) -> int | None:
    """`Retry-After` in seconds, from a number or a date; None when absent or nonsense."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return min(int(value), 86_400)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, min(int((moment - clock.now()).total_seconds()) + 1, 86_400))


def place(url: str) -> str:
    """Host and port of an address, without what may be secret in it."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2]
