"""One open socket, one thread: it waits for the client's input and the hub's events at once, and answers both. While it
waits, the hub's thread may take its turn for text that only has to be passed on: that saves waking it for each delta.

Whatever a client sends, its answer is a frame; the socket closes only for a frame over the limit (1009), for a flood or
a client that does not read (1013), for a restart (1012) and after sign-out (1008).
"""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from simple_websocket import ConnectionClosed
from wsproto.utilities import ProtocolError

from shared import errors, logs
from shared.database import transaction
from shared.protocol import commands as c
from webapp import rights
from webapp.context import WebContext
from webapp.live import commands
from webapp.live.allowance import Allowance
from webapp.live.connections import GOING_AWAY, TRY_LATER, Connection
from webapp.live.follower import Follower, Item, Wanted
from webapp.live.inbox import Inbox
from webapp.live.live import Live
from webapp.live.live_event import LiveEvent
from webapp.live.safe_socket import PING, SafeSock
from webapp.live.wakeup import Wakeup

log = logs.get("webapp.live.socket")

PING_S = 20.0
PONG_LIMIT_S = 45.0
MAX_FRAME_BYTES = 1 << 20
MAX_SESSIONS = 1_000  # on one socket
COMMANDS_AT_ONCE = 10  # before events are looked at again
UNREACHABLE = 1011
_WORDS = {GOING_AWAY: "restarting", TRY_LATER: "come back in a moment", UNREACHABLE: "no sign of life"}


class View(Protocol):
    """How one kind of client is spoken to. Methods give whole WebSocket frames. `passes_on`: text goes out as it
    came."""

    passes_on: bool

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
        self._wakeup = Wakeup()
        self._allowance = Allowance()
        self._is_flooded = False
        self._turn_lock = threading.Lock()
        self._turn_lock.acquire()  # this thread has the turn, but while it waits
        self._unsent = b""  # what the client did not take of what was passed on
        self._inbox: Inbox[Follower] = Inbox(self._wake, hand_on=self._pass_on if view.passes_on else None)
        self._followers: dict[str, Follower] = {}
        self._timed: dict[Follower, float] = {}  # when a follower wants to be looked at
        self._ping_at = time.monotonic() + PING_S
        self._pong_by = time.monotonic() + PONG_LIMIT_S
        connection.wake = self._wake

    def run(self) -> None:
        self._safe.take_over(self._wakeup)
        try:
            if self._page is not None:
                self._send(self._resume(self._page))
            while self._ws.connected and (code := self._ending()) is None:
                has_input = self._wait()
                self._wakeup.clear()
                self._send_rest()
                if has_input:
                    self._read()
                self._turn(time.monotonic())
            if self._ws.connected and code is not None:
                self._close(code)
        except errors.PlatformError as fault:
            log.info("socket.not_served", code=fault.code)
            self._close(TRY_LATER)
        except (OSError, ProtocolError) as error:  # gone, or took nothing for too long, or speaks no WebSocket
            log.debug("socket.lost", error=type(error).__name__)
        except Exception:
            log.exception("socket.failed")
            self._close(UNREACHABLE)
        finally:
            for follower in self._followers.values():
                follower.close()
            self._connection.wake = _nobody
            self._safe.close()
            self._wakeup.close()

    def _wait(self) -> bool:
        patience_s = self._patience()
        self._turn_lock.release()
        try:
            return self._safe.wait(patience_s)
        finally:
            self._turn_lock.acquire()

    def _pass_on(self, follower: Follower, events: Sequence[LiveEvent]) -> bool:
        """By the hub's thread: send text at once, if this one waits and nothing is before it. Never waits itself; what
        the client does not take at once is left to this thread."""
        if not self._turn_lock.acquire(blocking=False):
            return False
        try:
            if self._unsent or self._followers.get(follower.session_id) is not follower:
                return False
            if not follower.goes_on_with(events):
                return False
            data = b"".join([event.frame for event in events])
            try:
                sent = self._safe.send_some(data)
            except OSError:
                return False  # this socket's thread finds the same
            follower.went_on(events[-1])
            if sent < len(data):
                self._unsent = data[sent:]
                self._wakeup.set()
            return True
        finally:
            self._turn_lock.release()

    def _send_rest(self) -> None:
        if self._unsent:
            rest, self._unsent = self._unsent, b""
            self._safe.send(rest)

    def _wake(self) -> None:
        if self._inbox.overflowed or self._connection.ending is not None:
            self._safe.hurry()  # the handler may be waiting for the client to read
        self._wakeup.set()

    def _patience(self) -> float:
        if self._ws.input_buffer:
            return 0.0
        moments = [self._ping_at, self._pong_by, *self._timed.values()]
        if (due_at := self._view.due_at()) is not None:
            moments.append(due_at)
        return max(0.0, min(moments) - time.monotonic())

    def _ending(self) -> int | None:
        """The code to close with now; None to go on."""
        if self._connection.ending is not None:
            return self._connection.ending
        if self._is_flooded:
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
        self._answer_some()
        self._keep_alive(now)

    def _read(self) -> None:
        """Give simple-websocket what has come; it answers pings and closes by itself. While commands wait nothing is
        read, so what a client may have under way is bounded."""
        if self._ws.input_buffer:
            return
        received = self._safe.recv()
        if received is None:
            return
        if not received:
            raise ConnectionResetError("closed by the client")
        self._ws.ws.receive_data(received)
        self._ws.connected = self._ws._handle_events()

    def _answer_some(self) -> None:
        waiting: list[str | bytes] = self._ws.input_buffer
        for frame in waiting[:COMMANDS_AT_ONCE]:
            if not self._allowance.spend():
                self._is_flooded = True
                return
            self._send(self._answer(frame))
        del waiting[:COMMANDS_AT_ONCE]

    def _ask(self, follower: Follower, question: Callable[[], list[Item]]) -> list[bytes]:
        try:
            items = question()
        except errors.NotFound as fault:  # the session was removed for good
            self._leave(follower.session_id)
            return self._view.failed(None, fault)
        if (due_at := follower.due_at()) is not None:
            self._timed[follower] = due_at
        if follower.state.deleted:
            self._leave(follower.session_id)
        return self._view.tell(follower, items) if items else []

    def _send(self, frames: list[bytes]) -> None:
        if len(frames) == 1:
            self._safe.send(frames[0])
        elif frames:
            self._safe.send(b"".join(frames))

    def _keep_alive(self, now: float) -> None:
        if self._ws.pong_received:
            self._pong_by = now + PONG_LIMIT_S
        if now >= self._ping_at:
            self._ping_at = now + PING_S
            self._ws.pong_received = False
            self._safe.send(PING)

    # ---- commands

    def _answer(self, frame: str | bytes) -> list[bytes]:
        self._connection.is_used = True
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
        except (OSError, ConnectionClosed, ProtocolError) as error:  # closed by now, or the client takes nothing
            log.debug("socket.close_failed", error=type(error).__name__)


def _nobody() -> None:
    """Wakes nobody: the connection is closed."""
