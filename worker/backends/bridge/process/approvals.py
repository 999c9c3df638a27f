"""Makes Hermes ask before it runs what is dangerous, in every thread where a tool can run.

Hermes has two ways to ask: a callback kept by thread, and a queue kept by session key. Threads that Hermes starts for
tools, scripts and subagents carry the key with them, as a context variable, while subagents get callbacks of their own
that decide without asking. So the queue it is. HERMES_EXEC_ASK, which holds in every thread, makes a tool in a thread
without any key fail rather than run unasked.

A key is made for each run. What its session and its profile may do is put under that key at its beginning and taken
away at its end, so nothing is ever allowed for the process, and Hermes never writes its config.yaml.
"""

import contextlib
import contextvars
import functools
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .pauses import Decision, Pauses
from .wire import CHOICES, Choice

NEEDED = (
    *("_await_gateway_decision", "_permanent_approved", "_lock", "approve_session", "clear_session"),
    *("register_gateway_notify", "unregister_gateway_notify", "set_current_session_key", "reset_current_session_key"),
)
DECIDING = ("HERMES_YOLO_MODE", "HERMES_CRON_SESSION", "HERMES_GATEWAY_SESSION", "HERMES_INTERACTIVE")
"""Variables by which Hermes would decide without asking, or ask elsewhere. A profile's `.env` cannot set them."""
PER_CALL_KEYS = frozenset({"mcp_elicitation"})  # there is no pattern to remember

log = logging.getLogger("portal_bridge")


class UnknownHermes(Exception):
    """This Hermes asks in a way that is not known here: dangerous commands might run unasked."""


def close_back_doors() -> None:
    """Call it before Hermes is imported, and after, when it has read the profile's `.env`."""
    for name in DECIDING:
        os.environ.pop(name, None)
    os.environ["HERMES_EXEC_ASK"] = "1"


class Asker:
    """Registered with Hermes under a run's key: asks, and remembers what the session and the run may do from now on."""

    def __init__(self, pauses: Pauses, on_session_grant: Callable[[list[str]], None]) -> None:
        self._pauses = pauses
        self._on_session_grant = on_session_grant

    def __call__(self, data: dict[str, Any]) -> Decision:
        keys = [str(key) for key in data.get("pattern_keys") or [data.get("pattern_key") or ""] if key]
        permanent = bool(data.get("allow_permanent", False))
        choices: list[Choice] = [choice for choice in CHOICES if permanent or choice != "always"]
        if data.get("smart_denied") or not keys or PER_CALL_KEYS.intersection(keys):
            choices, permanent = ["once", "deny"], False
        decision = self._pauses.ask_approval(
            str(data.get("command", "")), str(data.get("description", "")), keys, choices, allow_permanent=permanent
        )
        if decision.choice == "session":
            self._on_session_grant(keys)
        return decision


def for_hermes(choice: Choice) -> Choice:
    """Hermes' "always" would be of the process and be written down: the portal keeps it instead, and for this run it is
    the same as its "session"."""
    return "session" if choice == "always" else choice


class Approvals:
    """The hooks in one Hermes process. Raises UnknownHermes when they do not fit."""

    def __init__(self, approval: Any, terminal: Any, daemon_pool: type[Any], load_config: Callable[[], Any]) -> None:
        """The modules `tools.approval` and `tools.terminal_tool`, the executor of `tools.daemon_pool`."""
        missing = [name for name in NEEDED if not hasattr(approval, name)]
        if missing or not hasattr(terminal, "set_approval_callback"):
            raise UnknownHermes(
                "This version of hermes-agent asks for approvals in a way that the bridge does not know "
                f"({', '.join(missing) or 'set_approval_callback'}); 0.19.0 is known to fit."
            )
        self._approval = approval
        self._terminal = terminal
        self._load_config = load_config
        approval._YOLO_MODE_FROZEN = False
        approval._await_gateway_decision = functools.partial(
            _await_decision, approval, approval._await_gateway_decision
        )
        _carry_context(daemon_pool)

    @contextlib.contextmanager
    def of_run(self, run_id: str, allowed: Iterable[str], asker: Asker) -> Iterator[None]:
        """For the run's thread, around the run."""
        key = f"portal-run:{run_id}"
        self._read_allowlist()
        for pattern in allowed:
            self._approval.approve_session(key, pattern)
        self._approval.register_gateway_notify(key, asker)
        token = self._approval.set_current_session_key(key)
        self._terminal.set_approval_callback(functools.partial(_by_callback, asker))
        try:
            yield
        finally:
            self._terminal.set_approval_callback(None)
            self._approval.reset_current_session_key(token)
            self._approval.unregister_gateway_notify(key)
            self._approval.clear_session(key)

    def _read_allowlist(self) -> None:
        """What config.yaml lists is allowed for the process: exactly that, also after a line was taken out."""
        try:
            listed = {str(pattern) for pattern in self._load_config().get("command_allowlist") or []}
        except Exception as error:  # a broken file allows nothing  # noqa: BLE001
            log.warning("allowlist.unreadable error=%s", type(error).__name__)
            listed = set()
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
    if not isinstance(notify, Asker):
        return original(session_key, notify, data, **more)
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
    decision = notify(data)
    is_answered = decision.reason != "expired"
    fire("post_approval_response", **told, choice=decision.choice if is_answered else "timeout")
    return {
        "resolved": is_answered,
        "choice": for_hermes(decision.choice) if is_answered else None,
        "reason": None,
    }


def _by_callback(asker: Asker, command: str, description: str, *, allow_permanent: bool = True, **more: Any) -> Choice:
    """For the few tools that know the callback alone (codex's app server)."""
    data = {
        "command": command,
        "description": description,
        "pattern_keys": [description],
        "allow_permanent": allow_permanent,
        "smart_denied": more.get("smart_denied", False),
    }
    return for_hermes(asker(data).choice)


def _carry_context(pool: type[Any]) -> None:
    """Have the threads of subagents know whose run they belong to: their executor starts them without a context."""
    original = pool.submit

    @functools.wraps(original)
    def submit(self: Any, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return original(self, contextvars.copy_context().run, work, *args, **kwargs)

    pool.submit = submit
