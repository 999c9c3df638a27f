"""Sessions: create, list by last activity, rename, archive, delete and undo."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Select, func, literal, select, tuple_
from sqlalchemy import delete as delete_rows
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, aliased

from shared import clock, ids
from shared.errors import Conflict, NotFound
from shared.models import ChatMessage, ChatSession, Pause, Run, User
from shared.run_state import FINAL, RunState
from shared.store.run_moves import is_queued
from shared.titles import title_from

__all__ = [
    "PREVIEW_LENGTH", "UNDO_FOR", "SessionRow", "busy_with_profile", "count_by_profile", "create", "delete", "get",
    "list_for", "purge", "rename", "row_of", "set_archived", "title_from", "to_purge", "undelete",
]  # fmt: skip

PREVIEW_LENGTH: Final = 120
UNDO_FOR: Final = timedelta(days=7)
_ID_TRIES: Final = 5


@dataclass(frozen=True)
class SessionRow:
    """A line of the session list. `state` is that of the active run, else of the last one that ended, else `queued`
    when one waits, else None. `pause_deadline_db` is in seconds of the database's clock; None: no limit."""

    id: str
    owner_id: str
    title: str
    title_edited: bool
    source: str
    profile: str | None
    model: str | None
    skill_folder: str | None
    status: str
    visibility: str
    on_failure: str
    held_reason: str | None
    created_at: datetime
    updated_at: datetime
    last_message_at: datetime
    state: RunState | None
    run_id: str | None
    queue_length: int
    pause_kind: str | None
    pause_deadline_db: float | None
    last_message_preview: str


def create(
    db: Session,
    *,
    owner: User,
    source: str,
    title: str = "",
    profile: str | None = None,
    model: str | None = None,
    skill_folder: str | None = None,
    session_id: str | None = None,
) -> ChatSession:
    """A new session; a title given here counts as edited. Raises Conflict when `session_id` is taken."""
    now = clock.now()
    for _ in range(_ID_TRIES):
        session = ChatSession(
            id=session_id or ids.new_session_id(source),
            owner_id=owner.id,
            title=title,
            title_edited=bool(title),
            source=source,
            profile=profile,
            model=model,
            skill_folder=skill_folder,
            created_at=now,
            updated_at=now,
            last_message_at=now,
        )
        try:
            with db.begin_nested():
                db.add(session)
        except IntegrityError:
            if session_id is not None:
                break
            continue  # a `cli` id holds 24 random bits a second: two may meet
        return session
    raise Conflict("There is a session with this id already.")


def get(db: Session, session_id: str, *, with_deleted: bool = False) -> ChatSession:
    """The session. Raises NotFound, also for one that was deleted."""
    session = db.get(ChatSession, session_id)
    if session is None or (session.deleted_at is not None and not with_deleted):
        raise NotFound("There is no such session.")
    return session


def busy_with_profile(db: Session, profile: str) -> list[str]:
    """Ids of the sessions of a profile in which a turn runs or waits."""
    wanted = (
        select(ChatSession.id)
        .join(Run, Run.session_id == ChatSession.id)
        .where(ChatSession.profile == profile, Run.state.not_in(FINAL))
    )
    return list(db.scalars(wanted.distinct().order_by(ChatSession.id)))


def count_by_profile(db: Session) -> dict[str | None, int]:
    """Profile -> how many sessions have it."""
    wanted = select(ChatSession.profile, func.count()).where(ChatSession.deleted_at.is_(None))
    return dict(db.execute(wanted.group_by(ChatSession.profile)).all())


# ---- the list


def list_for(
    db: Session,
    user: User,
    *,
    before: str | None = None,
    limit: int = 50,
    archived: bool = False,
    query: str | None = None,
) -> list[SessionRow]:
    """The sessions of a person, last activity first, in one query.

    `before` is the id of the last session of the page before; `query` is looked for in the titles.
    """
    return _rows(db, _page_of(user, before, limit, archived, query))


def row_of(db: Session, session_id: str) -> SessionRow:
    """One session as the list shows it. Raises NotFound."""
    rows = _rows(db, select(*_own_columns()).where(ChatSession.id == session_id, ChatSession.deleted_at.is_(None)))
    if not rows:
        raise NotFound("There is no such session.")
    return rows[0]


def _rows(db: Session, sessions: Select[Any]) -> list[SessionRow]:
    page = sessions.cte("page")
    active_or_last = (
        select(Run.id)
        .where(Run.session_id == page.c.id, Run.state.not_in([RunState.QUEUED, RunState.CANCELLED]))
        .order_by(Run.position.desc())
        .limit(1)
        .correlate(page)
        .scalar_subquery()
    )
    waiting = select(func.count()).where(Run.session_id == page.c.id, is_queued()).correlate(page).scalar_subquery()
    open_pause = (
        select(Pause.id)
        .where(Pause.session_id == page.c.id, Pause.state == "pending")
        .order_by(Pause.created_at)
        .limit(1)
        .correlate(page)
        .scalar_subquery()
    )
    last_message = (
        select(func.substr(ChatMessage.content, 1, PREVIEW_LENGTH * 2))
        .where(ChatMessage.session_id == page.c.id, ChatMessage.status != "CANCELLED", ChatMessage.content != "")
        .order_by(ChatMessage.position.desc())
        .limit(1)
        .correlate(page)
        .scalar_subquery()
    )
    wanted = (
        select(
            page,
            Run.state.label("run_state"),
            Run.id.label("run_id"),
            waiting.label("queue_length"),
            Pause.kind,
            Pause.expires_at_db,
            last_message.label("preview"),
        )
        .select_from(page)
        .outerjoin(Run, Run.id == active_or_last)
        .outerjoin(Pause, Pause.id == open_pause)
        .order_by(page.c.last_message_at.desc(), page.c.id.desc())
    )
    return [_row(row) for row in db.execute(wanted)]


def _own_columns() -> list[Any]:
    return [getattr(ChatSession, name) for name in SessionRow.__dataclass_fields__ if hasattr(ChatSession, name)]


def _page_of(user: User, before: str | None, limit: int, archived: bool, query: str | None) -> Select[Any]:
    wanted = select(*_own_columns()).where(
        ChatSession.owner_id == user.id,
        ChatSession.status == ("ARCHIVED" if archived else "ACTIVE"),
        ChatSession.deleted_at.is_(None),
    )
    if before is not None:
        last = aliased(ChatSession)
        at = select(last.last_message_at).where(last.id == before, last.owner_id == user.id).scalar_subquery()
        wanted = wanted.where(tuple_(ChatSession.last_message_at, ChatSession.id) < tuple_(at, literal(before)))
    if query:
        wanted = wanted.where(ChatSession.title.icontains(query, autoescape=True))
    return wanted.order_by(ChatSession.last_message_at.desc(), ChatSession.id.desc()).limit(limit)


def _row(row: Any) -> SessionRow:
    state = RunState(row.run_state) if row.run_state else (RunState.QUEUED if row.queue_length else None)
    own = {name: getattr(row, name) for name in SessionRow.__dataclass_fields__ if hasattr(ChatSession, name)}
    return SessionRow(
        **own,
        state=state,
        run_id=row.run_id,
        queue_length=row.queue_length,
        pause_kind=row.kind,
        pause_deadline_db=row.expires_at_db,
        last_message_preview=" ".join((row.preview or "").split())[:PREVIEW_LENGTH],
    )


# ---- changes


def rename(db: Session, session_id: str, title: str) -> ChatSession:
    """A title that a person gave is never overwritten; an empty one is made again by the next message."""
    session = get(db, session_id)
    session.title = title
    session.title_edited = bool(title)
    return _touched(db, session)


def set_archived(db: Session, session_id: str, archived: bool) -> ChatSession:
    session = get(db, session_id)
    session.status = "ARCHIVED" if archived else "ACTIVE"
    if archived:
        end_grants(session)
    return _touched(db, session)


def delete(db: Session, session_id: str) -> ChatSession:
    """Hide a session; it can be brought back for 7 days. Stop its runs first (`runs.stop_all`): nothing that waits in
    a deleted session starts."""
    session = get(db, session_id)
    session.deleted_at = clock.now()
    end_grants(session)
    return _touched(db, session)


def undelete(db: Session, session_id: str) -> ChatSession:
    """Bring a deleted session back. Raises NotFound when it is gone for good."""
    session = get(db, session_id, with_deleted=True)
    session.deleted_at = None
    return _touched(db, session)


def end_grants(session: ChatSession) -> None:
    """What was allowed for this session is asked for again from its next turn on, whichever agent holds it."""
    session.grant_epoch += 1


def to_purge(db: Session, *, limit: int = 100) -> list[ChatSession]:
    """Sessions whose time for an undo is over, for retention to remove."""
    wanted = select(ChatSession).where(ChatSession.deleted_at < clock.now() - UNDO_FOR).limit(limit)
    return list(db.scalars(wanted))


def purge(db: Session, session_id: str) -> None:
    """Remove a session and all that belongs to it, for good."""
    db.execute(delete_rows(ChatSession).where(ChatSession.id == session_id))


def _touched(db: Session, session: ChatSession) -> ChatSession:
    session.updated_at = clock.now()
    db.flush()
    return session
