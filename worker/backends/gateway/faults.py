"""What went wrong at the gateway, as one of our exceptions with a sentence for people.

BackendUnavailable only where the turn was surely not accepted (RELIABILITY 2.2): the connection was never made, or the
answer was 429 or 503. Whatever breaks after the request may have left is another BackendError.
"""

import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from shared import clock
from shared.errors import (
    BackendError,
    BackendLost,
    BackendProtocolError,
    BackendRefused,
    BackendTimeout,
    BackendUnavailable,
)

KEY_REFUSED = "backend_key_refused"
MAX_CAUSE_CHARS = 500  # of a peer's own words in our sentence


def connect_fault(error: OSError | ValueError, url: str) -> BackendError:
    """The exception for a connection that was never made: nothing was accepted."""
    where = place(url)
    detail = f"{type(error).__name__}: {error}"
    if isinstance(error, ssl.SSLCertVerificationError):  # a ValueError too
        sentence = f"The certificate of the gateway at {where} is not trusted: {error.verify_message.rstrip('.')}."
    elif isinstance(error, ssl.SSLError):
        sentence = f"No secure connection to the gateway at {where}: does it speak https there?"
    elif isinstance(error, ValueError):
        return BackendRefused(
            f"The gateway's address {where} cannot be used: check HERMES_GATEWAY_URL.", retryable=False, detail=detail
        )
    elif isinstance(error, socket.gaierror):
        sentence = f"The name of the gateway, {where}, cannot be resolved: check HERMES_GATEWAY_URL."
    elif isinstance(error, ConnectionRefusedError):
        sentence = f"Nothing listens at {where}: is the gateway running?"
    elif isinstance(error, TimeoutError):
        sentence = f"The gateway at {where} does not answer: is it running?"
    else:
        sentence = f"The gateway at {where} cannot be reached."
    return BackendUnavailable(sentence, detail=detail)


def exchange_fault(error: http.client.HTTPException | OSError | ValueError, url: str) -> BackendError:
    """The exception for what broke between connecting and the head of the answer: the request may have been taken."""
    detail = f"{type(error).__name__}: {error}"
    if isinstance(error, TimeoutError):
        return BackendTimeout(
            "The gateway took the request and then said nothing for too long. The turn may have begun there.",
            detail=detail,
        )
    if isinstance(error, OSError):  # http.client's RemoteDisconnected among them
        return broken(detail)
    if isinstance(error, http.client.HTTPException):
        return BackendProtocolError(f"What listens at {place(url)} does not speak HTTP as it should.", detail=detail)
    # a header that cannot be sent; its text, the key, must not get into the log
    return BackendRefused(
        "The gateway's key holds characters that cannot be sent: check HERMES_GATEWAY_KEY.",
        code=KEY_REFUSED,
        retryable=False,
        detail=type(error).__name__,
    )


def broken(detail: str) -> BackendError:
    """The connection ended before the answer, or in an answer that is no stream."""
    return BackendLost(
        "The gateway closed the connection before it answered. The turn may have begun there.", detail=detail
    )


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
            code=KEY_REFUSED,
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
