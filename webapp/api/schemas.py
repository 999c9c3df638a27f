"""Request and response bodies of the REST API: the field names of the source document, camelCase (DESIGN 6)."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from shared.protocol.commands import Id, Input
from shared.protocol.events import Time


class Body(BaseModel):
    """What a client sends: unknown fields are refused, so that a misspelt one is not silently lost."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", frozen=True)


class Answer(BaseModel):
    """What we send."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


# ---- sessions


class NewSession(Body):
    title: str = Field(default="", max_length=1_000)
    source: str | None = None
    profile: str | None = None
    model_id: str | None = None
    skill_folder: str | None = None


class SessionChange(Body):
    """Only the fields given are changed; an empty string takes a choice away."""

    title: str | None = Field(default=None, max_length=1_000)
    model_id: str | None = None
    skill_folder: str | None = None
    profile: str | None = None
    status: Literal["ACTIVE", "ARCHIVED"] | None = None
    on_failure: Literal["hold", "continue", "cancel"] | None = None


class SessionMade(Answer):
    """One id under both names."""

    session_id: str
    session_uuid: str


class SessionItem(Answer):
    id: str
    title: str
    source: str
    profile: str | None
    model_id: str | None
    skill_folder: str | None
    status: str
    on_failure: str
    held: str | None
    state: str | None = None  # of its active or last run
    queue_length: int = 0
    waits_for: str | None = None  # approval | clarification
    last_message_at: Time
    last_message_preview: str = ""
    created_at: Time
    updated_at: Time


class SessionList(Answer):
    """Last activity first; `next_before` goes into `before` of the next page, None at the end."""

    sessions: list[SessionItem]
    next_before: str | None


class Message(Answer):
    """`logs` is the folded transcript of an answer."""

    id: str
    run_id: str | None
    role: str
    content: str
    blocks: list[Any] | None
    status: str
    model_id: str | None
    skill_folder: str | None
    author: str | None
    logs: dict[str, Any] | None
    error: str | None
    error_code: str | None
    input_tokens: int | None
    output_tokens: int | None
    created_at: Time
    completed_at: Time | None


class MessageList(Answer):
    """Oldest first; `has_more`: there are older ones, asked for with `before` = the first id here."""

    messages: list[Message]
    has_more: bool


class OneSession(Answer):
    session: SessionItem
    messages: list[Message]


# ---- runs


class NewRun(Body):
    message: Input
    model_id: str | None = None
    skill_folder: str | None = None
    max_iterations: int | None = Field(default=None, ge=1, le=10_000)
    source: str | None = None
    instructions: str | None = None
    attachments: list[Id] = []
    background: bool = False


class RunMade(Answer):
    """`position`: 0 when it starts at once; `held`: why the queue waits for a person."""

    run_id: str
    queue_id: str
    message_id: str
    position: int
    held: str | None


class OpenPause(Answer):
    kind: Literal["approval", "clarification"]
    id: str
    tool: str
    request: dict[str, Any]
    deadline: Time | None


class RunStateNow(Answer):
    """`message_id`: of the answer, None before it began. `seq` and `epoch`: the session's log as it is now."""

    run_id: str
    session_id: str
    state: str
    reason: str | None
    message_id: str | None
    seq: int | None
    epoch: str | None
    pause: OpenPause | None
    error_code: str | None
    error: str | None


class PauseAnswer(Body):
    """Of a question `{clarifyId, answer}`, of an approval `{approvalId, choice, reason?}`."""

    clarify_id: Id | None = None
    answer: str | None = None
    approval_id: Id | None = None
    choice: Literal["once", "session", "always", "deny"] | None = None
    reason: str | None = Field(default=None, max_length=500)


class PauseAnswered(Answer):
    run_id: str
    pause_id: str
    choice: str | None
    answer: str | None
    by: str | None


class RunAborted(Answer):
    run_id: str
    state: str


class QueueNow(Answer):
    queue_id: str | None
    queue_length: int
    held: str | None


# ---- what there is to choose from


class ModelItem(Answer):
    """`name` goes into `modelId`. `key_is_set`: whether all workers have the key it needs; None: it needs none, or no
    worker has told."""

    id: str
    name: str
    model: str
    provider: str | None
    context_window: int | None
    is_default: bool
    needs_key: bool
    key_is_set: bool | None


class ModelList(Answer):
    models: list[ModelItem]


class SkillItem(Answer):
    """`source`: whose folder it is in."""

    folder_name: str
    name: str
    description: str
    source: Literal["profile", "portal"]


class SkillList(Answer):
    skills: list[SkillItem]


class SkillRead(Answer):
    """`consent`: whether the caller has never chosen it (`new`), has agreed to this text (`agreed`), or only to another
    one (`changed`): then turns with it fail until the text is agreed to."""

    folder_name: str
    source: Literal["profile", "portal"]
    sha256: str
    text: str
    consent: Literal["new", "agreed", "changed"]


class SkillConsent(Body):
    """`sha256`: of the text that is agreed to, as it was read."""

    sha256: str = Field(min_length=64, max_length=64)
    profile: str | None = None


class SkillAgreed(Answer):
    folder_name: str
    sha256: str


class ProfileHealth(Answer):
    """Of its agent, the worst of what the workers say: `ready`, `starting`, `idle` (it starts with the first turn),
    `failed`, `missing` (no home), `absent` (no Hermes), or `unknown`. `looked_at` is by the workers' clocks."""

    state: str
    workers: int
    looked_at: Time | None


class ProfileItem(Answer):
    """`default` is the profile of the settings. `is_default`: new sessions get it."""

    name: str
    is_default: bool
    health: ProfileHealth


class ProfileList(Answer):
    profiles: list[ProfileItem]


class ProblemDocument(Answer):
    """RFC 9457, with our `code`."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    retry_after_s: int | None = None
    error_id: str | None = None
