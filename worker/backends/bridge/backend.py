"""Hermes' own agent as a Backend, in a child process of this worker (DESIGN 8, hermes/SURFACES.md 2)."""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from shared import ids
from shared.errors import BackendError, BackendRefused, BackendTimeout
from shared.protocol.events import Usage
from shared.settings import Settings
from worker.backends import base
from worker.backends.bridge.child import Child
from worker.backends.bridge.manager import BridgeManager
from worker.backends.bridge.turn import BridgeTurn, Stopper

LOOK_TIMEOUT_S = 1.0  # at what a child holds, for operators
DROP_TIMEOUT_S = 10.0  # of a session: who asked for it would be told that it was not held
PING_TIMEOUT_S = 120.0
PING_TEXT = "Reply with exactly PONG."
ASIDE_PREFIX = "aside-"  # sessions of nobody: summaries and pings
_SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class BridgeBackend:
    """The agent of one profile. Thread-safe; its child is started with the first turn, and ends with `close`."""

    name = "Hermes"
    agent = "bridge"
    capabilities = base.Capabilities(
        tools=True,
        system_messages=True,
        approvals=True,
        clarify=True,
        todos=True,
        resume=True,
        models=True,
        stop=True,
    )

    def __init__(
        self,
        settings: Settings,
        find_home: Callable[[], Path],
        *,
        profile: str | None = None,
        find_key_names: Callable[[], Iterable[str]] = tuple,
        **manager: Any,
    ) -> None:
        self._settings = settings
        self._version = ""
        self._spare = _Spare()
        self._manager = BridgeManager(
            settings, find_home, profile=profile, find_key_names=find_key_names, on_ready=self._on_ready, **manager
        )

    @property
    def version(self) -> str:
        """Of Hermes; empty until a child was ready."""
        return self._version

    # ---- a turn

    def stream(self, turn: base.Turn, controls: base.Controls) -> Iterator[base.Item]:
        fields = self._chat_fields(turn, turn.run_id, self._workspace(turn.session_id))
        if turn.after is None:
            self._spare.wanted(fields["model"], self._manager.current())
        yield from self._run(turn, fields, controls)

    def execute(self, turn: base.Turn) -> base.Result:
        """The whole answer at once, of an agent without tools that remembers nothing. Raises a BackendError."""
        return self._ask(turn, timeout_s=self._settings.run_quiet_timeout_s)

    def ping(self) -> base.PingResult:
        begun = time.monotonic()
        turn = base.Turn(run_id="", session_id="", input=PING_TEXT)
        try:
            got = self._ask(turn, timeout_s=PING_TIMEOUT_S).text
        except BackendError as error:
            return base.PingResult(False, _ms_since(begun), error=error.message)
        return base.PingResult(got.strip().strip(".").upper() == "PONG", _ms_since(begun), got=got)

    def _run(self, turn: base.Turn, fields: dict[str, Any], controls: base.Controls) -> Iterator[base.Item]:
        run_id = fields["run_id"]
        stopper = Stopper(run_id, grace_s=self._settings.abort_grace_s, on_begin=self._manager.wake)
        controls.on_abort(stopper.begin)
        if self._manager.current() is None:
            yield base.Status("Starting the agent")
        try:
            child = self._manager.take(run_id, lambda: controls.aborted)
        except BaseException:
            stopper.over()
            raise
        try:
            yield from BridgeTurn(child, turn, fields, controls, stopper, self._settings).stream()
        finally:
            child.leave(run_id)

    def _chat_fields(self, turn: base.Turn, run_id: str, workspace: Path | None) -> dict[str, Any]:
        model = None
        if turn.model or turn.provider:
            provider = turn.provider or base.Provider()
            model = {
                "name": turn.model or "",
                "provider": provider.name,
                "base_url": provider.base_url,
                "api_key": provider.key,
                "context_length": provider.context_window,
            }
        return {
            "run_id": run_id,
            "session_id": turn.session_id,
            "message": list(turn.blocks) if turn.blocks else turn.input,
            "instructions": turn.instructions,
            "model": model,
            "max_iterations": turn.max_iterations,
            "workspace": None if workspace is None else str(workspace),
            "allowed": list(turn.allowed),
            "grant_epoch": turn.grant_epoch,
        }

    def _workspace(self, session_id: str) -> Path:
        """Where the session's tools work. Raises BackendRefused."""
        folder = self._settings.data_dir / "workspaces" / session_id
        if not _SAFE_ID.fullmatch(session_id):
            raise BackendRefused("The session has no name that a folder can have.", retryable=False)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise BackendRefused(f"The session's folder {folder} cannot be made ({error.strerror}).") from error
        return folder

    # ---- one answer, without a session

    def _ask(self, turn: base.Turn, *, timeout_s: float) -> base.Result:
        run_id = ids.new_id()
        fields = self._chat_fields(turn, run_id, None)
        fields |= {"session_id": f"{ASIDE_PREFIX}{run_id}", "tools": False}
        limit = _TimeLimit(timeout_s)
        text: list[str] = []
        usage: Usage | None = None
        try:
            for item in self._run(turn, fields, limit):
                if isinstance(item, base.Text):
                    text.append(item.text)
                elif isinstance(item, base.Finished):
                    usage = item.usage
                elif isinstance(item, base.ApprovalAsked):
                    item.respond("deny")
                elif isinstance(item, base.ClarifyAsked):
                    item.respond(None)
        finally:
            is_late = limit.aborted
            limit.end()
            self._drop(fields["session_id"])
        if is_late:
            raise BackendTimeout(f"The agent did not answer in {timeout_s:g} s.")
        return base.Result("".join(text), usage)

    def _drop(self, session_id: str) -> bool:
        dropped = False
        for child in self._manager.children():
            if child.ready.is_set() and not child.gone.is_set():
                try:
                    answer = child.client.request("destroy", session_id=session_id, timeout_s=DROP_TIMEOUT_S)
                    dropped = dropped or answer.get("destroyed") == 1 or answer.get("deferred") == 1
                except BackendError:
                    continue  # it does not hold it, or holds nothing any more
        return dropped

    # ---- the child

    def _on_ready(self, child: Child) -> None:
        def get_to_know() -> None:
            try:
                told = child.client.request("ping").get("hermes_version")
                self._version = told if isinstance(told, str) else ""
                self._spare.prepare(child)
            except BackendError:
                return  # it ends again, or its turns say what is wrong

        threading.Thread(target=get_to_know, name=f"bridge-hello-{child.spec.label}", daemon=True).start()

    def close(self) -> None:
        self._manager.close()

    # ---- what operators ask (worker/control.py)

    def describe(self) -> list[dict[str, Any]]:
        """Its children, and what each holds."""
        current = self._manager.current()
        found = []
        for child in self._manager.children():
            state = "ready" if child is current else "retiring" if child.ready.is_set() else "starting"
            facts: dict[str, Any] = {
                "profile": self._manager.profile,
                "endpoint": child.spec.endpoint,
                "pid": child.pid,
                "state": state,
                "version": self._version,
                "memory_mb": child.memory_mb(),
                "runs": child.runs,
                "lived_s": round(time.monotonic() - child.started_at),
            }
            found.append(facts | _held(child))
        if not found:
            found.append({"profile": self._manager.profile, "state": "not started", "why": self._manager.failure or ""})
        return found

    def restart(self, *, at_once: bool) -> int:
        """A new child takes the turns from now on; gives how many turns the old one has."""
        return self._manager.restart(at_once=at_once)

    def drop_session(self, session_id: str) -> bool:
        """Forget what is held of a session, when its run ends if it has one. False: nothing was held."""
        return self._drop(session_id)


class _Spare:
    """For which model a child keeps an agent ready: the one that the last two new sessions wanted, so that sessions of
    two models by turns do not have it made anew each time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._model: dict[str, Any] | None = None  # None: the home's own
        self._last_wanted: dict[str, Any] | None = None

    def wanted(self, model: dict[str, Any] | None, child: Child | None) -> None:
        """A new session begins; `child`: None while none is ready."""
        with self._lock:
            is_usual = model == self._last_wanted or child is None
            self._last_wanted = model
            if not is_usual or model == self._model:
                return
            self._model = model
        if child is not None:
            threading.Thread(target=self.prepare, args=(child,), name="bridge-spare", daemon=True).start()

    def prepare(self, child: Child) -> None:
        with contextlib.suppress(BackendError):  # its turns say what is wrong
            child.client.request("prepare", model=self._model)


class _TimeLimit:
    """Controls of a turn that nobody watches: it is to stop when its time is over, and at `end`."""

    def __init__(self, timeout_s: float) -> None:
        self._lock = threading.Lock()
        self._stops: list[Callable[[], None]] = []
        self._aborted = False
        self._timer = threading.Timer(timeout_s, self.end)
        self._timer.daemon = True
        self._timer.start()

    @property
    def aborted(self) -> bool:
        return self._aborted

    def on_abort(self, stop: Callable[[], None]) -> None:
        with self._lock:
            if not self._aborted:
                self._stops.append(stop)
                return
        self._call(stop)

    def end(self) -> None:
        """Stops what still runs; what is over knows that it is."""
        self._timer.cancel()
        with self._lock:
            self._aborted = True
            stops, self._stops = self._stops, []
        for stop in stops:
            self._call(stop)

    def _call(self, stop: Callable[[], None]) -> None:
        threading.Thread(target=self._quietly, args=(stop,), name="aside-stop", daemon=True).start()

    def _quietly(self, stop: Callable[[], None]) -> None:
        with contextlib.suppress(BackendError):
            stop()


def _held(child: Child) -> dict[str, Any]:
    """The sessions a child holds: how many work, how many wait for their next turn."""
    if not child.ready.is_set() or child.gone.is_set():
        return {}
    try:
        sessions = child.client.request("list", timeout_s=LOOK_TIMEOUT_S).get("sessions")
    except BackendError as error:
        return {"answers": False, "why": error.message}
    held = [session for session in sessions or [] if isinstance(session, dict)]
    busy = sum(1 for session in held if session.get("run_id") is not None)
    return {"answers": True, "sessions": len(held), "busy": busy, "idle": len(held) - busy}


def _ms_since(begun: float) -> float:
    return (time.monotonic() - begun) * 1000
