"""The approvals and questions of one run: its tools wait here until somebody outside answers.

There is no clock: who waits is woken by an answer, by an interrupt, or by the end of the run.
"""

import secrets
import threading
from dataclasses import dataclass, field
from typing import Any, Literal

from .run_log import RunLog
from .wire import Choice, Reason, WireError, storable

MAX_QUESTION_CHARS = 32 * 1024
MAX_CHOICES = 20


@dataclass
class _Pause:
    kind: Literal["approval", "clarify"]
    choices: list[Any]
    decided: threading.Event = field(default_factory=threading.Event)
    answer: Any = None
    reason: Reason = "withdrawn"


@dataclass(frozen=True)
class Decision:
    choice: Choice
    reason: Reason


class Pauses:
    """Safe from any thread; several tools of a run may wait at once."""

    def __init__(self, log: RunLog) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._open: dict[str, _Pause] = {}
        self._is_over = False

    @property
    def waits_for(self) -> Literal["approval", "clarify"] | None:
        with self._lock:
            return next((pause.kind for pause in self._open.values()), None)

    # ---- asked by the run's tools

    def ask_approval(
        self, command: str, description: str, pattern_keys: list[str], choices: list[Choice], *, allow_permanent: bool
    ) -> Decision:
        """Blocks until it is decided; "deny" when the run was interrupted."""
        pause = _Pause("approval", list(choices), answer="deny")
        event = {
            "command": storable(command),
            "description": storable(description)[:MAX_QUESTION_CHARS],
            "pattern_keys": [storable(key) for key in pattern_keys],
            "allow_permanent": allow_permanent,
            "choices": choices,
        }
        self._wait(pause, "approval.requested", "approval_id", event)
        return Decision(pause.answer, pause.reason)

    def ask_clarify(self, question: str, choices: list[str]) -> str | None:
        """Blocks until it is answered; None when nobody did."""
        pause = _Pause("clarify", [])
        event = {
            "question": storable(question)[:MAX_QUESTION_CHARS],
            "choices": [storable(choice)[:MAX_QUESTION_CHARS] for choice in choices[:MAX_CHOICES]],
        }
        self._wait(pause, "clarify.requested", "clarify_id", event)
        return pause.answer if isinstance(pause.answer, str) else None

    def _wait(self, pause: _Pause, event: str, id_name: str, fields: dict[str, Any]) -> None:
        pause_id = secrets.token_hex(16)
        with self._lock:
            if self._is_over:
                return
            self._open[pause_id] = pause  # before it is told: the answer may be quick
            self._log.add(event, **{id_name: pause_id}, **fields)
        pause.decided.wait()

    # ---- answered from outside

    def decide_approval(self, approval_id: str, choice: Choice, reason: Reason) -> None:
        """Raises WireError: the first answer counts, and only what was offered."""
        self._decide(approval_id, "approval", choice, reason)

    def decide_clarify(self, clarify_id: str, answer: str | None) -> None:
        self._decide(clarify_id, "clarify", answer, "expired" if answer is None else "answered")

    def _decide(self, pause_id: str, kind: str, answer: Any, reason: Reason) -> None:
        with self._lock:
            pause = self._open.get(pause_id)
            if pause is None or pause.kind != kind:
                raise WireError("not_pending", "That is not open, or it was decided before.")
            if pause.choices and answer not in pause.choices:
                raise WireError("bad_request", f"choice: must be one of {', '.join(pause.choices)}.")
            del self._open[pause_id]
        self._settle(pause_id, pause, answer, reason)

    def withdraw(self) -> None:
        """Wake all who wait: approvals as denied, questions as unanswered. Whoever asks later is told so at once."""
        with self._lock:
            self._is_over = True
            waiting, self._open = self._open, {}
        for pause_id, pause in waiting.items():
            self._settle(pause_id, pause, pause.answer, "withdrawn")

    def _settle(self, pause_id: str, pause: _Pause, answer: Any, reason: Reason) -> None:
        pause.answer, pause.reason = answer, reason
        if pause.kind == "approval":
            self._log.add("approval.resolved", approval_id=pause_id, choice=answer, reason=reason)
        else:
            self._log.add("clarify.resolved", clarify_id=pause_id, reason=reason)
        pause.decided.set()
