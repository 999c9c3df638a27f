"""PlatformError -> status and body, in one table for every door: pages, API, sockets."""

import gettext
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from babel.messages.mofile import read_mo
from flask import Flask, Response, g, json, redirect, request, url_for
from flask_wtf.csrf import CSRFError
from gunicorn.http.errors import NoMoreData, ParseException
from pydantic import ValidationError
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from shared import errors, ids, logs
from shared.relay.connection import RelayDown
from webapp.auth import Principal
from webapp.context import web
from webapp.render import HERE, LOCALES, reader, render

log = logs.get("webapp.errors")


class NotJson(errors.InvalidCommand):
    """The API takes JSON and says so."""

    code = "not_json"


STATUS: dict[type[errors.PlatformError], int] = {
    errors.TooLarge: 413,
    NotJson: 415,
    errors.InvalidCommand: 400,
    errors.NotAuthenticated: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.QueueFull: 429,
    errors.TooManyRequests: 429,
    errors.StorageFull: 507,
    errors.Unavailable: 503,
    errors.BackendTimeout: 504,
    errors.BackendError: 502,
}
HTTP_CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large", 415: "not_json"}
PAGES_BELOW_API = ("/api/docs",)
PLACES = ("profiles", "models")  # pages to come back to when the password was given again
PAUSE_QUEUE_FULL_S = 5
SAYS = " It says: "  # before a peer's own words, at the end of a sentence
LONGEST_TRANSLATED_CHARS = 2_000
DRAIN_LIMIT_BYTES = 32 << 20  # of a body that is refused, so that the client hears the answer and not a reset


@dataclass(frozen=True)
class Problem:
    """One error as a client sees it: `status`, the stable `code`, a sentence in `detail`. Never a trace (S44)."""

    status: int
    code: str
    detail: str
    retry_after_s: int | None = None
    error_id: str | None = None  # stands in the log beside the trace
    fields: tuple[tuple[str, str], ...] = ()  # (field, what is wrong with it)

    @property
    def title(self) -> str:
        return HTTPStatus(self.status).phrase

    def as_dict(self) -> dict[str, Any]:
        """The members of an RFC 9457 problem document, with our `code` and camelCase names."""
        body: dict[str, Any] = {
            "type": "about:blank",
            "title": self.title,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
        }
        if self.retry_after_s is not None:
            body["retryAfterS"] = self.retry_after_s
        if self.error_id is not None:
            body["errorId"] = self.error_id
        if self.fields:
            body["errors"] = [{"field": field, "message": message} for field, message in self.fields]
        return body


def problem_of(error: Exception) -> Problem:
    """What a client is told of `error`. One that nobody foresaw is logged and told by its id only."""
    if isinstance(error, errors.PlatformError):
        return _platform_problem(error)
    if isinstance(error, ValidationError):
        return _validation_problem(error)
    if isinstance(error, CSRFError):
        return Problem(
            403, "csrf", "This page is too old or the request came from elsewhere. Reload the page and retry."
        )
    if isinstance(error, RequestEntityTooLarge):
        kb = web().settings.max_message_kb
        return Problem(413, "too_large", f"This is too large: a message may have {kb} KB. Send it as a file instead.")
    if isinstance(error, HTTPException) and error.code is not None and error.code < 500:
        code = HTTP_CODES.get(error.code, "http_error")
        return Problem(error.code, code, error.description or HTTPStatus(error.code).phrase)
    if isinstance(error, ParseException | NoMoreData):  # raised where the body is read
        return Problem(400, "bad_request", "The body of the request is broken, or did not come to its end.")
    original = getattr(error, "original_exception", None)
    if isinstance(original, errors.PlatformError | ValidationError):
        return problem_of(original)
    error_id = ids.new_id()[:12]
    log.error("request.failed", error_id=error_id, exc_info=original or error)
    return Problem(500, "internal_error", f"Something went wrong here. Tell an operator: {error_id}", error_id=error_id)


def told(detail: str) -> str:
    """`detail` in the reader's language; what no sentence of the catalogue `errors` fits stays as it is.

    A sentence there has `{}` for each part that varies: a number, an address, a peer's own words.
    """
    sentences = _sentences(reader().locale)
    if detail in sentences.whole:
        return sentences.whole[detail]
    if len(detail) > LONGEST_TRANSLATED_CHARS:
        return detail
    for pattern, translated in sentences.patterns:
        if (found := pattern.fullmatch(detail)) is not None:
            return translated.format(*map(told, found.groups()))
    head, said, words = detail.partition(SAYS)
    return told(head) + sentences.whole.get(SAYS, SAYS) + words if said else detail


@dataclass(frozen=True)
class _Sentences:
    """`patterns`: those with parts that vary, the ones with most words of their own first."""

    whole: Mapping[str, str]
    patterns: Sequence[tuple[re.Pattern[str], str]]


@lru_cache(maxsize=len(LOCALES))
def _sentences(locale: str) -> _Sentences:
    path = gettext.find("errors", HERE / "translations", languages=[locale])
    if path is None:
        return _Sentences({}, ())
    with open(path, "rb") as file:
        messages = {str(m.id): str(m.string) for m in read_mo(file) if m.id and m.string}
    varied = sorted((english for english in messages if "{}" in english), key=len, reverse=True)
    patterns = [(re.compile("(.*?)".join(map(re.escape, e.split("{}"))), re.DOTALL), messages[e]) for e in varied]
    return _Sentences(messages, patterns)


def register(app: Flask) -> None:
    """Answer every error of a request by `problem_of`: problem JSON to programs, a page to people."""
    app.register_error_handler(Exception, answer)


def answer(error: Exception) -> Response:
    """The response for `error`, in the form that the client reads."""
    if isinstance(error, HTTPException) and error.code is not None and error.code < 400:
        return error.get_response()  # type: ignore[return-value]  # a redirect of the router
    if isinstance(error, RequestEntityTooLarge | errors.TooLarge):
        _drain()
    problem = problem_of(error)
    if problem.status == 401 and not wants_json():
        return _to_sign_in()
    if problem.code == "not_fresh" and not wants_json():
        return _to_password()
    response = _as_json(problem) if wants_json() else _as_page(problem)
    if problem.retry_after_s is not None:
        response.headers["Retry-After"] = str(problem.retry_after_s)
    if problem.status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="Hermes Portal"'
    if isinstance(error, HTTPException) and problem.status == 405:
        response.headers["Allow"] = ", ".join(sorted(getattr(error, "valid_methods", None) or ()))
    return response


def wants_json() -> bool:
    """True for the API, the socket's address and probes; false for pages and what htmx asks for."""
    if request.path in PAGES_BELOW_API:
        return False
    if request.path.startswith("/api/") or request.path in ("/chat-run", "/healthz", "/readyz", "/metrics"):
        return True
    best = request.accept_mimetypes.best_match(("text/html", "application/json", "application/problem+json"))
    return best is not None and best != "text/html"


def _platform_problem(error: errors.PlatformError) -> Problem:
    if isinstance(error, RelayDown):  # its own words name the address of Redis: they are for the log
        return Problem(
            503, error.code, "Redis does not answer. Try again in a moment.", retry_after_s=error.retry_after_s
        )
    status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
    retry_after_s = getattr(error, "retry_after_s", None)
    if isinstance(error, errors.QueueFull):
        retry_after_s = PAUSE_QUEUE_FULL_S
    return Problem(status, error.code, error.message, retry_after_s=retry_after_s)


def _validation_problem(error: ValidationError) -> Problem:
    fields = tuple((".".join(str(part) for part in e["loc"]) or "body", str(e["msg"])) for e in error.errors()[:20])
    detail = "; ".join(f"{field}: {message}" for field, message in fields)
    return Problem(400, "invalid_command", detail, fields=fields)


def _as_json(problem: Problem) -> Response:
    return Response(json.dumps(problem.as_dict()), problem.status, content_type="application/problem+json")


def _as_page(problem: Problem) -> Response:
    partial = request.headers.get("HX-Request") == "true" and request.headers.get("HX-Boosted") != "true"
    name = "fragments/notice.html" if partial else "pages/error.html"
    try:
        body = render(name, problem=replace(problem, detail=told(problem.detail)), switch_for=_switch_for(problem))
    except Exception:  # the last resort of a page: whatever is wrong with it, people hear what happened
        log.exception("error_page.failed", code=problem.code)
        said = f"{problem.status} {problem.title}" + (f" ({problem.error_id})" if problem.error_id else "")
        body = f"<!doctype html><title>{problem.status}</title><p>{said}</p>"
    response = Response(body, problem.status, content_type="text/html; charset=utf-8")
    if partial:
        response.headers["HX-Retarget"] = "#notices"
        response.headers["HX-Reswap"] = "beforeend"
    return response


def _switch_for(problem: Problem) -> str | None:
    """The session that an administrator may open by the audited switch. Offered for every id that is not theirs: the
    offer does not tell whether there is such a session (S16)."""
    principal: Principal | None = g.get("principal")
    is_session = problem.status == 404 and request.endpoint == "chat.show"
    may_switch = principal is not None and principal.role == "administrator" and principal.kind == "cookie"
    return (request.view_args or {}).get("session_id") if is_session and may_switch else None


def _to_password() -> Response:
    """To where the password is given again, and back to the page that it was needed for."""
    session_id = (request.view_args or {}).get("session_id")
    place = request.path.split("/")[1]
    at = f"/chat/{session_id}" if session_id else f"/{place}" if place in PLACES else "/"
    back = request.script_root + at
    return redirect(url_for("account.settings", next=back), 303)  # type: ignore[return-value]


def _to_sign_in() -> Response:
    """To the sign-in page, and afterwards back to where the person wanted to go."""
    wanted = request.script_root + request.full_path.rstrip("?") if request.method == "GET" else None
    target = url_for("account.sign_in", next=wanted)
    if request.headers.get("HX-Request") == "true":
        return Response("", 401, headers={"HX-Redirect": target})
    return redirect(target, 303)  # type: ignore[return-value]


def _drain() -> None:
    """Read on, and throw away, what is left of a refused body: a client that still sends would miss the answer."""
    if g.get("drained") or request.environ.get("wsgi.input") is None:
        return
    g.drained = True
    left = DRAIN_LIMIT_BYTES
    stream = request.environ["wsgi.input"]  # ends with the body, chunked or not
    while left > 0:
        piece = stream.read(min(left, 1 << 16))
        if not piece:
            return
        left -= len(piece)
