"""`/chat-run`: one WebSocket for programs (JSON) and for the session page (`view=html`), DESIGN 6.

This is the door: what must be right before the upgrade, and which view speaks. `socket_handler.py` does the rest.
"""

from typing import Any

from flask import Blueprint, Flask, Response, g, request
from flask_sock import Sock
from wsproto.utilities import ProtocolError

from shared import errors
from shared.database import transaction
from webapp import rights
from webapp.auth import Principal, current
from webapp.context import WebContext, web
from webapp.errors import answer
from webapp.live import commands
from webapp.live.connections import Connection
from webapp.live.html_view import HtmlView
from webapp.live.json_view import JsonView
from webapp.live.live import EXTENSION, Live, live, make
from webapp.live.safe_socket import prepare
from webapp.live.socket_handler import MAX_FRAME_BYTES, SocketHandler
from webapp.render import reader_of


def register(app: Flask, context: WebContext) -> Live:
    """Add `/chat-run` to the app, and the live side of its process."""
    made = app.extensions[EXTENSION] = make(context)
    app.config["SOCK_SERVER_OPTIONS"] = {
        "max_message_size": MAX_FRAME_BYTES,
        "thread_class": _NoThread,
        "event_class": _NoEvent,
    }
    door = Blueprint("socket", __name__)
    door.before_request(_admit)
    door.teardown_request(_release)
    door.register_error_handler(ProtocolError, _no_upgrade)
    Sock().route("/chat-run", bp=door)(_serve)
    app.register_blueprint(door)
    return made


class _NoThread:
    """In the place of simple-websocket's reader thread: the handler reads by itself."""

    name = ""

    def __init__(self, target: Any) -> None:
        pass

    def start(self) -> None:
        pass


class _NoEvent:
    """In the place of the event by which simple-websocket would wake the handler."""

    def set(self) -> None:
        pass


def _admit() -> None:
    """Before the upgrade, after the Origin and sign-in checks: a place for the socket, and its connection made safe.

    Raises Unavailable (503 with Retry-After) above the limit: plain pages must still be served."""
    principal = rights.reading(current())
    if request.args.get("view") == "html":
        g.page_of = _wanted_session(principal)
    g.connection = live().connections.admit(principal, is_socket=True)
    g.safe_socket = prepare(request.environ)


def _no_upgrade(error: ProtocolError) -> Response:
    return answer(errors.InvalidCommand(f"This is no WebSocket handshake: {error}", code="no_websocket"))


def _release(_error: BaseException | None) -> None:
    connection: Connection | None = g.pop("connection", None)
    if connection is not None:
        live().connections.release(connection)


def _wanted_session(principal: Principal) -> str:
    session_id = request.args.get("session_id", "")
    with transaction(web().factory, write=False) as db:
        return rights.require(db, principal, "read", session_id).id


def _serve(ws: Any) -> None:
    """flask-sock's handler: it runs as long as the socket is open."""
    connection: Connection = g.connection
    live().watch.start()
    if g.get("page_of") is None:
        SocketHandler(ws, g.safe_socket, connection, web(), live(), JsonView()).run()
        return
    view = HtmlView(web(), connection.principal, g.page_of, reader_of(request, live=True))
    page = commands.resume_of(g.page_of, request.args.get("last_seq"), request.args.get("epoch"))
    SocketHandler(ws, g.safe_socket, connection, web(), live(), view, page=page).run()
