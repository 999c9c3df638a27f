"""The seam that every backend fits (DESIGN 8). A backend's own vocabulary stops at its `backend.py`.

A backend turns one turn into an iterator of the small frozen shapes below. They carry no cursor, no fence, no part or
offset: `worker/runs/recorder.py` makes the events of DESIGN 5 out of them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

from shared.protocol.events import Todo, Usage

Choice = Literal["once", "session", "always", "deny"]


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do. What it cannot is absent from its sessions' page, not dead on it."""

    streaming: bool = True
    tools: bool = False
    system_messages: bool = False
    approvals: bool = False
    approval_limit_s: float | None = None  # the backend's own limit, after which it denies by itself
    clarify: bool = False
    todos: bool = False
    attachments: bool = False
    artifacts: bool = False
    resume: bool = False
    models: bool = False  # the provider and the key of a model come with the turn
    stop: bool = False  # False: an abort ends only our side; its rest is ignored


@dataclass(frozen=True)
class HistoryMessage:
    role: Literal["user", "assistant"]
    content: str


@dataclass(frozen=True)
class Provider:
    """Who serves the turn's model, as an operator listed it."""

    name: str | None = None
    base_url: str | None = None
    key: str | None = field(default=None, repr=False)
    context_window: int | None = None  # tokens


@dataclass(frozen=True)
class Turn:
    """One turn to run. `make_history` reads `history`, which a backend that holds the session warm never needs: it may
    take minutes (older turns are summarised), and raises BackendLost when the turn is to stop meanwhile."""

    run_id: str
    session_id: str
    input: str
    blocks: tuple[Mapping[str, Any], ...] = ()  # content blocks, when the input is more than text
    make_history: Callable[[], tuple[HistoryMessage, ...]] = field(default=tuple, repr=False)
    after: str | None = None  # a warm session must stand after this run; None: it is to be told the history
    instructions: str | None = None
    model: str | None = None
    provider: Provider | None = None  # None: the backend's own
    allowed: tuple[str, ...] = ()  # patterns that people of the profile have allowed always (ApprovalAsked)
    grant_epoch: int = 0  # what was allowed for the session under another one no longer counts
    profile: str | None = None
    skill_folder: str | None = None
    backend_session_id: str | None = None
    max_iterations: int | None = None

    @cached_property
    def history(self) -> tuple[HistoryMessage, ...]:
        """Oldest first, without the turn's own input."""
        return self.make_history()


class Controls(Protocol):
    """How a running turn hears of the outside."""

    @property
    def aborted(self) -> bool:
        """True once the turn is to stop, whoever asked."""

    def on_abort(self, stop: Callable[[], None]) -> None:
        """Have `stop` called once, from another thread, when the turn is to stop (at once if it already is).

        `stop` tells the peer (`POST .../stop`, an interrupt) and returns at once; afterwards `stream` must end soon."""


# ---- what a backend yields


@dataclass(frozen=True)
class TurnBegun:
    """The peer has accepted the turn. Nothing was surely sent before the request, everything may have been after."""

    backend_run_id: str | None = None
    backend_session_id: str | None = None
    model: str | None = None  # really used, if told
    holds_session: bool = False  # this process keeps the session's agent: its next turn is best sent here


@dataclass(frozen=True)
class Text:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """A piece of the model's reasoning."""

    text: str


@dataclass(frozen=True)
class Status:
    """The live status line, without decoration; it replaces the one before. It does not say that the peer has accepted
    the turn."""

    text: str


@dataclass(frozen=True)
class ToolBegun:
    tool_id: str  # unique in the turn; made up by the backend where the peer gives none
    name: str
    arguments: Mapping[str, Any] | str | None = None
    summary: str = ""  # the short argument to show; empty: made from the arguments


@dataclass(frozen=True)
class ToolNews:
    tool_id: str
    text: str


@dataclass(frozen=True)
class ToolEnded:
    tool_id: str
    name: str
    ok: bool | None = True
    result: str | None = None  # whole, up to 32 MiB
    duration_ms: int | None = None
    error: str | None = None
    full_size: int | None = None  # bytes of the whole result, where `result` may be cut


@dataclass(frozen=True)
class Todos:
    todos: tuple[Todo, ...]


@dataclass(frozen=True)
class ApprovalAsked:
    """The peer waits for a decision. `respond` is called exactly once, from another thread, with the choice; it tells
    the peer and raises BackendError when that fails. The stream goes on meanwhile.
    `withdrawn` pauses never get a call."""

    key: str  # unique in the turn
    kind: str
    command: str
    description: str
    choices: tuple[Choice, ...]
    respond: Callable[[Choice], None] = field(repr=False)
    unanswered: Callable[[], None] | None = field(default=None, repr=False)  # called instead when nobody answered
    patterns: tuple[str, ...] = ()  # what `always` allows in the profile: kept, and given with each turn as `allowed`


@dataclass(frozen=True)
class ClarifyAsked:
    """The peer waits for an answer: `respond(text)`, or `respond(None)` when there was none in time."""

    key: str
    question: str
    choices: tuple[str, ...]
    respond: Callable[[str | None], None] = field(repr=False)


@dataclass(frozen=True)
class PauseWithdrawn:
    """The peer no longer waits for the pause of that key (it timed out there, or went on)."""

    key: str


@dataclass(frozen=True)
class UsageNews:
    usage: Usage


@dataclass(frozen=True)
class CompressionBegun:
    """Older turns are being made into a summary: by the portal before the turn, or by the agent itself."""

    before_tokens: int


@dataclass(frozen=True)
class CompressionEnded:
    """`changed` False: there was no gain, and nothing but older turns left out."""

    before_tokens: int
    after_tokens: int
    summary_tokens: int = 0
    changed: bool = True


@dataclass(frozen=True)
class Keepalive:
    """A sign of life without content: it holds off the quiet limit."""


@dataclass(frozen=True)
class Finished:
    """The turn ended well. Always the last item; a failure is raised as a BackendError instead."""

    finish_reason: str = "stop"
    usage: Usage | None = None
    backend_session_id: str | None = None


@dataclass(frozen=True)
class Stopped:
    """The peer confirmed that it stopped the turn after an abort. The last item."""


Item = (
    TurnBegun
    | Text
    | Reasoning
    | Status
    | ToolBegun
    | ToolNews
    | ToolEnded
    | Todos
    | ApprovalAsked
    | ClarifyAsked
    | PauseWithdrawn
    | UsageNews
    | CompressionBegun
    | CompressionEnded
    | Keepalive
    | Finished
    | Stopped
)


@dataclass(frozen=True)
class Result:
    """What `execute` brings: the whole answer at once."""

    text: str
    usage: Usage | None = None


@dataclass(frozen=True)
class PingResult:
    """ "Reply with exactly PONG.", no session, no tools; trimmed, any case."""

    ok: bool
    latency_ms: float
    got: str = ""  # what came instead
    error: str | None = None


class Backend(Protocol):
    """`stream` raises BackendUnavailable only when the turn was surely not accepted (it may then be tried again);
    any other BackendError means that it may have begun. After an abort that the peer did not confirm it just ends,
    without a last item."""

    @property
    def name(self) -> str:
        """Shown to people: "Hermes", "Demo agent"."""

    @property
    def agent(self) -> str:
        """The glyph: gateway, bridge, hermes, demo, ..."""

    @property
    def version(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def stream(self, turn: Turn, controls: Controls) -> Iterator[Item]: ...

    def execute(self, turn: Turn) -> Result: ...

    def ping(self) -> PingResult: ...
