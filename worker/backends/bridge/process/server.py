"""Answers requests: each connection in a thread of its own, one request after another (docs/bridge-protocol.md)."""

import contextlib
import hmac
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, cast

from . import endpoint, requests, wire
from .connection import Connection, Gone
from .pool import AgentPool
from .wire import WireError

MAX_CONNECTIONS = 1024
MAX_ERRORS = 100  # bad lines in a row before a connection is closed

log = logging.getLogger("portal_bridge")

Answer = dict[str, Any]


class Server:
    """`serve` blocks until `close`. `on_shutdown` is called when the worker asks the process to end."""

    def __init__(
        self,
        listener: endpoint.Listener,
        secret: str,
        pool: AgentPool,
        *,
        profile: str | None,
        on_shutdown: Callable[[], None],
        launcher: int | None = None,
    ) -> None:
        """`launcher`: the pid of the process between the worker and this one."""
        self._listener = listener
        self._secret = secret.encode()
        self._pool = pool
        self._profile = profile
        self._on_shutdown = on_shutdown
        self._launcher = launcher
        self._begun_at = time.monotonic()
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._is_closed = False
        self._lock = threading.Lock()
        self._streams = 0
        self._actions: dict[str, Callable[[Answer], Any]] = {
            "chat": lambda request: self._pool.chat(requests.chat_request(request)),
            "get_output": self._get_output,
            "interrupt": lambda request: wire.InterruptAnswer(told=self._run(request).interrupt()),
            "approval_respond": self._approval_respond,
            "clarify_respond": self._clarify_respond,
            "destroy": lambda request: self._pool.destroy(requests.an_id(request, "session_id")),
            "destroy_all": lambda _: self._pool.destroy(None),
            "list": self._list,
            "ping": self._ping,
            "get_result": self._get_result,
            "get_history": lambda request: self._pool.conversation(requests.an_id(request, "session_id")),
            "steer": self._steer,
            "prepare": lambda request: wire.PrepareAnswer(ready=self._pool.prepare(requests.model_spec(request))),
        }

    def serve(self) -> None:
        while not self._is_closed:
            try:
                connected, _ = self._listener.socket.accept()
            except OSError:
                if self._is_closed:
                    return
                time.sleep(0.05)  # out of descriptors: those that are open go on
                continue
            if not self._may_talk(connected) or not self._room.acquire(blocking=False):
                connected.close()
                continue
            threading.Thread(target=self._attend, args=(connected,), name="connection", daemon=True).start()

    @property
    def is_telling(self) -> bool:
        """Whether a stream has not been told to its end."""
        with self._lock:
            return self._streams > 0

    def close(self) -> None:
        self._is_closed = True
        self._listener.close()

    # ---- a connection

    def _attend(self, connected: socket.socket) -> None:
        connection = Connection(connected)
        try:
            errors = 0
            while errors < MAX_ERRORS:
                errors = 0 if self._attend_line(connection) else errors + 1
        except Gone:
            pass
        except WireError as error:  # after which nothing more can be read
            self._refuse(connection, error)
        except Exception as error:  # the top of the thread  # noqa: BLE001
            log.error("connection.failed error=%s", type(error).__name__)
        finally:
            connection.close()
            self._room.release()

    def _attend_line(self, connection: Connection) -> bool:
        """Take one request. False when it was refused and others may follow. Raises WireError when none may."""
        line = connection.read_line()
        try:
            request = wire.decode(line)
        except WireError as error:
            self._refuse(connection, error)
            return False
        self._check_secret(request)
        connection.trust()
        try:
            action = request.get("action")
            if action == "stream":
                self._stream(connection, request)
            elif action == "shutdown":
                connection.send(wire.encode({"ok": True}))
                self._on_shutdown()
            elif isinstance(action, str) and action in self._actions:
                connection.send(wire.encode({"ok": True, **self._actions[action](request)}))
            else:
                raise WireError("unknown_action", "There is no such action.")
        except WireError as error:
            self._refuse(connection, error)
            return error.code != "unknown_action"
        except Gone:
            raise
        except Exception as error:  # one request must not end the others  # noqa: BLE001
            log.error("request.failed error=%s", type(error).__name__)
            self._refuse(connection, WireError("internal", "The request failed in the agent's process."))
        return True

    def _check_secret(self, request: Answer) -> None:
        given = request.pop("secret", None)
        given = given.encode("utf-8", "replace") if isinstance(given, str) else b""
        if not hmac.compare_digest(given, self._secret):
            raise WireError("wrong_secret", "The secret is missing or wrong.")

    def _refuse(self, connection: Connection, error: WireError) -> None:
        body = wire.ErrorBody(code=error.code, message=error.message[: wire.MAX_ERROR_CHARS])
        with contextlib.suppress(Gone):
            connection.send(wire.encode(wire.ErrorAnswer(ok=False, error=body)))

    def _may_talk(self, connected: socket.socket) -> bool:
        """Tools of the agents have no business here, even if one had found the secret."""
        if not endpoint.is_own_user(connected):
            return False
        if endpoint.is_from_below(connected, self._launcher):
            log.warning("connection.from_below")
            return False
        return True

    # ---- actions

    def _run(self, request: Answer) -> Any:
        return self._pool.run(requests.an_id(request, "run_id"))

    def _stream(self, connection: Connection, request: Answer) -> None:
        run = self._run(request)
        cursor, event_cursor = requests.cursor(request, "cursor"), requests.cursor(request, "event_cursor")
        answer = wire.StreamAnswer(run_id=run.run_id, status=run.log.status)
        connection.send(wire.encode({"ok": True, **answer}))
        with self._lock:
            self._streams += 1
        try:
            for lines in run.log.follow(cursor, event_cursor, connection.is_open):
                connection.send(lines)
        finally:
            with self._lock:
                self._streams -= 1

    def _get_output(self, request: Answer) -> wire.Output:
        run = self._run(request)
        cursor, event_cursor = requests.cursor(request, "cursor"), requests.cursor(request, "event_cursor")
        return cast(wire.Output, run.log.output(run.run_id, cursor, event_cursor))

    def _get_result(self, request: Answer) -> wire.ResultAnswer:
        run = self._run(request)
        return wire.ResultAnswer(
            run_id=run.run_id,
            session_id=run.request.session_id,
            status=run.log.status,
            text=run.log.text(),
            last=run.log.last,
        )

    def _approval_respond(self, request: Answer) -> Answer:
        choice = requests.one_of(request, "choice", wire.CHOICES)
        reason = requests.one_of(request, "reason", wire.REASONS, "answered")
        if reason != "answered":
            choice = "deny"
        self._run(request).pauses.decide_approval(requests.an_id(request, "approval_id"), choice, reason)
        return {}

    def _clarify_respond(self, request: Answer) -> Answer:
        answer = requests.answer(request)
        self._run(request).pauses.decide_clarify(requests.an_id(request, "clarify_id"), answer)
        return {}

    def _steer(self, request: Answer) -> wire.SteerAnswer:
        return wire.SteerAnswer(accepted=self._run(request).steer(requests.text(request, "text")))

    def _list(self, _: Answer) -> wire.ListAnswer:
        return wire.ListAnswer(
            sessions=self._pool.sessions(), spare=self._pool.builder.has_spare, max_agents=self._pool.max_agents
        )

    def _ping(self, _: Answer) -> wire.PingAnswer:
        agents, running = self._pool.counts()
        return wire.PingAnswer(
            protocol=wire.PROTOCOL,
            pid=os.getpid(),
            hermes_version=self._pool.hermes.version,
            profile=self._profile,
            agents=agents,
            running=running,
            waiting=self._pool.builder.waiting,
            spare=self._pool.builder.has_spare,
            uptime_s=round(time.monotonic() - self._begun_at, 1),
            rss_bytes=_rss_bytes(),
        )


def _rss_bytes() -> int | None:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
