"""Whether the people and programs behind open connections may still be here (S8), for all of them at once."""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy import Select, or_, select
from sqlalchemy.orm import Session

from shared import clock
from shared.models import ApiToken, SignIn, User

if TYPE_CHECKING:
    from webapp.auth import Principal

SIGN_IN_LIFE = timedelta(days=7)  # S6
BATCH = 500  # keys in one statement


def in_good_standing(db: Session, principals: "Iterable[Principal]") -> "set[Principal]":
    """Those whose sign-in or token is still good, and whose user is not disabled and has the role it had."""
    good: set[Principal] = set()
    for kind, statement in _STATEMENTS.items():
        asked = {p: (p.user_id if kind == "local" else p.sign_in_hash) for p in principals if p.kind == kind}
        found = _ask(db, statement, [key for key in set(asked.values()) if key])
        good |= {p for p, key in asked.items() if found.get(key) == (p.user_id, p.role)}
    return good


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
        .where(SignIn.created_at > clock.now() - SIGN_IN_LIFE, User.disabled.is_(False))
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
