"""What a client may ask (DESIGN 5): flat objects, `{"event": "run", "id": ..., "session_id": ..., ...}`.

Unknown fields are refused, so that a misspelt one is not silently lost; `HEADERS`, which htmx adds, is taken off first.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

Id = Annotated[str, Field(min_length=1, max_length=200)]


class TextBlock(BaseModel):
    model_config = ConfigDict(extra="forbid")
    type: Literal["text", "input_text"] = "text"
    text: str


class ImageBlock(BaseModel):
    model_config = ConfigDict(extra="forbid")
    type: Literal["image_url", "input_image"] = "image_url"
    image_url: str | dict[str, Any]


ContentBlock = Annotated[TextBlock | ImageBlock, Field(discriminator="type")]
Input = str | list[ContentBlock]


class Command(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    id: str | int | None = None  # echoed in the answer


class Run(Command):
    event: Literal["run"] = "run"
    session_id: Id
    input: Input
    model: str | None = None
    instructions: str | None = None
    queue_id: Id | None = None
    source: str | None = None
    skill_folder: str | None = None
    attachments: list[Id] = []
    background: bool = False
    max_iterations: int | None = Field(default=None, ge=1, le=10_000)


class Resume(Command):
    event: Literal["resume"] = "resume"
    session_id: Id
    last_seq: int | None = Field(default=None, ge=0, le=2**53)
    epoch: str | None = Field(default=None, max_length=40)


class Leave(Command):
    event: Literal["leave"] = "leave"
    session_id: Id


class Abort(Command):
    event: Literal["abort"] = "abort"
    session_id: Id
    run_id: Id | None = None  # None: the run that is active, whichever it is


class CancelQueuedRun(Command):
    event: Literal["cancel_queued_run"] = "cancel_queued_run"
    session_id: Id
    queue_id: Id


class EditQueuedRun(Command):
    event: Literal["edit_queued_run"] = "edit_queued_run"
    session_id: Id
    queue_id: Id
    input: Input


class MoveQueuedRun(Command):
    event: Literal["move_queued_run"] = "move_queued_run"
    session_id: Id
    queue_id: Id
    position: int = Field(ge=1, le=10_000)  # 1: next


class ContinueQueue(Command):
    event: Literal["continue_queue"] = "continue_queue"
    session_id: Id


class ApprovalRespond(Command):
    event: Literal["approval.respond"] = "approval.respond"
    session_id: Id
    approval_id: Id
    choice: Literal["once", "session", "always", "deny"]
    reason: str | None = Field(default=None, max_length=500)


class ClarifyRespond(Command):
    event: Literal["clarify.respond"] = "clarify.respond"
    session_id: Id
    clarify_id: Id
    answer: str = Field(min_length=1)


class Ping(Command):
    event: Literal["ping"] = "ping"


AnyCommand = Annotated[
    Run
    | Resume
    | Leave
    | Abort
    | CancelQueuedRun
    | EditQueuedRun
    | MoveQueuedRun
    | ContinueQueue
    | ApprovalRespond
    | ClarifyRespond
    | Ping,
    Field(discriminator="event"),
]
COMMAND: TypeAdapter[AnyCommand] = TypeAdapter(AnyCommand)
"""Reads a command: `COMMAND.validate_python(obj)`; raises pydantic.ValidationError."""
