"""The line protocol between the worker and a bridge child: names, shapes and limits (docs/bridge-protocol.md).

The one place with them, for both sides. Standard library only, Python 3.10 or newer: Hermes' interpreter runs it too.
A line is one JSON object in UTF-8. Numbers of bytes count the line's end.
"""

import json
import math
import os
import re
from collections.abc import Iterator
from typing import Any, Literal, TypedDict, Union, get_args
from urllib.parse import urlsplit

PROTOCOL = 1  # told by `ping` and the ready line; rises when an older worker could not read the child

# ---- limits

MIN_SECRET_CHARS, MAX_SECRET_CHARS = 16, 1000
MAX_LINE_BYTES = 8 * 1024 * 1024
PIECE_CHARS = 128 * 1024  # of a tool's result in one line: at most 768 KiB there, whatever the characters
MAX_RESULT_BYTES = 32 * 1024 * 1024  # of a tool's result in UTF-8; the rest is cut off
MAX_SUMMARY_CHARS = 300
MAX_ARGUMENTS_CHARS = 1024 * 1024  # of a tool's arguments as JSON; longer ones come as a cut string
MAX_ERROR_CHARS = 2000
MAX_DEPTH = 64  # of nested objects and lists in a line
MAX_ID_CHARS = 200  # of a run, a session, an approval, a question
KEPT_RUN_S = 300.0  # how long get_output, get_result and stream still find a finished run
MAX_TOLD_HISTORY_BYTES = 4 * 1024 * 1024  # of the messages in one answer of get_history

# ---- names

Action = Literal[
    "chat",
    "get_output",
    "stream",
    "interrupt",
    "approval_respond",
    "clarify_respond",
    "destroy",
    "destroy_all",
    "list",
    "ping",
    "get_result",
    "get_history",
    "steer",
    "shutdown",
    "prepare",
]
ACTIONS: tuple[Action, ...] = get_args(Action)

Choice = Literal["once", "session", "always", "deny"]
CHOICES: tuple[Choice, ...] = get_args(Choice)
Reason = Literal["answered", "expired", "withdrawn"]
REASONS: tuple[Reason, ...] = get_args(Reason)
RunStatus = Literal["running", "completed", "failed", "interrupted"]

ErrorCode = Literal[
    "bad_json",  # not JSON
    "bad_utf8",
    "too_deep",  # nested deeper than MAX_DEPTH
    "not_an_object",
    "line_too_long",  # closes the connection
    "wrong_secret",  # closes the connection
    "unknown_action",
    "bad_request",  # a field is missing or of the wrong kind; `message` names it
    "session_not_found",  # not held, or it does not stand where `chat` said: send `chat` again with the history
    "run_not_found",
    "run_exists",  # a run of that id was begun before; it is not begun twice
    "busy",  # the session has a run
    "full",  # as many agents as allowed, and none idle
    "not_pending",  # that approval or question is not open (any more)
    "shutting_down",
    "internal",
]

FailureCode = Literal[
    "model_error",  # the model or its server answered with an error, or not at all
    "auth_failed",  # 401, 403: the key is wrong
    "rate_limited",
    "quota_exceeded",
    "model_not_found",
    "context_overflow",
    "content_filtered",
    "empty_answer",
    "agent_not_made",  # the constructor failed: configuration, imports
    "agent_failed",  # the agent raised
    "output_too_large",  # the run made more than the child keeps of one
]


class WireError(Exception):
    """A line that cannot be taken, or a request that is refused. `message` is for people and holds no secret."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code: ErrorCode = code
        self.message = message


# ---- requests, beside `action` and `secret`


class Model(TypedDict):
    """What answers. None: as the home's configuration says. The key is never told back."""

    name: str
    provider: str | None
    base_url: str | None
    api_key: str | None
    context_length: int | None


class Message(TypedDict):
    role: Literal["user", "assistant"]
    content: str


class Chat(TypedDict):
    """`message`: a text, or blocks `{"type": "text", "text"}` and `{"type": "image_url", "image_url": {"url"}}`.
    `history`: oldest first, without the message; None: "if you still hold this session", which then must stand after
    the run `after` (None: anywhere). `allowed`: the pattern keys that this run may do unasked, and no others beside
    those of the home's own config.yaml. `grant_epoch`: what was allowed for the session under another number no longer
    counts. `max_iterations`: None, HERMES_BRIDGE_MAX_TURNS. `tools`: absent, true; with
    false an agent that has none, no memory and nothing of the home but its model, and that leaves nothing behind."""

    run_id: str
    session_id: str
    message: str | list[dict[str, Any]]
    history: list[Message] | None
    after: str | None
    instructions: str | None
    model: Model | None
    max_iterations: int | None
    workspace: str | None
    allowed: list[str]
    grant_epoch: int
    tools: bool


class Follow(TypedDict):
    """`get_output` and `stream`. `cursor`: code points of the answer that are known; `event_cursor`: the highest `n`
    that is known of events other than text."""

    run_id: str
    cursor: int
    event_cursor: int


class ApprovalRespond(TypedDict):
    run_id: str
    approval_id: str
    choice: Choice
    reason: Reason  # absent: answered


class ClarifyRespond(TypedDict):
    run_id: str
    clarify_id: str
    answer: str | None  # None: nobody answered


class OfRun(TypedDict):
    """`interrupt`, `get_result`."""

    run_id: str


class Steer(TypedDict):
    run_id: str
    text: str


class OfSession(TypedDict):
    """`destroy`, `get_history`."""

    session_id: str


class Prepare(TypedDict):
    """`model`: which one the spare agent is for; None: that of the home."""

    model: Model | None


# ---- answers, beside `ok`


class ChatAnswer(TypedDict):
    run_id: str
    session_id: str
    status: RunStatus
    warm: bool  # the session's agent was held, with its conversation


class Output(TypedDict):
    """`get_output`. `delta`: the answer's text after the asked cursor, as much as fits a line; `events`: those after
    the asked event cursor, as many as fit. `done`: the run has ended and nothing is left behind these cursors."""

    run_id: str
    status: RunStatus
    delta: str
    cursor: int
    events: list["AnyEvent"]
    event_cursor: int
    done: bool


class StreamAnswer(TypedDict):
    """The first line of `stream`; the events follow, one a line, and the last is one of LAST_EVENTS."""

    run_id: str
    status: RunStatus


class InterruptAnswer(TypedDict):
    told: bool  # False: the run has ended


class ResultAnswer(TypedDict):
    """`get_result`. `text`: the whole answer, its beginning where that does not fit a line."""

    run_id: str
    session_id: str
    status: RunStatus
    text: str
    last: "AnyEvent | None"  # the event that ended it


class HeldSession(TypedDict):
    session_id: str
    run_id: str | None  # that runs
    last_run_id: str | None  # after which its conversation stands; None: `chat` needs the history
    waits_for: Literal["approval", "clarify"] | None
    idle_s: float
    model: str


class ListAnswer(TypedDict):
    sessions: list[HeldSession]
    spare: bool  # one is ready
    max_agents: int


class PingAnswer(TypedDict):
    protocol: int
    pid: int
    hermes_version: str
    profile: str | None
    agents: int
    running: int
    waiting: int  # runs that wait for their agent to be made
    spare: bool
    uptime_s: float
    rss_bytes: int | None


class HistoryAnswer(TypedDict):
    """`get_history`: what the held agent would send, newest last; only the newest that fit when `more`."""

    session_id: str
    messages: list[dict[str, Any]]
    more: bool


class DestroyAnswer(TypedDict):
    """`destroy`, `destroy_all`. A busy agent is never taken: it goes when its run ends (`deferred`)."""

    destroyed: int
    deferred: int


class SteerAnswer(TypedDict):
    accepted: bool


class PrepareAnswer(TypedDict):
    ready: bool  # False: it is being made


class ErrorBody(TypedDict):
    code: ErrorCode
    message: str


class ErrorAnswer(TypedDict):
    ok: Literal[False]
    error: ErrorBody


class Ready(TypedDict):
    """The one line on the child's stdout. `endpoint`: with the port it really got."""

    event: Literal["ready"]
    endpoint: str
    pid: int
    protocol: int


# ---- events. `n` counts the events of a run from 1; a stream has holes where neighbouring deltas were joined


class Usage(TypedDict):
    """Tokens of this turn alone. `context_used`: the last request's prompt."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    context_used: int | None
    context_window: int | None


class Todo(TypedDict):
    id: str
    text: str
    status: str  # pending | in_progress | completed | cancelled


class RunBegun(TypedDict):
    n: int
    event: Literal["run.begun"]
    model: str
    warm: bool


class StreamDelta(TypedDict):
    n: int
    event: Literal["stream.delta"]
    text: str


class TurnBoundary(TypedDict):
    """The text so far is over: tools come, or another text."""

    n: int
    event: Literal["turn.boundary"]


class ReasoningDelta(TypedDict):
    n: int
    event: Literal["reasoning.delta"]
    text: str


class ReasoningAvailable(TypedDict):
    """Reasoning as a whole, of a model that did not stream it."""

    n: int
    event: Literal["reasoning.available"]
    text: str


class StatusNews(TypedDict):
    """`kind`: thinking (the spinner's word, without its face), lifecycle, retry, warning. An empty `text` clears."""

    n: int
    event: Literal["status"]
    kind: str
    text: str


class ToolStarted(TypedDict):
    n: int
    event: Literal["tool.started"]
    tool_id: str
    name: str
    arguments: dict[str, Any] | str  # the raw string where it is no object
    summary: str


class ToolProgress(TypedDict):
    n: int
    event: Literal["tool.progress"]
    tool_id: str
    text: str


class ToolCompleted(TypedDict):
    """`result`: its first piece when `more`, and `tool.result` events with the rest follow at once. `full_size`: bytes
    of the whole in UTF-8, also where it was cut at MAX_RESULT_BYTES."""

    n: int
    event: Literal["tool.completed"]
    tool_id: str
    name: str
    ok: bool
    result: str
    more: bool
    full_size: int
    duration_ms: int | None
    error: str | None


class ToolResult(TypedDict):
    n: int
    event: Literal["tool.result"]
    tool_id: str
    text: str
    last: bool


class TodoUpdated(TypedDict):
    n: int
    event: Literal["todo.updated"]
    todos: list[Todo]


class ApprovalRequested(TypedDict):
    """`choices`: what may be answered; without "always" where Hermes does not allow it for this command."""

    n: int
    event: Literal["approval.requested"]
    approval_id: str
    command: str
    description: str
    pattern_keys: list[str]
    allow_permanent: bool
    choices: list[Choice]


class ApprovalResolved(TypedDict):
    n: int
    event: Literal["approval.resolved"]
    approval_id: str
    choice: Choice
    reason: Reason


class ClarifyRequested(TypedDict):
    n: int
    event: Literal["clarify.requested"]
    clarify_id: str
    question: str
    choices: list[str]


class ClarifyResolved(TypedDict):
    n: int
    event: Literal["clarify.resolved"]
    clarify_id: str
    reason: Reason


class UsageNews(Usage):
    n: int
    event: Literal["usage"]


class CompressionStarted(TypedDict):
    n: int
    event: Literal["compression.started"]
    before_tokens: int


class CompressionCompleted(TypedDict):
    n: int
    event: Literal["compression.completed"]
    before_tokens: int
    after_tokens: int


class RunCompleted(TypedDict):
    """`text`: the last text of the turn, which was streamed too unless the model did not stream."""

    n: int
    event: Literal["run.completed"]
    text: str
    finish_reason: str  # stop | length | max_iterations | content_filter | ...
    usage: Usage


class RunFailed(TypedDict):
    """`text`: what Hermes would have shown in place of an answer."""

    n: int
    event: Literal["run.failed"]
    code: FailureCode
    message: str
    retryable: bool
    text: str
    usage: Usage


class RunInterrupted(TypedDict):
    n: int
    event: Literal["run.interrupted"]
    usage: Usage


AnyEvent = Union[  # noqa: UP007 - an alias that holds at run time on 3.10
    RunBegun,
    StreamDelta,
    TurnBoundary,
    ReasoningDelta,
    ReasoningAvailable,
    StatusNews,
    ToolStarted,
    ToolProgress,
    ToolCompleted,
    ToolResult,
    TodoUpdated,
    ApprovalRequested,
    ApprovalResolved,
    ClarifyRequested,
    ClarifyResolved,
    UsageNews,
    CompressionStarted,
    CompressionCompleted,
    RunCompleted,
    RunFailed,
    RunInterrupted,
]
LAST_EVENTS = ("run.completed", "run.failed", "run.interrupted")

# ---- endpoints


def place_of(endpoint: str) -> str | tuple[str, int] | None:
    """The path of `ipc:///path`, where no sign has a meaning of its own; host and port of `tcp://host:port`; None for
    anything else."""
    scheme, _, place = endpoint.partition("://")
    if scheme == "ipc":
        return os.path.normpath(place) if place.startswith("/") else None
    try:
        parts = urlsplit(endpoint)
        return (parts.hostname, parts.port) if scheme == "tcp" and parts.hostname and parts.port is not None else None
    except ValueError:
        return None


# ---- lines

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def encode(shape: Any) -> bytes:
    """A shape as its line. Lone surrogates become U+FFFD. Raises WireError when it is over the limit or is no JSON."""
    try:
        text = json.dumps(shape, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise WireError("bad_json", f"Not to be written as JSON: {type(error).__name__}.") from error
    line = storable(text).encode() + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise WireError("line_too_long", f"A line has at most {MAX_LINE_BYTES} bytes.")
    return line


def decode(line: bytes) -> dict[str, Any]:
    """The object of a line, with or without its end. Raises WireError, whatever the bytes are."""
    if len(line) > MAX_LINE_BYTES:
        raise WireError("line_too_long", f"A line has at most {MAX_LINE_BYTES} bytes.")
    try:
        found = json.loads(line.decode("utf-8"), parse_constant=_no_constant, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise WireError("bad_utf8", "The line is not UTF-8.") from error
    except RecursionError as error:
        raise WireError("too_deep", f"Nested deeper than {MAX_DEPTH}.") from error
    except ValueError as error:
        raise WireError("bad_json", "The line is not JSON.") from error
    if not isinstance(found, dict):
        raise WireError("not_an_object", "The line is JSON, but no object.")
    if is_deeper(found, MAX_DEPTH):
        raise WireError("too_deep", f"Nested deeper than {MAX_DEPTH}.")
    return found


def is_deeper(value: Any, limit: int) -> bool:
    """Whether objects and lists are nested in each other more than `limit` times. Does not recurse."""
    level = [value]
    for _ in range(limit):
        level = [child for each in level for child in _children(each)]
        if not level:
            return False
    return any(isinstance(each, dict | list | tuple) for each in level)


def _children(value: Any) -> Iterator[Any]:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return (each for each in inside if isinstance(each, dict | list | tuple))


def storable(text: str) -> str:
    """The text with lone surrogates as U+FFFD, which keeps its number of code points."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _LONE_SURROGATE.sub("\ufffd", text)
    return text


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("infinite")
    return number
