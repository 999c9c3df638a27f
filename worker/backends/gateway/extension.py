"""What a gateway may add to `/v1/responses` to carry all five regions: our extension, announced in `/v1/capabilities`.

    {"portal_extensions": {"version": 1, "events": ["portal.status", ...], "approval": "/v1/responses/{id}/approval",
     "clarify": "/v1/responses/{id}/clarify", "stop": "/v1/responses/{id}/stop", "approval_limit_s": 60}}

Its events stand in the same stream, framed as all others (`event: NAME`, `data: {"type": NAME, ...}`, each with its
`sequence_number`). Three requests go the other way: the approval `{"approval_id", "choice"}` and the answer
`{"clarify_id", "answer": text or null}` are answered 200, 404 (no such pause) or 409 (no longer open); the stop is
answered 202, and the stream then ends with `response.incomplete`. `{id}` is the id of `response.created`. The built-in
demo gateway speaks it; whoever announces it is served the same.
"""

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from shared.protocol.events import Todo, Usage

VERSION = 1
REASONING_DELTA: Final = "portal.reasoning.delta"
STATUS: Final = "portal.status"
TOOL_PROGRESS: Final = "portal.tool.progress"
TODOS: Final = "portal.todos"
APPROVAL_REQUEST: Final = "portal.approval.request"
APPROVAL_RESOLVED: Final = "portal.approval.resolved"
CLARIFY_REQUEST: Final = "portal.clarify.request"
CLARIFY_RESOLVED: Final = "portal.clarify.resolved"
USAGE: Final = "portal.usage"
EVENTS = (
    REASONING_DELTA,
    STATUS,
    TOOL_PROGRESS,
    TODOS,
    APPROVAL_REQUEST,
    APPROVAL_RESOLVED,
    CLARIFY_REQUEST,
    CLARIFY_RESOLVED,
    USAGE,
)
APPROVAL_PATH = "/v1/responses/{id}/approval"
CLARIFY_PATH = "/v1/responses/{id}/clarify"
STOP_PATH = "/v1/responses/{id}/stop"


class Announcement(BaseModel):
    """The value of `portal_extensions` in `/v1/capabilities`. A missing path: that request is not served."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    version: int = VERSION
    events: tuple[str, ...] = EVENTS
    approval: str | None = APPROVAL_PATH
    clarify: str | None = CLARIFY_PATH
    stop: str | None = STOP_PATH
    approval_limit_s: float | None = None  # after which the gateway denies by itself


class ExtensionFrame(BaseModel):
    """`sequence_number` counts all frames of the response, ours among them."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    sequence_number: int | None = None


class ReasoningDelta(ExtensionFrame):
    """A piece of the model's reasoning."""

    type: Literal["portal.reasoning.delta"] = REASONING_DELTA
    delta: str


class StatusLine(ExtensionFrame):
    """The live status; it replaces the one before, an empty one clears it."""

    type: Literal["portal.status"] = STATUS
    text: str


class ToolProgress(ExtensionFrame):
    """The line to show at a running tool; `call_id` is that of its function_call."""

    type: Literal["portal.tool.progress"] = TOOL_PROGRESS
    call_id: str
    text: str


class TodoList(ExtensionFrame):
    """The whole list, also after a change of one item."""

    type: Literal["portal.todos"] = TODOS
    todos: tuple[Todo, ...]


class ApprovalRequest(ExtensionFrame):
    """The run waits for a choice of `choices`. `command` is exact, as it will run."""

    type: Literal["portal.approval.request"] = APPROVAL_REQUEST
    approval_id: str
    kind: str = "command"
    command: str
    description: str = ""
    choices: tuple[Literal["once", "session", "always", "deny"], ...] = ("once", "session", "always", "deny")


class ApprovalResolved(ExtensionFrame):
    """The run no longer waits: answered (`choice`), or timed out there (None)."""

    type: Literal["portal.approval.resolved"] = APPROVAL_RESOLVED
    approval_id: str
    choice: str | None = None


class ClarifyRequest(ExtensionFrame):
    """The run waits for an answer: one of `choices`, or any text."""

    type: Literal["portal.clarify.request"] = CLARIFY_REQUEST
    clarify_id: str
    question: str
    choices: tuple[str, ...] = ()


class ClarifyResolved(ExtensionFrame):
    """The run no longer waits; `answer` None: it went on without one."""

    type: Literal["portal.clarify.resolved"] = CLARIFY_RESOLVED
    clarify_id: str
    answer: str | None = None


class UsageNow(ExtensionFrame):
    """Tokens so far in this response."""

    type: Literal["portal.usage"] = USAGE
    usage: Usage


class ApprovalAnswer(BaseModel):
    """The body of the approval request."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    approval_id: str
    choice: Literal["once", "session", "always", "deny"]


class ClarifyAnswer(BaseModel):
    """The body of the clarify request; `answer` None: there was none in time."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    clarify_id: str
    answer: str | None = None
