"""The side of every page: the list of chats, what a new one can be begun with, who is signed in."""

from flask import request

from shared.database import db_time
from shared.models import User
from shared.store import chat_sessions, pauses, users
from webapp import rights, view_page
from webapp.auth import Principal
from webapp.context import db, web
from webapp.found import API
from webapp.view_sources import source_of, sources_of
from webapp.views import Side

LIST_LENGTH = 60
SEARCH_CHARS = 200


def side_of(principal: Principal, *, place: str = "chat", source: str | None = None) -> Side:
    """`source`: of what the page shows; None: of what a new chat would get. Raises Forbidden."""
    archived = request.args.get("archived") == "1"
    query = request.args.get("q", "").strip()[:SEARCH_CHARS]
    user: User = users.get(db(), rights.reading(principal).user_id)
    rows = chat_sessions.list_for(
        db(), user, before=request.args.get("before") if request.path.endswith("/chat") else None,
        limit=LIST_LENGTH + 1, archived=archived, query=query or None,
    )  # fmt: skip
    settled = view_page.settled_of(web())
    sources = sources_of(web(), principal)
    first = source_of(sources, None)
    answers = source or (API if first is None else first.value)
    current = request.view_args.get("session_id") if request.view_args else None
    shown = rows[:LIST_LENGTH]
    return Side(
        groups=view_page.groups_of(
            shown, current=current or request.args.get("current"), db_now_s=db_time(db()), is_demo=settled.is_demo
        ),
        sources=sources,
        user=principal.name,
        initials=initials(principal.name),
        needs=len(pauses.open_for(db(), user)),
        place=place,
        query=query,
        is_archive=archived,
        is_demo=settled.is_demo and answers == API,
        here=request.script_root + request.path,
        next_before=shown[-1].id if len(rows) > LIST_LENGTH else None,
    )


def initials(name: str) -> str:
    """Two letters of a name in two words or more, the first character of any other."""
    words = name.split()
    if not words:
        return "?"
    if len(words) > 1 and words[0].isascii():
        return (words[0][0] + words[-1][0]).upper()
    return words[0][:2].upper() if words[0].isascii() else words[0][0]
