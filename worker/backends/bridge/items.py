"""The events of a bridge run as items of the seam: the vocabulary of `process/wire.py` stops here.

Events that are not known are ignored, a newer child may send more; one that lacks what it must have is an error of the
protocol. What is no error but too much (a result beyond its limit) is cut.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from shared.errors import BackendError, BackendProtocolError
from shared.protocol.events import Todo, Usage
from worker.backends import base
from worker.backends.bridge.process import wire

Event = Mapping[str, Any]
Kind = TypeVar("Kind")
MAX_RESULT_CHARS = wire.MAX_RESULT_BYTES  # a code point has a byte at least


@dataclass(frozen=True)
class Answers:
    """What is called with a person's decision: `approve(approval_id, choice, reason)`, `clarify(clarify_id, text)`."""

    approve: Callable[[str, base.Choice, wire.Reason], None]
    clarify: Callable[[str, str | None], None]


class EventReader:
    """`read` the events of one run in their order. `ended` after its last one; a failed run ends by raising a
    BackendError."""

    def __init__(self, run_id: str, answers: Answers) -> None:
        self.ended = False
        self._run_id = run_id
        self._answers = answers
        self._open_pauses: set[str] = set()
        self._result: _Result | None = None  # that comes in pieces
        self._text: list[str] = []  # of the answer since the last boundary
        self._text_before = ""  # the answer's last text before that
        self._has_reasoning = False  # since the last boundary
        self._handlers: dict[str, Callable[[Event], Iterable[base.Item]]] = {
            "run.begun": self._begun,
            "turn.boundary": self._boundary,
            "reasoning.delta": self._reasoning,
            "reasoning.available": self._reasoning_available,
            "status": lambda event: [base.Status(_text(event, "text"))],
            "tool.started": self._tool_started,
            "tool.progress": lambda event: [base.ToolNews(_text(event, "tool_id"), _text(event, "text"))],
            "tool.completed": self._tool_completed,
            "tool.result": self._tool_result,
            "todo.updated": lambda event: [base.Todos(_todos(event))],
            "approval.requested": self._approval,
            "approval.resolved": lambda event: self._resolved(_text(event, "approval_id")),
            "clarify.requested": self._clarify,
            "clarify.resolved": lambda event: self._resolved(_text(event, "clarify_id")),
            "usage": lambda event: [base.UsageNews(_usage(event))],
            "compression.started": lambda event: [base.CompressionBegun(_number(event, "before_tokens"))],
            "compression.completed": self._compressed,
            "run.completed": self._completed,
            "run.failed": self._failed,
            "run.interrupted": self._interrupted,
        }

    def read(self, event: Event) -> Iterable[base.Item]:
        """Raises BackendProtocolError for an event that cannot be understood, BackendError when the run has failed."""
        name = event.get("event")
        if name == "stream.delta":
            text = _text(event, "text")
            if not text:
                return ()
            self._text.append(text)
            return (base.Text(text),)
        handler = self._handlers.get(name) if isinstance(name, str) else None
        if handler is None:
            return ()
        if self._result is not None and name != "tool.result":
            return [*self._end_result(), *handler(event)]  # its rest never came
        return handler(event)

    # ---- text

    def _begun(self, event: Event) -> Iterable[base.Item]:
        return [base.TurnBegun(self._run_id, model=_text(event, "model") or None, holds_session=True)]

    def _boundary(self, event: Event) -> Iterable[base.Item]:
        if self._text:
            self._text_before = "".join(self._text)
            self._text.clear()
        self._has_reasoning = False
        return ()

    def _reasoning(self, event: Event) -> Iterable[base.Item]:
        self._has_reasoning = True
        text = _text(event, "text")
        return [base.Reasoning(text)] if text else ()

    def _reasoning_available(self, event: Event) -> Iterable[base.Item]:
        """The whole of what a model thought; it says nothing new where that was streamed."""
        return () if self._has_reasoning else self._reasoning(event)

    # ---- tools

    def _tool_started(self, event: Event) -> Iterable[base.Item]:
        arguments = event.get("arguments")
        if not isinstance(arguments, dict | str | None):
            raise _broken(event, "arguments")
        summary = _text(event, "summary", "")
        return [base.ToolBegun(_text(event, "tool_id"), _text(event, "name"), arguments, summary)]

    def _tool_completed(self, event: Event) -> Iterable[base.Item]:
        self._result = _Result(event, _text(event, "tool_id"), [])
        self._result.add(_text(event, "result", ""))
        return () if event.get("more") is True else self._end_result()

    def _tool_result(self, event: Event) -> Iterable[base.Item]:
        if self._result is None or self._result.tool_id != event.get("tool_id"):
            raise _broken(event, "tool_id")
        self._result.add(_text(event, "text"))
        return self._end_result() if event.get("last") is True else ()

    def _end_result(self) -> Iterable[base.Item]:
        result, self._result = self._result, None
        assert result is not None
        return [result.item()]

    # ---- people

    def _approval(self, event: Event) -> Iterable[base.Item]:
        key = _text(event, "approval_id")
        patterns = _texts(event, "pattern_keys")
        offered = _texts(event, "choices")
        choices: tuple[base.Choice, ...] = tuple(choice for choice in wire.CHOICES if choice in offered)
        if not choices or "deny" not in choices:
            raise _broken(event, "choices")
        self._open_pauses.add(key)
        approve = self._answers.approve
        return [
            base.ApprovalAsked(
                key=key,
                kind=patterns[0] if patterns else "command",
                command=_text(event, "command"),
                description=_text(event, "description", ""),
                choices=choices,
                respond=lambda choice: approve(key, choice, "answered"),
                unanswered=partial(approve, key, "deny", "expired"),
                patterns=patterns,
            )
        ]

    def _clarify(self, event: Event) -> Iterable[base.Item]:
        key = _text(event, "clarify_id")
        self._open_pauses.add(key)
        respond = partial(self._answers.clarify, key)
        return [base.ClarifyAsked(key, _text(event, "question"), _texts(event, "choices"), respond)]

    def _resolved(self, key: str) -> Iterable[base.Item]:
        """Ours to have decided, or the agent waits no longer: whoever still asks people finds that out itself."""
        if key not in self._open_pauses:
            return ()
        self._open_pauses.remove(key)
        return [base.PauseWithdrawn(key)]

    # ---- numbers

    def _compressed(self, event: Event) -> Iterable[base.Item]:
        before, after = _number(event, "before_tokens"), _number(event, "after_tokens")
        return [base.CompressionEnded(before, after, changed=after < before)]

    # ---- the end

    def _completed(self, event: Event) -> Iterable[base.Item]:
        self.ended = True
        whole = _text(event, "text", "")
        streamed = "".join(self._text).strip() or self._text_before.strip() == whole.strip()
        missing = "" if streamed or not whole.strip() else whole
        usage = _usage(_object(event, "usage"))
        finished = base.Finished(finish_reason=_text(event, "finish_reason", "stop"), usage=usage)
        return [base.Text(missing), finished] if missing else [finished]

    def _failed(self, event: Event) -> Iterable[base.Item]:
        self.ended = True
        yield base.UsageNews(_usage(_object(event, "usage")))
        raise BackendError(
            _text(event, "message"), code=_text(event, "code"), retryable=event.get("retryable") is not False
        )

    def _interrupted(self, event: Event) -> Iterable[base.Item]:
        self.ended = True
        return [base.UsageNews(_usage(_object(event, "usage"))), base.Stopped()]


class _Result:
    """A tool's end, whose result may come in pieces."""

    def __init__(self, event: Event, tool_id: str, pieces: list[str]) -> None:
        self.tool_id = tool_id
        self._event = event
        self._pieces = pieces
        self._chars = 0

    def add(self, piece: str) -> None:
        room = MAX_RESULT_CHARS - self._chars
        self._chars += len(piece)
        if room > 0:
            self._pieces.append(piece[:room])

    def item(self) -> base.ToolEnded:
        event = self._event
        result = "".join(self._pieces)
        full_size, error = event.get("full_size"), event.get("error")
        return base.ToolEnded(
            self.tool_id,
            _text(event, "name"),
            ok=event.get("ok") is True,
            result=result,
            duration_ms=_number(event, "duration_ms") if event.get("duration_ms") is not None else None,
            error=error if isinstance(error, str) else None,
            full_size=full_size if isinstance(full_size, int) else None,
        )


# ---- fields


def _text(event: Event, name: str, default: str | None = None) -> str:
    return str(_field(event, name, str, default))


def _number(event: Event, name: str) -> int:
    return int(_field(event, name, (int, float), None))


def _object(event: Event, name: str) -> Event:
    found: Event = _field(event, name, dict, {})
    return found


def _texts(event: Event, name: str) -> tuple[str, ...]:
    found = _field(event, name, list, [])
    if not all(isinstance(each, str) for each in found):
        raise _broken(event, name)
    return tuple(found)


def _field(event: Event, name: str, kind: Any, default: Any) -> Any:
    """The field if it is of that kind; the default where it is absent or null and there is one."""
    found = event.get(name)
    if found is None and default is not None:
        return default
    if not isinstance(found, kind) or isinstance(found, bool):
        raise _broken(event, name)
    return found


def _todos(event: Event) -> tuple[Todo, ...]:
    todos = _field(event, "todos", list, [])
    if not all(isinstance(todo, dict) for todo in todos):
        raise _broken(event, "todos")
    return tuple(
        Todo(id=_text(todo, "id"), text=_text(todo, "text", ""), status=_text(todo, "status", "pending"))
        for todo in todos
    )


def _usage(fields: Event) -> Usage:
    counts = {name: _number(fields, name) for name in Usage.model_fields if fields.get(name) is not None}
    return Usage(**counts)


def _broken(event: Event, name: str) -> BackendProtocolError:
    return BackendProtocolError(
        "The agent's process sent something that cannot be understood.", detail=f"{event.get('event')}: {name}"
    )
