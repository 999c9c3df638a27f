"""Makes Hermes ask before it runs what is dangerous, in every thread where a tool can run.

Hermes has two ways to ask: a callback kept by thread, and a queue kept by session key. Threads that Hermes starts for
tools and scripts carry the key with them, as a context variable; subagents get callbacks of their own that decide
without asking, and from us a key. So the queue it is. Two variables, which hold in every thread, make a tool in a
thread without any key fail rather than run unasked.

The key is that of the session, which has one run at a time, or of the subagent. What the session and its profile may do
is put under it when a run begins and taken away when it ends, so nothing is ever allowed for the process, and Hermes
never writes its config.yaml.
"""

import contextlib
import contextvars
import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .pauses import Decision, Pauses
from .wire import CHOICES, Choice

NEEDED = (
    *("_await_gateway_decision", "_permanent_approved", "_lock", "approve_session", "clear_session"),
    *("register_gateway_notify", "unregister_gateway_notify", "set_current_session_key", "reset_current_session_key"),
)
ASKING = ("HERMES_EXEC_ASK", "HERMES_GATEWAY_SESSION")  # some of its checks look at the one, some at the other
DECIDING = ("HERMES_YOLO_MODE", "HERMES_CRON_SESSION", "HERMES_INTERACTIVE")
"""Variables by which Hermes would decide without asking, or ask elsewhere. A profile's `.env` cannot set them."""
MAX_COMMAND_CHARS = 512 * 1024  # of one that people can be asked about
PER_CALL_KEYS = frozenset({"mcp_elicitation"})  # there is no pattern to remember
MAX_PATTERN_CHARS = 500  # of one that is remembered


class UnknownHermes(Exception):
    """This Hermes asks in a way that is not known here: dangerous commands might run unasked."""


def close_back_doors() -> None:
    """Call it before Hermes is imported, and after, when it has read the profile's `.env`."""
    for name in DECIDING:
        os.environ.pop(name, None)
    for name in ASKING:
        os.environ[name] = "1"


def for_hermes(choice: Choice) -> Choice:
    """Hermes' "always" would be of the process and be written down: the portal keeps it instead, and for this run it is
    the same as its "session"."""
    return "session" if choice == "always" else choice


class Approvals:
    """The hooks in one Hermes process. Raises UnknownHermes when they do not fit."""

    def __init__(
        self, approval: Any, terminal: Any, daemon_pool: type[Any], read_config: Callable[[], dict[str, Any]]
    ) -> None:
        """The modules `tools.approval` and `tools.terminal_tool`, the executor of `tools.daemon_pool`."""
        missing = [name for name in NEEDED if not hasattr(approval, name)]
        if missing or not hasattr(terminal, "set_approval_callback"):
            raise UnknownHermes(
                "This version of hermes-agent asks for approvals in a way that the bridge does not know "
                f"({', '.join(missing) or 'set_approval_callback'}); 0.19.0 is known to fit."
            )
        self._approval = approval
        self._terminal = terminal
        self._read_config = read_config
        approval._YOLO_MODE_FROZEN = False
        approval._await_gateway_decision = functools.partial(
            _await_decision, approval, approval._await_gateway_decision
        )
        _carry_context(approval, daemon_pool)

    def begin(self, key: str, patterns: Iterable[str], notify: "RunApprovals") -> None:
        self._approval.clear_session(key)
        self.grant(key, patterns)
        self._approval.register_gateway_notify(key, notify)

    def grant(self, key: str, patterns: Iterable[str]) -> None:
        for pattern in patterns:
            self._approval.approve_session(key, pattern)

    def end(self, key: str) -> None:
        self._approval.unregister_gateway_notify(key)
        self._approval.clear_session(key)

    @contextlib.contextmanager
    def in_thread(self, key: str, by_callback: Callable[..., Choice]) -> Iterator[None]:
        """Have this thread, and those that Hermes starts from it, ask under the key."""
        token = self._approval.set_current_session_key(key)
        self._terminal.set_approval_callback(by_callback)
        try:
            yield
        finally:
            self._terminal.set_approval_callback(None)
            self._approval.reset_current_session_key(token)

    def read_allowlist(self) -> None:
        """What config.yaml lists is allowed for the process: exactly that, also after a line was taken out."""
        found = self._read_config().get("command_allowlist")
        listed = {str(pattern) for pattern in found} if isinstance(found, list) else set()
        with self._approval._lock:
            self._approval._permanent_approved.clear()
            self._approval._permanent_approved.update(listed)


def _await_decision(
    approval: Any,
    original: Callable[..., dict[str, Any]],
    session_key: str,
    notify: Any,
    data: dict[str, Any],
    **more: Any,
) -> dict[str, Any]:
    """In place of Hermes' own wait, which has a limit and answers the oldest of several. Silence is not called a no."""
    if not isinstance(notify, RunApprovals):
        return original(session_key, notify, data, **more)
    if _is_too_long(data):
        return {"resolved": False, "choice": None, "notify_failed": True}
    told = {
        "command": data.get("command", ""),
        "description": data.get("description", ""),
        "pattern_key": data.get("pattern_key", ""),
        "pattern_keys": list(data.get("pattern_keys") or []),
        "session_key": session_key,
        "surface": more.get("surface", "gateway"),
    }
    fire = getattr(approval, "_fire_approval_hook", lambda *_, **__: None)
    fire("pre_approval_request", **told)
    decision = notify.ask(data)
    is_answered = decision.reason != "expired"
    fire("post_approval_response", **told, choice=decision.choice if is_answered else "timeout")
    return {
        "resolved": is_answered,
        "choice": for_hermes(decision.choice) if is_answered else None,
        "reason": None,
    }


def _is_too_long(data: dict[str, Any]) -> bool:
    """Whether people could not be shown all that would run (RELIABILITY S18); a line carries no more."""
    return len(str(data.get("command", ""))) > MAX_COMMAND_CHARS


def _can_be_remembered(pattern: str) -> bool:
    """What is longer, or nobody could read, names no kind of command: it is asked for each time."""
    return len(pattern) <= MAX_PATTERN_CHARS and pattern.isprintable() and pattern not in PER_CALL_KEYS


_next_subagent: contextvars.ContextVar[str] = contextvars.ContextVar("portal_next_subagent", default="")


def _carry_context(approval: Any, pool: type[Any]) -> None:
    """Have the threads of subagents know whose run they belong to: their executor starts them without a context."""
    original = pool.submit

    def in_subagent(key: str, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        approval.set_current_session_key(key)
        return work(*args, **kwargs)

    @functools.wraps(original)
    def submit(self: Any, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        key = _next_subagent.get()
        if key:
            _next_subagent.set("")  # it is for the thread that comes next alone
            work = functools.partial(in_subagent, key, work)
        return original(self, contextvars.copy_context().run, work, *args, **kwargs)

    pool.submit = submit


class RunApprovals:
    """The approvals of one run: enter it in the run's thread, around the run."""

    def __init__(
        self,
        hooks: Approvals,
        session_id: str,
        patterns: Iterable[str],
        pauses: Pauses,
        on_session_grant: Callable[[list[str]], None],
    ) -> None:
        """`patterns`: what the session and its profile may do unasked."""
        self._hooks = hooks
        self._session_id = session_id
        self._patterns = set(patterns)
        self._pauses = pauses
        self._on_session_grant = on_session_grant
        self._lock = threading.Lock()
        self._keys: set[str] = set()

    @contextlib.contextmanager
    def bound(self) -> Iterator[None]:
        self._hooks.read_allowlist()
        self._begin(self._session_id)
        try:
            with self._hooks.in_thread(self._session_id, self._by_callback):
                yield
        finally:
            with self._lock:
                keys, self._keys = self._keys, set()
            for key in keys:
                self._hooks.end(key)

    def begin_subagent(self, task_id: str) -> None:
        """In the thread that is about to start the subagent's."""
        self._begin(task_id)
        _next_subagent.set(task_id)

    def end_subagent(self, task_id: str) -> None:
        with self._lock:
            is_ours = task_id in self._keys
            self._keys.discard(task_id)
        if is_ours:
            self._hooks.end(task_id)

    def ask(self, data: dict[str, Any]) -> Decision:
        """Blocks until it is decided. What is allowed for longer than once is so for the whole run, subagents too."""
        patterns = [str(key) for key in data.get("pattern_keys") or [data.get("pattern_key") or ""] if key]
        permanent = bool(data.get("allow_permanent", False))
        choices: list[Choice] = [choice for choice in CHOICES if permanent or choice != "always"]
        if data.get("smart_denied") or not patterns or not all(map(_can_be_remembered, patterns)):
            choices, permanent = ["once", "deny"], False
        decision = self._pauses.ask_approval(
            str(data.get("command", "")), str(data.get("description", "")), patterns, choices, allow_permanent=permanent
        )
        if decision.choice in ("session", "always"):
            with self._lock:
                self._patterns.update(patterns)
                keys = list(self._keys)
            for key in keys:
                self._hooks.grant(key, patterns)
        if decision.choice == "session":
            self._on_session_grant(patterns)
        return decision

    def _begin(self, key: str) -> None:
        with self._lock:
            self._keys.add(key)
            patterns = set(self._patterns)
        self._hooks.begin(key, patterns, self)

    def _by_callback(
        self, command: str, description: str, *, allow_permanent: bool = True, smart_denied: bool = False, **_: Any
    ) -> Choice:
        """For the few tools that know the callback alone (codex's app server)."""
        data = {
            "command": command,
            "description": description,
            "pattern_keys": [description],
            "allow_permanent": allow_permanent,
            "smart_denied": smart_denied,
        }
        return "deny" if _is_too_long(data) else for_hermes(self.ask(data).choice)
