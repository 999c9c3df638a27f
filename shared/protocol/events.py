"""What a client may hear (DESIGN 5): one typed union, the same by every door.

An event in the log has no cursor of its own: `seq` and `epoch` are given by the relay (`shared/relay/event_log.py`).
Unknown fields are ignored, so that a newer version of us may send more.
"""

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter

from shared import clock

MAX_TOKENS = 10**12
"""More than any turn can have; servers of models report what they like, and the sums must fit the database."""


def _countable(value: Any) -> Any:
    return min(max(value, 0), MAX_TOKENS) if isinstance(value, int) else value


Time = Annotated[datetime, PlainSerializer(clock.iso_ms, return_type=str)]
Tokens = Annotated[int, BeforeValidator(_countable)]

SKILL_CHANGED: Final = "skill_changed"
"""The code of a run that failed because its skill says something else than what was agreed to (RELIABILITY S33)."""


class Data(BaseModel):
    """The `data` of an event."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Event(BaseModel):
    """The envelope without its cursor. `fence` is that of the run's worker; absent on what the web process says."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    session_id: str
    run_id: str | None = None
    fence: int | None = None
    at: Time = Field(default_factory=clock.now)


# ---- shapes shared by several events


class QueueItem(Data):
    queue_id: str
    run_id: str
    position: int
    input: str
    by: str | None = None


class Todo(Data):
    id: str
    text: str
    status: str  # pending | in_progress | completed | cancelled


class Usage(Data):
    """Tokens. `context_used` is the last request's prompt; `total_*` is the sum over the session."""

    input_tokens: Tokens = 0
    output_tokens: Tokens = 0
    cached_tokens: Tokens = 0
    reasoning_tokens: Tokens = 0
    context_used: Tokens | None = None
    context_window: Tokens | None = None
    total_input_tokens: int | None = None
    total_output_tokens: int | None = None


class TextPiece(Data):
    """`part` numbers the text parts of a run; `offset` counts Unicode code points already in that part."""

    part: int = Field(ge=0)
    offset: int = Field(ge=0)
    text: str


# ---- queue


class RunQueuedData(Data):
    queue_id: str
    position: int  # 0: starts at once; else the place in the queue
    queue_length: int
    held: bool = False
    message_id: str
    input: str  # the part that is shown
    by: str | None = None  # display name
    number: int | None = None  # the turn's number in the session
    retry_of: str | None = None  # the run that it tries again


class RunQueued(Event):
    event: Literal["run.queued"] = "run.queued"
    data: RunQueuedData


class QueueUpdatedData(Data):
    queue: list[QueueItem]
    held: str | None = None  # why it is held, for people; None: it runs


class QueueUpdated(Event):
    event: Literal["queue.updated"] = "queue.updated"
    data: QueueUpdatedData


class RunDequeuedData(Data):
    queue_id: str
    reason: Literal["cancelled", "started", "failed"]


class RunDequeued(Event):
    event: Literal["run.dequeued"] = "run.dequeued"
    data: RunDequeuedData


# ---- a run


class RunStartedData(Data):
    source: str
    message_id: str | None = None  # of the answer
    profile: str | None = None
    model: str | None = None
    skill_folder: str | None = None
    worker: str | None = None
    number: int | None = None
    agent: str | None = None  # the name shown, e.g. "Hermes", "Demo agent"


class RunStarted(Event):
    event: Literal["run.started"] = "run.started"
    data: RunStartedData


class MessageDelta(Event):
    event: Literal["message.delta"] = "message.delta"
    data: TextPiece


class ReasoningDelta(Event):
    event: Literal["reasoning.delta"] = "reasoning.delta"
    data: TextPiece


class ThinkingDelta(Event):
    event: Literal["thinking.delta"] = "thinking.delta"
    data: TextPiece


class ReasoningAvailableData(Data):
    text: str


class ReasoningAvailable(Event):
    event: Literal["reasoning.available"] = "reasoning.available"
    data: ReasoningAvailableData


class StatusUpdatedData(Data):
    text: str


class StatusUpdated(Event):
    event: Literal["status.updated"] = "status.updated"
    data: StatusUpdatedData


class ToolStartedData(Data):
    tool_id: str
    name: str
    arguments: dict[str, Any] | str | None = None  # the object; the raw string where it is not JSON; None: not told
    summary: str = ""


class ToolStarted(Event):
    event: Literal["tool.started"] = "tool.started"
    data: ToolStartedData


class ToolProgressData(Data):
    tool_id: str
    text: str


class ToolProgress(Event):
    event: Literal["tool.progress"] = "tool.progress"
    data: ToolProgressData


class ToolCompletedData(Data):
    tool_id: str
    name: str
    ok: bool | None = None  # None, and absent on the wire: the outcome is not known (the run ended first)
    result: str | None = None  # at most the first 16 KB; None: the backend does not tell results
    truncated: bool = False
    full_size: int | None = None  # bytes of the whole result
    duration_ms: int | None = None
    error: str | None = None


class ToolCompleted(Event):
    event: Literal["tool.completed"] = "tool.completed"
    data: ToolCompletedData


class TodoUpdatedData(Data):
    todos: list[Todo]


class TodoUpdated(Event):
    event: Literal["todo.updated"] = "todo.updated"
    data: TodoUpdatedData


# ---- pauses


class ApprovalRequestedData(Data):
    approval_id: str
    kind: str  # the tool's or the pattern's name
    command: str  # exact, as it will run
    description: str = ""
    choices: list[str]  # of once, session, always, deny
    deadline: Time | None = None
    may_answer: list[str] | None = None  # user ids; None: the owner


class ApprovalRequested(Event):
    event: Literal["approval.requested"] = "approval.requested"
    data: ApprovalRequestedData


class ApprovalResolvedData(Data):
    approval_id: str
    choice: str | None = None
    by: str | None = None
    reason: Literal["answered", "expired", "withdrawn"]


class ApprovalResolved(Event):
    event: Literal["approval.resolved"] = "approval.resolved"
    data: ApprovalResolvedData


class ClarifyRequestedData(Data):
    clarify_id: str
    question: str
    choices: list[str] = []
    deadline: Time | None = None


class ClarifyRequested(Event):
    event: Literal["clarify.requested"] = "clarify.requested"
    data: ClarifyRequestedData


class ClarifyResolvedData(Data):
    clarify_id: str
    answer: str | None = None
    by: str | None = None
    reason: Literal["answered", "expired", "withdrawn"]


class ClarifyResolved(Event):
    event: Literal["clarify.resolved"] = "clarify.resolved"
    data: ClarifyResolvedData


# ---- compression, usage


class CompressionStartedData(Data):
    before_tokens: Tokens


class CompressionStarted(Event):
    event: Literal["compression.started"] = "compression.started"
    data: CompressionStartedData


class CompressionCompletedData(Data):
    before_tokens: Tokens
    after_tokens: Tokens
    summary_tokens: Tokens = 0
    changed: bool  # False: no gain


class CompressionCompleted(Event):
    event: Literal["compression.completed"] = "compression.completed"
    data: CompressionCompletedData


class UsageUpdated(Event):
    event: Literal["usage.updated"] = "usage.updated"
    data: Usage


# ---- ends


class AbortData(Data):
    by: str | None = None
    stage: Literal["requested", "seen", "acknowledged", "killed"] = "requested"
    duration_ms: int | None = None  # since the request
    note: str | None = None  # what the backend could not do, for people


class AbortStarted(Event):
    event: Literal["abort.started"] = "abort.started"
    data: AbortData


class AbortCompleted(Event):
    event: Literal["abort.completed"] = "abort.completed"
    data: AbortData


class RunCompletedData(Data):
    message_id: str
    finish_reason: str | None = None
    usage: Usage | None = None
    duration_ms: int
    abort: Literal["already_finished"] | None = None


class RunCompleted(Event):
    event: Literal["run.completed"] = "run.completed"
    data: RunCompletedData


class RunFailedData(Data):
    code: str
    message: str  # a sentence for people
    retryable: bool = True
    retry_after_s: int | None = None
    detail_id: str | None = None  # stands in the log beside the details
    reason: str | None = None  # of the closed list


class RunFailed(Event):
    event: Literal["run.failed"] = "run.failed"
    data: RunFailedData


class RunCancelledData(Data):
    queue_id: str
    by: str | None = None


class RunCancelled(Event):
    event: Literal["run.cancelled"] = "run.cancelled"
    data: RunCancelledData


class ToolRan(Data):
    tool_id: str
    name: str
    summary: str = ""
    finished: bool


class RunInterruptedData(Data):
    reason: str  # of the closed list
    message: str = ""  # a sentence for people
    tools_already_run: list[ToolRan] = []


class RunInterrupted(Event):
    event: Literal["run.interrupted"] = "run.interrupted"
    data: RunInterruptedData


class SessionUpdatedData(Data):
    """Only the fields that changed are set."""

    title: str | None = None
    archived: bool | None = None
    deleted: bool | None = None
    model: str | None = None
    profile: str | None = None
    skill_folder: str | None = None
    on_failure: str | None = None


class SessionUpdated(Event):
    event: Literal["session.updated"] = "session.updated"
    data: SessionUpdatedData


AnyEvent = Annotated[
    RunQueued
    | QueueUpdated
    | RunDequeued
    | RunStarted
    | MessageDelta
    | ReasoningDelta
    | ThinkingDelta
    | ReasoningAvailable
    | StatusUpdated
    | ToolStarted
    | ToolProgress
    | ToolCompleted
    | TodoUpdated
    | ApprovalRequested
    | ApprovalResolved
    | ClarifyRequested
    | ClarifyResolved
    | CompressionStarted
    | CompressionCompleted
    | UsageUpdated
    | AbortStarted
    | AbortCompleted
    | RunCompleted
    | RunFailed
    | RunCancelled
    | RunInterrupted
    | SessionUpdated,
    Field(discriminator="event"),
]
EVENT: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)
"""Reads an event: `EVENT.validate_json(payload)`; raises pydantic.ValidationError for what is not one of ours."""

Delta = MessageDelta | ReasoningDelta | ThinkingDelta
RunEnd = RunCompleted | RunFailed | RunCancelled | RunInterrupted | AbortCompleted
"""Every run ends with exactly one of these."""


def to_payload(event: Event) -> str:
    """The JSON text that goes into the log: the envelope without `seq` and `epoch`, without absent fields."""
    return event.model_dump_json(exclude_none=True)
