"""What every request passes before its route: host, Origin, who asks, set-up first, CSRF, limits. In this order, once,
for pages, API and the socket's upgrade alike; a new route is closed until PUBLIC names it."""

from flask import Flask, current_app, redirect, request, url_for
from flask.typing import ResponseReturnValue
from flask_wtf.csrf import CSRFProtect

from shared import errors
from shared.database import transaction
from shared.store import users
from webapp import addresses, auth
from webapp.context import web
from webapp.errors import wants_json

SOCKET_PATH = "/chat-run"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
PROBES = frozenset({"operations.healthz", "operations.readyz", "operations.metrics"})
SET_UP = frozenset({"account.set_up", "account.make_administrator"})
PUBLIC = PROBES | SET_UP | {"static", "account.sign_in", "account.start_sign_in", "account.set_language"}
"""Endpoints that answer without a sign-in."""

csrf = CSRFProtect()


def init(app: Flask) -> None:
    """Put the gate before every route of the app."""
    app.config.update(
        WTF_CSRF_CHECK_DEFAULT=False,  # the gate decides when
        WTF_CSRF_TIME_LIMIT=None,  # as long as its cookie: a page may stay open for days
        WTF_CSRF_SSL_STRICT=False,  # needs a Referer, which our Referrer-Policy withholds; Origin is checked instead
        WTF_CSRF_HEADERS=["X-CSRF-Token", "X-CSRFToken"],
    )
    csrf.init_app(app)
    app.before_request(_pass)


def _pass() -> ResponseReturnValue | None:
    settings = web().settings
    addresses.check_host(settings)
    if not request.path.isprintable():
        raise errors.NotFound("There is no such page.")
    if request.endpoint == "static" or request.endpoint in PROBES:
        return None
    if request.endpoint is None and request.routing_exception is not None and not has_administrator():
        raise _set_up_first()
    if request.endpoint is None:
        return None  # the router's 404, 405 or redirect
    token = auth.bearer()
    if token is None:
        _check_browser()
    if not settings.auth_disabled and not has_administrator():
        return _only_set_up()
    if request.endpoint not in PUBLIC:
        auth.current()
    if request.method not in SAFE_METHODS and token is None:
        _check_same_page()
    return None


def has_administrator() -> bool:
    """Whether the portal is set up. Once it is, it stays so: the last administrator cannot be removed."""
    if web().settings.auth_disabled or current_app.extensions.get("portal.is_set_up"):
        return True
    with transaction(web().factory, write=False) as db:
        found = users.any_administrator(db)
    if found:
        current_app.extensions["portal.is_set_up"] = True
    return found


def _check_browser() -> None:
    """A cookie goes with every request a browser makes, whoever's page caused it; an Origin cannot be forged there."""
    settings = web().settings
    if request.path == SOCKET_PATH or request.headers.get("Upgrade", "").lower() == "websocket":
        origin = request.headers.get("Origin")
        if origin is None and settings.auth_disabled:
            return  # a program: browsers always send one
        if origin is None or not addresses.is_own_origin(origin, settings):
            raise errors.Forbidden("This page may not open a socket here.", code="foreign_origin")
    elif request.method not in SAFE_METHODS and addresses.is_foreign_page(settings):
        raise errors.Forbidden("This request comes from another site's page.", code="foreign_origin")


def _check_same_page() -> None:
    """The CSRF token of our own page; the API under AUTH_DISABLED takes JSON instead, which no foreign page can send
    without asking first (S11)."""
    if web().settings.auth_disabled and request.path.startswith("/api/") and _is_json_or_empty():
        if request.headers.get("Origin") == "null":
            raise errors.Forbidden("This request comes from another site's page.", code="foreign_origin")
        return
    csrf.protect()


def _is_json_or_empty() -> bool:
    if request.is_json:
        return True
    return request.method == "DELETE" and not request.content_length and not request.content_type


def _only_set_up() -> ResponseReturnValue | None:
    if request.endpoint in SET_UP:
        if request.method not in SAFE_METHODS:
            csrf.protect()
        return None
    if wants_json() or request.method not in SAFE_METHODS:
        raise _set_up_first()
    return redirect(url_for("account.set_up"), 303)


def _set_up_first() -> errors.Forbidden:
    return errors.Forbidden(
        "This portal has no administrator yet. Open the one-time link that `portal up` printed.", code="set_up_first"
    )
