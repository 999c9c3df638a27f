"""What a person or program can do with sessions: open, rename, archive, delete and undo, choose what answers."""

from dataclasses import dataclass, replace
from datetime import timedelta

from sqlalchemy.orm import Session

from shared import clock, errors
from shared.database import in_transaction
from shared.models import ChatSession, Run, SignIn
from shared.protocol.events import SessionUpdated, SessionUpdatedData
from shared.store import audit, catalogue, chat_sessions, runs, users
from webapp import rights
from webapp.actions import names
from webapp.actions.queue_events import Queue, queue_of
from webapp.actions.runs import tell_stopped, wake_head
from webapp.announce import announce
from webapp.auth import Principal
from webapp.context import WebContext
from webapp.found import usual_source

GRANT_LIFE = timedelta(minutes=15)
ON_FAILURE = ("hold", "continue", "cancel")
CHOICES = ("model", "skill_folder", "profile", "on_failure")


@dataclass(frozen=True)
class Changed:
    """A session after a change; `status` is ACTIVE, ARCHIVED or DELETED."""

    session_id: str
    title: str
    source: str
    status: str


def create(
    web: WebContext,
    principal: Principal,
    *,
    title: str = "",
    source: str | None = None,
    profile: str | None = None,
    model: str | None = None,
    skill_folder: str | None = None,
) -> Changed:
    """Open a session. Without a `source` it gets what is found here (DESIGN 2), without a `profile` the one for new
    sessions; `default` is that of the settings. Raises Forbidden for viewers and reading tokens, InvalidCommand."""
    if not rights.may_create(principal):
        raise errors.Forbidden("You may read here, but not open sessions.")
    web.throttle.take("session", principal.user_id, limit=web.settings.submits_per_minute)
    given = {
        "title": names.title(title),
        "source": names.source(source) or usual_source(web),
        "model": names.model(model),
        "skill_folder": names.name(skill_folder, "skill"),
    }
    chosen = names.profile(profile)

    def work(db: Session) -> ChatSession:
        owner = users.get(db, principal.user_id)
        named = _known_profile(db, chosen) if profile else _default_profile(db)
        return chat_sessions.create(db, owner=owner, profile=named, **given)  # type: ignore[arg-type]

    return _changed(in_transaction(web.factory, work))


def _known_profile(db: Session, name: str | None) -> str | None:
    if name and catalogue.profile(db, name) is None:
        raise errors.InvalidCommand("There is no profile of this name.", code="unknown_profile")
    return name


def _default_profile(db: Session) -> str | None:
    row = catalogue.default_profile(db)
    return None if row is None else row.name


@dataclass(frozen=True)
class Change:
    """What to change of a session; None leaves a field as it is, an empty string takes a choice away."""

    title: str | None = None
    archived: bool | None = None
    model: str | None = None
    skill_folder: str | None = None
    profile: str | None = None
    on_failure: str | None = None


def change(web: WebContext, principal: Principal, session_id: str, wanted: Change) -> Changed:
    """All of `wanted` or, when one part of it is refused, nothing. Raises NotFound, Forbidden, InvalidCommand."""
    asked = _checked(wanted)

    def work(db: Session) -> ChatSession:
        for verb in _verbs(asked):
            rights.require(db, principal, verb, session_id)
        session = rights.require(db, principal, "read", session_id)
        if asked.profile != session.profile:
            _known_profile(db, asked.profile)
        if asked.title is not None:
            chat_sessions.rename(db, session_id, asked.title)
        if asked.archived is not None:
            chat_sessions.set_archived(db, session_id, asked.archived)
        if asked.profile is not None and (asked.profile or None) != session.profile:
            chat_sessions.end_grants(session)
        for name in CHOICES:
            if (value := getattr(asked, name)) is not None:
                setattr(session, name, value or None)
        session.updated_at = clock.now()
        db.flush()
        return session

    session = in_transaction(web.factory, work)
    told = SessionUpdatedData(
        title=asked.title,
        archived=asked.archived,
        model=asked.model,
        profile=asked.profile,
        skill_folder=asked.skill_folder,
        on_failure=asked.on_failure,
    )
    announce(web, session_id, SessionUpdated(session_id=session_id, data=told))
    return _changed(session)


def rename(web: WebContext, principal: Principal, session_id: str, title: str) -> Changed:
    """Give a title, which is never overwritten then; an empty one is made from the next message again."""
    return change(web, principal, session_id, Change(title=title))


def archive(web: WebContext, principal: Principal, session_id: str, archived: bool = True) -> Changed:
    """Put a session away, or bring it back. What runs in it goes on."""
    return change(web, principal, session_id, Change(archived=archived))


def set_options(
    web: WebContext,
    principal: Principal,
    session_id: str,
    *,
    model: str | None = None,
    skill_folder: str | None = None,
    profile: str | None = None,
    on_failure: str | None = None,
) -> Changed:
    """Choose what answers the next turns."""
    wanted = Change(model=model, skill_folder=skill_folder, profile=profile, on_failure=on_failure)
    return change(web, principal, session_id, wanted)


def _checked(wanted: Change) -> Change:
    if wanted.on_failure is not None and wanted.on_failure not in ON_FAILURE:
        raise errors.InvalidCommand(f"on_failure is one of {', '.join(ON_FAILURE)}.")
    return replace(
        wanted,
        title=None if wanted.title is None else names.title(wanted.title),
        model=None if wanted.model is None else names.model(wanted.model) or "",
        skill_folder=None if wanted.skill_folder is None else names.name(wanted.skill_folder, "skill") or "",
        profile=None if wanted.profile is None else names.profile(wanted.profile) or "",
    )


def _verbs(asked: Change) -> list[rights.Verb]:
    wanted: list[rights.Verb] = []
    if asked.title is not None or asked.archived is not None:
        wanted.append("rename")
    if any(getattr(asked, name) is not None for name in CHOICES):
        wanted.append("configure")
    return wanted or ["rename"]


def delete(web: WebContext, principal: Principal, session_id: str) -> Changed:
    """Stop all that runs or waits in a session, and hide it; it can be brought back for 7 days (F54)."""

    def work(db: Session) -> tuple[ChatSession, list[Run], Queue]:
        rights.require(db, principal, "delete", session_id)
        stopped = runs.stop_all(db, session_id, by_name=principal.name)
        session = chat_sessions.delete(db, session_id)
        user = users.get(db, principal.user_id)
        audit.record(db, "session_deleted", user=user, address=principal.address, session_id=session_id)
        return session, stopped, queue_of(db, session_id)

    session, stopped, queue = in_transaction(web.factory, work)
    tell_stopped(web, queue, stopped, principal.name)
    announce(web, session_id, SessionUpdated(session_id=session_id, data=SessionUpdatedData(deleted=True)))
    return _changed(session)


def undelete(web: WebContext, principal: Principal, session_id: str) -> Changed:
    """Bring a deleted session back. Raises NotFound when its 7 days are over."""

    def work(db: Session) -> ChatSession:
        rights.require(db, principal, "undelete", session_id)
        user = users.get(db, principal.user_id)
        audit.record(db, "session_undeleted", user=user, address=principal.address, session_id=session_id)
        return chat_sessions.undelete(db, session_id)

    session = in_transaction(web.factory, work)
    announce(web, session_id, SessionUpdated(session_id=session_id, data=SessionUpdatedData(deleted=False)))
    wake_head(web, session_id)
    return _changed(session)


def open_as_administrator(web: WebContext, principal: Principal, session_id: str, reason: str) -> Changed:
    """Let an administrator read another's session for 15 minutes: the audited switch of S16.

    Needs the role, a password given in the last ten minutes and a reason, all of which the audit log keeps.
    """
    rights.require_administrator(principal)
    why = names.title(reason)
    if not why:
        raise errors.InvalidCommand("Say why you open somebody else's session.", code="reason_needed")

    def work(db: Session) -> ChatSession:
        session = chat_sessions.get(db, session_id)
        sign_in = db.get(SignIn, principal.sign_in_hash) if principal.sign_in_hash else None
        if sign_in is None:
            raise errors.Forbidden("Only somebody who signed in by password may do that.")
        now = clock.now()
        kept = {id: until for id, until in (sign_in.grants or {}).items() if until > now.timestamp()}
        sign_in.grants = {**kept, session_id: (now + GRANT_LIFE).timestamp()}
        user = users.get(db, principal.user_id)
        audit.record(
            db, "session_opened_by_administrator", user=user, address=principal.address, session_id=session_id,
            owner=session.owner_id, reason=why, minutes=int(GRANT_LIFE.total_seconds() // 60),
        )  # fmt: skip
        return session

    return _changed(in_transaction(web.factory, work))


def _changed(session: ChatSession) -> Changed:
    status = "DELETED" if session.deleted_at is not None else session.status
    return Changed(session.id, session.title, session.source, status)
