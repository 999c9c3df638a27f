"""From a transcript to the five regions of a turn, as the templates read them (LOOK, Anatomy)."""

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from shared.run_state import RunState
from shared.transcript import Approval, Compression, TextPart, ToolCall, Transcript
from webapp import render
from webapp.errors import told
from webapp.render import _, counted, url
from webapp.views import (
    DiffRow,
    Mark,
    Span,
    Status,
    Thinking,
    Timeline,
    TodoList,
    Tool,
    ToolGroup,
    Well,
)

PEEK_CHARS: Final = 140
ARGUMENT_CHARS: Final = 160
DIFF_ROWS: Final = 400
TIMELINE_TOOLS: Final = 12
_HUNK = re.compile(r"^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_TELLING = ("command", "cmd", "path", "file_path", "filename", "query", "url", "pattern", "name", "prompt")


# ---- regions 1 and 2


def thinking(t: Transcript, now: datetime) -> Thinking | None:
    parts = [part for part in t.thinking if part.length]
    text = "\n\n".join(part.text.strip("\n") for part in parts) or "\n\n".join(told.text for told in t.reasoning)
    if not text.strip():
        return None
    last = t.items[-1] if t.items else None
    is_on = t.end is None and isinstance(last, TextPart) and last.kind != "message"
    took_s = sum((part.ended_at - part.started_at).total_seconds() for part in parts)
    if is_on and parts:
        return Thinking(text, peek(text), True, since_s=took_s + _ago(parts[-1].ended_at, now))
    return Thinking(text, peek(text), is_on, took_s=took_s if parts else None)


def peek(text: str) -> str:
    """The last words of a thought, on one line."""
    words = " ".join(text[-PEEK_CHARS * 2 :].split())
    return words if len(words) <= PEEK_CHARS else f"… {words[-PEEK_CHARS:].lstrip()}"


def status(t: Transcript, state: RunState, now: datetime) -> Status | None:
    """What the run does or waits for, and its clock."""
    since = _ago(t.started_at, now) if t.started_at is not None else None
    if state == RunState.QUEUED:
        return Status(_("Waits to start: no worker is there to take it") if t.status else _("Waits to start"), None)
    if state == RunState.STARTING or t.started_at is None:
        return Status(_("Starting"), _ago(t.queued_at, now) if t.queued_at else None)
    if state == RunState.ABORTING:
        return Status(_stopping(t), since)
    if t.open_pauses:
        is_approval = isinstance(t.open_pauses[0], Approval)
        return Status(_("Waits for a decision") if is_approval else _("Waits for an answer"), since)
    return Status(told(t.status) if t.status else _doing(t), since)


def _stopping(t: Transcript) -> str:
    stages = {step.stage for step in t.abort}
    if "acknowledged" in stages:
        return _("Stopping: the agent has acknowledged")
    return _("Stopping: the worker has told the agent") if "seen" in stages else _("Stopping")


def _doing(t: Transcript) -> str:
    running = [tool.name for tool in t.tools if tool.is_open]
    if running:
        return _("Runs %(tools)s", tools=", ".join(dict.fromkeys(running)))
    last = t.items[-1] if t.items else None
    if isinstance(last, TextPart):
        return _("Writes") if last.kind == "message" else _("Thinks")
    return _("Works")


# ---- region 3


def tool_groups(
    t: Transcript, session_id: str, now: datetime, *, only: frozenset[int] | set[int] | None = None
) -> tuple[ToolGroup, ...]:
    """The calls, those that ran side by side together; `only` some groups of them."""
    numbers = {tool.tool_id: n for n, tool in enumerate(t.tools)}
    return tuple(
        ToolGroup(
            id=f"run-{t.run_id}-g{group[0].group}",
            order=group[0].group,
            tools=tuple(_tool(t.run_id, session_id, numbers[tool.tool_id], tool, now) for tool in group),
        )
        for group in t.tool_groups
        if only is None or group[0].group in only
    )


def _tool(run_id: str, session_id: str, n: int, tool: ToolCall, now: datetime) -> Tool:
    mark = tool_mark(tool)
    took_s = tool.duration_ms / 1000 if tool.duration_ms is not None else None
    if took_s is None and tool.ended_at is not None and tool.ok is not None:
        took_s = (tool.ended_at - tool.started_at).total_seconds()
    took = _("may have run") if mark.state == "interrupted" else render.duration(took_s)
    diff = diff_rows(tool.result) if tool.result else ()
    is_shown = tool.is_open or bool(diff)
    return Tool(
        id=f"run-{run_id}-t{n}",
        name=tool.name,
        argument=argument_of(tool),
        mark=mark,
        is_open=is_shown,
        took="" if tool.is_open else took,
        since_s=_ago(tool.started_at, now) if tool.is_open else None,
        wells=_wells(tool, with_result=not diff),
        diff=diff,
        more=_more(tool),
        output_url=url("chat", session_id, "runs", run_id, "output", str(n)) if tool.truncated else None,
    )


def tool_mark(tool: ToolCall) -> Mark:
    if tool.is_open:
        return Mark("running", _("Running"))
    if tool.ok is None:
        return Mark("interrupted", _("Outcome not known"))
    return Mark("done", _("Done")) if tool.ok else Mark("failed", _("Failed"))


def argument_of(tool: ToolCall) -> str:
    """The short argument in a tool's row."""
    if tool.summary:
        return one_line(tool.summary)
    arguments = tool.arguments
    if isinstance(arguments, dict):
        telling = next((arguments[name] for name in _TELLING if isinstance(arguments.get(name), str)), None)
        return one_line(telling if telling is not None else _json(arguments) if arguments else "")
    return one_line(arguments or "")


def one_line(text: str) -> str:
    return " ".join(text[: ARGUMENT_CHARS * 4].split())[:ARGUMENT_CHARS]


def _wells(tool: ToolCall, *, with_result: bool) -> tuple[Well, ...]:
    wells = []
    if tool.error:
        wells.append(Well(_("Error"), tool.error))
    if tool.arguments not in (None, "", {}):
        text = _json(tool.arguments, indent=2) if isinstance(tool.arguments, dict) else str(tool.arguments)
        wells.append(Well(_("Arguments"), text))
    if tool.is_open and tool.progress:
        wells.append(Well(_("Output so far"), tool.progress))
    if tool.result and with_result:
        wells.append(Well(_("Result"), tool.result))
    if not tool.is_open and tool.result is None and not tool.error and tool.ok is not None:
        wells.append(Well(_("Result"), _("This agent does not tell the results of its tools.")))
    return tuple(wells)


def _more(tool: ToolCall) -> str:
    if not tool.truncated or tool.result is None:
        return ""
    shown = render.size(len(tool.result.encode("utf-8", "replace")))
    if tool.full_size is None:
        return _("First %(shown)s", shown=shown)
    return _("First %(shown)s of %(size)s", shown=shown, size=render.size(tool.full_size))


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, default=str)


def diff_rows(text: str) -> tuple[DiffRow, ...]:
    """The rows of a unified diff; empty when the text is none."""
    if "@@ -" not in text:
        return ()
    rows: list[DiffRow] = []
    old = new = 0
    for line in text.removesuffix("\n").split("\n")[: DIFF_ROWS * 2]:
        hunk = _HUNK.match(line)
        if hunk is not None:
            old, new = int(hunk[1]), int(hunk[2])
            rows.append(DiffRow("hunk", "", "", line))
        elif old or new:
            if line.startswith("+"):
                rows.append(DiffRow("add", str(new), "+", line[1:]))
                new += 1
            elif line.startswith("-"):
                rows.append(DiffRow("del", str(old), "\u2212", line[1:]))
                old += 1
            else:
                rows.append(DiffRow("same", str(new), " ", line[1:]))
                old, new = old + 1, new + 1
    return tuple(rows[:DIFF_ROWS])


# ---- region 4


def todo_list(t: Transcript) -> TodoList | None:
    if not t.todos:
        return None
    marks = {
        "completed": Mark("done", _("Done")),
        "in_progress": Mark("running", _("In progress")),
        "cancelled": Mark("stopped", _("Cancelled")),
    }
    todos = tuple((marks.get(todo.status, Mark("queued", _("To do"))), todo.text) for todo in t.todos)
    done = sum(mark.state == "done" for mark, _text in todos)
    return TodoList(todos, _("%(done)s of %(all)s", done=done, all=len(todos)))


def timeline(t: Transcript, now: datetime) -> Timeline | None:
    """One row a span: queue, thinking, tools, people, answer."""
    start = t.queued_at or t.started_at
    if start is None:
        return None
    end = t.end.at if t.end is not None else now
    total_s = max((end - start).total_seconds(), 0.001)

    def bar(kind: str, since: datetime, until: datetime) -> tuple[str, int, int]:
        x = round(1000 * max(0.0, (since - start).total_seconds()) / total_s)
        width = round(1000 * max(0.0, (until - since).total_seconds()) / total_s)
        return kind, min(x, 994), max(6, min(width, 1000 - x))

    def span(name: str, pieces: Sequence[tuple[str, datetime, datetime | None]]) -> Span:
        took_s = sum(((until or end) - since).total_seconds() for _kind, since, until in pieces)
        took = render.duration(took_s) if took_s < 60 else render.running_clock(took_s)
        goes_on = t.end is None and pieces[-1][2] is None
        bars = tuple(bar(kind, since, until or end) for kind, since, until in pieces)
        return Span(name, took, bars, took_s if goes_on else None)

    spans = []
    if t.queued_at and t.started_at and (t.started_at - t.queued_at).total_seconds() > 1:
        spans.append(span(_("queue"), [("wait", t.queued_at, t.started_at)]))
    thoughts = [("think", part.started_at, part.ended_at) for part in t.thinking if part.length]
    if thoughts:
        spans.append(span(_("thinking"), thoughts))
    for tool in t.tools[-TIMELINE_TOOLS:]:
        spans.append(span(tool.name, [("bad" if tool.ok is False else "tool", tool.started_at, tool.ended_at)]))
    for pause in t.pauses:
        name = _("approval") if isinstance(pause, Approval) else _("question")
        spans.append(span(name, [("person", pause.asked_at, pause.resolved_at)]))
    written = [("write", part.started_at, part.ended_at) for part in t.answer_parts if part.length]
    if written and t.end is not None:
        spans.append(span(_("answer"), written))
    return Timeline(tuple(spans), total_s, t.end is None) if spans else None


# ---- compression


def notes(t: Transcript) -> tuple[str, ...]:
    """The marks of compression."""
    found = []
    for mark in (item for item in t.items if isinstance(item, Compression)):
        if mark.ended_at is None:
            found.append(_("Shortening older turns for the agent"))
        elif mark.changed and mark.after_tokens is not None:
            before, after = render.tokens(mark.before_tokens), render.tokens(mark.after_tokens)
            found.append(_("Older turns shortened for the agent: %(a)s to %(b)s tokens", a=before, b=after))
        else:
            found.append(_("Older turns could not be shortened: no gain"))
    return tuple(found)


def tool_count(n: int) -> str:
    return counted("%(num)s tool", "%(num)s tools", n)


def _ago(moment: datetime, now: datetime) -> float:
    return max(0.0, (now - moment).total_seconds())
