"""The sessions and runs of this process: one agent a session, one run at a time in each.

An agent is dropped when it was idle for half an hour, when it is the one least recently used and there are too many, or
when it is asked for; never while it works.
"""

import json
import logging
import threading
import time
from collections import OrderedDict
from typing import Any

from . import wire
from .agent_session import AgentSession
from .builder import Builder
from .hermes import Hermes, ModelSpec
from .requests import ChatRequest
from .run import Run
from .wire import WireError
from .workspace import Workspaces

DEFAULT_MAX_AGENTS = 100
DEFAULT_IDLE_S = 30 * 60.0
SWEEP_S = 15.0
KEPT_RUNS_BYTES = 128 * 1024 * 1024  # of finished runs together; the oldest go first
REMEMBERED_RUN_IDS = 100_000  # that are never begun again

log = logging.getLogger("portal_bridge")


class AgentPool:
    """Safe from any thread."""

    def __init__(
        self,
        hermes: Hermes,
        *,
        max_agents: int = DEFAULT_MAX_AGENTS,
        idle_s: float = DEFAULT_IDLE_S,
        kept_run_s: float = wire.KEPT_RUN_S,
        sweep_s: float = SWEEP_S,
    ) -> None:
        self.hermes = hermes
        self.builder = Builder(hermes)
        self.max_agents = max_agents
        self._idle_s = idle_s
        self._kept_run_s = kept_run_s
        self._workspaces = Workspaces()
        self._lock = threading.Lock()
        self._sessions: dict[str, AgentSession] = {}
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._begun: OrderedDict[str, None] = OrderedDict()
        self._closed = threading.Event()
        threading.Thread(target=self._sweep_often, args=(sweep_s,), name="sweeper", daemon=True).start()

    # ---- turns

    def chat(self, request: ChatRequest) -> wire.ChatAnswer:
        """Begin a turn. Raises WireError."""
        with self._lock:
            if self._closed.is_set():
                raise WireError("shutting_down", "The agent's process is about to end.")
            if request.run_id in self._begun:
                raise WireError("run_exists", "A run of this id was begun before.")
            session = self._sessions.get(request.session_id)
            if session is not None and session.run is not None:
                raise WireError("busy", "The session has a run.")
            dropped: list[AgentSession] = []
            if request.history is None:
                session = self._standing(session, request)
            else:
                session, dropped = self._begun_anew(session, request)
            if session.grant_epoch != request.grant_epoch:
                session.grants, session.grant_epoch = set(), request.grant_epoch
            run = Run(
                request,
                session,
                hermes=self.hermes,
                builder=self.builder,
                workspaces=self._workspaces,
                on_end=self._on_end,
            )
            session.run = run
            self._runs[run.run_id] = run
            self._begun[run.run_id] = None
            if len(self._begun) > REMEMBERED_RUN_IDS:
                self._begun.popitem(last=False)
        self._release(dropped, for_good=False)
        run.start()
        return wire.ChatAnswer(run_id=run.run_id, session_id=session.session_id, status="running", warm=run.is_warm)

    def _standing(self, session: AgentSession | None, request: ChatRequest) -> AgentSession:
        """The held session, if it stands where the turn goes on."""
        if session is None or session.last_run_id is None or session.is_doomed:
            raise WireError("session_not_found", "The session is not held here.")
        if request.after is not None and request.after != session.last_run_id:
            raise WireError("session_not_found", "The session stands after another run.")
        if session.signature != self.hermes.signature(request.model):
            raise WireError("session_not_found", "The session's agent was made for another model or configuration.")
        return session

    def _begun_anew(self, held: AgentSession | None, request: ChatRequest) -> tuple[AgentSession, list[AgentSession]]:
        """A session with the history of the request, and what is dropped for it."""
        dropped = [] if held is None else [held]
        if held is None and len(self._sessions) >= self.max_agents:
            idle = [session for session in self._sessions.values() if session.run is None]
            if not idle:
                raise WireError("full", f"All {self.max_agents} agents are at work.")
            oldest = min(idle, key=lambda session: session.idle_since)
            self._drop(oldest)
            dropped.append(oldest)
        session = AgentSession(request.session_id, messages=list(request.history or []))
        if held is not None:
            session.grants, session.grant_epoch = held.grants, held.grant_epoch
        self._sessions[session.session_id] = session
        return session, dropped

    def _on_end(self, run: Run) -> None:
        with self._lock:
            session = self._sessions.get(run.request.session_id)
            if session is None or session.run is not run:
                return
            session.run = None
            session.idle_since = time.monotonic()
            session.last_run_id = run.run_id
            is_dropped = session.is_doomed or not session.signature
            if is_dropped:
                self._drop(session)
        if is_dropped:
            self._release([session], for_good=session.is_doomed)

    def run(self, run_id: str) -> Run:
        with self._lock:
            run = self._runs.get(run_id)
        if run is None:
            raise WireError("run_not_found", "There is no such run here, or it ended long ago.")
        return run

    # ---- what is held

    def sessions(self) -> list[wire.HeldSession]:
        with self._lock:
            return [session.told() for session in self._sessions.values()]

    def counts(self) -> tuple[int, int]:
        """Agents, and how many of them are at work."""
        with self._lock:
            sessions = list(self._sessions.values())
            return len(sessions), sum(session.run is not None for session in sessions)

    def conversation(self, session_id: str) -> wire.HistoryAnswer:
        """What the agent of a session would be told with the next turn, the newest that fit a line."""
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None:
                raise WireError("session_not_found", "The session is not held here.")
            messages = list(session.messages)
        room = wire.MAX_TOLD_HISTORY_BYTES
        told: list[dict[str, Any]] = []
        for message in reversed(messages):
            shown = _shown(message)
            room -= len(json.dumps(shown, ensure_ascii=False).encode("utf-8", "replace"))
            if room < 0:
                break
            told.append(shown)
        told.reverse()
        return wire.HistoryAnswer(session_id=session_id, messages=told, more=len(told) < len(messages))

    def destroy(self, session_id: str | None) -> wire.DestroyAnswer:
        """Drop one session's agent, or all; one that works when its run ends."""
        with self._lock:
            if session_id is None:
                found = list(self._sessions.values())
            else:
                found = [self._sessions[session_id]] if session_id in self._sessions else []
            idle = [session for session in found if session.run is None]
            for session in idle:
                self._drop(session)
            busy = [session for session in found if session.run is not None]
            for session in busy:
                session.is_doomed = True
        self._release(idle, for_good=True)
        return wire.DestroyAnswer(destroyed=len(idle), deferred=len(busy))

    def prepare(self, spec: ModelSpec) -> bool:
        return self.builder.prepare(spec)

    def close(self) -> None:
        """The process ends: stop what runs."""
        self._closed.set()
        self.builder.close()
        with self._lock:
            runs = [session.run for session in self._sessions.values() if session.run is not None]
        for run in runs:
            run.interrupt()

    # ---- tidying up

    def _sweep_often(self, every_s: float) -> None:
        while not self._closed.wait(every_s):
            self.sweep()

    def sweep(self) -> None:
        """Drop what was idle for too long, and what finished runs said."""
        now = time.monotonic()
        with self._lock:
            idle = [
                session
                for session in self._sessions.values()
                if session.run is None and now - session.idle_since >= self._idle_s
            ]
            for session in idle:
                self._drop(session)
            finished = [run for run in self._runs.values() if run.ended_at is not None and run.log.last is not None]
            held = sum(run.log.bytes_held() for run in finished)
            for run in finished:  # oldest first
                if now - (run.ended_at or now) >= self._kept_run_s or held > KEPT_RUNS_BYTES:
                    held -= run.log.bytes_held()
                    del self._runs[run.run_id]
        self._release(idle, for_good=False)

    def _drop(self, session: AgentSession) -> None:
        """Under the lock; then `_release` it."""
        del self._sessions[session.session_id]
        session.is_dropped = True
        self._workspaces.begin_tidying(session.session_id)

    def _release(self, sessions: list[AgentSession], *, for_good: bool) -> None:
        """In a thread: providers of memory and containers may take their time."""
        if sessions:
            threading.Thread(target=self._release_now, args=(sessions, for_good), name="release", daemon=True).start()

    def _release_now(self, sessions: list[AgentSession], for_good: bool) -> None:
        for session in sessions:  # first what turns of the same name may wait for
            log.info("agent.dropped session=%s", session.session_id)
            if session.is_dropped:
                if session.agent is not None and for_good:
                    self.hermes.end_all(session.agent)
                self._workspaces.leave(session.session_id, for_good=for_good)
                self._workspaces.end_tidying(session.session_id)
        for session in sessions:
            if session.agent is not None:
                self.hermes.release(session.agent, session.messages)


def _shown(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what Hermes keeps beside it."""
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(
            str(block.get("text") or f"[{block.get('type')}]") for block in content if isinstance(block, dict)
        )
    shown: dict[str, Any] = {"role": str(message.get("role")), "content": wire.storable(str(content or ""))}
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        shown["tools"] = [str((call.get("function") or {}).get("name")) for call in calls if isinstance(call, dict)]
    return shown
