"""The frames of `/v1/responses` and `/v1/runs` as typed shapes (hermes/SURFACES.md 1.1 and 1.3).

Unknown fields are ignored and unknown events read as `Ignored`. Lone surrogates and broken UTF-8 become U+FFFD.
"""

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.errors import BackendProtocolError
from shared.text import storable
from worker.backends.gateway import extension
from worker.backends.gateway.sse import SseEvent


class Shape(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Frame(Shape):
    """`sequence_number` counts the frames of a response, from 0; other peers may give none."""

    sequence_number: int | None = None


class Ignored(Frame):
    """A frame of a kind that we do not know: a sign of life and no more."""


# ---- parts of /v1/responses


class TokenDetails(Shape):
    cached_tokens: int | None = 0
    reasoning_tokens: int | None = 0


class TokenUsage(Shape):
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int | None = None
    input_tokens_details: TokenDetails | None = None
    output_tokens_details: TokenDetails | None = None


class ContentPart(Shape):
    type: str = ""
    text: str | None = None
    refusal: str | None = None


class OutputItem(Shape):
    """A message, a function_call, a function_call_output or what else a peer sends. `arguments` is a JSON string."""

    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | dict[str, Any] | None = None
    output: str | list[ContentPart] | None = None
    content: str | list[ContentPart] | None = None
    status: str | None = None
    message: str | None = None  # of an error item

    def text(self) -> str:
        """Of a message: its text parts joined."""
        return _joined(self.content)

    def result(self) -> str:
        """Of a function_call_output: its parts joined (a plain string where nothing was streamed)."""
        return _joined(self.output)


def _joined(parts: str | list[ContentPart] | None) -> str:
    if isinstance(parts, str):
        return parts
    return "".join(part.text or part.refusal or "" for part in parts or ())


class ErrorShape(Shape):
    message: str | None = None
    code: str | int | None = None
    type: str | None = None


class IncompleteDetails(Shape):
    reason: str | None = None


class ResponseBody(Shape):
    """A response as it stands, in the first and last frames and at `GET /v1/responses/{id}`."""

    id: str = ""
    status: str | None = None
    model: str | None = None
    output: list[OutputItem] = []
    usage: TokenUsage | None = None
    error: ErrorShape | str | None = None
    incomplete_details: IncompleteDetails | None = None

    def text(self) -> str:
        return "".join(item.text() for item in self.output if item.type == "message")


# ---- frames of /v1/responses


class ResponseBegun(Frame):
    response: ResponseBody


class ItemAdded(Frame):
    output_index: int | None = None
    item: OutputItem


class ItemDone(Frame):
    output_index: int | None = None
    item: OutputItem


class TextDelta(Frame):
    delta: str | None = None


class ThoughtDelta(Frame):
    delta: str | None = None


class ResponseEnded(Frame):
    """response.completed, response.failed or response.incomplete: see `type`."""

    type: str
    response: ResponseBody


class StreamError(Frame):
    """The event `error`: the peer gives up without a final response."""

    message: str | None = None
    code: str | int | None = None
    error: ErrorShape | str | None = None


ResponseFrame = Frame | extension.ExtensionFrame

_RESPONSE_FRAMES: dict[str, type[Frame] | type[extension.ExtensionFrame]] = {
    "response.created": ResponseBegun,
    "response.output_item.added": ItemAdded,
    "response.output_item.done": ItemDone,
    "response.output_text.delta": TextDelta,
    "response.refusal.delta": TextDelta,
    "response.reasoning_text.delta": ThoughtDelta,
    "response.reasoning_summary_text.delta": ThoughtDelta,
    "response.completed": ResponseEnded,
    "response.failed": ResponseEnded,
    "response.incomplete": ResponseEnded,
    "error": StreamError,
    extension.REASONING_DELTA: extension.ReasoningDelta,
    extension.STATUS: extension.StatusLine,
    extension.TOOL_PROGRESS: extension.ToolProgress,
    extension.TODOS: extension.TodoList,
    extension.APPROVAL_REQUEST: extension.ApprovalRequest,
    extension.APPROVAL_RESOLVED: extension.ApprovalResolved,
    extension.CLARIFY_REQUEST: extension.ClarifyRequest,
    extension.CLARIFY_RESOLVED: extension.ClarifyResolved,
    extension.USAGE: extension.UsageNow,
}


def parse_response_frame(event: SseEvent) -> ResponseFrame:
    """Raises BackendProtocolError for what is no JSON, or not the shape that its name promises."""
    if event.data.strip() == b"[DONE]":
        return Ignored()
    model = _RESPONSE_FRAMES.get(event.name or _text_field(event.data, "type"), Ignored)
    try:
        frame = _validated(model, event.data)
    except BackendProtocolError:
        if model is Ignored and event.name:
            return Ignored()  # what an event means that we do not know is not ours to say
        raise
    assert isinstance(frame, Frame | extension.ExtensionFrame)
    return frame


# ---- frames of /v1/runs


class RunFrame(Shape):
    """Every frame names its run."""

    run_id: str = ""


class RunIgnored(RunFrame):
    pass


class RunText(RunFrame):
    delta: str | None = None


class RunToolBegun(RunFrame):
    tool: str
    preview: str | None = None


class RunToolEnded(RunFrame):
    tool: str
    duration: float | None = None  # seconds
    error: bool | str | None = None


class RunApproval(RunFrame):
    """Carries no id: answers go to the oldest pending one of the run."""

    command: str = ""
    description: str = ""
    pattern_key: str | None = None
    choices: list[str] = ["once", "session", "always", "deny"]


class RunApprovalAnswered(RunFrame):
    choice: str | None = None
    resolved: int = 1


class RunCompleted(RunFrame):
    output: str | None = None
    usage: TokenUsage | None = None


class RunFailed(RunFrame):
    error: str | None = None


class RunCancelled(RunFrame):
    pass


_RUN_FRAMES: dict[str, type[RunFrame]] = {
    "message.delta": RunText,
    "tool.started": RunToolBegun,
    "tool.completed": RunToolEnded,
    "approval.request": RunApproval,
    "approval.responded": RunApprovalAnswered,
    "run.completed": RunCompleted,
    "run.failed": RunFailed,
    "run.cancelled": RunCancelled,
}
"""`reasoning.available` is left out: it repeats the assistant's text, it is no reasoning."""


def parse_run_frame(event: SseEvent) -> RunFrame:
    """Raises BackendProtocolError for what is no JSON, or not the shape that its name promises."""
    if event.data.strip() == b"[DONE]":
        return RunIgnored()
    frame = _validated(_RUN_FRAMES.get(_text_field(event.data, "event"), RunIgnored), event.data)
    assert isinstance(frame, RunFrame)
    return frame


class RunAccepted(Shape):
    """The answer to `POST /v1/runs`."""

    run_id: str = Field(min_length=1)
    status: str = ""


class RunStatus(Shape):
    """`GET /v1/runs/{id}`."""

    run_id: str = ""
    status: str  # queued, running, waiting_for_approval, stopping, completed, failed or cancelled
    output: str | None = None
    usage: TokenUsage | None = None
    error: str | None = None


class GatewayAbilities(Shape):
    """The part of `GET /v1/capabilities` that we use."""

    features: dict[str, Any] = {}
    portal_extensions: extension.Announcement | None = None


class GatewayHealth(Shape):
    """`GET /health`."""

    version: str | None = None


# ---- reading


S = TypeVar("S", bound=Shape)


def parse_body(model: type[S], body: bytes) -> S:
    """A JSON body as `model`. Raises BackendProtocolError."""
    shape = _validated(model, body)
    assert isinstance(shape, model)
    return shape


def _validated(model: type[BaseModel], data: bytes) -> BaseModel:
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        if error.errors(include_url=False)[0]["type"] != "json_invalid":
            raise _nonsense(error) from error
    try:
        return model.model_validate_json(_repaired(data))
    except (ValueError, RecursionError) as error:  # pydantic's ValidationError is a ValueError too
        raise _nonsense(error) from error


def _repaired(data: bytes) -> str:
    """The same JSON with broken UTF-8 and lone surrogates replaced; the strict parser refuses both."""
    return storable(json.dumps(json.loads(data.decode("utf-8", "replace")), ensure_ascii=False))


def _text_field(data: bytes, field: str) -> str:
    """A text field of the object in `data`; "" when there is none, or no object."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return ""
    return str(value.get(field, "")) if isinstance(value, dict) else ""


def _nonsense(error: Exception) -> BackendProtocolError:
    return BackendProtocolError("The gateway sent something that is no valid event.", detail=type(error).__name__)
