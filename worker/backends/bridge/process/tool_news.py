"""The tools of one run, from Hermes' callbacks to the events of the wire.

Hermes tells of a call in two callbacks each, of which one has the id and the other the rest; of calls that it refuses
itself (unknown tool, broken arguments, a plugin's no) it tells nothing, except in the list of the step's tools.
"""

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import wire
from .run_log import RunLog
from .statuses import plain

SUBAGENT_LINE_CHARS = 200
SUBAGENT_NEWS_S = 0.25  # between two lines of one subagent
MAX_TODOS, MAX_TODO_CHARS = 500, 1000
DELEGATE = "delegate_task"


@dataclass
class _Call:
    tool_id: str
    name: str
    began_at: float  # monotonic


@dataclass
class _Subagent:
    tool_id: str
    label: str
    text: str = ""
    told_at: float = field(default=0.0)  # monotonic


class ToolNews:
    """Safe from any thread. `on_subagent(task_id, has_begun)` is called before a subagent's first tool and after it."""

    def __init__(self, log: RunLog, on_subagent: Callable[[str, bool], None]) -> None:
        self._log = log
        self._on_subagent = on_subagent
        self._lock = threading.Lock()
        self._open: dict[str, _Call] = {}  # by the model's id of the call
        self._used: set[str] = set()
        self._previews: deque[tuple[str, str]] = deque(maxlen=256)
        self._measured: deque[tuple[str, float, bool]] = deque(maxlen=256)
        self._told: Counter[str] = Counter()  # names of the calls of this step
        self._subagents: dict[str, _Subagent] = {}

    # ---- callbacks of AIAgent

    def on_start(self, call_id: Any, name: Any, arguments: Any) -> None:
        name = wire.storable(str(name))
        with self._lock:
            call = _Call(self._unique(call_id), name, time.monotonic())
            self._open[str(call_id)] = call
            self._told[name] += 1
            preview = next((found for found in self._previews if found[0] == name), None)
            if preview is not None:
                self._previews.remove(preview)
            self._log.add(
                "tool.started",
                tool_id=call.tool_id,
                name=name,
                arguments=safe_arguments(arguments),
                summary=wire.storable(preview[1])[: wire.MAX_SUMMARY_CHARS] if preview else "",
            )

    def on_complete(self, call_id: Any, name: Any, arguments: Any, result: Any) -> None:
        with self._lock:
            call = self._open.pop(str(call_id), None)
            if call is None:
                return
            measured = next((found for found in self._measured if found[0] == call.name), None)
            if measured is not None:
                self._measured.remove(measured)
            text = text_of(result)
            failed = measured[2] if measured else False
            seconds = measured[1] if measured else time.monotonic() - call.began_at
            self._complete(call.tool_id, call.name, text, ok=not failed, duration_ms=round(seconds * 1000))
            if call.name == "todo" and (todos := todos_of(text)) is not None:
                self._log.add("todo.updated", todos=todos)

    def on_progress(self, event: Any, name: Any = None, preview: Any = None, _: Any = None, **more: Any) -> None:
        event = str(event)
        if event == "tool.started":
            with self._lock:
                self._previews.append((wire.storable(str(name)), str(preview or "")))
        elif event == "tool.completed":
            with self._lock:
                seconds = more.get("duration")
                self._measured.append(
                    (
                        wire.storable(str(name)),
                        float(seconds) if isinstance(seconds, int | float) else 0.0,
                        bool(more.get("is_error")),
                    )
                )
        elif event.startswith("subagent"):
            self._on_subagent_news(event, name, preview, more)
        # "reasoning.available" repeats the text of the answer

    def on_step(self, tools_before: Any) -> None:
        """A model call begins: what tools ran since the one before."""
        with self._lock:
            told, self._told = self._told, Counter()
            self._previews.clear()
            self._measured.clear()
            for tool in tools_before if isinstance(tools_before, list) else []:
                name = wire.storable(str(tool.get("name") or "")) if isinstance(tool, dict) else ""
                if told[name] > 0:
                    told[name] -= 1
                elif name:
                    self._tell_refused(name, tool)

    def close(self) -> None:
        """The run is over: what is still open will not come to an end."""
        with self._lock:
            for call in self._open.values():
                took_ms = round((time.monotonic() - call.began_at) * 1000)
                self._complete(call.tool_id, call.name, "", ok=False, duration_ms=took_ms, error="It did not finish.")
            self._open.clear()
            subagents, self._subagents = list(self._subagents), {}
        for task_id in subagents:
            self._on_subagent(task_id, False)

    # ---- inside

    def _unique(self, call_id: Any) -> str:
        """Some models number their calls anew in each answer."""
        wanted = wire.storable(str(call_id or "call"))[: wire.MAX_ID_CHARS - 10]
        found, number = wanted, 1
        while found in self._used:
            number += 1
            found = f"{wanted}#{number}"
        self._used.add(found)
        return found

    def _tell_refused(self, name: str, tool: dict[str, Any]) -> None:
        tool_id = self._unique(f"refused-{name}")
        arguments = tool.get("arguments")
        with_object = arguments
        if isinstance(arguments, str):
            try:
                with_object = json.loads(arguments)
            except (ValueError, RecursionError):
                with_object = arguments
        self._log.add("tool.started", tool_id=tool_id, name=name, arguments=safe_arguments(with_object), summary="")
        self._complete(tool_id, name, text_of(tool.get("result")), ok=False, duration_ms=0)

    def _complete(
        self, tool_id: str, name: str, text: str, *, ok: bool, duration_ms: int, error: str | None = None
    ) -> None:
        pieces, full_size = pieces_of(text)
        completed = {
            "tool_id": tool_id,
            "name": name,
            "ok": ok,
            "result": pieces[0],
            "more": len(pieces) > 1,
            "full_size": full_size,
            "duration_ms": duration_ms,
            "error": error if ok or error else error_of(text),
        }
        events: list[tuple[str, dict[str, Any]]] = [("tool.completed", completed)]
        for number, piece in enumerate(pieces[1:], 2):
            events.append(("tool.result", {"tool_id": tool_id, "text": piece, "last": number == len(pieces)}))
        self._log.add_all(events)

    def _on_subagent_news(self, event: str, name: Any, preview: Any, more: dict[str, Any]) -> None:
        task_id = str(more.get("subagent_id") or "")
        if event == "subagent.start" and task_id:
            self._on_subagent(task_id, True)
        with self._lock:
            subagent = self._subagent(task_id, more)
            if subagent is None:
                return
            line = self._subagent_line(subagent, event, str(name or ""), str(preview or ""), more)
            if line:
                text = wire.storable(f"{subagent.label}{line}")[:SUBAGENT_LINE_CHARS]
                self._log.add("tool.progress", tool_id=subagent.tool_id, text=text)
            if event == "subagent.complete":
                self._subagents.pop(task_id, None)
        if event == "subagent.complete" and task_id:
            self._on_subagent(task_id, False)

    def _subagent(self, task_id: str, more: dict[str, Any]) -> _Subagent | None:
        """Which subagent that is, and under which call it works; None when that is over."""
        if task_id in self._subagents:
            return self._subagents[task_id]
        call = next((call for call in reversed(self._open.values()) if call.name == DELEGATE), None)
        if call is None:
            return None
        count, place = more.get("task_count"), more.get("task_index")
        label = f"[{place + 1}/{count}] " if isinstance(count, int) and isinstance(place, int) and count > 1 else ""
        found = _Subagent(call.tool_id, label)
        self._subagents[task_id] = found
        return found

    def _subagent_line(self, subagent: _Subagent, event: str, name: str, preview: str, more: dict[str, Any]) -> str:
        if event == "subagent.start":
            return preview
        if event == "subagent.tool":
            return f"{name}: {preview}" if preview else name
        if event == "subagent.complete":
            return str(more.get("status") or "completed")
        if event == "subagent.text":
            subagent.text = (subagent.text + preview)[-2000:]
            now = time.monotonic()
            if "\n" not in preview and now - subagent.told_at < SUBAGENT_NEWS_S:
                return ""
            subagent.told_at = now
            return next((line.strip() for line in reversed(subagent.text.splitlines()) if line.strip()), "")
        if event in ("subagent.thinking", "subagent.progress", "subagent_progress"):
            return plain(preview or name)
        return ""


def safe_arguments(arguments: Any) -> dict[str, Any] | str:
    """As an object that a line can carry, else as its text."""
    if not isinstance(arguments, dict):
        return wire.storable(str(arguments or ""))[: wire.MAX_ARGUMENTS_CHARS]
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False, default=str)
        if len(text) <= wire.MAX_ARGUMENTS_CHARS and not wire.is_deeper(arguments, wire.MAX_DEPTH // 2):
            safe = json.loads(text)
            return safe if isinstance(safe, dict) else text
    except (TypeError, ValueError, RecursionError):
        text = repr(arguments)
    return wire.storable(text)[: wire.MAX_ARGUMENTS_CHARS]


def text_of(result: Any) -> str:
    """A tool's result as text; of one with pictures, the text."""
    if isinstance(result, str):
        return wire.storable(result)
    if isinstance(result, dict) and isinstance(result.get("text_summary"), str):
        return wire.storable(result["text_summary"])
    if isinstance(result, dict) and isinstance(result.get("content"), list):
        parts = [part.get("text", "") for part in result["content"] if isinstance(part, dict)]
        return wire.storable("\n".join(part for part in parts if isinstance(part, str) and part))
    if result is None:
        return ""
    try:
        return wire.storable(json.dumps(result, ensure_ascii=False, default=str))
    except (TypeError, ValueError, RecursionError):
        return wire.storable(str(result))


def pieces_of(text: str) -> tuple[list[str], int]:
    """The text in pieces of a line each, at least one, cut at MAX_RESULT_BYTES; and its bytes before that."""
    full_size = len(text.encode())
    if full_size > wire.MAX_RESULT_BYTES:
        text = text.encode()[: wire.MAX_RESULT_BYTES].decode(errors="ignore")
    size = wire.PIECE_CHARS
    return [text[place : place + size] for place in range(0, len(text), size)] or [""], full_size


def error_of(text: str) -> str:
    """What went wrong, out of a failed tool's result."""
    found: Any = None
    if len(text) <= wire.MAX_ARGUMENTS_CHARS:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
    if isinstance(found, dict):
        for name in ("error", "message", "output"):
            if isinstance(found.get(name), str) and found[name].strip():
                return wire.storable(found[name].strip())[: wire.MAX_ERROR_CHARS]
    return text.strip()[: wire.MAX_ERROR_CHARS] or "It failed."


def todos_of(text: str) -> list[wire.Todo] | None:
    """The whole list, out of a result of the tool `todo`; None when it is an error."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    todos = found.get("todos") if isinstance(found, dict) else None
    if not isinstance(todos, list):
        return None
    return [
        wire.Todo(id=_short(todo.get("id")), text=_short(todo.get("content")), status=_short(todo.get("status")))
        for todo in todos[:MAX_TODOS]
        if isinstance(todo, dict)
    ]


def _short(value: Any) -> str:
    return wire.storable(str(value if value is not None else ""))[:MAX_TODO_CHARS]
