"""Hermes as this process has imported it: its home, its configuration, and how an agent is made of them.

With `approvals.py` and `workspace.py` the only place that knows Hermes' modules.
"""

import contextlib
import importlib
import importlib.metadata
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from . import approvals, reviews, wire
from .home import try_home

DEFAULT_MAX_TURNS = 100
REBUILDING = (
    *("model", "providers", "custom_providers", "fallback_model", "fallback_providers", "provider_routing"),
    *("agent", "platform_toolsets", "mcp_servers", "plugins", "memory", "compression", "context", "terminal"),
)
"""Parts of config.yaml by which an agent is made: when one has changed it is made anew."""
NO_KEY = "no-key-required"  # what Hermes itself sends to servers that want none
ABORT_TRIES, ABORT_EVERY_S = 12, 0.25
REQUESTS = "_portal_requests"  # where an agent keeps the clients of its last requests
NEEDED_BY_TURNS = (
    *("agent.conversation_loop", "agent.chat_completion_helpers", "agent.system_prompt", "agent.turn_finalizer"),
    *("agent.aux_accounting", "agent.coding_context", "agent.credits_tracker", "agent.display", "agent.prompt_caching"),
    *("agent.verify_hooks", "agent.verification_stop", "hermes_cli.moa_config", "hermes_cli.profiles"),
    *("hermes_cli.skin_engine", "openai.resources.chat.completions", "tools.hook_output_spill"),
)
"""Modules that Hermes imports in the first turn of a process."""

log = logging.getLogger("portal_bridge")


class HomeUnusable(Exception):
    """The home is missing, or cannot be read or written."""


@dataclass(frozen=True)
class ModelSpec:
    """Which model an agent is made with; all None: as the home's configuration says. `is_bare`: without tools, memory
    and files of the home, and nothing of it is stored."""

    name: str | None = None
    provider: str | None = None
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    context_length: int | None = None
    is_bare: bool = False

    @property
    def is_default(self) -> bool:
        return self.name is None


class Hermes:
    """`agent_root`: a checkout of hermes-agent to import from, where it is not installed in this interpreter."""

    def __init__(self, home: Path, agent_root: Path | None, profile: str | None) -> None:
        """Imports it, which takes 2 s on an idle machine. Raises HomeUnusable, ImportError, approvals.UnknownHermes."""
        _check(home)
        self.home = home
        self.profile = profile
        self.platform = os.environ.get("HERMES_AGENT_BRIDGE_PLATFORM") or "cli"
        self.max_turns = _positive(os.environ.get("HERMES_BRIDGE_MAX_TURNS")) or DEFAULT_MAX_TURNS
        if agent_root is not None and (agent_root / "run_agent.py").is_file():
            sys.path.insert(0, str(agent_root))
        os.environ["HERMES_HOME"] = str(home)
        # An approval in a batch of parallel tools may wait for a person for hours.
        os.environ.setdefault("HERMES_CONCURRENT_TOOL_TIMEOUT_S", "0")
        approvals.close_back_doors()
        self._agent_class = importlib.import_module("run_agent").AIAgent
        approvals.close_back_doors()
        self._config = importlib.import_module("hermes_cli.config")
        self._runtime = importlib.import_module("hermes_cli.runtime_provider")
        self._session_context = importlib.import_module("gateway.session_context")
        self.approvals = approvals.Approvals(
            importlib.import_module("tools.approval"),
            importlib.import_module("tools.terminal_tool"),
            importlib.import_module("tools.daemon_pool").DaemonThreadPoolExecutor,
            self._config_to_read,
        )
        self._may_review = self._keep_reviews_apart()
        _find_all_sockets(importlib.import_module("agent.agent_runtime_helpers"))
        self._session_db = self._open_session_db()
        self._start_mcp()

    @property
    def version(self) -> str:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version("hermes-agent")
        with contextlib.suppress(ImportError):
            return str(getattr(importlib.import_module("hermes_cli"), "__version__", ""))
        return ""

    # ---- agents

    def signature(self, spec: ModelSpec) -> str:
        """Agents of equal signature are made alike."""
        config = self._config_to_read()
        parts = [config.get(name) for name in REBUILDING]
        chosen = [spec.name, spec.provider, spec.base_url, spec.api_key, spec.context_length, spec.is_bare]
        return repr([chosen, parts])

    def make_agent(self, spec: ModelSpec, session_id: str) -> Any:
        """An AIAgent, without any callback. Raises what Hermes raises."""
        config = self._config.load_config()
        with contextlib.suppress(ImportError):
            importlib.import_module("hermes_cli.mcp_startup").wait_for_mcp_discovery()
        name, runtime = self._resolve(spec, config)
        routing = config.get("provider_routing") or {}
        agent = self._agent_class(
            model=name,
            **runtime,
            max_iterations=self.max_turns,
            tool_delay=0.0,
            quiet_mode=True,
            platform=self.platform,
            session_id=session_id,
            session_db=None if spec.is_bare else self._session_db,
            enabled_toolsets=[] if spec.is_bare else self._toolsets(config),
            skip_memory=spec.is_bare,
            skip_context_files=spec.is_bare,
            reasoning_config=self._reasoning(config, name),
            service_tier=_service_tier(config),
            fallback_model=self._fallbacks(config) if spec.is_default else None,
            providers_allowed=routing.get("only"),
            providers_ignored=routing.get("ignore"),
            providers_order=routing.get("order"),
            provider_sort=routing.get("sort"),
            provider_require_parameters=routing.get("require_parameters", False),
            provider_data_collection=routing.get("data_collection"),
        )
        # The constructor sets it for the process; runs have theirs as a context variable.
        os.environ.pop("HERMES_SESSION_ID", None)
        agent._print_fn = _say_nothing  # what it prints holds prompts
        _remember_requests(agent)
        agent._end_session_on_close = False  # the portal's session goes on
        if not self._may_review:
            reviews.switch_off(agent)
        if spec.context_length and not spec.is_default:
            _set_window(agent, spec.context_length)
        return agent

    def warm_up(self) -> None:
        """What would hold up the first turn of the process: imports, and a look at the machine's tools (1.5 s)."""
        for name in NEEDED_BY_TURNS:
            with contextlib.suppress(Exception):  # of another version of Hermes
                importlib.import_module(name)
        with contextlib.suppress(Exception):
            importlib.import_module("tools.env_probe").get_environment_probe_line()

    def can_be_adopted(self, agent: Any) -> bool:
        """Whether an agent made for no session may become that of one: nothing in it remembers its id."""
        engine = getattr(agent, "context_compressor", None)
        return getattr(agent, "_memory_manager", None) is None and type(engine).__name__ == "ContextCompressor"

    def place(self, agent: Any, workspace: str | None) -> None:
        """Have the agent look for a project's own files (AGENTS.md) where its session works."""
        agent.session_cwd = workspace
        with _logged("hints"):
            agent._subdirectory_hints = type(agent._subdirectory_hints)(working_dir=workspace or str(self.home))

    def adopt(self, agent: Any, session_id: str) -> None:
        """Make a spare agent that of a session."""
        agent.session_id = session_id
        agent.reset_session_state()  # binds the compressor to the session, too

    def system_prompt(self, instructions: str | None) -> str | None:
        """The home's own addition to the system prompt, then those of the turn."""
        own = (self._config_to_read().get("agent") or {}).get("system_prompt")
        parts = [part.strip() for part in (own, instructions) if isinstance(part, str) and part.strip()]
        return "\n\n".join(parts) or None

    @contextlib.contextmanager
    def session(self, session_id: str, workspace: str | None) -> Any:
        """Bind the session to this thread, and to those that Hermes starts from it."""
        tokens = self._session_context.set_session_vars(
            session_key=session_id,
            session_id=session_id,
            cwd=workspace or "",
            async_delivery=False,  # nothing reaches the agent between two turns
        )
        try:
            yield
        finally:
            self._session_context.clear_session_vars(tokens)

    def release(self, agent: Any, messages: list[Any]) -> None:
        """Give back what the agent holds, but for its background processes and shells. A memory may take its time."""
        with _logged("memory"):
            agent.shutdown_memory_provider(messages)
        with _logged("clients"):
            agent.release_clients()

    def end_all(self, agent: Any) -> None:
        """End what the agent runs in the background, its shells, and what it has open."""
        with _logged("close"):
            agent.close()

    def discard(self, agent: Any) -> None:
        """Give up an agent that was interrupted: a thread of its last request may live on until its next byte, and
        would take the stream of the agent's next turn for its own."""
        agent._interrupt_requested = True  # Hermes has cleared it; that thread looks at it with each piece
        threading.Thread(target=self._discard, args=(agent,), name="discard", daemon=True).start()

    def _discard(self, agent: Any) -> None:
        self.release(agent, [])
        for _ in range(ABORT_TRIES):  # a request may still have been connecting when Hermes looked for its socket
            for client in list(vars(agent).get(REQUESTS, ())):
                with _logged("abort"):
                    agent._abort_request_openai_client(client, reason="interrupt_abort")
            time.sleep(ABORT_EVERY_S)

    def describe(self, error: BaseException) -> str:
        """An exception for people, without keys."""
        text = ""
        with contextlib.suppress(Exception):
            text = str(self._runtime.format_runtime_provider_error(error))
        text = text or str(error) or type(error).__name__
        return self.redact(text)[: wire.MAX_ERROR_CHARS]

    def redact(self, text: str) -> str:
        try:
            return str(importlib.import_module("agent.redact").redact_sensitive_text(text, force=True))
        except Exception:  # better no text than a key  # noqa: BLE001
            return "The message could not be made safe to show."

    def count_tokens(self, agent: Any, messages: Any) -> int:
        """About how large a request with these messages is; 0 when that cannot be said."""
        try:
            return int(
                importlib.import_module("agent.model_metadata").estimate_request_tokens_rough(
                    messages, system_prompt=getattr(agent, "_cached_system_prompt", None) or "", tools=agent.tools
                )
            )
        except Exception as error:  # a figure for people, nothing more  # noqa: BLE001
            log.warning("tokens.not_counted error=%s", type(error).__name__)
            return 0

    # ---- out of config.yaml

    def _config_to_read(self) -> dict[str, Any]:
        """Not to be changed: where Hermes can, it gives its own copy, which is quicker."""
        load = getattr(self._config, "load_config_readonly", self._config.load_config)
        try:
            return load() or {}
        except Exception:  # a broken file: the constructor will say so  # noqa: BLE001
            return {}

    def _resolve(self, spec: ModelSpec, config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The model's name, and with which server and key. An address brings its own key or none: never one of the
        home's."""
        if spec.base_url:
            return spec.name or "", {
                "provider": spec.provider or "custom",
                "base_url": spec.base_url,
                "api_key": spec.api_key or NO_KEY,
            }
        name = spec.name or _default_model(config)
        provider = spec.provider or (os.environ.get("HERMES_BRIDGE_PROVIDER") or None)
        found = self._runtime.resolve_runtime_provider(
            requested=provider, explicit_api_key=spec.api_key, target_model=name or None
        )
        runtime = {part: found.get(part) for part in ("provider", "base_url", "api_key", "api_mode", "credential_pool")}
        runtime["acp_command"], runtime["acp_args"] = found.get("command"), found.get("args")
        return name or str(found.get("model") or ""), runtime

    def _toolsets(self, config: dict[str, Any]) -> list[str] | None:
        with contextlib.suppress(ImportError, AttributeError):
            return sorted(importlib.import_module("hermes_cli.tools_config")._get_platform_tools(config, self.platform))
        return None

    def _reasoning(self, config: dict[str, Any], model: str) -> Any:
        with contextlib.suppress(ImportError, AttributeError):
            return importlib.import_module("hermes_constants").resolve_reasoning_config(config, model)
        return None

    def _fallbacks(self, config: dict[str, Any]) -> Any:
        with contextlib.suppress(ImportError, AttributeError):
            return importlib.import_module("hermes_cli.fallback_config").get_fallback_chain(config) or None
        return None

    def _keep_reviews_apart(self) -> bool:
        try:
            module = importlib.import_module("agent.background_review")
        except ImportError:
            return False
        return reviews.keep_apart(module, self._agent_class, importlib.import_module("tools.approval"))

    def _open_session_db(self) -> Any:
        try:
            return importlib.import_module("hermes_state").SessionDB(db_path=self.home / "state.db")
        except Exception as error:  # the portal keeps the conversation itself  # noqa: BLE001
            log.warning("session_db.closed error=%s", type(error).__name__)
            return None

    def _start_mcp(self) -> None:
        with contextlib.suppress(ImportError):
            start = importlib.import_module("hermes_cli.mcp_startup").start_background_mcp_discovery
            start(logger=log, thread_name="mcp-discovery")


def _check(home: Path) -> None:
    try:
        try_home(home)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise HomeUnusable(f"There is no Hermes home at {home}.") from error
    except OSError as error:
        raise HomeUnusable(
            f"The Hermes home {home} cannot be read and written by this user ({error.strerror})."
        ) from error


def _default_model(config: dict[str, Any]) -> str:
    model = config.get("model")
    if isinstance(model, dict):
        model = model.get("default") or model.get("model")
    return model.strip() if isinstance(model, str) else ""


def _service_tier(config: dict[str, Any]) -> str | None:
    tier = str((config.get("agent") or {}).get("service_tier") or "").strip().lower()
    return "priority" if tier in ("fast", "priority", "on") else None


def _set_window(agent: Any, context_length: int) -> None:
    """The window of a model that the portal's list tells; Hermes would have had to guess it."""
    with _logged("window"):
        agent.context_compressor.update_model(
            model=agent.model,
            context_length=context_length,
            base_url=agent.base_url,
            api_key=getattr(agent, "api_key", ""),
            provider=agent.provider,
            api_mode=agent.api_mode,
        )


def _remember_requests(agent: Any) -> None:
    """The clients of the agent's last requests: Hermes makes one for each."""
    original = getattr(agent, "_create_request_openai_client", None)
    if original is None:
        return
    made: deque[Any] = deque(maxlen=2)

    def create(*args: Any, **kwargs: Any) -> Any:
        client = original(*args, **kwargs)
        if client is not getattr(agent, "client", None):
            made.append(client)
        return client

    setattr(agent, REQUESTS, made)
    agent._create_request_openai_client = create


def _find_all_sockets(helpers: Any) -> None:
    """An interrupt shuts down the sockets of the request that is open, or the model goes on to its end. Hermes looks
    for them in the client's one transport; where no proxy is set it sends over others, mounted beside it."""
    original = getattr(helpers, "_iter_pool_sockets", None)
    if original is None:
        return

    def of_all_transports(client: Any) -> Iterator[Any]:
        yield from original(client)
        mounted = getattr(getattr(client, "_client", None), "_mounts", None) or {}
        for transport in list(mounted.values()):
            yield from original(SimpleNamespace(_client=SimpleNamespace(_transport=transport)))

    helpers._iter_pool_sockets = of_all_transports


def _positive(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and int(text) > 0 else None


def _say_nothing(*_: Any, **__: Any) -> None: ...


@contextlib.contextmanager
def _logged(what: str) -> Any:
    """Tidying up must not fail: what goes wrong is said and left."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        log.warning("hermes.%s_failed error=%s", what, type(error).__name__)
