"""The tools of one run: which are open, how long each took, and what of arguments and results is shown.

Redacted before it is stored or published (S42). An event carries the first 16 KB of a result; the whole, to 32 MiB,
is stored beside it and can be downloaded.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared import redaction
from shared.protocol.events import ToolCompletedData, ToolRan, ToolStartedData
from shared.text import storable
from worker.backends.base import ToolBegun, ToolEnded

SHOWN_RESULT_BYTES = 16 * 1024
SHOWN_ARGUMENTS_BYTES = 64 * 1024
SUMMARY_CHARS = 120
ERROR_CHARS = 4_000


@dataclass
class _Call:
    name: str
    summary: str
    began_at: float  # monotonic
    finished: bool = False


@dataclass(frozen=True)
class Whole:
    """A result that is longer than what its event carries."""

    tool_id: str
    name: str
    text: str


class ToolCalls:
    """Used by the thread of its run only."""

    def __init__(self) -> None:
        self._calls: dict[str, _Call] = {}

    @property
    def has_open(self) -> bool:
        return any(not call.finished for call in self._calls.values())

    def begun(self, item: ToolBegun) -> ToolStartedData:
        arguments = _shown_arguments(item.arguments)
        summary = storable(redaction.redact(item.summary)) if item.summary else _summary(arguments)
        self._calls[item.tool_id] = _Call(item.name, summary, time.monotonic())
        return ToolStartedData(
            tool_id=storable(item.tool_id), name=storable(item.name), arguments=arguments, summary=summary
        )

    def ended(self, item: ToolEnded) -> tuple[ToolCompletedData, Whole | None]:
        """The event's data, and the whole result where it is longer than that."""
        call = self._calls.setdefault(item.tool_id, _Call(item.name, "", time.monotonic()))
        call.finished = True
        duration_ms = item.duration_ms
        if duration_ms is None:
            duration_ms = int((time.monotonic() - call.began_at) * 1000)
        shown, whole, full_size = None, None, None
        if item.result is not None:
            text = storable(redaction.redact(item.result))
            body = text.encode()
            full_size = len(body)
            shown = body[:SHOWN_RESULT_BYTES].decode("utf-8", "ignore")
            if full_size > SHOWN_RESULT_BYTES:
                whole = Whole(storable(item.tool_id), storable(item.name), text)
        data = ToolCompletedData(
            tool_id=storable(item.tool_id),
            name=storable(item.name or call.name),
            ok=item.ok,
            result=shown,
            truncated=whole is not None,
            full_size=full_size if full_size is None else max(full_size, item.full_size or 0),
            duration_ms=duration_ms,
            error=None if item.error is None else storable(redaction.redact(item.error))[:ERROR_CHARS],
        )
        return data, whole

    def already_run(self) -> list[ToolRan]:
        """What the agent had done when its run was interrupted: a person reads it before trying again."""
        return [
            ToolRan(tool_id=storable(tool_id), name=storable(call.name), summary=call.summary, finished=call.finished)
            for tool_id, call in self._calls.items()
        ]


def _shown_arguments(arguments: Mapping[str, Any] | str | None) -> dict[str, Any] | str | None:
    if arguments is None:
        return None
    if isinstance(arguments, str):
        return _cut(storable(redaction.redact(arguments)))
    shown: dict[str, Any] = _clean(arguments)
    text = json.dumps(shown, ensure_ascii=False)
    return shown if len(text.encode()) <= SHOWN_ARGUMENTS_BYTES else _cut(text)


def _clean(value: Any) -> Any:
    """The value with every text in it redacted and storable; what JSON does not know becomes text."""
    if isinstance(value, Mapping):
        return {storable(str(key)): _clean_field(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(inner) for inner in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return storable(redaction.redact(str(value)))


def _clean_field(name: str, value: Any) -> Any:
    return storable(redaction.redact_field(name, value)) if isinstance(value, str) else _clean(value)


def _cut(text: str) -> str:
    return text.encode()[:SHOWN_ARGUMENTS_BYTES].decode("utf-8", "ignore")


def _summary(arguments: dict[str, Any] | str | None) -> str:
    """The first short argument: a command, a path, a query."""
    if isinstance(arguments, str):
        return " ".join(arguments.split())[:SUMMARY_CHARS]
    for value in (arguments or {}).values():
        if isinstance(value, str) and value.strip():
            return " ".join(value.split())[:SUMMARY_CHARS]
    return ""
