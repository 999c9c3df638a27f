"""One turn: its thread, what it says, and how it is stopped."""

import logging
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from . import outcome, wire
from .agent_session import AgentSession
from .approvals import RunApprovals
from .builder import Builder, Cancelled
from .callbacks import Callbacks
from .hermes import Hermes, ModelSpec
from .pauses import Pauses
from .requests import ChatRequest
from .run_log import RunLog
from .usage import TurnUsage, none_spent
from .workspace import Workspaces

FINAL_TEXT_CHARS = 1024 * 1024  # of the answer, once more, in the event that ends it

log = logging.getLogger("portal_bridge")


class Run:
    """`start` it once. `interrupt` may come from any thread, at any time."""

    def __init__(
        self,
        request: ChatRequest,
        session: AgentSession,
        *,
        hermes: Hermes,
        builder: Builder,
        workspaces: Workspaces,
        on_end: Callable[["Run"], None],
    ) -> None:
        """`on_end` is called in the run's thread when the session is free again, before the last event is told."""
        self.is_warm = request.history is None  # the conversation was held here
        self.request = replace(request, history=None)  # the session has it
        self.run_id = request.run_id
        self.ended_at: float | None = None  # monotonic
        self.log = RunLog(on_overflow=self._stop_overflow)
        self.pauses = Pauses(self.log)
        self._session = session
        self._approvals = RunApprovals(
            hermes.approvals,
            session.session_id,
            {*request.allowed, *session.grants},
            self.pauses,
            on_session_grant=session.grants.update,
        )
        self._hermes = hermes
        self._builder = builder
        self._workspaces = workspaces
        self._on_end = on_end
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._agent: Any = None  # while it runs
        self._is_too_large = False
        self._thread = threading.Thread(target=self._run, name=f"run-{self.run_id[:8]}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def interrupt(self) -> bool:
        """Tell the agent to stop, and wake what waits. False when the run had ended."""
        with self._lock:
            if self.log.status != "running":
                return False
            self._stop.set()
            if self._agent is not None:
                self._agent.interrupt()
        self.pauses.withdraw()
        self._builder.wake()
        return True

    def steer(self, text: str) -> bool:
        with self._lock:
            return self._agent is not None and bool(self._agent.steer(text))

    def _stop_overflow(self) -> None:
        self._is_too_large = True
        threading.Thread(target=self.interrupt, name="overflow", daemon=True).start()  # who writes holds the log

    # ---- its thread

    def _run(self) -> None:
        try:
            ending = self._turn()
        except BaseException as error:  # the top of the thread; a tool may raise what it likes  # noqa: BLE001
            where = "".join(traceback.format_tb(error.__traceback__))  # not its text, which may be anything
            log.error("run.failed run=%s error=%s\n%s", self.run_id, type(error).__name__, where)
            ending = self._failed("agent_failed", error, retryable=True)
        self.pauses.withdraw()
        self.ended_at = time.monotonic()
        self.request = replace(self.request, message="", instructions=None)  # what it said is kept longer
        self._on_end(self)
        event, fields = ending
        self.log.end(event, **fields)

    def _turn(self) -> tuple[str, dict[str, Any]]:
        session = self._session
        if session.agent is None:
            try:
                session.agent, session.signature = self._builder.take(self._spec, session.session_id, self._stop)
                self._hermes.place(session.agent, self.request.workspace)
                session.model = str(getattr(session.agent, "model", "") or "")
            except Cancelled:
                self._keep(None, outcome.Interrupted(), "")
                return "run.interrupted", {"usage": none_spent()}
            except BaseException as error:  # noqa: BLE001 - as Builder.take says
                self._keep(None, outcome.Failed("agent_not_made", "", False), "")
                return self._failed("agent_not_made", error, retryable=False)
        try:
            self._workspaces.enter(session.session_id, self.request.workspace, self._stop)
        except OSError as error:
            self._keep(None, outcome.Failed("agent_not_made", "", False), "")
            return self._failed("agent_not_made", error, retryable=False)
        return self._converse(session.agent)

    @property
    def _spec(self) -> ModelSpec:
        return self.request.model

    def _converse(self, agent: Any) -> tuple[str, dict[str, Any]]:
        callbacks = Callbacks(self.log, self.pauses, self._on_subagent, self._hermes.count_tokens)
        usage = TurnUsage(agent)
        self.log.add("run.begun", model=self._session.model, warm=self.is_warm)
        error: BaseException | None = None
        result: dict[str, Any] | None = None
        callbacks.bind(agent, usage)
        try:
            if self._enter(agent):
                result = self._call(agent)
        except BaseException as raised:  # a tool may raise what it likes  # noqa: BLE001
            error = raised
        finally:
            self._leave(agent)
            callbacks.unbind(agent)
        if error is not None:
            log.warning("agent.raised run=%s error=%s", self.run_id, type(error).__name__)
        ended = self._outcome(result, error)
        callbacks.finish(
            ended.text if isinstance(ended, outcome.Completed) else None,
            (result or {}).get("last_reasoning") if isinstance(ended, outcome.Completed) else None,
        )
        self._keep(result, ended, callbacks.last_streamed)
        if isinstance(ended, outcome.Interrupted) and (result is not None or error is not None):
            self._session.agent = None
            self._hermes.discard(agent)
        return self._told(ended, usage.read(), error)

    def _enter(self, agent: Any) -> bool:
        """From now on an interrupt reaches the agent. False when one came before."""
        request = self.request
        agent.max_iterations = request.max_iterations or self._hermes.max_turns
        agent.ephemeral_system_prompt = self._hermes.system_prompt(request.instructions)
        with self._lock:
            agent.clear_interrupt()
            if self._stop.is_set():
                return False
            self._agent = agent
            return True

    def _leave(self, agent: Any) -> None:
        with self._lock:
            self._agent = None
            agent.clear_interrupt()  # one may have come when Hermes had ended

    def _call(self, agent: Any) -> dict[str, Any]:
        session, request = self._session, self.request
        with self._hermes.session(session.session_id, request.workspace), self._approvals.bound():
            result = agent.run_conversation(
                request.message, conversation_history=session.messages, task_id=session.session_id
            )
        return result if isinstance(result, dict) else {}

    def _on_subagent(self, task_id: str, has_begun: bool) -> None:
        if has_begun:
            self._workspaces.enter_subagent(task_id, self._session.session_id)
            self._approvals.begin_subagent(task_id)
        else:
            self._approvals.end_subagent(task_id)
            self._workspaces.leave(task_id)

    def _outcome(self, result: dict[str, Any] | None, error: BaseException | None) -> outcome.Outcome:
        if self._is_too_large:
            return outcome.Failed("output_too_large", "The turn said more than can be kept of one.", False)
        if error is not None and not self._stop.is_set():
            return outcome.Failed("agent_failed", self._hermes.describe(error), True)
        if result is None:
            return outcome.Interrupted()
        return outcome.outcome_of(result, was_interrupted=self._stop.is_set())

    def _keep(self, result: dict[str, Any] | None, ended: outcome.Outcome, streamed: str) -> None:
        self._session.messages = outcome.conversation_after(
            self._session.messages, self.request.message, result, ended, streamed
        )

    def _told(
        self, ended: outcome.Outcome, usage: wire.Usage, error: BaseException | None
    ) -> tuple[str, dict[str, Any]]:
        if isinstance(ended, outcome.Interrupted):
            return "run.interrupted", {"usage": usage}
        if isinstance(ended, outcome.Completed):
            text = wire.storable(ended.text)[:FINAL_TEXT_CHARS]
            return "run.completed", {"text": text, "finish_reason": ended.finish_reason, "usage": usage}
        safe = [wire.storable(self._without_key(text)) for text in (ended.message, ended.text)]
        return "run.failed", {
            "code": ended.code,
            "message": safe[0][: wire.MAX_ERROR_CHARS],
            "retryable": ended.retryable,
            "text": safe[1][:FINAL_TEXT_CHARS],
            "usage": usage,
        }

    def _failed(self, code: wire.FailureCode, error: BaseException, *, retryable: bool) -> tuple[str, dict[str, Any]]:
        ended = outcome.Failed(code, self._hermes.describe(error), retryable)
        return self._told(ended, none_spent(), error)

    def _without_key(self, text: str) -> str:
        key = self._spec.api_key
        text = self._hermes.redact(text)
        return text.replace(key, "***") if key and len(key) >= 8 else text
