"""/healthz, /readyz and /metrics: what supervisors and monitors ask. None tells contents; none needs a sign-in."""

import hmac
import ipaddress
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flask import Blueprint, Response, current_app, jsonify, request

from shared import errors
from shared.database import is_current, transaction
from shared.relay.connection import RelayDown, relay_errors
from shared.relay.presence import Presence
from shared.store import runs
from webapp.auth import bearer
from webapp.context import WebContext, web
from webapp.live.live import live

bp = Blueprint("operations", __name__)

BRIDGE = "cli"  # the source of sessions that an installed Hermes answers
SEEN_ALL = "portal.seen_all"  # in app.extensions: database, Redis and a worker have answered once


@dataclass(frozen=True)
class Check:
    """One part that the portal needs. `fault`: None when it answers, else what is wrong, for operators."""

    name: str
    fault: str | None
    duration_ms: float


@bp.get("/healthz")
def healthz() -> Response:
    """200 while this process answers at all."""
    return jsonify({"status": "ok"})


@bp.get("/readyz")
def readyz() -> tuple[Response, int]:
    """503 until database, Redis and a worker have all answered once; from then on only without the database, since
    everything else may be away for minutes without a turn being lost (C8, C17). What is missing is named."""
    context = web()
    checks = [
        _check("database", context, _database),
        _check("redis", context, _redis),
        _check("worker", context, _worker),
    ]
    missing = [check.name for check in checks if check.fault is not None]
    if not missing:
        current_app.extensions[SEEN_ALL] = True
    is_ready = "database" not in missing and bool(current_app.extensions.get(SEEN_ALL))
    body: dict[str, Any] = {"status": "ready" if is_ready else "not ready", "missing": missing}
    if "verbose" in request.args:
        checks.append(_check("bridge", context, _bridge))  # chats of other kinds go on without it
        body["checks"] = [
            {"name": c.name, "ok": c.fault is None, "fault": c.fault, "durationMs": c.duration_ms} for c in checks
        ]
    return jsonify(body), 200 if is_ready else 503


@bp.get("/metrics")
def metrics() -> Response:
    """Prometheus' text format, to loopback or with PORTAL_METRICS_TOKEN."""
    _check_metrics_caller()
    with transaction(web().factory, write=False) as db:
        states = runs.counts(db)
    try:
        workers = Presence(web().redis, web().keys).workers()
    except errors.Unavailable:
        workers = []
    lines = [
        "# HELP portal_runs Runs by state.",
        "# TYPE portal_runs gauge",
        *(f'portal_runs{{state="{state}"}} {count}' for state, count in sorted(states.items())),
        "# HELP portal_workers Workers with a heartbeat.",
        "# TYPE portal_workers gauge",
        f"portal_workers {len(workers)}",
        "# HELP portal_open_connections Sockets and event streams of this web process.",
        "# TYPE portal_open_connections gauge",
        f"portal_open_connections {len(live().connections)}",
    ]
    return Response("\n".join(lines) + "\n", content_type="text/plain; version=0.0.4; charset=utf-8")


def _check_metrics_caller() -> None:
    token = web().settings.metrics_token
    given = bearer()
    if token is not None and given is not None:
        if hmac.compare_digest(given.encode(), token.get_secret_value().encode()):
            return
    elif token is None and _is_from_loopback():
        return
    raise errors.NotFound("There is no such page.")


def _is_from_loopback() -> bool:
    """The caller itself, not a proxy on this machine that passes others on."""
    if any(name in request.headers for name in ("X-Forwarded-For", "Forwarded", "X-Real-IP", "Via")):
        return False
    try:
        return ipaddress.ip_address(request.remote_addr or "").is_loopback
    except ValueError:
        return not request.remote_addr  # a Unix socket


def _check(name: str, context: WebContext, ask: Callable[[WebContext], str | None]) -> Check:
    begun = time.monotonic()
    try:
        fault = ask(context)
    except errors.PlatformError as error:
        fault = error.message
    return Check(name, fault, round((time.monotonic() - begun) * 1000, 1))


def _database(context: WebContext) -> str | None:
    if not is_current(context.engine):
        return "The tables are not those of this version: run `portal migrate`."
    return None


def _redis(context: WebContext) -> str | None:
    try:
        with relay_errors():
            context.redis.ping()
    except RelayDown:
        return "Redis does not answer: turns are accepted and wait."
    return None


def _worker(context: WebContext) -> str | None:
    try:
        alive = Presence(context.redis, context.keys).workers()
    except RelayDown:
        return "Not known while Redis does not answer."
    return None if alive else "No worker has given a sign of life. Turns wait until one does."


def _bridge(context: WebContext) -> str | None:
    """What the workers have told: without Hermes nothing is wrong where a gateway answers, or while nobody told."""
    try:
        living = Presence(context.redis, context.keys).workers()
    except RelayDown:
        return "Not known while Redis does not answer."
    told = [source.ok for worker in living for source in worker.sources if source.source == BRIDGE]
    if told and not any(told):
        has_gateway = context.settings.hermes_gateway_url is not None
        return None if has_gateway else "No installed Hermes was found where the workers run."
    if any(profile.state == "failed" for worker in living for profile in worker.profiles):
        return "The agent of a profile cannot start: `portal doctor` says why."
    return None
