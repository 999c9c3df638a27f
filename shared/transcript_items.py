"""What a transcript holds, in the order in which it happened. Filled by `shared/transcript.py`. Pure, no I/O."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from shared.protocol import events as e
from shared.run_state import RunState

TextKind = Literal["message", "reasoning", "thinking"]


@dataclass(eq=False)
class TextPart:
    """One text part. `length` counts code points; the text is kept in pieces and joined when it is asked for."""

    part: int
    kind: TextKind
    started_at: datetime
    ended_at: datetime  # of the last piece
    length: int = 0
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        if len(self.pieces) > 1:
            self.pieces[:] = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""

    def tail(self, length: int) -> str:
        """The last `length` code points, without joining the whole."""
        found: list[str] = []
        missing = length
        for piece in reversed(self.pieces):
            if missing <= 0:
                break
            found.append(piece[-missing:])
            missing -= len(piece)
        return "".join(reversed(found))

    def since(self, offset: int) -> str:
        """The text from code point `offset` on."""
        return self.tail(self.length - offset) if offset < self.length else ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextPart) and self._facts() == other._facts()

    def _facts(self) -> tuple[object, ...]:
        return self.part, self.kind, self.started_at, self.ended_at, self.text


@dataclass
class ReasoningText:
    """A whole piece of reasoning told at once (`reasoning.available`), beside or instead of its deltas."""

    text: str
    at: datetime


@dataclass
class ToolCall:
    """`ok` is None while it runs, and after the end when the outcome is not known ("may have run"); `is_open` tells
    them apart. Calls of one `group` ran side by side."""

    tool_id: str
    name: str
    group: int
    started_at: datetime
    arguments: dict[str, Any] | str | None = None
    summary: str = ""
    progress: str = ""
    ended_at: datetime | None = None
    ok: bool | None = None
    result: str | None = None
    truncated: bool = False
    full_size: int | None = None  # bytes of the whole result
    duration_ms: int | None = None
    error: str | None = None

    @property
    def is_open(self) -> bool:
        return self.ended_at is None


@dataclass
class Approval:
    approval_id: str
    kind: str
    command: str
    asked_at: datetime
    description: str = ""
    choices: list[str] = field(default_factory=list)
    deadline: datetime | None = None
    may_answer: list[str] | None = None
    resolved_at: datetime | None = None
    reason: str | None = None  # answered | expired | withdrawn
    choice: str | None = None
    by: str | None = None

    @property
    def is_open(self) -> bool:
        return self.resolved_at is None


@dataclass
class Clarification:
    clarify_id: str
    question: str
    asked_at: datetime
    choices: list[str] = field(default_factory=list)
    deadline: datetime | None = None
    resolved_at: datetime | None = None
    reason: str | None = None  # answered | expired | withdrawn
    answer: str | None = None
    by: str | None = None

    @property
    def is_open(self) -> bool:
        return self.resolved_at is None


@dataclass
class EarlyDecision:
    """A decision heard before its request: whoever answers is told of the request by the database, not by the log."""

    pause_id: str
    at: datetime
    reason: str
    said: str | None = None  # the choice or the answer
    by: str | None = None


@dataclass
class Compression:
    """The mark where older turns were shortened. `changed` is False when nothing was gained."""

    before_tokens: int
    started_at: datetime
    ended_at: datetime | None = None
    after_tokens: int | None = None
    summary_tokens: int | None = None
    changed: bool | None = None


Pause = Approval | Clarification
Item = TextPart | ReasoningText | ToolCall | Approval | Clarification | Compression


@dataclass
class AbortStep:
    """One step of the stop ladder: requested, seen, acknowledged, killed."""

    stage: str
    at: datetime
    by: str | None = None
    duration_ms: int | None = None  # since the request
    note: str | None = None


@dataclass
class End:
    """How the run ended; what is not told of this kind of end is None."""

    state: RunState
    at: datetime
    finish_reason: str | None = None
    duration_ms: int | None = None
    code: str | None = None
    message: str | None = None  # a sentence for people
    retryable: bool | None = None
    retry_after_s: int | None = None
    detail_id: str | None = None
    reason: str | None = None  # of the closed list of RELIABILITY 2.1
    by: str | None = None
    note: str | None = None
    already_finished: bool = False  # an abort came too late, the answer is whole
    tools_already_run: list[e.ToolRan] = field(default_factory=list)


@dataclass
class Transcript:
    """What one run's turn shows. `message_id` is the answer's, `question_id` that of the user's message."""

    run_id: str
    fence: int = 0
    number: int | None = None
    queue_id: str | None = None
    question_id: str | None = None
    asked_by: str | None = None
    queued_at: datetime | None = None
    started_at: datetime | None = None
    message_id: str | None = None
    source: str | None = None
    agent: str | None = None
    profile: str | None = None
    model: str | None = None
    skill_folder: str | None = None
    worker: str | None = None
    status: str = ""
    status_at: datetime | None = None
    todos: list[e.Todo] = field(default_factory=list)
    usage: e.Usage | None = None
    items: list[Item] = field(default_factory=list)
    abort: list[AbortStep] = field(default_factory=list)
    end: End | None = None
    early: list[EarlyDecision] = field(default_factory=list)
    _parts: dict[int, TextPart] = field(default_factory=dict, compare=False, repr=False)
    _tools: dict[str, ToolCall] = field(default_factory=dict, compare=False, repr=False)
    _pauses: dict[str, Pause] = field(default_factory=dict, compare=False, repr=False)

    @property
    def state(self) -> RunState:
        """The state as far as the events tell it."""
        if self.end is not None:
            return self.end.state
        if self.abort:
            return RunState.ABORTING
        for pause in self._pauses.values():
            if pause.is_open:
                is_approval = isinstance(pause, Approval)
                return RunState.AWAITING_APPROVAL if is_approval else RunState.AWAITING_CLARIFICATION
        return RunState.QUEUED if self.started_at is None else RunState.RUNNING

    @property
    def thinking(self) -> list[TextPart]:
        """Region 1: reasoning and thinking parts, in order."""
        return [part for part in self._parts.values() if part.kind != "message"]

    @property
    def reasoning(self) -> list[ReasoningText]:
        """Reasoning told whole; to be shown where there were no deltas of it."""
        return [item for item in self.items if isinstance(item, ReasoningText)]

    @property
    def answer_parts(self) -> list[TextPart]:
        return [part for part in self._parts.values() if part.kind == "message"]

    @property
    def tools(self) -> list[ToolCall]:
        """Region 3, in the order in which they began."""
        return list(self._tools.values())

    @property
    def tool_groups(self) -> list[list[ToolCall]]:
        """The tools, those that ran side by side together."""
        groups: dict[int, list[ToolCall]] = {}
        for tool in self._tools.values():
            groups.setdefault(tool.group, []).append(tool)
        return list(groups.values())

    @property
    def pauses(self) -> list[Pause]:
        return list(self._pauses.values())

    @property
    def open_pauses(self) -> list[Pause]:
        """Region 5: what waits for a person."""
        return [pause for pause in self._pauses.values() if pause.is_open]

    def part(self, number: int) -> TextPart | None:
        return self._parts.get(number)

    def tool(self, tool_id: str) -> ToolCall | None:
        return self._tools.get(tool_id)

    def pause(self, pause_id: str) -> Pause | None:
        return self._pauses.get(pause_id)

    def add(self, item: Item) -> None:
        """Put an item at the end and into the index of its kind."""
        self.items.append(item)
        if isinstance(item, TextPart):
            self._parts[item.part] = item
        elif isinstance(item, ToolCall):
            self._tools[item.tool_id] = item
        elif isinstance(item, Approval):
            self._pauses[item.approval_id] = item
        elif isinstance(item, Clarification):
            self._pauses[item.clarify_id] = item
