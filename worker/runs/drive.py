"""The loop of a run that has begun: what its backend brings, what people decide, and what ends it.

One thread reads the backend (pump.py), this one does the rest; everything reaches it through one inbox. Only for text
that comes while this one waits, the other takes its turn (inbox.py).
"""

import time
from collections.abc import Callable
from typing import Any

from shared import logs, redaction
from shared.database import transaction
from shared.errors import BackendError, BackendKilled, LeaseLost, Unavailable
from shared.protocol.events import (
    AbortData,
    AbortStarted,
    AnyEvent,
    CompressionCompleted,
    CompressionCompletedData,
    CompressionStarted,
    CompressionStartedData,
    RunDequeued,
    RunDequeuedData,
    RunStarted,
    RunStartedData,
    StatusUpdated,
    StatusUpdatedData,
    Todo,
    TodoUpdated,
    TodoUpdatedData,
    ToolCompleted,
    ToolProgress,
    ToolProgressData,
    ToolStarted,
    Usage,
    UsageUpdated,
)
from shared.run_state import EndReason, RunState
from shared.store import runs as run_store
from shared.store import tool_outputs
from shared.text import storable
from worker.backends import base
from worker.context import WorkerContext
from worker.runs import inbox, interrupts, outcome
from worker.runs.claim import Claimed
from worker.runs.ending import AbortStage, Circumstances, end_run
from worker.runs.limits import Limits
from worker.runs.live_run import LiveRun
from worker.runs.outcome import Outcome
from worker.runs.pump import start_pump
from worker.runs.recorder import TICK_S, Recorder
from worker.runs.start import turn_of
from worker.runs.tool_calls import ToolCalls, Whole
from worker.runs.waiting import Waiting

DISK_FULL_S = 60.0
TIME_LIMIT = "time limit"
CANNOT_STOP = "The agent cannot be stopped there: what it still does is ignored."

log = logs.get(__name__)


class Drive:
    """Used by who has the turn of its run."""

    def __init__(
        self,
        claimed: Claimed,
        live: LiveRun,
        recorder: Recorder,
        context: WorkerContext,
        backend: base.Backend,
        message_id: str,
    ) -> None:
        self._claimed = claimed
        self._run = claimed.run
        self._live = live
        self._recorder = recorder
        self._context = context
        self._backend = backend
        self._message_id = message_id
        self._began_at = time.monotonic()
        self._limits = Limits(context.settings, self._began_at)
        self._wakes_at = 0.0  # monotonic: until when the loop waits
        self._tools = ToolCalls()
        self._waiting = Waiting(context, live, recorder, backend=backend, background=claimed.run.background)
        self._outcome: Outcome | None = None
        self._is_lost = False
        self._abort: inbox.AbortSeen | None = None
        self._abort_at = 0.0
        self._abort_stage: AbortStage = "requested"
        self._kill_at = float("inf")
        self._usage: Usage | None = None
        self._begun = base.TurnBegun()
        self._backend_session_id: str | None = None
        self._handlers: dict[type[Any], Callable[[Any, float], None]] = {
            base.Text: lambda item, now: recorder.text("message.delta", item.text, now),
            base.Reasoning: lambda item, now: recorder.text("reasoning.delta", item.text, now),
            base.TurnBegun: self._on_begun,
            base.Status: self._on_status,
            base.ToolBegun: self._on_tool_begun,
            base.ToolNews: self._on_tool_news,
            base.ToolEnded: self._on_tool_ended,
            base.Todos: self._on_todos,
            base.ApprovalAsked: self._waiting.ask,
            base.ClarifyAsked: self._waiting.ask,
            base.PauseWithdrawn: lambda item, now: self._waiting.withdraw(item.key, now),
            base.UsageNews: self._on_usage,
            base.CompressionBegun: self._on_compression_begun,
            base.CompressionEnded: self._on_compression_ended,
            base.Keepalive: lambda item, now: self._limits.alive(now),
            base.Finished: self._on_finished,
            base.Stopped: self._on_stopped,
            inbox.StreamEnded: self._on_stream_ended,
            inbox.AbortSeen: self._on_abort,
            inbox.StopTold: self._on_stop_told,
            inbox.PauseDecided: lambda item, now: self._waiting.decided(item, now),
            inbox.AnswerFailed: lambda item, now: self._say(item.message),
            inbox.LeaseGone: self._on_lease_gone,
            inbox.ShutdownDue: lambda item, now: self._end(outcome.SHUTDOWN),
            inbox.Broke: self._on_broke,
            inbox.Sooner: lambda item, now: None,
        }

    def run(self) -> None:
        """Drive the run to its end."""
        try:
            start_pump(self._backend, self._make_turn, self._live)
            self._tell_start()
            self._loop()
        except LeaseLost:
            self._look_whose()
        except Exception as error:
            log.exception("run.broke", error=type(error).__name__)
            self._outcome = outcome.of_error(error)
        if self._outcome is None:  # not ours any more: nothing more is written
            self._live.stop_backend()
            return
        if self._outcome.target is not RunState.COMPLETED:
            self._live.stop_backend()
        self._live.inbox.close()
        end_run(
            self._context, self._live, self._recorder, self._outcome, self._circumstances(), self._waiting.abandon()
        )

    def _loop(self) -> None:
        live, recorder, handlers = self._live, self._recorder, self._handlers
        get = live.inbox.get
        tick_at = time.monotonic() + TICK_S
        live.inbox.take_text = self._take_text
        while self._outcome is None and not self._is_lost:
            now = time.monotonic()
            if now >= recorder.flush_at:
                recorder.flush_text()
            if now >= tick_at:
                tick_at = now + TICK_S
                self._tick(now)
                continue
            self._wakes_at = min(recorder.flush_at, tick_at)
            item = get(self._wakes_at - now)
            if item is not None:
                if type(item) not in _NOT_HEARD:
                    self._limits.heard(now)
                handlers[type(item)](item, time.monotonic())

    def _take_text(self, item: base.Text | base.Reasoning) -> None:
        """A turn of the thread that reads the backend."""
        now = time.monotonic()
        self._limits.heard(now)
        try:
            self._handlers[type(item)](item, now)
        except Exception as error:  # noqa: BLE001 - raised again in the thread of the run
            self._live.inbox.take_text = None
            self._live.signal(inbox.Broke(error))
        if self._recorder.flush_at < self._wakes_at:
            self._wakes_at = self._recorder.flush_at
            self._live.signal(inbox.Sooner())

    def _on_broke(self, item: inbox.Broke, now: float) -> None:
        raise item.error

    def _tick(self, now: float) -> None:
        self._recorder.tick(now)
        self._waiting.tick(now)
        full_since = self._recorder.full_since
        if full_since is not None and now - full_since > DISK_FULL_S:
            self._end(outcome.DISK_FULL)
        elif self._abort is not None:
            if now >= self._kill_at:
                self._tell_abort("killed", now)
                self._end(outcome.STOPPED)
        elif self._waiting.is_waiting:
            self._limits.heard(now)
        elif self._limits.is_over(now, waited_s=self._waiting.waited_s(now), has_open_tool=self._tools.has_open):
            self._stop_for_time()
        elif (notice := self._limits.notice(now)) is not None:
            self._say(notice)

    # ---- what the backend brings

    def _tell_start(self) -> None:
        run, session = self._run, self._claimed.session
        started = RunStartedData(
            source=run.source,
            message_id=self._message_id,
            profile=session.profile,
            model=run.model or session.model,
            skill_folder=run.skill_folder or session.skill_folder,
            worker=self._context.worker_id,
            agent=self._backend.name,
        )
        self._recorder.emit(
            self._event(RunDequeued, RunDequeuedData(queue_id=run.queue_id, reason="started")),
            self._event(RunStarted, started),
        )

    def _make_turn(self) -> base.Turn:
        return turn_of(self._claimed, self._backend, self._live, self._context)

    def _on_begun(self, item: base.TurnBegun, now: float) -> None:
        self._begun = item
        self._backend_session_id = item.backend_session_id or self._backend_session_id

    def _on_status(self, item: base.Status, now: float) -> None:
        self._say(item.text)

    def _on_tool_begun(self, item: base.ToolBegun, now: float) -> None:
        self._recorder.emit(self._event(ToolStarted, self._tools.begun(item)), new_part=True)

    def _on_tool_news(self, item: base.ToolNews, now: float) -> None:
        text = storable(redaction.redact(item.text))
        self._emit(ToolProgress, ToolProgressData(tool_id=storable(item.tool_id), text=text))

    def _on_tool_ended(self, item: base.ToolEnded, now: float) -> None:
        completed, whole = self._tools.ended(item)
        if whole is not None:
            self._context.saver.submit(self._keep_whole, whole)
        self._recorder.emit(self._event(ToolCompleted, completed), new_part=True)

    def _keep_whole(self, whole: Whole) -> None:
        try:
            with transaction(self._context.factory) as db:
                tool_outputs.put(db, run_id=self._live.run_id, tool_id=whole.tool_id, name=whole.name, text=whole.text)
        except Unavailable as error:  # the beginning stands in the transcript
            log.warning("tool.output_not_kept", run_id=self._live.run_id, code=error.code)

    def _on_todos(self, item: base.Todos, now: float) -> None:
        todos = [
            Todo(id=storable(todo.id), text=storable(redaction.redact(todo.text)), status=storable(todo.status))
            for todo in item.todos
        ]
        self._emit(TodoUpdated, TodoUpdatedData(todos=todos))

    def _on_usage(self, item: base.UsageNews, now: float) -> None:
        self._usage = item.usage
        self._emit(UsageUpdated, item.usage)

    def _on_compression_begun(self, item: base.CompressionBegun, now: float) -> None:
        self._emit(CompressionStarted, CompressionStartedData(before_tokens=item.before_tokens))

    def _on_compression_ended(self, item: base.CompressionEnded, now: float) -> None:
        ended = CompressionCompletedData(
            before_tokens=item.before_tokens,
            after_tokens=item.after_tokens,
            summary_tokens=item.summary_tokens,
            changed=item.changed,
        )
        self._emit(CompressionCompleted, ended)

    def _on_finished(self, item: base.Finished, now: float) -> None:
        self._backend_session_id = item.backend_session_id or self._backend_session_id
        self._end(Outcome(RunState.COMPLETED, finish_reason=storable(item.finish_reason), usage=item.usage))

    def _on_stopped(self, item: base.Stopped, now: float) -> None:
        if self._abort is not None and self._abort_stage == "seen":  # what confirms it may come before the answer to it
            self._tell_abort("acknowledged", now)
        self._end(outcome.STOPPED)

    def _on_stream_ended(self, item: inbox.StreamEnded, now: float) -> None:
        error = item.error
        if error is not None and not isinstance(error, BackendError):
            log.error("backend.broke", run_id=self._live.run_id, exc_info=error)
        if self._abort is not None and isinstance(error, BackendKilled):
            self._tell_abort("killed", now)
        self._end(outcome.STOPPED if self._abort is not None else outcome.of_error(error))

    # ---- what others decide

    def _on_abort(self, item: inbox.AbortSeen, now: float) -> None:
        self._abort = item
        self._abort_at = now - item.elapsed_s
        self._kill_at = now + self._context.settings.abort_grace_s
        requested = interrupts.abort_requested(self._live, item.by, item.elapsed_s)
        if item.by == TIME_LIMIT:
            self._recorder.emit(requested)
        else:
            self._recorder.note(requested)
        self._tell_abort("seen", now)

    def _on_stop_told(self, item: inbox.StopTold, now: float) -> None:
        if item.error is not None:
            log.warning("backend.stop_failed", run_id=self._live.run_id, error=type(item.error).__name__)
        elif self._abort is not None:
            self._tell_abort("acknowledged", now)

    def _tell_abort(self, stage: AbortStage, now: float) -> None:
        assert self._abort is not None
        self._abort_stage = stage
        data = AbortData(by=self._abort.by, stage=stage, duration_ms=int((now - self._abort_at) * 1000))
        self._emit(AbortStarted, data)

    def _stop_for_time(self) -> None:
        """Over its limits: aborting like any other, with its reason."""
        log.warning("run.over_its_limits", run_id=self._live.run_id)
        try:
            with transaction(self._context.factory) as db:
                run_store.request_abort(db, self._live.run_id, by_name=TIME_LIMIT, reason=EndReason.TIME_LIMIT)
            interrupts.look(self._context, [self._live])
        except Unavailable:
            return  # the next tick tries again

    def _on_lease_gone(self, item: inbox.LeaseGone, now: float) -> None:
        if item.taken:
            self._is_lost = True
        else:
            self._end(outcome.LEASE_NOT_RENEWED)

    def _look_whose(self) -> None:
        """Something was refused: an abort came in between (then go on to its end), or the run is not ours."""
        try:
            interrupts.look(self._context, [self._live])
        except Unavailable:
            return
        if self._live.abort_seen:
            self._outcome = outcome.STOPPED

    # ---- telling

    def _end(self, ended: Outcome) -> None:
        if self._outcome is None:
            self._outcome = ended

    def _say(self, text: str) -> None:
        self._emit(StatusUpdated, StatusUpdatedData(text=storable(redaction.redact(text))))

    def _emit(self, kind: Callable[..., AnyEvent], data: Any) -> None:
        self._recorder.emit(self._event(kind, data))

    def _event(self, kind: Callable[..., AnyEvent], data: Any) -> AnyEvent:
        live = self._live
        return kind(session_id=live.session_id, run_id=live.run_id, fence=live.fence, data=data)

    def _circumstances(self) -> Circumstances:
        is_deaf = self._abort is not None and not self._backend.capabilities.stop
        return Circumstances(
            message_id=self._message_id,
            began_at=self._began_at,
            usage=self._usage,
            model=None if self._begun.model is None else storable(redaction.redact(self._begun.model)),
            backend_run_id=self._begun.backend_run_id,
            backend_session_id=self._backend_session_id,
            holds_session=self._begun.holds_session,
            tools=tuple(self._tools.already_run()),
            abort_by=self._abort.by if self._abort is not None else None,
            abort_at=self._abort_at if self._abort is not None else None,
            abort_stage=self._abort_stage,
            abort_note=CANNOT_STOP if is_deaf else None,
        )


_NOT_HEARD = frozenset({base.Keepalive, inbox.StopTold, inbox.PauseDecided, inbox.AbortSeen, inbox.Sooner})
"""What is no sign that the backend says something."""
