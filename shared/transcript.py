"""A run's events folded into what its turn shows: the same for live pages, replay and history. Pure, no I/O.

`fold` keeps the order of things (text, tools, pauses) and costs the same for each piece of text however long the text
has become. It may be given again what it already has: any run of events that was applied last may be applied once more
(a snapshot is often older than the log it continues from), pieces of text are checked by part and offset, and an end,
a decision or a tool's outcome stays. Text is kept as it comes; lone surrogates and NUL are replaced before (text.py).
"""

from datetime import datetime
from typing import Any

from shared.errors import PlatformError
from shared.protocol import events as e
from shared.run_state import RunState
from shared.transcript_items import (
    AbortStep,
    Approval,
    Clarification,
    Compression,
    EarlyDecision,
    End,
    Item,
    Pause,
    ReasoningText,
    TextKind,
    TextPart,
    ToolCall,
    Transcript,
)
from shared.transcript_json import from_json, to_json

__all__ = [
    "AbortStep",
    "Approval",
    "Clarification",
    "Compression",
    "End",
    "Gap",
    "Item",
    "Pause",
    "ReasoningText",
    "TextPart",
    "ToolCall",
    "Transcript",
    "answer_text",
    "close",
    "fold",
    "fold_text",
    "from_json",
    "to_json",
]

TEXT_KINDS: dict[type[e.Event], TextKind] = {
    e.MessageDelta: "message",
    e.ReasoningDelta: "reasoning",
    e.ThinkingDelta: "thinking",
}
ABORT_STAGES = ("requested", "seen", "acknowledged", "killed")


class Gap(PlatformError):
    """A piece of text begins beyond what the transcript holds: something is missing, take a snapshot."""

    code = "gap"


def fold(transcript: Transcript, event: e.AnyEvent) -> None:
    """Apply an event to the transcript of its run; events of other runs, of a lower fence, and those that say nothing
    of a run (queue, session) change nothing. Raises Gap when a piece of text begins beyond what is there."""
    t = transcript
    if event.run_id != t.run_id:
        return
    if event.fence is not None:
        if event.fence < t.fence:
            return
        t.fence = event.fence
    kind = TEXT_KINDS.get(type(event))
    if kind is not None:
        piece: e.TextPiece = event.data  # type: ignore[assignment]
        fold_text(t, kind, piece.part, piece.offset, piece.text, event.at)
        return
    handler = _HANDLERS.get(type(event))
    if handler is not None:
        handler(t, event.data, _ms(event.at))


def fold_text(t: Transcript, kind: TextKind, number: int, offset: int, text: str, at: datetime) -> None:
    """Apply a piece of text as `fold` does, for whoever has no event of it. Raises Gap."""
    part = t.part(number)
    if part is None:
        if offset > 0:
            raise Gap(f"part {number} begins at {offset}")
        part = TextPart(part=number, kind=kind, started_at=_ms(at), ended_at=_ms(at))
        t.add(part)
    known = part.length - offset
    if known < 0:
        raise Gap(f"part {number} has {part.length} and goes on at {offset}")
    if known:
        text = text[known:]
    if text:
        part.pieces.append(text)
        part.length += len(text)
        part.ended_at = _ms(at)


def answer_text(transcript: Transcript) -> str:
    """The answer: its `message.delta` texts joined."""
    return "".join(part.text for part in transcript.answer_parts)


def close(transcript: Transcript, at: datetime) -> None:
    """Close what is open: tools without an outcome (`ok` stays None: "may have run"), pauses as withdrawn, the status
    line. Every end does it; a janitor that seals a run may do it before it knows more. A tool's real outcome that
    comes later is still taken."""
    t = transcript
    at = _ms(at)
    for tool in t._tools.values():
        if tool.is_open:
            tool.ended_at = at
    for pause in t._pauses.values():
        if pause.is_open:
            pause.resolved_at = at
            pause.reason = "withdrawn"
    t.status = ""
    t.status_at = None


def _ms(moment: datetime) -> datetime:
    """Times are kept as they travel: to the millisecond."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _queued(t: Transcript, data: e.RunQueuedData, at: datetime) -> None:
    t.queue_id, t.question_id, t.asked_by = data.queue_id, data.message_id, data.by
    t.number = data.number if data.number is not None else t.number
    t.queued_at = at


def _started(t: Transcript, data: e.RunStartedData, at: datetime) -> None:
    if t.started_at is None:
        t.status, t.status_at = "", None  # what was said while it waited
    t.started_at = at
    t.message_id, t.source, t.agent, t.worker = data.message_id, data.source, data.agent, data.worker
    t.profile, t.model, t.skill_folder = data.profile, data.model, data.skill_folder
    t.number = data.number if data.number is not None else t.number


def _reasoning_available(t: Transcript, data: e.ReasoningAvailableData, at: datetime) -> None:
    if all(known.text != data.text for known in t.reasoning):
        t.add(ReasoningText(text=data.text, at=at))


def _status(t: Transcript, data: e.StatusUpdatedData, at: datetime) -> None:
    if t.end is None:
        t.status, t.status_at = data.text, at


def _tool_started(t: Transcript, data: e.ToolStartedData, at: datetime) -> None:
    tool = t._tools.get(data.tool_id)
    if tool is None:
        tool = _new_tool(t, data.tool_id, data.name, at)
    if data.arguments is not None:  # peers often tell the arguments later, with a second start
        tool.arguments = data.arguments
    tool.summary = data.summary or tool.summary


def _new_tool(t: Transcript, tool_id: str, name: str, at: datetime) -> ToolCall:
    last = next(reversed(t._tools.values()), None)
    group = 0
    if last is not None:
        runs_beside = any(tool.is_open for tool in t._tools.values() if tool.group == last.group)
        group = last.group if runs_beside else last.group + 1
    tool = ToolCall(tool_id=tool_id, name=name, group=group, started_at=at)
    t.add(tool)
    return tool


def _tool_progress(t: Transcript, data: e.ToolProgressData, at: datetime) -> None:
    tool = t._tools.get(data.tool_id)
    if tool is not None and tool.is_open:
        tool.progress = data.text


def _tool_completed(t: Transcript, data: e.ToolCompletedData, at: datetime) -> None:
    tool = t._tools.get(data.tool_id)
    if tool is None:
        tool = _new_tool(t, data.tool_id, data.name, at)
    elif not tool.is_open and (tool.ok is not None or data.ok is None):
        return  # the first outcome that is known stays
    tool.ended_at = at
    tool.ok, tool.result, tool.error = data.ok, data.result, data.error
    tool.truncated, tool.full_size, tool.duration_ms = data.truncated, data.full_size, data.duration_ms
    tool.progress = ""


def _todos(t: Transcript, data: e.TodoUpdatedData, at: datetime) -> None:
    if t.end is None:
        t.todos = list(data.todos)


def _usage(t: Transcript, data: e.Usage, at: datetime) -> None:
    if t.end is None:
        t.usage = data


def _approval_requested(t: Transcript, data: e.ApprovalRequestedData, at: datetime) -> None:
    if data.approval_id in t._pauses:
        return
    _ask(
        t,
        data.approval_id,
        Approval(
            approval_id=data.approval_id,
            kind=data.kind,
            command=data.command,
            description=data.description,
            choices=list(data.choices),
            deadline=data.deadline and _ms(data.deadline),
            may_answer=data.may_answer,
            asked_at=at,
        ),
    )


def _clarify_requested(t: Transcript, data: e.ClarifyRequestedData, at: datetime) -> None:
    if data.clarify_id in t._pauses:
        return
    _ask(
        t,
        data.clarify_id,
        Clarification(
            clarify_id=data.clarify_id,
            question=data.question,
            choices=list(data.choices),
            deadline=data.deadline and _ms(data.deadline),
            asked_at=at,
        ),
    )


def _approval_resolved(t: Transcript, data: e.ApprovalResolvedData, at: datetime) -> None:
    _decide(t, EarlyDecision(data.approval_id, at, data.reason, data.choice, data.by))


def _clarify_resolved(t: Transcript, data: e.ClarifyResolvedData, at: datetime) -> None:
    _decide(t, EarlyDecision(data.clarify_id, at, data.reason, data.answer, data.by))


def _ask(t: Transcript, pause_id: str, pause: Pause) -> None:
    t.add(pause)
    for decision in [each for each in t.early if each.pause_id == pause_id]:
        t.early.remove(decision)
        _decide(t, decision)


def _decide(t: Transcript, decision: EarlyDecision) -> None:
    """The first decision stays; only that which `close` had to assume gives way to a real one."""
    pause = t._pauses.get(decision.pause_id)
    if pause is None:
        if all(each.pause_id != decision.pause_id for each in t.early):
            t.early.append(decision)
        return
    was_assumed = t.end is not None and pause.resolved_at == t.end.at and pause.reason == "withdrawn"
    if not pause.is_open and not was_assumed:
        return
    pause.resolved_at, pause.reason, pause.by = decision.at, decision.reason, decision.by
    if isinstance(pause, Approval):
        pause.choice = decision.said
    else:
        pause.answer = decision.said


def _compression_started(t: Transcript, data: e.CompressionStartedData, at: datetime) -> None:
    if all(mark.started_at != at for mark in t.items if isinstance(mark, Compression)):
        t.add(Compression(before_tokens=data.before_tokens, started_at=at))


def _compression_completed(t: Transcript, data: e.CompressionCompletedData, at: datetime) -> None:
    marks = [item for item in t.items if isinstance(item, Compression)]
    if any(mark.ended_at == at for mark in marks):
        return
    mark = next((mark for mark in marks if mark.ended_at is None), None)
    if mark is None:
        mark = Compression(before_tokens=data.before_tokens, started_at=at)
        t.add(mark)
    mark.ended_at, mark.changed = at, data.changed
    mark.before_tokens, mark.after_tokens, mark.summary_tokens = (
        data.before_tokens,
        data.after_tokens,
        data.summary_tokens,
    )


def _abort_started(t: Transcript, data: e.AbortData, at: datetime) -> None:
    if all(step.stage != data.stage for step in t.abort):
        t.abort.append(AbortStep(stage=data.stage, at=at, by=data.by, duration_ms=data.duration_ms, note=data.note))
        t.abort.sort(key=lambda step: ABORT_STAGES.index(step.stage))


def _abort_completed(t: Transcript, data: e.AbortData, at: datetime) -> None:
    if t.end is None:
        _abort_started(t, data, at)
        end = End(state=RunState.ABORTED, at=at, by=data.by, duration_ms=data.duration_ms, note=data.note)
        _end(t, end)


def _completed(t: Transcript, data: e.RunCompletedData, at: datetime) -> None:
    if t.end is None:
        t.usage = data.usage or t.usage
        _end(
            t,
            End(
                state=RunState.COMPLETED,
                at=at,
                finish_reason=data.finish_reason,
                duration_ms=data.duration_ms,
                already_finished=data.abort is not None,
            ),
        )


def _failed(t: Transcript, data: e.RunFailedData, at: datetime) -> None:
    _end(
        t,
        End(
            state=RunState.FAILED,
            at=at,
            code=data.code,
            message=data.message,
            retryable=data.retryable,
            retry_after_s=data.retry_after_s,
            detail_id=data.detail_id,
            reason=data.reason,
        ),
    )


def _cancelled(t: Transcript, data: e.RunCancelledData, at: datetime) -> None:
    _end(t, End(state=RunState.CANCELLED, at=at, by=data.by))


def _interrupted(t: Transcript, data: e.RunInterruptedData, at: datetime) -> None:
    _end(
        t,
        End(
            state=RunState.INTERRUPTED,
            at=at,
            reason=data.reason,
            message=data.message or None,
            tools_already_run=list(data.tools_already_run),
        ),
    )


def _end(t: Transcript, end: End) -> None:
    """A run ends once: the first end stays."""
    if t.end is None:
        t.end = end
        close(t, end.at)


_HANDLERS: dict[type[e.Event], Any] = {
    e.RunQueued: _queued,
    e.RunStarted: _started,
    e.ReasoningAvailable: _reasoning_available,
    e.StatusUpdated: _status,
    e.ToolStarted: _tool_started,
    e.ToolProgress: _tool_progress,
    e.ToolCompleted: _tool_completed,
    e.TodoUpdated: _todos,
    e.UsageUpdated: _usage,
    e.ApprovalRequested: _approval_requested,
    e.ApprovalResolved: _approval_resolved,
    e.ClarifyRequested: _clarify_requested,
    e.ClarifyResolved: _clarify_resolved,
    e.CompressionStarted: _compression_started,
    e.CompressionCompleted: _compression_completed,
    e.AbortStarted: _abort_started,
    e.AbortCompleted: _abort_completed,
    e.RunCompleted: _completed,
    e.RunFailed: _failed,
    e.RunCancelled: _cancelled,
    e.RunInterrupted: _interrupted,
}
