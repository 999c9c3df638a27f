"""/api/chat/sessions: open, list, read, change and delete sessions."""

from flask import Blueprint, Response, request

from shared.models import ChatMessage
from shared.store import chat_sessions as store
from shared.store import messages, users
from webapp import rights
from webapp.actions import chat_sessions
from webapp.api import body
from webapp.api.schemas import (
    Message,
    MessageList,
    NewSession,
    OneSession,
    SessionChange,
    SessionItem,
    SessionList,
    SessionMade,
)
from webapp.auth import current
from webapp.context import db, web

bp = Blueprint("api_chat_sessions", __name__, url_prefix="/api/chat/sessions")

MAX_QUERY = 200
SEARCHES_PER_MINUTE = 300  # a user (S36)


@bp.post("")
def create() -> Response:
    asked = body.read(NewSession, may_be_empty=True)
    made = chat_sessions.create(
        web(),
        current(),
        title=asked.title,
        source=asked.source,
        profile=asked.profile,
        model=asked.model_id,
        skill_folder=asked.skill_folder,
    )
    return body.answer(SessionMade(session_id=made.session_id, session_uuid=made.session_id), 201)


@bp.get("")
def list_sessions() -> Response:
    principal = rights.reading(current())
    limit = body.limit_of(request.args.get("limit"))
    query = (request.args.get("q") or "")[:MAX_QUERY]
    if query:
        web().throttle.take("search", principal.user_id, limit=SEARCHES_PER_MINUTE)
    rows = store.list_for(
        db(),
        users.get(db(), principal.user_id),
        before=request.args.get("before"),
        limit=limit + 1,
        archived=body.flag(request.args.get("archived")),
        query=query or None,
    )
    shown = rows[:limit]
    return body.answer(
        SessionList(
            sessions=[_item(row) for row in shown],
            next_before=shown[-1].id if len(rows) > limit else None,
        )
    )


@bp.get("/<session_id>")
def read(session_id: str) -> Response:
    session = rights.require(db(), current(), "read", session_id)
    return body.answer(
        OneSession(
            session=_item(store.row_of(db(), session.id)),
            messages=[message_of(m) for m in messages.page(db(), session.id)],
        )
    )


@bp.patch("/<session_id>")
def change(session_id: str) -> Response:
    asked = body.read(SessionChange)
    principal = current()
    wanted = chat_sessions.Change(
        title=asked.title,
        archived=None if asked.status is None else asked.status == "ARCHIVED",
        model=asked.model_id,
        skill_folder=asked.skill_folder,
        profile=asked.profile,
        on_failure=asked.on_failure,
    )
    chat_sessions.change(web(), principal, session_id, wanted)
    return body.answer(_item(store.row_of(db(), session_id)))


@bp.delete("/<session_id>")
def delete(session_id: str) -> Response:
    chat_sessions.delete(web(), current(), session_id)
    return Response(status=204)


@bp.get("/<session_id>/messages")
def list_messages(session_id: str) -> Response:
    session = rights.require(db(), current(), "read", session_id)
    limit = body.limit_of(request.args.get("limit"))
    rows = messages.page(db(), session.id, before_id=request.args.get("before"), limit=limit + 1)
    return body.answer(MessageList(messages=[message_of(row) for row in rows[-limit:]], has_more=len(rows) > limit))


def message_of(row: ChatMessage) -> Message:
    return Message(
        id=row.id,
        run_id=row.run_id,
        role=row.role,
        content=row.content,
        blocks=row.blocks,
        status=row.status,
        model_id=row.model,
        skill_folder=row.skill_folder,
        author=row.author_name,
        logs=messages.transcript_of(row),
        error=row.error,
        error_code=row.error_code,
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        created_at=row.created_at,
        completed_at=row.completed_at,
    )


def _item(row: store.SessionRow) -> SessionItem:
    return SessionItem(
        id=row.id,
        title=row.title,
        source=row.source,
        profile=row.profile,
        model_id=row.model,
        skill_folder=row.skill_folder,
        status=row.status,
        on_failure=row.on_failure,
        held=row.held_reason,
        state=row.state,
        queue_length=row.queue_length,
        waits_for=row.pause_kind,
        last_message_at=row.last_message_at,
        last_message_preview=row.last_message_preview,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
