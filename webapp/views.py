"""What the templates read: frozen, decided, in the reader's language. Built by `view_turns.py` and `view_page.py`.

Ids are those of the page's elements. Texts are plain strings that the templates escape; only `Markup` is HTML.
Durations that go on are seconds as of the moment of rendering (`since_s`, `left_s`): the page counts on from there.
"""

from dataclasses import dataclass, field
from datetime import datetime

from markupsafe import Markup

from shared.run_state import RunState
from webapp.render import _


@dataclass(frozen=True)
class Mark:
    """A state as it is always shown: colour and icon (`state`) and word. `state` is one of queued, running, needs,
    failed, interrupted, stopped, done."""

    state: str
    word: str

    @property
    def spins(self) -> bool:
        return self.state == "running"


@dataclass(frozen=True)
class Agent:
    """Who answers: the glyph's name and the name shown."""

    glyph: str
    name: str
    kind: str = ""  # Gateway, Bridge, ...: shown in the bar


@dataclass(frozen=True)
class Option:
    value: str
    label: str
    chosen: bool = False


# ---- the process of a turn


@dataclass(frozen=True)
class Thinking:
    text: str
    peek: str  # its last words
    is_open: bool  # while it thinks
    took_s: float | None = None
    since_s: float | None = None


@dataclass(frozen=True)
class Status:
    text: str
    since_s: float | None  # the clock of the run; None: it stands
    took_s: float | None = None


@dataclass(frozen=True)
class Well:
    """A labelled box of text in a tool card."""

    label: str
    text: str
    is_plain: bool = False  # keep lines as they are and scroll sideways


@dataclass(frozen=True)
class DiffRow:
    kind: str  # add | del | hunk | same
    line: str
    sign: str
    text: str


@dataclass(frozen=True)
class Tool:
    id: str
    name: str
    argument: str
    mark: Mark
    is_open: bool
    took: str
    since_s: float | None
    wells: tuple[Well, ...]
    diff: tuple[DiffRow, ...] = ()
    more: str = ""
    output_url: str | None = None


@dataclass(frozen=True)
class ToolGroup:
    """Calls that ran side by side; mostly one."""

    id: str
    order: int
    tools: tuple[Tool, ...]

    @property
    def is_flat(self) -> bool:
        return len(self.tools) == 1


@dataclass(frozen=True)
class TodoList:
    todos: tuple[tuple[Mark, str], ...]
    progress: str  # 3 of 5


@dataclass(frozen=True)
class Span:
    """A bar of the timeline, in thousandths of its width; the kind decides its shape."""

    name: str
    took: str
    bars: tuple[tuple[str, int, int], ...]  # (kind, x, width)
    since_s: float | None = None  # of one that goes on: how long it has by now


@dataclass(frozen=True)
class Timeline:
    spans: tuple[Span, ...]
    total_s: float
    is_running: bool


# ---- region 5


@dataclass(frozen=True)
class Ask:
    """An open approval or question."""

    id: str
    pause_id: str
    is_approval: bool
    title: str
    place: str  # "1 of 2", empty when it is the only one
    text: Markup  # the exact command, odd characters made visible; or the question, escaped
    note: str
    choices: tuple[Option, ...]
    left_s: float | None
    total_s: float
    may_answer: bool


@dataclass(frozen=True)
class SkillPage:
    """A skill to read, and to agree to."""

    folder_name: str
    profile: str
    mark: Mark
    origin: str
    sha256: str
    text: str
    may_agree: bool


@dataclass(frozen=True)
class LateAnswer:
    """A question that nobody answered in time: what is typed into it, or came too late, can be sent as a turn."""

    id: str
    pause_id: str
    queue_id: str  # of that turn
    mark: Mark
    question: Markup
    choices: tuple[Option, ...]
    text: str


@dataclass(frozen=True)
class Decision:
    """A decided one: one line."""

    id: str
    mark: Mark
    text: str
    detail: str
    at: datetime | None


# ---- the answer and the end


@dataclass(frozen=True)
class AnswerPart:
    """One text part: finished blocks, and the inside of the open one while it streams (else None)."""

    id: str
    html: Markup
    open_html: Markup | None = None
    after: tuple[str, ...] = ()  # tools that ran between the part before and this one


@dataclass(frozen=True)
class Ran:
    mark: Mark
    name: str
    argument: str
    effect: str


@dataclass(frozen=True)
class Ending:
    """What is said of a turn that did not end well."""

    mark: Mark
    where: str
    sentence: str
    ran: tuple[Ran, ...] = ()
    ladder: tuple[str, ...] = ()
    may_retry: bool = False
    retry_is_main: bool = False
    retry_after_s: int | None = None
    retried: str = ""
    detail_id: str | None = None
    changed_skill: str = ""  # where it can be read and agreed to


@dataclass(frozen=True)
class Fold:
    """The line that a finished process folds to."""

    mark: Mark
    facts: tuple[str, ...]
    is_empty: bool  # there is nothing to open


# ---- turns


@dataclass(frozen=True)
class UserTurn:
    id: str
    order: int
    number: int
    author: str
    at: datetime
    text: str
    files: tuple[str, ...] = ()
    is_cancelled: bool = False
    retry_of: int | None = None
    queue_id: str | None = None
    kind: str = "user"


@dataclass(frozen=True)
class AgentTurn:
    id: str
    order: int
    session_id: str
    run_id: str
    number: int
    mark: Mark
    agent: Agent
    facts: tuple[str, ...]  # profile, model, worker
    at: datetime | None
    is_live: bool
    thinking: Thinking | None
    status: Status | None
    tools: tuple[ToolGroup, ...]
    todos: TodoList | None
    timeline: Timeline | None
    notes: tuple[str, ...]  # marks of compression
    asks: tuple[Ask, ...]
    decisions: tuple[Decision, ...]
    late: tuple[LateAnswer, ...]
    parts: tuple[AnswerPart, ...]
    ending: Ending | None
    fold: Fold | None
    text: str = ""  # the answer's source, to copy
    is_lazy: bool = False  # the process is fetched when its line is opened
    kind: str = "agent"


Turn = UserTurn | AgentTurn


# ---- the page around them


@dataclass(frozen=True)
class SessionItem:
    id: str
    title: str
    agent: Agent
    at: datetime
    mark: Mark | None = None
    fact: str = ""
    left_s: float | None = None
    queued: int = 0
    is_current: bool = False


@dataclass(frozen=True)
class SessionGroup:
    heading: str
    items: tuple[SessionItem, ...]


@dataclass(frozen=True)
class QueueItem:
    queue_id: str
    number: int
    place: int
    text: str
    author: str


@dataclass(frozen=True)
class Queue:
    items: tuple[QueueItem, ...]
    mark: Mark
    why: str
    is_held: bool
    on_failure: tuple[Option, ...]


@dataclass(frozen=True)
class Pickers:
    """What a turn may choose from; what there is nothing of is empty. Skills are fetched when their list is opened:
    `skill` is the folder chosen, "" for none, and None where there is no skill at all."""

    models: tuple[Option, ...] = ()
    profiles: tuple[Option, ...] = ()
    skill: str | None = None


@dataclass(frozen=True)
class SkillOption:
    """`origin`: whose folder it is in."""

    folder_name: str
    name: str
    description: str
    origin: str
    chosen: bool


@dataclass(frozen=True)
class Composer:
    placeholder: str
    is_working: bool
    is_stopping: bool
    will_wait: bool  # what is sent now joins the queue
    run_id: str | None
    pickers: Pickers = field(default_factory=Pickers)
    may_send: bool = True
    why_not: str = ""


@dataclass(frozen=True)
class Source:
    """Something a new chat can be begun with. `can`: what it can do, in a few words. `why_not`: it is not to be had
    here, for this reason; `connect`: how it could be."""

    value: str
    agent: Agent
    name: str
    can: str
    why_not: str = ""
    connect: str = ""

    @property
    def is_offered(self) -> bool:
        return not self.why_not


@dataclass(frozen=True)
class First:
    """The field for the first message of a new chat; `text`: what was typed and could not be sent. `source`: what
    answers, if nothing else is chosen; None for who may not begin a chat."""

    placeholder: str
    text: str = ""
    source: Source | None = None
    sources: tuple[Option, ...] = ()
    pickers: Pickers = field(default_factory=Pickers)


@dataclass(frozen=True)
class Usage:
    percent: int | None  # of the context window, by the last request
    total: str
    level: str = "normal"


@dataclass(frozen=True)
class Cursor:
    """The place in the log that the page was rendered at. `last` of 0 without an epoch: no log yet."""

    epoch: str = ""
    first: int = 0
    last: int = 0
    kind: str = "snapshot"  # snapshot | events | resume
    run_id: str = ""
    fence: int = 0


@dataclass(frozen=True)
class Chat:
    """The session shown: what the bar, the turns, the queue and the composer need."""

    id: str
    title: str
    has_title: bool
    agent: Agent
    turns: tuple[Turn, ...]
    has_older: bool
    oldest_id: str | None
    queue: Queue
    composer: Composer
    usage: Usage
    cursor: Cursor
    is_archived: bool = False
    relay_up: bool = True
    signal: str = ""  # needs | running | "": for the tab's title


@dataclass(frozen=True)
class Side:
    """The side of every page."""

    groups: tuple[SessionGroup, ...] = ()
    sources: tuple[Source, ...] = ()
    user: str = ""
    initials: str = ""
    needs: int = 0
    place: str = "chat"
    query: str = ""
    is_archive: bool = False
    may_operate: bool = False
    is_demo: bool = False  # the demo agent is what answers on this page
    here: str = "/chat"  # where the page is, to come back to
    next_before: str | None = None
    places: tuple[str, ...] = field(default=("chat",))  # which pages exist


# ---- words of states

_STATES = {
    RunState.QUEUED: "queued",
    RunState.STARTING: "running",
    RunState.RUNNING: "running",
    RunState.AWAITING_APPROVAL: "needs",
    RunState.AWAITING_CLARIFICATION: "needs",
    RunState.ABORTING: "running",
    RunState.COMPLETED: "done",
    RunState.FAILED: "failed",
    RunState.ABORTED: "stopped",
    RunState.INTERRUPTED: "interrupted",
    RunState.CANCELLED: "stopped",
}


def mark_of(state: RunState, *, held: bool = False) -> Mark:
    """The mark of a run's state, with the words of LOOK."""
    words = {
        RunState.QUEUED: _("Held") if held else _("Queued"),
        RunState.STARTING: _("Starting"),
        RunState.RUNNING: _("Running"),
        RunState.AWAITING_APPROVAL: _("Needs you"),
        RunState.AWAITING_CLARIFICATION: _("Needs you"),
        RunState.ABORTING: _("Stopping"),
        RunState.COMPLETED: _("Done"),
        RunState.FAILED: _("Failed"),
        RunState.ABORTED: _("Stopped"),
        RunState.INTERRUPTED: _("Interrupted"),
        RunState.CANCELLED: _("Cancelled"),
    }
    return Mark(_STATES[state], words[state])


GLYPHS = frozenset({"gateway", "bridge", "hermes", "opencode", "claude", "gemini", "codex", "demo"})
_NAMES = {"opencode": "opencode", "hermes": "Hermes", "claude": "Claude", "gemini": "Gemini", "codex": "Codex"}


def agent_of(source: str | None, *, told: str | None = None, is_demo: bool = False) -> Agent:
    """The agent of a session or a turn; `told` is the name that the run gave. An unknown one keeps its own name."""
    if source is None or source == "api_server":
        if is_demo or (told or "").lower().startswith("demo"):
            return Agent("demo", told or _("Demo agent"), _("Demo agent"))
        return Agent("gateway", told or "Hermes", _("Gateway"))
    if source == "cli":
        return Agent("bridge", told or "Hermes", _("Bridge"))
    name = source.removeprefix("acp:")
    return Agent(name if name in GLYPHS else "other", told or _NAMES.get(name, name), _NAMES.get(name, name))
