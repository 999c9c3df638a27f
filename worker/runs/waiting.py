"""The approvals and questions of one run, from the backend's asking to the answer that it gets.

The stream goes on meanwhile. A pause is asked in the database first, then told; it is decided in the database by
whoever answers, or by its deadline there; the run hears of it by a note or by looking. The backend gets exactly one
answer for each, and silence means deny (RELIABILITY P6). What its run no longer waits for is withdrawn.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast

from shared import clock, logs
from shared.database import in_transaction, transaction
from shared.errors import BackendError, LeaseLost, Unavailable
from shared.models import Pause
from shared.pause_events import resolved_event
from shared.protocol.events import (
    AnyEvent,
    ApprovalRequested,
    ApprovalRequestedData,
    ClarifyRequested,
    ClarifyRequestedData,
)
from shared.store import pauses as pause_store
from shared.text import storable
from worker.backends.base import ApprovalAsked, Backend, Choice, ClarifyAsked
from worker.context import WorkerContext
from worker.runs import interrupts
from worker.runs.expiry import expire_due, withdrawn_event
from worker.runs.inbox import AnswerFailed, PauseDecided
from worker.runs.live_run import LiveRun
from worker.runs.recorder import Recorder

RETRY_S = 1.0
DEADLINE_SLACK_S = 0.05  # the database's clock decides; we look a moment later than ours says

log = logs.get(__name__)

Asked = ApprovalAsked | ClarifyAsked


@dataclass
class _Open:
    asked: Asked
    request: dict[str, Any]
    due: float | None  # monotonic


class Waiting:
    """Used by the thread of its run only. `waited_s`: how long the run has waited for people so far."""

    def __init__(
        self,
        context: WorkerContext,
        live: LiveRun,
        recorder: Recorder,
        *,
        backend: Backend,
        background: bool,
    ) -> None:
        self._context = context
        self._live = live
        self._recorder = recorder
        self._backend = backend
        self._background = background
        self._open: dict[str, _Open] = {}
        self._unasked: list[Asked] = []  # the database did not take them yet
        self._must_resume = False
        self._retry_at = 0.0
        self._waited_s = 0.0
        self._since: float | None = None

    @property
    def is_waiting(self) -> bool:
        return bool(self._open)

    def waited_s(self, now: float) -> float:
        return self._waited_s + (now - self._since if self._since is not None else 0.0)

    def ask(self, asked: Asked, now: float) -> None:
        """The backend waits for a person. Never raises: what cannot be asked now is asked as soon as it can be."""
        self._unasked.append(asked)
        self._ask_all(now)

    def withdraw(self, key: str, now: float) -> None:
        """The backend no longer waits for the pause of that key."""
        self._unasked = [asked for asked in self._unasked if asked.key != key]
        for pause_id, waits in list(self._open.items()):
            if waits.asked.key == key:
                self._decide(pause_id, now, withdraw=True)

    def decided(self, item: PauseDecided, now: float) -> None:
        """The database says that the pause is no longer pending."""
        if item.pause_id in self._open:
            self._decide(item.pause_id, now, is_told=item.is_told)

    def tick(self, now: float) -> None:
        """What is due: asking again, deadlines, going back to running."""
        if now >= self._retry_at:
            if self._unasked:
                self._ask_all(now)
            if self._must_resume:
                self._resume(now)
        for pause_id, waits in list(self._open.items()):
            if waits.due is not None and now >= waits.due:
                waits.due = now + RETRY_S
                self._expire(pause_id, now)

    def abandon(self) -> list[AnyEvent]:
        """The run ends: the events by which its open pauses are withdrawn. Their rows go with the run's end."""
        live = self._live
        events = [
            withdrawn_event(live.session_id, live.run_id, live.fence, pause)
            for pause in self._recorder.transcript.open_pauses
        ]
        self._open.clear()
        self._unasked.clear()
        self._live.open_pauses = frozenset()
        return events

    # ---- asking

    def _ask_all(self, now: float) -> None:
        while self._unasked:
            try:
                self._ask(self._unasked[0], now)
            except LeaseLost:  # an abort came in between, or the run is not ours any more
                self._look()
                return
            except Unavailable:
                self._retry_at = now + RETRY_S
                return
            self._unasked.pop(0)

    def _ask(self, asked: Asked, now: float) -> None:
        kind: pause_store.Kind = "approval" if isinstance(asked, ApprovalAsked) else "clarification"
        timeout_s = self._timeout_s(kind)
        request = _request(asked)
        tool = storable(asked.kind) if isinstance(asked, ApprovalAsked) else ""
        with transaction(self._context.factory) as db:
            pause = pause_store.open(
                db,
                run_id=self._live.run_id,
                fence=self._live.fence,
                session_id=self._live.session_id,
                kind=kind,
                tool=tool,
                request=request,
                timeout_s=timeout_s,
            )
        due = None if timeout_s is None else now + timeout_s + DEADLINE_SLACK_S
        self._open[pause.id] = _Open(asked, request, due)
        self._live.open_pauses = frozenset(self._open)
        self._must_resume = False
        if self._since is None:
            self._since = now
        at = clock.now()
        deadline = None if timeout_s is None else at + timedelta(seconds=timeout_s)
        requested = _requested_event(self._live, pause.id, request, tool, at, deadline)
        self._recorder.emit(requested, new_part=True)  # whoever decides sees all that was said before

    def _timeout_s(self, kind: str) -> float | None:
        """Seconds until silence means no; None: no limit. The backend's own limit counts when it is shorter."""
        settings = self._context.settings
        if kind == "clarification":
            return settings.clarify_timeout_s or None
        ours = settings.background_approval_timeout_s if self._background else settings.approval_timeout_s
        limits = (ours or None, self._backend.capabilities.approval_limit_s)
        return min((limit for limit in limits if limit is not None), default=None)

    # ---- deciding

    def _expire(self, pause_id: str, now: float) -> None:
        try:
            expire_due(self._context)
            self._decide(pause_id, now, is_told=None)
        except Unavailable:
            self._retry_at = now + RETRY_S

    def _decide(self, pause_id: str, now: float, *, withdraw: bool = False, is_told: bool | None = True) -> None:
        """Give the backend what the database says about the pause, once; a pause still pending there stays open. To
        tell pages of a decision twice changes nothing on them, so what they may have missed is told. `is_told` None:
        that it expired was told, and not an answer that came just before."""

        def read(db: Any) -> Pause:
            if withdraw:
                pause_store.withdraw(db, pause_id)
            return pause_store.get(db, pause_id)

        try:
            pause = in_transaction(self._context.factory, read)
        except Unavailable:
            self._open[pause_id].due = now + RETRY_S
            return
        if pause.state == "pending":
            return
        waits = self._open.pop(pause_id)
        self._live.open_pauses = frozenset(self._open)
        if pause.state != "withdrawn":
            self._respond(waits, pause)
        event = resolved_event(pause)
        if is_told is None:
            is_told = pause.state == "expired"
        if withdraw or not is_told:
            self._recorder.emit(event)
        else:
            self._recorder.note(event)
        if not self._open:
            self._waited_s += now - (self._since or now)
            self._since = None
            self._must_resume = True
            self._resume(now)

    def _respond(self, waits: _Open, pause: Pause) -> None:
        asked = waits.asked
        call: Callable[[], None]
        if isinstance(asked, ClarifyAsked):
            call = partial(asked.respond, pause.answer if pause.state == "answered" else None)
        else:
            choice = cast(Choice, pause.choice if pause.state == "answered" else "deny")
            is_unanswered = pause.state != "answered"
            if choice not in asked.choices or pause.args_hash != pause_store.hash_request(waits.request):
                log.warning("approval.mismatch", run_id=self._live.run_id, pause_id=pause.id)
                choice = "deny"
            call = partial(asked.respond, choice)
            if is_unanswered and asked.unanswered is not None:
                call = asked.unanswered
        threading.Thread(target=self._call, args=(call, pause.id), name=f"answer-{pause.id[:8]}", daemon=True).start()

    def _call(self, call: Callable[[], None], pause_id: str) -> None:
        try:
            call()
        except BackendError as error:
            log.warning("pause.answer_failed", run_id=self._live.run_id, pause_id=pause_id, detail=error.detail)
            self._live.signal(AnswerFailed(error.message))
        except Exception:
            log.exception("pause.answer_failed", run_id=self._live.run_id, pause_id=pause_id)
            self._live.signal(AnswerFailed("The answer could not be given to the agent."))

    def _resume(self, now: float) -> None:
        """awaiting_* -> running, now that nothing is open."""
        try:
            with transaction(self._context.factory) as db:
                pause_store.resume_run(db, self._live.run_id, self._live.fence)
        except LeaseLost:
            self._look()
        except Unavailable:
            self._retry_at = now + RETRY_S
            return
        self._must_resume = False

    def _look(self) -> None:
        try:
            interrupts.look(self._context, [self._live])
        except Unavailable:
            self._retry_at = time.monotonic() + RETRY_S


def _request(asked: Asked) -> dict[str, Any]:
    """What is stored, shown and hashed: the exact content."""
    if isinstance(asked, ApprovalAsked):
        request = {
            "command": storable(asked.command),
            "description": storable(asked.description),
            "choices": list(asked.choices),
        }
        return request | {"patterns": [storable(each) for each in asked.patterns]} if asked.patterns else request
    return {"question": storable(asked.question), "choices": [storable(choice) for choice in asked.choices]}


def _requested_event(
    live: LiveRun, pause_id: str, request: dict[str, Any], tool: str, at: datetime, deadline: datetime | None
) -> AnyEvent:
    envelope: dict[str, Any] = {"session_id": live.session_id, "run_id": live.run_id, "fence": live.fence, "at": at}
    if "question" in request:
        question = ClarifyRequestedData(clarify_id=pause_id, deadline=deadline, **request)
        return ClarifyRequested(**envelope, data=question)
    approval = ApprovalRequestedData(approval_id=pause_id, kind=tool, deadline=deadline, **request)
    return ApprovalRequested(**envelope, data=approval)
