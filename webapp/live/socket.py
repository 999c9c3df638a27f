"""`/chat-run`: one WebSocket for programs (JSON) and for the session page (`view=html`), DESIGN 6.

One handler thread a socket serves both directions: it waits on the socket's event, which the reader thread sets for
input and the hub for events (STACK 3). Whatever a client sends, its answer is a frame; the socket closes only for a
frame over the limit (1009), for a flood or a client that does not read (1013), for a restart (1012) and after sign-out.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from flask import Blueprint, Flask, g, request
from flask_sock import Sock
from simple_websocket import ConnectionClosed

from shared import errors, logs
from shared.database import transaction
from shared.protocol import commands as c
from webapp import rights
from webapp.auth import Principal, current
from webapp.context import WebContext, web
from webapp.live import commands
from webapp.live.connections import GOING_AWAY, TRY_LATER, Connection
from webapp.live.follower import Follower, Item, Wanted
from webapp.live.html_view import HtmlView
from webapp.live.inbox import Inbox
from webapp.live.json_view import JsonView
from webapp.live.live import EXTENSION, Live, live, make
from webapp.live.safe_socket import PING, SafeSock, prepare
from webapp.live.socket_input import SocketInput
from webapp.render import reader_of

log = logs.get("webapp.live.socket")

PING_S = 20.0
PONG_LIMIT_S = 45.0
MAX_FRAME_BYTES = 1 << 20
MAX_SESSIONS = 1_000  # on one socket
COMMANDS_AT_ONCE = 10  # before events are looked at again
CLOSE_WAIT_S = 2.0
UNREACHABLE = 1011
SEND_AT_ONCE_BYTES = 1 << 18


class View(Protocol):
    """How one kind of client is spoken to. Methods give whole WebSocket frames."""

    def tell(self, follower: Follower, items: list[Item]) -> list[bytes]:
        """Frames for what the client now gets; events may be kept back until `due_at`."""

    def resumed(self, command: c.Resume, follower: Follower, items: list[Item]) -> list[bytes]:
        """Frames for the answer to `resume`."""

    def due(self, now: float) -> list[bytes]:
        """Frames for what was kept back, when its time has come."""

    def due_at(self) -> float | None: ...

    def done(self, command: c.AnyCommand, facts: dict[str, Any]) -> list[bytes]: ...

    def failed(self, command_id: commands.CommandId, fault: Exception) -> list[bytes]: ...

    def pong(self, command_id: commands.CommandId) -> list[bytes]: ...


# ---- the door


def register(app: Flask, context: WebContext) -> Live:
    """Add `/chat-run` to the app, and the live side of its process."""
    made = app.extensions[EXTENSION] = make(context)
    app.config["SOCK_SERVER_OPTIONS"] = {"max_message_size": MAX_FRAME_BYTES, "thread_class": _ReaderThread}
    door = Blueprint("socket", __name__)
    door.before_request(_admit)
    door.teardown_request(_release)
    Sock().route("/chat-run", bp=door)(_serve)
    app.register_blueprint(door)
    return made


class _ReaderThread(threading.Thread):
    """Of simple-websocket, for what the client sends; it must not keep the process from ending."""

    def __init__(self, target: Any) -> None:
        super().__init__(target=target, daemon=True)
        self._ws = target.__self__

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:  # noqa: BLE001 - what wsproto says of bytes that are no WebSocket
            log.info("socket.unreadable", error=type(error).__name__)
        finally:
            self._ws.connected = False
            self._ws.event.set()


def _admit() -> None:
    """Before the upgrade, after the Origin and sign-in checks: a place for the socket, and its connection made safe.

    Raises Unavailable (503 with Retry-After) above the limit: plain pages must still be served."""
    principal = current()
    if not principal.may_read:
        raise errors.Forbidden("This token may not read.")
    if request.args.get("view") == "html":
        g.page_of = _wanted_session(principal)
    g.connection = live().connections.admit(principal, is_socket=True)
    g.safe_socket = prepare(request.environ)


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


# ---- the handler


class SocketHandler:
    """One open socket. `run` returns when it is closed."""

    def __init__(
        self,
        ws: Any,
        safe: SafeSock,
        connection: Connection,
        context: WebContext,
        here: Live,
        view: View,
        *,
        page: c.Resume | None = None,
    ) -> None:
        self._ws = ws
        self._safe = safe
        self._connection = connection
        self._web = context
        self._sources = here.sources
        self._view = view
        self._page = page  # what the session page is opened with
        self._input = SocketInput()
        self._early, ws.input_buffer = ws.input_buffer, self._input
        self._inbox: Inbox[Follower] = Inbox(self._wake)
        self._followers: dict[str, Follower] = {}
        self._timed: dict[Follower, float] = {}  # when a follower wants to be looked at
        self._ping_at = time.monotonic() + PING_S
        self._pong_by = time.monotonic() + PONG_LIMIT_S
        connection.wake = self._wake

    def run(self) -> None:
        try:
            if self._page is not None:
                self._send(self._resume(self._page))
            while (code := self._ending()) is None:
                if not self._ws.connected:
                    return
                self._ws.event.wait(self._patience())
                self._ws.event.clear()
                self._turn(time.monotonic())
            self._close(code)
        except errors.PlatformError as fault:
            log.info("socket.not_served", code=fault.code)
            self._close(TRY_LATER)
        except OSError:
            self._safe.cut()  # the client is gone, or took nothing for too long
        except Exception:
            log.exception("socket.failed")
            self._close(UNREACHABLE)
        finally:
            for follower in self._followers.values():
                follower.close()
            self._ws.thread.join(CLOSE_WAIT_S)
            self._safe.cut()

    def _wake(self) -> None:
        if self._inbox.overflowed or self._connection.ending is not None:
            self._safe.hurry()  # the handler may be waiting for the client to read
        self._ws.event.set()

    def _patience(self) -> float:
        moments = [self._ping_at, *self._timed.values()]
        if (due_at := self._view.due_at()) is not None:
            moments.append(due_at)
        return max(0.0, min(moments) - time.monotonic())

    def _ending(self) -> int | None:
        """The code to close with now; None to go on."""
        if self._connection.ending is not None:
            return self._connection.ending
        if self._input.flooded:
            log.warning("socket.flooded", user_id=self._connection.principal.user_id)
            return TRY_LATER
        if self._inbox.overflowed:
            log.warning("socket.too_slow", user_id=self._connection.principal.user_id)
            return TRY_LATER
        if time.monotonic() > self._pong_by:
            return UNREACHABLE
        return None

    # ---- one turn of the loop

    def _turn(self, now: float) -> None:
        frames: list[bytes] = []
        for follower, events in self._inbox.take():
            if self._followers.get(follower.session_id) is follower:
                frames += self._ask(follower, partial(follower.feed, events))
        for follower in self._inbox.called():
            self._timed[follower] = now
        for follower in [f for f, at in self._timed.items() if at <= now]:
            del self._timed[follower]
            if self._followers.get(follower.session_id) is follower:
                frames += self._ask(follower, partial(follower.look, now))
        frames += self._view.due(now)
        self._send(frames)
        for _ in range(COMMANDS_AT_ONCE):
            asked = self._next_input()
            if asked is None:
                break
            self._send(self._answer(asked))
        else:
            self._ws.event.set()  # there may be more
        self._keep_alive(now)

    def _ask(self, follower: Follower, question: Callable[[], list[Item]]) -> list[bytes]:
        try:
            items = question()
        except errors.NotFound as fault:  # the session was removed for good
            self._leave(follower.session_id)
            return self._view.failed(None, fault)
        if (due_at := follower.due_at()) is not None:
            self._timed[follower] = due_at
        return self._view.tell(follower, items) if items else []

    def _send(self, frames: list[bytes]) -> None:
        if len(frames) == 1:
            self._safe.send(frames[0])
        elif frames:
            self._safe.send(b"".join(frames))

    def _keep_alive(self, now: float) -> None:
        if self._ws.pong_received:  # set by the reader thread
            self._pong_by = now + PONG_LIMIT_S
        if now >= self._ping_at:
            self._ping_at = now + PING_S
            self._ws.pong_received = False
            self._safe.send(PING)

    def _next_input(self) -> str | bytes | None:
        if self._early:  # came between the upgrade and this handler
            self._input.put_first(self._early)
        return self._input.take()

    # ---- commands

    def _answer(self, frame: str | bytes) -> list[bytes]:
        asked = commands.read(frame, page_of=None if self._page is None else self._page.session_id)
        if asked.command is None or asked.error is not None:
            return self._view.failed(asked.id, asked.error or errors.InvalidCommand("This is no command."))
        try:
            return self._carry_out(asked.command)
        except errors.PlatformError as fault:
            return self._view.failed(asked.id, fault)
        except OSError:
            raise
        except Exception as fault:  # noqa: BLE001 - logged by problem_of, told by an id only (S44)
            return self._view.failed(asked.id, fault)

    def _carry_out(self, command: c.AnyCommand) -> list[bytes]:
        if isinstance(command, c.Ping):
            return self._view.pong(command.id)
        if isinstance(command, c.Resume):
            return self._resume(command)
        if isinstance(command, c.Leave):
            self._leave(command.session_id)
            return self._view.done(command, {})
        return self._view.done(command, commands.carry_out(self._web, self._connection.principal, command))

    def _resume(self, command: c.Resume) -> list[bytes]:
        if self._page is not None and command.session_id != self._page.session_id:
            raise errors.InvalidCommand("This page is of another session.")
        with transaction(self._web.factory, write=False) as db:
            session_id = rights.require(db, self._connection.principal, "read", command.session_id).id
        follower = self._followers.get(session_id)
        wanted = Wanted(command.last_seq, command.epoch)
        if follower is not None:
            items = follower.reopen(wanted)
        else:
            if len(self._followers) >= MAX_SESSIONS:
                raise errors.TooManyRequests(f"At most {MAX_SESSIONS} sessions on one socket.")
            follower = Follower(self._sources, session_id, self._inbox)
            try:
                items = follower.open(wanted)
            except errors.PlatformError:
                follower.close()
                raise
            self._followers[session_id] = follower
        if (due_at := follower.due_at()) is not None:
            self._timed[follower] = due_at
        return self._view.resumed(command, follower, items)

    def _leave(self, session_id: str) -> None:
        follower = self._followers.pop(session_id, None)
        if follower is not None:
            self._timed.pop(follower, None)
            follower.close()

    # ---- the end

    def _close(self, code: int) -> None:
        self._safe.hurry()
        try:
            self._ws.close(code, _WORDS.get(code, ""))
        except (OSError, ConnectionClosed) as error:  # closed by the client meanwhile, or it takes nothing
            log.debug("socket.close_failed", error=type(error).__name__)


_WORDS = {GOING_AWAY: "restarting", TRY_LATER: "come back in a moment", UNREACHABLE: "no sign of life"}
