"""From rows and transcripts to turns: the user's message, and the answer in every state it can be in."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from shared import clock
from shared.models import ChatMessage, Run
from shared.protocol.events import SKILL_CHANGED
from shared.run_state import FINAL, RunState
from shared.store import messages as message_store
from shared.transcript import TextPart, ToolCall, Transcript, answer_text, from_json
from webapp import render, view_answer, view_pauses, view_process
from webapp.actions.names import DEFAULT_PROFILE
from webapp.errors import told as told_to_people
from webapp.render import _
from webapp.view_answer import Streams
from webapp.view_pauses import Viewer
from webapp.views import (
    Agent,
    AgentTurn,
    AnswerPart,
    Ending,
    Fold,
    LateAnswer,
    Mark,
    Ran,
    Turn,
    UserTurn,
    agent_of,
    mark_of,
)

INLINE_CHARS: Final = 2_000  # a finished process above this is fetched when its line is opened
OPEN_CHARS: Final = 64_000  # the same for one that ended badly, which stands open

_WORKER_TAIL = re.compile(r"(-[0-9a-f]{8})?-\d+-\d+-[0-9a-f]+$")
"""A worker's id is its host, then boot, process, start time and chance: people know it by the host."""

STATE_OF_STATUS = {
    "RUNNING": RunState.RUNNING,
    "SUCCESS": RunState.COMPLETED,
    "FAILED": RunState.FAILED,
    "STOPPED": RunState.ABORTED,
    "INTERRUPTED": RunState.INTERRUPTED,
}


@dataclass(frozen=True)
class Facts:
    """What stands beside the messages: the runs by id, who retried which, whether the demo agent answers."""

    session_id: str
    viewer: Viewer
    runs: Mapping[str, Run] = field(default_factory=dict)
    retries: Mapping[str, Run] = field(default_factory=dict)  # run id -> its latest retry
    is_demo: bool = False
    profile: str | None = None  # the session's
    skill_folder: str | None = None
    late: Mapping[str, str] = field(default_factory=dict)  # pause id -> an answer that came too late

    def late_answers(self, t: Transcript) -> tuple[LateAnswer, ...]:
        sent = {run.queue_id for run in self.runs.values()}
        return view_pauses.late_answers(t, self.viewer, self.late, sent)


def turns_of(messages: Sequence[ChatMessage], facts: Facts, *, waiting: frozenset[str] = frozenset()) -> list[Turn]:
    """The turns of a page of messages, oldest first; those of `waiting` runs stand in the queue instead."""
    found: list[Turn] = []
    for message in messages:
        if message.role == "USER" and message.run_id not in waiting:
            found.append(user_turn(message, facts))
        elif message.role == "ASSISTANT":
            found.append(agent_turn(transcript_of(message), facts, message=message))
    return found


def transcript_of(message: ChatMessage) -> Transcript:
    """The saved transcript of an answer; an empty one where none was saved."""
    saved = message_store.transcript_of(message)
    return Transcript(run_id=message.run_id or message.id) if saved is None else from_json(saved)


def user_turn(message: ChatMessage, facts: Facts) -> UserTurn:
    run = facts.runs.get(message.run_id or "")
    origin = facts.runs.get(run.retry_of) if run is not None and run.retry_of else None
    return UserTurn(
        id=f"message-{message.id}",
        order=message.position,
        number=message.position // 2,
        author=message.author_name or "",
        at=message.created_at,
        text=message.content,
        files=tuple(_files(message.blocks)),
        is_cancelled=message.status == "CANCELLED",
        retry_of=None if origin is None else origin.position,
        queue_id=None if run is None else run.queue_id,
    )


def _files(blocks: list[Any] | None) -> list[str]:
    named = [block for block in blocks or () if isinstance(block, dict) and block.get("type") not in ("text", None)]
    return [str(block.get("name") or block.get("filename") or _("picture")) for block in named]


def agent_turn(
    t: Transcript,
    facts: Facts,
    *,
    message: ChatMessage | None = None,
    run: Run | None = None,
    streams: Streams | None = None,
    whole: bool = False,
) -> AgentTurn:
    """The answer's turn, from its transcript and what the database says of its run.

    `streams`: the text parts as they stream, for a run that goes on. `whole`: with the process, however long."""
    run = run or facts.runs.get(t.run_id)
    state = state_of(t, message, run)
    is_live = state not in FINAL
    now = clock.now()
    order = message.position if message is not None else 2 * (run.position if run else t.number or 0) + 1
    mark = mark_of(state)
    weight = _weight(t)
    is_lazy = not is_live and not whole and weight > (INLINE_CHARS if state == RunState.COMPLETED else OPEN_CHARS)
    told = ending(t, state, message, run, facts)
    late = facts.late_answers(t)
    text = answer_text(t) or (message.content if message is not None else "")
    return AgentTurn(
        id=f"run-{t.run_id}",
        order=order,
        session_id=facts.session_id,
        run_id=t.run_id,
        number=order // 2,
        mark=mark,
        agent=agent_for(t, run, facts),
        facts=_facts(t, message, is_live),
        at=None if is_live else _ended_at(t, message),
        is_live=is_live,
        thinking=None if is_lazy else view_process.thinking(t, now),
        status=view_process.status(t, state, now) if is_live else None,
        tools=() if is_lazy else view_process.tool_groups(t, facts.session_id, now),
        todos=None if is_lazy else view_process.todo_list(t),
        timeline=None if is_lazy else view_process.timeline(t, now),
        notes=view_process.notes(t),
        asks=view_pauses.asks(t, facts.viewer) if is_live else (),
        decisions=view_pauses.decisions(t, late),
        late=late,
        parts=_parts(t, text, streams if is_live else None, is_live),
        ending=told,
        fold=None if is_live or (told is not None and not weight) else fold_line(t, mark, message, has_more=weight > 0),
        text=text,
        is_lazy=is_lazy,
    )


def state_of(t: Transcript, message: ChatMessage | None, run: Run | None) -> RunState:
    """The run's state: a final one wherever it is told first, else what the events tell, else the row."""
    if t.end is not None:
        return t.end.state
    if message is not None and message.status != "RUNNING":
        return STATE_OF_STATUS.get(message.status, RunState.COMPLETED)
    if run is not None and run.state in FINAL:
        return RunState(run.state)
    if t.state not in (RunState.QUEUED, RunState.RUNNING) or run is None:
        return t.state
    if run.state in (RunState.ABORTING, RunState.STARTING, RunState.QUEUED) and t.started_at is None:
        return RunState(run.state)
    return RunState.ABORTING if run.state == RunState.ABORTING else RunState.RUNNING


def _ended_at(t: Transcript, message: ChatMessage | None) -> datetime | None:
    if message is not None and message.completed_at is not None:
        return message.completed_at
    return None if t.end is None else t.end.at


def agent_for(t: Transcript, run: Run | None, facts: Facts) -> Agent:
    return agent_of(t.source or (run.source if run else None), told=t.agent, is_demo=facts.is_demo and t.agent is None)


def _facts(t: Transcript, message: ChatMessage | None, is_live: bool) -> tuple[str, ...]:
    model = (message.model if message is not None else None) or t.model
    worker = _("worker %(name)s", name=_WORKER_TAIL.sub("", t.worker)) if is_live and t.worker else None
    skill = _("skill %(name)s", name=t.skill_folder) if t.skill_folder else None
    return tuple(fact for fact in (t.profile, model, skill, worker) if fact)


def _weight(t: Transcript) -> int:
    """Characters of the process: what folding spares the page."""
    tools = sum(len(tool.result or "") + len(str(tool.arguments or "")) + 40 for tool in t.tools)
    return tools + sum(part.length for part in t.thinking) + sum(len(told.text) for told in t.reasoning) + len(t.todos)


def _parts(t: Transcript, text: str, streams: Streams | None, is_live: bool) -> tuple[AnswerPart, ...]:
    if is_live and streams is None:
        streams = Streams(t.run_id)
    parts = view_answer.answer_parts(t, streams=streams)
    if not parts and text:
        return (AnswerPart(f"run-{t.run_id}-p0", view_answer.markdown(text)),)
    return parts


# ---- the end


def fold_line(t: Transcript, mark: Mark, message: ChatMessage | None, *, has_more: bool) -> Fold:
    """Duration, tools, tokens, model: the facts of a finished process in one line."""
    facts = []
    seconds = _lasted(t)
    if seconds is not None:
        facts.append(render.duration(seconds))
    if t.tools:
        facts.append(view_process.tool_count(len(t.tools)))
    used = _tokens(t, message)
    if used:
        facts.append(_("%(n)s tokens", n=render.tokens(used)))
    if t.end is not None and t.end.already_finished:
        facts.append(_("had finished before the stop"))
    return Fold(mark, tuple(facts), is_empty=not has_more)


def _lasted(t: Transcript) -> float | None:
    if t.end is not None and t.end.duration_ms is not None and t.end.state == RunState.COMPLETED:
        return t.end.duration_ms / 1000
    if t.end is None or t.started_at is None:
        return None
    return (t.end.at - t.started_at).total_seconds()


def _tokens(t: Transcript, message: ChatMessage | None) -> int:
    if message is not None and (message.input_tokens or message.output_tokens):
        return (message.input_tokens or 0) + (message.output_tokens or 0)
    return 0 if t.usage is None else t.usage.input_tokens + t.usage.output_tokens


def ending(t: Transcript, state: RunState, message: ChatMessage | None, run: Run | None, facts: Facts) -> Ending | None:
    """The box of a turn that failed, was interrupted or stopped; None for the others."""
    if state not in (RunState.FAILED, RunState.INTERRUPTED, RunState.ABORTED):
        return None
    told = t.end.message if t.end is not None else None
    sentence = told or (message.error if message is not None else None) or (run.error if run is not None else None)
    retry = facts.retries.get(t.run_id)
    retried = _("Retried by %(name)s as turn %(n)s", name=retry.user_name, n=retry.position) if retry else ""
    kept = _what_is_kept(t, state)
    return Ending(
        mark=mark_of(state),
        where=_where(t, state, run),
        sentence=_after_each_other(_ended_sentence(told_to_people(sentence or "")), kept)
        or _("The agent gave no reason."),
        ran=_ran(t) if state == RunState.INTERRUPTED else (),
        ladder=_ladder(t) if state == RunState.ABORTED else (),
        may_retry=facts.viewer.may_send,
        retry_is_main=retry is None,
        retry_after_s=t.end.retry_after_s if t.end is not None else None,
        retried=retried,
        detail_id=(t.end.detail_id if t.end is not None else None) or (run.detail_id if run is not None else None),
        changed_skill=_changed_skill(t, run, facts),
    )


def _changed_skill(t: Transcript, run: Run | None, facts: Facts) -> str:
    code = t.end.code if t.end is not None else None
    code = code or (run.error_code if run is not None else None)
    skill = t.skill_folder or (run.skill_folder if run is not None else None) or facts.skill_folder
    if code != SKILL_CHANGED or not skill or not facts.viewer.may_send:
        return ""
    return render.url("chat", "skills", skill, profile=facts.profile or DEFAULT_PROFILE, session=facts.session_id)


def _where(t: Transcript, state: RunState, run: Run | None) -> str:
    seconds = _lasted(t)
    after = _("after %(time)s", time=render.duration(seconds)) if seconds is not None else ""
    if state == RunState.ABORTED:
        by = (t.end.by if t.end is not None else None) or (run.abort_by if run is not None else None)
        return _both(_("by %(name)s", name=by) if by else "", after)
    if state == RunState.INTERRUPTED:
        reason = (t.end.reason if t.end is not None else None) or (run.reason if run is not None else None)
        words = interruption(reason or "")
        return _both(words, after)
    return after


def _both(one: str, other: str) -> str:
    return _("%(one)s, %(other)s", one=one, other=other) if one and other else one or other


def _after_each_other(one: str, other: str) -> str:
    """Two sentences; after a full-width mark there is no space."""
    return f"{one}{other}" if one.endswith(("。", "！", "？", "：")) else f"{one} {other}".strip()


def _ended_sentence(text: str) -> str:
    """A peer's words, with a full stop where they have no end of their own."""
    text = text.strip()
    return text if not text or text.endswith((".", "!", "?", ":", "。", "！", "？", "：", "…")) else f"{text}."


def interruption(reason: str) -> str:
    """Why a run was interrupted, for people; from the closed list of RELIABILITY 2.1."""
    return {
        "worker_lost": _("the worker stopped answering"),
        "backend_lost": _("the agent's process or connection ended"),
        "stream_cut": _("the agent's answer was cut off"),
        "protocol_error": _("the agent sent what nobody can read"),
        "time_limit": _("the time limit was reached"),
        "shutdown": _("the worker was shut down"),
        "redis_lost": _("Redis was lost"),
        "disk_full": _("the server's disk is full"),
    }.get(reason, "")


def _what_is_kept(t: Transcript, state: RunState) -> str:
    has_text = any(isinstance(item, TextPart) and item.length for item in t.items)
    if state == RunState.INTERRUPTED:
        kept = _("The text above is kept.") if has_text else ""
        if t.tools:
            again = _("It was not started again by itself, because these tools had already run:")
        else:
            again = _("It was not started again by itself. No tool had run.")
        return _after_each_other(kept, again)
    if state == RunState.ABORTED:
        note = (t.end.note or "") if t.end is not None else ""
        kept = _("Text and tools are kept.") if has_text or t.tools else _("Nothing was sent yet.")
        return f"{note} {kept}".strip()
    return "" if t.tools else _("No tool had run.")


def _ran(t: Transcript) -> tuple[Ran, ...]:
    return tuple(
        Ran(view_process.tool_mark(tool), tool.name, view_process.argument_of(tool), _effect(tool)) for tool in t.tools
    )


def _effect(tool: ToolCall) -> str:
    if tool.ok is None:
        return _("may have run")
    return _("had run") if tool.ok else _("had failed")


def _ladder(t: Transcript) -> tuple[str, ...]:
    words = {
        "requested": _("requested"),
        "seen": _("seen by the worker"),
        "acknowledged": _("acknowledged by the agent"),
        "killed": _("ended by force"),
    }
    first = t.abort[0].at if t.abort else None
    steps = []
    for step in t.abort:
        seconds = step.duration_ms / 1000 if step.duration_ms is not None else _between(first, step.at)
        steps.append(f"{words.get(step.stage, step.stage)} {render.duration(seconds)}")
    return tuple(steps)


def _between(first: datetime | None, then: datetime) -> float:
    return 0.0 if first is None else (then - first).total_seconds()
