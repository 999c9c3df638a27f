"""Who may do what, in one place (S14). Every door asks `require` before it touches an object.

A session belongs to its owner. An administrator reads another's session only under an audited grant (S16). What
somebody may not read does not exist for them: foreign objects are NotFound, never Forbidden.
"""

from typing import Literal

from sqlalchemy.orm import Session

from shared import errors
from shared.models import ChatSession
from shared.store import chat_sessions
from webapp.auth import Principal

Verb = Literal[
    "read", "export", "send", "abort", "answer", "approve", "queue", "rename", "configure", "delete", "undelete"
]
READING: frozenset[Verb] = frozenset({"read", "export"})
ADMINISTRATOR, OPERATOR, MEMBER, VIEWER = "administrator", "operator", "member", "viewer"
ROLES = (ADMINISTRATOR, OPERATOR, MEMBER, VIEWER)


def may(principal: Principal, verb: Verb, session: ChatSession) -> bool:
    """Whether the principal may do `verb` on this session, and on its runs, queue, pauses and messages."""
    if not (principal.may_read if verb in READING else principal.may_write):
        return False
    if session.deleted_at is not None and verb != "undelete":
        return False
    if session.owner_id == principal.user_id:
        return verb in READING or principal.role != VIEWER
    return verb == "read" and principal.has_grant(session.id) and principal.role == ADMINISTRATOR


def may_create(principal: Principal) -> bool:
    """Whether the principal may open sessions of its own."""
    return principal.may_write and principal.role != VIEWER


def require(db: Session, principal: Principal, verb: Verb, session_id: str) -> ChatSession:
    """The session, if the principal may do `verb` on it. Raises NotFound for what may not be read, else Forbidden."""
    session = chat_sessions.get(db, session_id, with_deleted=verb == "undelete")
    if may(principal, verb, session):
        return session
    if verb == "undelete" or not may(principal, "read", session):
        raise errors.NotFound("There is no such session.")
    raise errors.Forbidden("You may read this session, but not do that.")


def require_administrator(principal: Principal) -> None:
    """Administration needs the role and a password given in the last ten minutes (S16)."""
    if principal.role != ADMINISTRATOR or principal.kind == "token":
        raise errors.Forbidden("Only an administrator may do that.")
    if not principal.is_fresh:
        raise errors.Forbidden("Give your password again to do that.", code="not_fresh")


def may_configure(principal: Principal) -> bool:
    """Whether the principal may change profiles and models; it then also sees where they lead."""
    return principal.role in (ADMINISTRATOR, OPERATOR) and principal.kind != "token"


def may_set_addresses(principal: Principal) -> bool:
    """Whether the principal may say where turns and keys are sent (S37)."""
    return principal.role == ADMINISTRATOR and may_configure(principal)


def require_configure(principal: Principal) -> None:
    """Configuring needs the role and a password given in the last ten minutes (S16)."""
    if not may_configure(principal):
        raise errors.Forbidden("Only an operator or an administrator may do that.")
    if not principal.is_fresh:
        raise errors.Forbidden("Give your password again to do that.", code="not_fresh")


def may_revoke(principal: Principal, granted_by: str | None) -> bool:
    """Whether the principal may take back what somebody has allowed always: its own, and who configures everything."""
    if not principal.may_write or principal.role == VIEWER:
        return False
    return may_configure(principal) or granted_by == principal.user_id


def reading(principal: Principal) -> Principal:
    """The principal, if it may read what is not of one session: its own list, the catalogue."""
    if not principal.may_read:
        raise errors.Forbidden("This token may not read.")
    return principal
