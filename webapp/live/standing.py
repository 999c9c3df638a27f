"""Whether the people and programs behind open connections may still be here (S8), for all of them at once."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from sqlalchemy import Select, or_, select, update
from sqlalchemy.orm import Session

from shared import clock
from shared.models import ApiToken, SignIn, User
from webapp.auth import IDLE, LIFE, Principal

BATCH = 500  # keys in one statement

Standing = Literal["good", "changed", "gone"]
"""`changed`: still known, with other rights than when the connection was opened."""


def standings(db: Session, principals: Iterable[Principal], *, since: float) -> dict[Principal, Standing]:
    """How each of them stands now, and whether a grant of theirs (S16) has run out after `since` (Unix time)."""
    now = clock.now().timestamp()
    found: dict[Principal, Standing] = {}
    for kind, statement in _STATEMENTS.items():
        asked = {p: (p.user_id if kind == "local" else p.sign_in_hash) for p in principals if p.kind == kind}
        rows = _ask(db, statement, [key for key in set(asked.values()) if key])
        for principal, key in asked.items():
            row = rows.get(key)
            same = row == (principal.user_id, principal.role)
            ran_out = any(since < until <= now for _, until in principal.grants)
            found[principal] = "gone" if row is None else "good" if same and not ran_out else "changed"
    return found


def note_use(db: Session, principals: Iterable[Principal]) -> None:
    """Who sends commands by a socket is not idle, though no request tells it (S6)."""
    hashes = sorted({p.sign_in_hash for p in principals if p.kind == "cookie" and p.sign_in_hash})
    for start in range(0, len(hashes), BATCH):
        batch = hashes[start : start + BATCH]
        db.execute(
            update(SignIn).where(SignIn.id_hash.in_(batch), SignIn.ended_at.is_(None)).values(seen_at=clock.now())
        )


def _ask(
    db: Session, statement: Callable[[Sequence[str]], Select[str, str, str]], keys: Sequence[str]
) -> dict[str | None, tuple[str, str]]:
    found: dict[str | None, tuple[str, str]] = {}
    for start in range(0, len(keys), BATCH):
        for key, user_id, role in db.execute(statement(keys[start : start + BATCH])):
            found[key] = (user_id, role)
    return found


def _sign_ins(hashes: Sequence[str]) -> Select[str, str, str]:
    return (
        select(SignIn.id_hash, User.id, User.role)
        .join(User, User.id == SignIn.user_id)
        .where(SignIn.id_hash.in_(hashes), SignIn.ended_at.is_(None), SignIn.generation == User.generation)
        .where(SignIn.created_at > clock.now() - LIFE, SignIn.seen_at > clock.now() - IDLE, User.disabled.is_(False))
    )


def _tokens(hashes: Sequence[str]) -> Select[str, str, str]:
    return (
        select(ApiToken.token_hash, User.id, User.role)
        .join(User, User.id == ApiToken.user_id)
        .where(ApiToken.token_hash.in_(hashes), ApiToken.revoked_at.is_(None), User.disabled.is_(False))
        .where(or_(ApiToken.expires_at.is_(None), ApiToken.expires_at > clock.now()))
    )


def _users(user_ids: Sequence[str]) -> Select[str, str, str]:
    return select(User.id, User.id, User.role).where(User.id.in_(user_ids), User.disabled.is_(False))


_STATEMENTS: dict[str, Callable[[Sequence[str]], Select[str, str, str]]] = {
    "cookie": _sign_ins,
    "token": _tokens,
    "local": _users,
}
