"""One log line a request: ids, method, path, status, time. Never a query string, a header or a body (S43)."""

import time

from flask import Flask, Response, g, request

from shared import ids, logs
from webapp.auth import Principal

log = logs.get("webapp.request")

QUIET = frozenset({"static", "operations.healthz", "operations.readyz", "operations.metrics"})


def init(app: Flask) -> None:
    app.before_request(_begin)
    app.after_request(_end)
    app.teardown_request(_unbind)


def _begin() -> None:
    g.begun = time.monotonic()
    g.log_ids = logs.bind(request_id=ids.new_id()[:12], **_ids_in_path())


def _end(response: Response) -> Response:
    if request.endpoint in QUIET and response.status_code < 500:
        return response
    principal: Principal | None = g.get("principal")
    log.info(
        "request",
        method=request.method,
        path=request.path[:300],
        status=response.status_code,
        duration_ms=round((time.monotonic() - g.begun) * 1000, 1) if "begun" in g else None,
        user_id=None if principal is None else principal.user_id,
        address=request.remote_addr,
    )
    return response


def _unbind(error: BaseException | None) -> None:
    if (bound := g.pop("log_ids", None)) is not None:
        bound.__exit__(None, None, None)


def _ids_in_path() -> dict[str, str]:
    known = request.view_args or {}
    return {name: str(known[name])[:64] for name in ("session_id", "run_id") if name in known}
