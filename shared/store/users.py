"""People and programs: users, sign-ins, API tokens, setup tokens. Only hashes of secrets come here (S6, S9)."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shared import clock, ids
from shared.database import rows_changed
from shared.errors import Conflict, NotFound
from shared.models import ApiToken, SetupToken, SignIn, User

LOCAL_LOGIN: Final = "local"
TOUCH_EVERY: Final = timedelta(minutes=1)  # a request need not write each time


# ---- users


def create_user(db: Session, *, login: str, name: str, role: str, password_hash: str | None) -> User:
    """Raises Conflict `login_taken`."""
    user = User(
        id=ids.new_id(),
        login=login.strip().casefold(),
        name=name,
        role=role,
        password_hash=password_hash,
        created_at=clock.now(),
    )
    try:
        with db.begin_nested():
            db.add(user)
    except IntegrityError:
        raise Conflict("There is a user with this login already.", code="login_taken") from None
    return user


def get(db: Session, user_id: str) -> User:
    """Raises NotFound."""
    user = db.get(User, user_id)
    if user is None:
        raise NotFound("There is no such user.")
    return user


def by_login(db: Session, login: str) -> User | None:
    return db.scalars(select(User).where(User.login == login.strip().casefold())).one_or_none()


def names(db: Session, user_ids: Iterable[str | None]) -> dict[str, str]:
    """id -> the name others see, of those that there still are."""
    wanted = {user_id for user_id in user_ids if user_id is not None}
    return dict(db.execute(select(User.id, User.name).where(User.id.in_(wanted))).all()) if wanted else {}


def all_users(db: Session) -> list[User]:
    return list(db.scalars(select(User).order_by(User.login)))


def any_administrator(db: Session) -> bool:
    """Whether somebody can administrate; until then only the setup page answers (S1)."""
    return administrators(db) > 0


def administrators(db: Session) -> int:
    """How many administrators can sign in."""
    wanted = select(func.count()).where(
        User.role == "administrator", User.disabled.is_(False), User.password_hash.is_not(None)
    )
    return db.execute(wanted).scalar_one()


def local_administrator(db: Session) -> User:
    """The one user under AUTH_DISABLED, made on demand. It has no password: nobody can sign in as it."""
    user = by_login(db, LOCAL_LOGIN)
    if user is not None:
        return user
    try:
        return create_user(db, login=LOCAL_LOGIN, name="Local administrator", role="administrator", password_hash=None)
    except Conflict:  # another process was first
        user = by_login(db, LOCAL_LOGIN)
        if user is None:
            raise
        return user


# ---- sign-ins


def create_sign_in(db: Session, *, user: User, id_hash: str, address: str = "", agent: str = "") -> SignIn:
    """A new login of the user; `id_hash` is the SHA-256 of the cookie's value."""
    now = clock.now()
    sign_in = SignIn(
        id_hash=id_hash,
        user_id=user.id,
        generation=user.generation,
        created_at=now,
        confirmed_at=now,
        seen_at=now,
        address=address[:100],
        agent=agent[:300],
    )
    db.add(sign_in)
    db.flush()
    return sign_in


def find_sign_in(db: Session, id_hash: str) -> tuple[SignIn, User] | None:
    """A login that was not ended, of a user who was not disabled and whose rights have not changed since.

    Its age and idle time are for the caller to judge.
    """
    row = db.execute(
        select(SignIn, User)
        .join(User, User.id == SignIn.user_id)
        .where(SignIn.id_hash == id_hash, SignIn.ended_at.is_(None))
        .where(User.disabled.is_(False), SignIn.generation == User.generation)
    ).one_or_none()
    return None if row is None else (row[0], row[1])


def touch_sign_in(db: Session, sign_in: SignIn) -> bool:
    """Note that it was used; writes at most once a minute. True when it wrote."""
    now = clock.now()
    if now - sign_in.seen_at < TOUCH_EVERY:
        return False
    sign_in.seen_at = now
    db.flush()
    return True


def confirm_sign_in(db: Session, sign_in: SignIn) -> None:
    """The password was given again, now."""
    sign_in.confirmed_at = clock.now()
    db.flush()


def end_sign_in(db: Session, id_hash: str) -> bool:
    """False when it had ended, or never was."""
    is_it = (SignIn.id_hash == id_hash, SignIn.ended_at.is_(None))
    return rows_changed(db, update(SignIn).where(*is_it).values(ended_at=clock.now())) > 0


def end_all_of_user(db: Session, user: User) -> None:
    """End every login of a user: after a new password, a new role, or disabling (S8)."""
    user.generation += 1
    db.execute(update(SignIn).where(SignIn.user_id == user.id, SignIn.ended_at.is_(None)).values(ended_at=clock.now()))
    db.flush()


# ---- API tokens


def create_api_token(
    db: Session,
    *,
    user: User,
    name: str,
    token_hash: str,
    scopes: Iterable[str],
    expires_at: datetime | None = None,
) -> ApiToken:
    token = ApiToken(
        id=ids.new_id(),
        user_id=user.id,
        name=name,
        token_hash=token_hash,
        scopes=sorted(scopes),
        created_at=clock.now(),
        expires_at=expires_at,
    )
    db.add(token)
    db.flush()
    return token


def find_api_token(db: Session, token_hash: str) -> tuple[ApiToken, User] | None:
    """A token that is neither revoked nor expired, of a user who was not disabled."""
    row = db.execute(
        select(ApiToken, User)
        .join(User, User.id == ApiToken.user_id)
        .where(ApiToken.token_hash == token_hash, ApiToken.revoked_at.is_(None), User.disabled.is_(False))
    ).one_or_none()
    if row is None or (row[0].expires_at is not None and row[0].expires_at <= clock.now()):
        return None
    return row[0], row[1]


def touch_api_token(db: Session, token: ApiToken) -> bool:
    """Note that it was used; writes at most once a minute. True when it wrote."""
    now = clock.now()
    if token.last_used_at is not None and now - token.last_used_at < TOUCH_EVERY:
        return False
    token.last_used_at = now
    db.flush()
    return True


def revoke_api_token(db: Session, token_id: str, *, user_id: str | None = None) -> ApiToken:
    """End a token; with `user_id` only one of that user. Raises NotFound."""
    token = db.get(ApiToken, token_id)
    if token is None or (user_id is not None and token.user_id != user_id):
        raise NotFound("There is no such token.")
    token.revoked_at = token.revoked_at or clock.now()
    db.flush()
    return token


def list_api_tokens(db: Session, user_id: str | None = None) -> list[ApiToken]:
    """The tokens that are not revoked, of one user or of all, newest first."""
    wanted = select(ApiToken).where(ApiToken.revoked_at.is_(None)).order_by(ApiToken.created_at.desc())
    if user_id is not None:
        wanted = wanted.where(ApiToken.user_id == user_id)
    return list(db.scalars(wanted))


# ---- the first start


def create_setup_token(db: Session, *, token_hash: str, expires_at: datetime) -> None:
    """A token that makes the first administrator; those before it end."""
    now = clock.now()
    db.execute(update(SetupToken).where(SetupToken.used_at.is_(None)).values(used_at=now))
    db.add(SetupToken(token_hash=token_hash, created_at=now, expires_at=expires_at))
    db.flush()


def is_setup_token(db: Session, token_hash: str) -> bool:
    """Whether the token would be taken now."""
    wanted = select(SetupToken.token_hash).where(
        SetupToken.token_hash == token_hash, SetupToken.used_at.is_(None), SetupToken.expires_at > clock.now()
    )
    return db.execute(wanted).one_or_none() is not None


def use_setup_token(db: Session, token_hash: str) -> bool:
    """Spend the token: of several who try, one gets True."""
    now = clock.now()
    is_good = (SetupToken.token_hash == token_hash, SetupToken.used_at.is_(None), SetupToken.expires_at > now)
    return rows_changed(db, update(SetupToken).where(*is_good).values(used_at=now)) > 0
