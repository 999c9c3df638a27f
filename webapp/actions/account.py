"""Signing in and out, the first administrator, passwords and API tokens."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from shared import clock, errors
from shared.database import in_transaction, transaction
from shared.models import SignIn, User
from shared.store import audit, users
from shared.text import storable
from shared.tokens import new_token, token_hash
from webapp import passwords
from webapp.auth import SCOPES, Principal
from webapp.context import WebContext
from webapp.throttle import network_of

FREE_TRIES = 5  # by one address on one account, before the pauses begin
FREE_TRIES_OF_ADDRESS = 20
MAX_LOGIN, MAX_NAME = 64, 80
MAX_TOKENS = 50
MAX_TOKEN_DAYS = 3_650


@dataclass(frozen=True)
class From:
    """Where a sign-in comes from: the address and what the browser says it is."""

    address: str | None
    agent: str


@dataclass(frozen=True)
class SignedIn:
    """A new sign-in. `value` goes into the cookie and is kept nowhere else."""

    value: str
    user_id: str


@dataclass(frozen=True)
class MadeToken:
    """A new API token; `secret` is shown this once."""

    token_id: str
    name: str
    secret: str
    scopes: tuple[str, ...]
    expires_at: datetime | None


@dataclass(frozen=True)
class TokenRow:
    """A token as its owner sees it."""

    token_id: str
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


# ---- signing in


def sign_in(web: WebContext, *, login: str, password: str, source: From, replaces: str | None = None) -> SignedIn:
    """Sign in by password. `replaces`: the cookie's value so far, whose sign-in ends.

    Unknown name, wrong password and disabled user take the same time and give the same NotAuthenticated (S4).
    TooManyRequests while a pause runs (S5); strangers' tries never lock the owner out elsewhere.
    """
    login = storable(login).strip().casefold()[:200]
    network = network_of(source.address)
    web.throttle.guess("sign-in", (f"{login}|{network}", FREE_TRIES), (network, FREE_TRIES_OF_ADDRESS))
    with transaction(web.factory, write=False) as db:
        user = users.by_login(db, login)
    known = user is not None and not user.disabled
    is_right = passwords.verify(user.password_hash if user is not None and known else None, password)
    if user is None or not is_right:
        with transaction(web.factory) as db:
            audit.record(db, "sign_in_failed", user=user, address=source.address)
        raise errors.NotAuthenticated("Name or password is wrong.", code="wrong_password")
    web.throttle.succeeded("sign-in", f"{login}|{network}", network)
    new_hash = _rehashed(user, password)

    def work(db: Session) -> SignedIn:
        found = users.get(db, user.id)
        if found.disabled or found.password_hash != user.password_hash:
            raise errors.NotAuthenticated("Name or password is wrong.", code="wrong_password")
        if new_hash is not None:
            found.password_hash = new_hash
        if replaces:
            users.end_sign_in(db, token_hash(replaces))
        audit.record(db, "sign_in", user=found, address=source.address)
        return _new_sign_in(db, found, source)

    return in_transaction(web.factory, work)


def sign_out(web: WebContext, principal: Principal) -> None:
    """End this sign-in, here and for every socket opened with it."""

    def work(db: Session) -> None:
        if principal.sign_in_hash is not None:
            users.end_sign_in(db, principal.sign_in_hash)
        audit.record(db, "sign_out", user=users.get(db, principal.user_id), address=principal.address)

    in_transaction(web.factory, work)


def confirm(web: WebContext, principal: Principal, password: str) -> None:
    """The password once more: administration is open for ten minutes (S16). Raises NotAuthenticated."""
    user = _checked_user(web, principal, password)

    def work(db: Session) -> None:
        row = db.get(SignIn, principal.sign_in_hash) if principal.sign_in_hash else None
        if row is not None:
            users.confirm_sign_in(db, row)
        audit.record(db, "sign_in_confirmed", user=users.get(db, user.id), address=principal.address)

    in_transaction(web.factory, work)


def change_password(web: WebContext, principal: Principal, *, old: str, new: str, source: From) -> SignedIn:
    """A new password: every sign-in of the user ends, and this one is made anew (S8). Raises InvalidCommand."""
    user = _checked_user(web, principal, old)
    hashed = passwords.hash_password(passwords.check_new(new, login=user.login, name=user.name))

    def work(db: Session) -> SignedIn:
        found = users.get(db, user.id)
        found.password_hash = hashed
        users.end_all_of_user(db, found)
        audit.record(db, "password_changed", user=found, address=principal.address)
        return _new_sign_in(db, found, source)

    return in_transaction(web.factory, work)


def make_first_administrator(
    web: WebContext, *, token: str, login: str, name: str, password: str, source: From
) -> SignedIn:
    """Make the first administrator by the one-time token of the first start (S1).

    Raises Forbidden for a wrong, old or used token and once there is an administrator, InvalidCommand for the rest.
    """
    network = network_of(source.address)
    web.throttle.guess("set-up", (network, FREE_TRIES_OF_ADDRESS))
    hashed_token = token_hash(token)
    with transaction(web.factory, write=False) as db:
        _check_set_up(db, hashed_token)
    login, name = check_login(login), check_name(name)
    hashed = passwords.hash_password(passwords.check_new(password, login=login, name=name))

    def work(db: Session) -> SignedIn:
        _check_set_up(db, hashed_token)
        if not users.use_setup_token(db, hashed_token):
            raise _wrong_link()
        user = users.create_user(db, login=login, name=name, role="administrator", password_hash=hashed)
        audit.record(db, "set_up", user=user, address=source.address)
        return _new_sign_in(db, user, source)

    return in_transaction(web.factory, work)


def check_login(login: str) -> str:
    """A name to sign in with. Raises InvalidCommand."""
    login = login.strip().casefold()
    if not login or len(login) > MAX_LOGIN or not login.isprintable() or any(c.isspace() for c in login):
        raise errors.InvalidCommand(f"A sign-in name has 1 to {MAX_LOGIN} characters and no spaces.", code="bad_name")
    return login


def check_name(name: str) -> str:
    """A name that others see. Raises InvalidCommand."""
    name = " ".join(name.split())
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise errors.InvalidCommand(f"A name has 1 to {MAX_NAME} characters.", code="bad_name")
    return name


def _check_set_up(db: Session, hashed_token: str) -> None:
    if users.any_administrator(db) or not users.is_setup_token(db, hashed_token):
        raise _wrong_link()


def _wrong_link() -> errors.Forbidden:
    return errors.Forbidden(
        "This one-time link was used, is older than 30 minutes, or is not the newest. `portal up` prints a new one "
        "when it starts.",
        code="wrong_set_up_link",
    )


def _new_sign_in(db: Session, user: User, source: From) -> SignedIn:
    value = new_token()
    agent = storable(source.agent)
    users.create_sign_in(db, user=user, id_hash=token_hash(value), address=source.address or "", agent=agent)
    return SignedIn(value, user.id)


def _checked_user(web: WebContext, principal: Principal, password: str) -> User:
    network = network_of(principal.address)
    web.throttle.guess("confirm", (f"{principal.user_id}|{network}", FREE_TRIES))
    with transaction(web.factory, write=False) as db:
        user = users.get(db, principal.user_id)
    if not passwords.verify(user.password_hash, password):
        raise errors.NotAuthenticated("The password is wrong.", code="wrong_password")
    web.throttle.succeeded("confirm", f"{principal.user_id}|{network}")
    return user


def _rehashed(user: User, password: str) -> str | None:
    """A hash by today's parameters, where the stored one is weaker (S2)."""
    if user.password_hash is None or not passwords.needs_rehash(user.password_hash):
        return None
    return passwords.hash_password(passwords.normalised(password))


# ---- API tokens


def create_token(
    web: WebContext, principal: Principal, *, name: str, scopes: tuple[str, ...] = SCOPES, days: int | None = None
) -> MadeToken:
    """A token that acts as this user. Raises InvalidCommand, Forbidden for a program that asks for more tokens."""
    _people_only(principal)
    web.throttle.take("token", principal.user_id, limit=20, per_s=3_600)
    name = check_name(name)
    if not scopes or any(scope not in SCOPES for scope in scopes):
        raise errors.InvalidCommand(f"The scopes are: {', '.join(SCOPES)}.")
    if days is not None and not 1 <= days <= MAX_TOKEN_DAYS:
        raise errors.InvalidCommand(f"A token is good for 1 to {MAX_TOKEN_DAYS} days.")
    secret = new_token()
    expires_at = None if days is None else clock.now() + timedelta(days=days)

    def work(db: Session) -> str:
        user = users.get(db, principal.user_id)
        if len(users.list_api_tokens(db, user.id)) >= MAX_TOKENS:
            raise errors.Conflict(f"You have {MAX_TOKENS} tokens. Revoke one first.", code="too_many_tokens")
        made = users.create_api_token(
            db, user=user, name=name, token_hash=token_hash(secret), scopes=scopes, expires_at=expires_at
        )
        audit.record(
            db, "token_created", user=user, address=principal.address, token=made.id, scopes=sorted(set(scopes))
        )
        return made.id

    return MadeToken(in_transaction(web.factory, work), name, secret, tuple(sorted(set(scopes))), expires_at)


def revoke_token(web: WebContext, principal: Principal, token_id: str) -> None:
    """End one of one's own tokens, and what it has open. Raises NotFound."""
    _people_only(principal)

    def work(db: Session) -> None:
        row = users.revoke_api_token(db, token_id, user_id=principal.user_id)
        user = users.get(db, principal.user_id)
        audit.record(db, "token_revoked", user=user, address=principal.address, token=row.id)

    in_transaction(web.factory, work)


def tokens_of(web: WebContext, principal: Principal) -> list[TokenRow]:
    """One's own tokens that are not revoked, newest first."""
    with transaction(web.factory, write=False) as db:
        rows = users.list_api_tokens(db, principal.user_id)
    return [
        TokenRow(row.id, row.name, tuple(row.scopes), row.created_at, row.expires_at, row.last_used_at) for row in rows
    ]


def _people_only(principal: Principal) -> None:
    if principal.kind == "token":
        raise errors.Forbidden("A token cannot make or revoke tokens: sign in for that.")
