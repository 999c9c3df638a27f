"""A run that goes on, as one page shows it: what of it has been sent, and the fragments for what has changed since."""

from dataclasses import dataclass, field, replace

from markupsafe import escape

from shared import clock
from shared.protocol import events as e
from shared.transcript import TextPart, ToolCall, Transcript, fold
from webapp import view_answer, view_pauses, view_process
from webapp.markdown import Patch
from webapp.render import render
from webapp.view_answer import Streams
from webapp.view_turns import Facts, agent_turn, state_of
from webapp.views import AgentTurn, mark_of

SETS = ("rail", "status_line", "todos", "aside", "timeline", "pauses")
"""Fragments of a turn that are sent whole when they change."""


@dataclass
class LiveTurn:
    """`dirty` names the regions that changed since the last frame, `tools` the groups of calls."""

    transcript: Transcript
    facts: Facts
    skeleton: AgentTurn
    streams: Streams
    sent: dict[int, int] = field(default_factory=dict)  # text part -> length sent
    thinks: bool = False
    dirty: set[str] = field(default_factory=set)
    tools: set[int] = field(default_factory=set)

    @classmethod
    def adopt(cls, t: Transcript, facts: Facts) -> "LiveTurn":
        bare = agent_turn(Transcript(run_id=t.run_id, number=t.number), facts, run=facts.runs.get(t.run_id))
        turn = cls(t, facts, bare, Streams(t.run_id))
        turn.refresh()
        return turn

    @property
    def id(self) -> str:
        return self.skeleton.id

    def take(self, event: e.AnyEvent) -> None:
        """Fold one event of this run. Raises Gap."""
        t = self.transcript
        fold(t, event)
        last = t.items[-1] if t.items else None
        thinks = isinstance(last, TextPart) and last.kind != "message"
        if thinks != self.thinks or (isinstance(last, TextPart) and not thinks and not self.sent.get(last.part)):
            self.thinks = thinks
            self.dirty.update(("status_line", "thinking"))
        if isinstance(event, e.ToolStarted | e.ToolProgress | e.ToolCompleted):
            tool = t.tool(event.data.tool_id)
            if tool is not None:
                self.tools.add(tool.group)

    def refresh(self) -> None:
        """Make the skeleton anew: the turn without its regions, which each fragment of it is rendered with."""
        t = self.transcript
        bare = Transcript(
            run_id=t.run_id,
            number=t.number,
            queued_at=t.queued_at,
            started_at=t.started_at,
            source=t.source,
            agent=t.agent,
            profile=t.profile,
            model=t.model,
            skill_folder=t.skill_folder,
            worker=t.worker,
        )
        order = self.skeleton.order
        shown = agent_turn(bare, self.facts, run=self.facts.runs.get(t.run_id))
        self.skeleton = replace(shown, order=order, number=order // 2)

    def whole(self) -> AgentTurn:
        """Everything of it, and from now on only what changes."""
        self.streams = Streams(self.transcript.run_id)
        run = self.facts.runs.get(self.transcript.run_id)
        whole = agent_turn(self.transcript, self.facts, run=run, streams=self.streams)
        self.sent = {part.part: part.length for part in self.transcript.items if isinstance(part, TextPart)}
        self.dirty.clear()
        self.tools.clear()
        return replace(whole, order=self.skeleton.order, number=self.skeleton.number)

    def changes(self, session_id: str) -> list[str]:
        """The fragments of a turn that changed since the last frame."""
        parts: list[str] = []
        if "answer" in self.dirty:
            parts += self.answer_changes()
        if "thinking" in self.dirty and (self.transcript.thinking or self.transcript.reasoning):
            parts += self._thinking_changes()
        if self.tools:
            now = clock.now()
            groups = view_process.tool_groups(self.transcript, session_id, now, only=self.tools)
            parts += [render("fragments/tool_group.html", turn=self.skeleton, group=g, oob="morph") for g in groups]
        shown: AgentTurn | None = None
        for region in SETS:
            if region in self.dirty:
                shown = shown or self._regions()
                parts.append(render(f"fragments/{region}.html", turn=shown, oob="morph"))
        self.dirty.clear()
        self.tools.clear()
        return parts

    def _regions(self) -> AgentTurn:
        t, now = self.transcript, clock.now()
        state = state_of(t, None, self.facts.runs.get(t.run_id))
        late = self.facts.late_answers(t)
        return replace(
            self.skeleton,
            mark=mark_of(state),
            status=view_process.status(t, state, now),
            todos=view_process.todo_list(t),
            timeline=view_process.timeline(t, now),
            notes=view_process.notes(t),
            asks=view_pauses.asks(t, self.facts.viewer),
            decisions=view_pauses.decisions(t, late),
            late=late,
        )

    def answer_changes(self) -> list[str]:
        parts: list[str] = []
        before: TextPart | None = None
        tools: list[str] = []
        for item in self.transcript.items:
            if isinstance(item, ToolCall):
                tools.append(item.name)
            if not isinstance(item, TextPart) or item.kind != "message" or not item.length:
                continue
            if self.sent.get(item.part, 0) < item.length:
                stream, is_new = self.streams.take(item)
                if is_new:
                    if before is not None:
                        last, _new = self.streams.take(before)
                        parts += patch_html(view_answer.part_id(self.transcript.run_id, before), last.close())
                    after = tuple(dict.fromkeys(tools)) if before is not None else ()
                    stream.flush()
                    shown = view_answer.open_part(self.transcript.run_id, item, stream, after)
                    inner = render("fragments/answer_part.html", part=shown)
                    parts.append(f'<div hx-swap-oob="beforeend:#{self.id}-answer">{inner}</div>')
                else:
                    parts += patch_html(view_answer.part_id(self.transcript.run_id, item), stream.flush())
                self.sent[item.part] = item.length
            before, tools = item, []
        return parts

    def _thinking_changes(self) -> list[str]:
        t = self.transcript
        thoughts = [part for part in t.thinking if part.length]
        is_first = not any(self.sent.get(part.part) for part in thoughts)
        if is_first or not thoughts:
            shown = replace(self.skeleton, thinking=view_process.thinking(t, clock.now()))
            self.sent.update({part.part: part.length for part in thoughts})
            return [render("fragments/thinking.html", turn=shown, oob="morph")]
        added = []
        for part in thoughts:
            sent = self.sent.get(part.part, 0)
            if sent < part.length:
                added.append(("" if sent else "\n\n") + part.since(sent))
                self.sent[part.part] = part.length
        parts = []
        if added:
            parts.append(f'<span hx-swap-oob="beforeend:#{self.id}-thought">{escape("".join(added))}</span>')
        peek = view_process.peek(thoughts[-1].tail(view_process.PEEK_CHARS * 2))
        took_s = sum((part.ended_at - part.started_at).total_seconds() for part in thoughts)
        parts.append(
            render("fragments/thought_for.html", turn=self.skeleton, peek=peek, took_s=took_s, thinks=self.thinks)
        )
        return parts


def patch_html(dom_id: str, patch: Patch) -> list[str]:
    """A change of a streaming text as out-of-band fragments."""
    if patch.empty:
        return []
    parts = []
    if patch.finished:
        parts.append(f'<div hx-swap-oob="beforebegin:#{dom_id}-open">{patch.finished}</div>')
    if patch.open_html is not None:
        parts.append(f'<div class="open" id="{dom_id}-open" hx-swap-oob="true">{patch.open_html}</div>')
    if patch.grow:
        tag = "table" if patch.grow_rows else "span"
        parts.append(f'<{tag} hx-swap-oob="beforeend:#{dom_id}-grow">{patch.grow}</{tag}>')
    if patch.tail is not None:
        parts.append(f'<span id="{dom_id}-tail" hx-swap-oob="true">{patch.tail}</span>')
    if patch.tail_added:
        parts.append(f'<span hx-swap-oob="beforeend:#{dom_id}-tail">{patch.tail_added}</span>')
    return parts
