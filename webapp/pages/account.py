"""/login, /logout, /setup, /settings, /language and the audited switch: the pages about who somebody is."""

from typing import cast

from flask import Blueprint, Response, make_response, redirect, request, url_for
from flask import session as cookie

from shared import errors
from webapp import cookies, gate
from webapp.actions import account, chat_sessions
from webapp.addresses import local_target
from webapp.auth import Principal, current, current_or_none
from webapp.context import web
from webapp.errors import STATUS, told
from webapp.render import LANGUAGE_COOKIE, LOCALES, render, url

bp = Blueprint("account", __name__)

HOME = "/"
YEAR_S = 365 * 86_400


# ---- signing in and out


@bp.get("/login")
def sign_in() -> Response:
    cookies.check_footing(web().settings)
    target = _target(request.args.get("next"))
    if current_or_none() is not None:
        return _go(target)
    return _page("pages/sign_in.html", login="", next=target, error=None)


@bp.post("/login")
def start_sign_in() -> Response:
    cookies.check_footing(web().settings)
    target = _target(request.form.get("next"))
    login = request.form.get("login", "")
    if web().settings.auth_disabled:
        return _go(target)
    try:
        done = account.sign_in(
            web(),
            login=login,
            password=request.form.get("password", ""),
            source=_source(),
            replaces=cookies.sign_in_cookie(),
        )
    except (errors.NotAuthenticated, errors.TooManyRequests) as error:
        return _again("pages/sign_in.html", error, login=login[: account.MAX_LOGIN], next=target)
    return _signed_in(done, target)


@bp.post("/logout")
def sign_out() -> Response:
    principal = current()
    account.sign_out(web(), principal)
    cookie.clear()
    response = _go(url_for("account.sign_in"))
    cookies.clear_sign_in(response)
    response.headers["Clear-Site-Data"] = '"storage"'  # drafts and unsent turns (S24)
    return response


# ---- the first administrator


@bp.get("/setup")
def set_up() -> Response:
    cookies.check_footing(web().settings)
    if gate.has_administrator():
        return _go(url_for("account.sign_in"))
    return _page("pages/setup.html", token=request.args.get("token", "")[:200], login="", name="", error=None)


@bp.post("/setup")
def make_administrator() -> Response:
    cookies.check_footing(web().settings)
    form = request.form
    given = {"token": form.get("token", "")[:200], "login": form.get("login", ""), "name": form.get("name", "")}
    try:
        done = account.make_first_administrator(web(), **given, password=form.get("password", ""), source=_source())
    except (errors.InvalidCommand, errors.Forbidden, errors.TooManyRequests) as error:
        return _again("pages/setup.html", error, **given)
    return _signed_in(done, _target(None))


# ---- settings: password, tokens


@bp.get("/settings")
def settings() -> Response:
    wanted = request.args.get("next")
    return _settings_page(current(), next_target=local_target(wanted, default=HOME) if wanted else None)


@bp.post("/settings/password")
def change_password() -> Response:
    principal = _person()
    form = request.form
    try:
        done = account.change_password(
            web(), principal, old=form.get("old", ""), new=form.get("new", ""), source=_source()
        )
    except (errors.InvalidCommand, errors.NotAuthenticated, errors.TooManyRequests) as error:
        return _settings_page(principal, error=error)
    return _signed_in(done, url_for("account.settings", done="password"))


@bp.post("/settings/confirm")
def confirm() -> Response:
    principal = _person()
    target = local_target(request.form.get("next"), default=url_for("account.settings"))
    try:
        account.confirm(web(), principal, request.form.get("password", ""))
    except (errors.NotAuthenticated, errors.TooManyRequests) as error:
        return _settings_page(principal, error=error, next_target=target)
    return _go(target)


@bp.post("/settings/tokens")
def create_token() -> Response:
    principal = current()
    days = request.form.get("days", "")
    try:
        made = account.create_token(
            web(),
            principal,
            name=request.form.get("name", ""),
            scopes=tuple(request.form.getlist("scope")),
            days=_number(days) if days else None,
        )
    except (errors.InvalidCommand, errors.Conflict, errors.TooManyRequests) as error:
        return _settings_page(principal, error=error)
    return _settings_page(principal, made=made)


@bp.post("/settings/tokens/<token_id>/revoke")
def revoke_token(token_id: str) -> Response:
    account.revoke_token(web(), current(), token_id)
    return _go(url_for("account.settings"))


# ---- language, and the audited switch


@bp.post("/language")
def set_language() -> Response:
    language = request.form.get("language", "")
    if language not in LOCALES:
        raise errors.InvalidCommand("This language is not offered.")
    response = _go(_target(request.form.get("next")))
    secure = cookies.footing(web().settings) == "secure"
    response.set_cookie(
        LANGUAGE_COOKIE, language, max_age=YEAR_S, path="/", secure=secure, httponly=True, samesite="Lax"
    )
    return response


@bp.post("/admin/sessions/<session_id>/open")
def open_as_administrator(session_id: str) -> Response:
    """Read another's session for a while; the audit log keeps who, when and why (S16)."""
    reason = request.form.get("reason", "")
    opened = chat_sessions.open_as_administrator(web(), current(), session_id, reason)
    return _go(url("chat", opened.session_id))


# ---- shared


def _settings_page(
    principal: Principal,
    *,
    error: errors.PlatformError | None = None,
    made: account.MadeToken | None = None,
    next_target: str | None = None,
) -> Response:
    response = _page(
        "pages/settings.html",
        principal=principal,
        tokens=account.tokens_of(web(), principal),
        made=made,
        error=None if error is None else told(error.message),
        done=request.args.get("done") == "password",
        next=next_target,
    )
    if error is not None:
        response.status_code = _status(error)
    return response


def _person() -> Principal:
    principal = current()
    if principal.kind != "cookie":
        raise errors.Forbidden("Only somebody who signed in by password may do that.")
    return principal


def _signed_in(done: account.SignedIn, target: str) -> Response:
    cookie.clear()  # a new sign-in gets a new CSRF token
    response = _go(target)
    cookies.set_sign_in(response, done.value)
    return response


def _again(template: str, error: errors.PlatformError, **values: str) -> Response:
    """The form once more, with what went wrong; what was typed stays, but for the password."""
    response = _page(template, error=told(error.message), **values)
    response.status_code = _status(error)
    if isinstance(error, errors.TooManyRequests):
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response


def _status(error: errors.PlatformError) -> int:
    """As in the table of errors, but 403 where a 401 would ask for another way to sign in."""
    status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    return 403 if status == 401 else status


def _page(template: str, **values: object) -> Response:
    return make_response(render(template, **values))


def _go(target: str) -> Response:
    return cast(Response, redirect(target, 303))


def _target(given: str | None) -> str:
    return local_target(given, default=request.script_root + HOME)


def _source() -> account.From:
    return account.From(request.remote_addr, request.headers.get("User-Agent", ""))


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        raise errors.InvalidCommand("Days are a number.")
    return int(text)
