"""Who is asking: a person with a sign-in cookie, a program with an API token, or the one local administrator."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, cast

from flask import current_app, g, request

from shared import clock, errors, logs
from shared.database import in_transaction, transaction
from shared.models import ApiToken, SignIn, User
from shared.store import users
from shared.tokens import token_hash
from webapp import cookies
from webapp.context import WebContext, web

log = logs.get("webapp.auth")

IDLE = timedelta(hours=12)
LIFE = timedelta(seconds=cookies.SIGN_IN_LIFE_S)
FRESH = timedelta(minutes=10)
READ, WRITE = "read", "write"
SCOPES = (READ, WRITE)


@dataclass(frozen=True)
class Principal:
    """Somebody who may ask for something. `sign_in_hash` is the stored hash of the cookie's value, or of the token."""

    user_id: str
    name: str
    role: str
    kind: Literal["cookie", "token", "local"]
    scopes: frozenset[str] = frozenset(SCOPES)
    sign_in_hash: str | None = None
    grants: tuple[tuple[str, float], ...] = ()  # others' sessions that may be read, each until a Unix time (S16)
    confirmed_at: datetime | None = field(default=None, compare=False)  # when the password was last given
    address: str | None = field(default=None, compare=False)

    @property
    def may_read(self) -> bool:
        return READ in self.scopes

    @property
    def may_write(self) -> bool:
        return WRITE in self.scopes

    def has_grant(self, session_id: str) -> bool:
        """Whether the audited switch for this session is on now; a socket outlives the moment it was opened in."""
        return any(id == session_id and until > clock.now().timestamp() for id, until in self.grants)

    @property
    def is_fresh(self) -> bool:
        """The password was given in the last ten minutes; the local administrator has none to give."""
        if self.kind == "local":
            return True
        return self.confirmed_at is not None and clock.now() - self.confirmed_at < FRESH


def current() -> Principal:
    """Who asks by this request. Raises NotAuthenticated."""
    principal = current_or_none()
    if principal is None:
        raise errors.NotAuthenticated("Sign in first.")
    return principal


def current_or_none() -> Principal | None:
    """Who asks by this request, if anybody is known; decided once a request."""
    if "principal" not in g:
        g.principal = _authenticate()
    return cast("Principal | None", g.principal)


def bearer() -> str | None:
    """The API token of the request. Where there is one, no cookie is read (S11)."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _authenticate() -> Principal | None:
    token = bearer()
    if token is not None:
        return _by_token(token)
    if web().settings.auth_disabled:
        return _local()
    return _by_cookie()


def _by_token(token: str) -> Principal:
    hashed = token_hash(token)
    with transaction(web().factory, write=False) as db:
        found = users.find_api_token(db, hashed)
    if found is None:
        raise errors.NotAuthenticated("This token is not known, was revoked, or has expired.")
    row, user = found
    if row.last_used_at is None or clock.now() - row.last_used_at >= users.TOUCH_EVERY:
        _note_use(ApiToken, row.id)
    scopes = frozenset(str(scope) for scope in row.scopes)
    return Principal(user.id, user.name, user.role, "token", scopes, sign_in_hash=hashed, address=request.remote_addr)


def _by_cookie() -> Principal | None:
    value = cookies.sign_in_cookie()
    if not value:
        return None
    with transaction(web().factory, write=False) as db:
        found = users.find_sign_in(db, token_hash(value))
    now = clock.now()
    if found is None or now - found[0].created_at >= LIFE or now - found[0].seen_at >= IDLE:
        return None
    row, user = found
    if now - row.seen_at >= users.TOUCH_EVERY:
        _note_use(SignIn, row.id_hash)
    return Principal(
        user.id,
        user.name,
        user.role,
        "cookie",
        sign_in_hash=row.id_hash,
        grants=tuple(sorted(grant for grant in (row.grants or {}).items() if grant[1] > now.timestamp())),
        confirmed_at=row.confirmed_at,
        address=request.remote_addr,
    )


def _local() -> Principal:
    """The administrator that everybody is under AUTH_DISABLED."""
    user: User | None = current_app.extensions.get("portal.local_administrator")
    if user is None:
        user = in_transaction(web().factory, users.local_administrator)
        current_app.extensions["portal.local_administrator"] = user
    return Principal(user.id, user.name, user.role, "local", address=request.remote_addr)


def _note_use(kind: type[ApiToken] | type[SignIn], key: str) -> None:
    """Write down that a sign-in or a token was used. The request goes on when that is not possible."""
    context: WebContext = web()
    try:
        with transaction(context.factory) as db:
            row = db.get(kind, key)
            if isinstance(row, SignIn):
                users.touch_sign_in(db, row)
            elif isinstance(row, ApiToken):
                users.touch_api_token(db, row)
    except errors.Unavailable as error:
        log.warning("use_not_noted", code=error.code)
