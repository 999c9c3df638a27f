"""Which backend serves which source: one line for each in SOURCES, the longest prefix that fits wins.

Nothing past this file branches on the kind of a backend. Backends are made on first use and kept for the process.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

from sqlalchemy.orm import Session, sessionmaker

from shared.database import transaction
from shared.errors import BackendRefused
from shared.models import Profile
from shared.settings import Settings
from shared.store import catalogue
from worker.backends import offered
from worker.backends.base import Backend
from worker.backends.bridge.backend import BridgeBackend
from worker.backends.gateway.backend import GatewayBackend

DEFAULT_PROFILE = "default"  # as operators call the profile of the settings, which has no name of its own


@runtime_checkable
class Closable(Protocol):
    """A backend that holds connections or children until its process ends."""

    def close(self) -> None: ...


@runtime_checkable
class HoldsAgents(Protocol):
    """A backend that keeps agents warm in processes of its own; what operators may do with them."""

    def describe(self) -> list[dict[str, Any]]:
        """One for each process: `profile, state, pid, endpoint, memory_mb, sessions, busy, idle`, as far as known."""

    def restart(self, *, at_once: bool) -> int:
        """Have a new process take the turns from now on; gives how many turns run in the old one."""

    def drop_session(self, session_id: str) -> bool:
        """Forget what is held of a session; False when nothing was."""


class Backends:
    """The backends of one process, by source and profile. Safe from any thread."""

    def __init__(self, settings: Settings, factory: sessionmaker[Session]) -> None:
        self.settings = settings
        self.factory = factory
        self._made: dict[tuple[str, str | None], _Made] = {}
        self._lock = threading.Lock()

    def backend_for(self, source: str, profile: str | None) -> Backend:
        """Raises BackendRefused when the source or the profile is unknown or not configured; Unavailable."""
        prefix = max((name for name in SOURCES if source.startswith(name)), key=len, default=None)
        if prefix is None:
            raise BackendRefused(f"There is no agent for sessions of the kind {source!r} here.", retryable=False)
        look = DEPENDS_ON.get(prefix)
        depends_on = None if profile is None or look is None else look(self, profile)
        with self._lock:
            known = self._made.get((source, profile))
        if known is not None and known.depends_on == depends_on:
            return known.backend
        made = _Made(SOURCES[prefix](self, source, profile), depends_on)
        with self._lock:
            known = self._made.get((source, profile))
            if known is None or known.depends_on != depends_on:
                known = self._made[(source, profile)] = made
            return known.backend

    def is_made(self, source: str, profile: str | None) -> bool:
        """Whether `backend_for` gives a backend at once, and surely."""
        if profile is not None and any(source.startswith(name) for name in DEPENDS_ON):
            return False
        with self._lock:
            return (source, profile) in self._made

    def profiles(self) -> set[str]:
        """Those that a backend was made for."""
        with self._lock:
            return {profile for _, profile in self._made if profile is not None}

    def forget(self, profiles: set[str]) -> None:
        """These profiles are gone: close what was made for them, in a thread of its own."""
        with self._lock:
            gone = [self._made.pop(key).backend for key in list(self._made) if key[1] in profiles]
        closable = [backend for backend in gone if isinstance(backend, Closable)]
        if closable:
            threading.Thread(target=_close_all, args=(closable,), name="forget-profiles", daemon=True).start()

    def names(self) -> list[str]:
        with self._lock:
            return sorted({made.backend.name for made in self._made.values()})

    def holding_agents(self, profile: str | None = None) -> list[HoldsAgents]:
        """Those made so far, of one profile if it is given (DEFAULT_PROFILE: that of the settings)."""
        with self._lock:
            made = [
                made.backend
                for (_, whose), made in self._made.items()
                if profile in (None, DEFAULT_PROFILE if whose is None else whose)
            ]
        return [backend for backend in made if isinstance(backend, HoldsAgents)]

    def close(self) -> None:
        """The process ends: all are closed at the same time, since each may have a child to wait for."""
        with self._lock:
            made = [made.backend for made in self._made.values()]
            self._made.clear()
        _close_all([backend for backend in made if isinstance(backend, Closable)])


@dataclass(frozen=True)
class _Made:
    """`depends_on`: what of its profile it was made of; when that has changed, another one is made."""

    backend: Backend
    depends_on: object


def _close_all(closable: Sequence[Closable]) -> None:
    if closable:
        with ThreadPoolExecutor(len(closable), thread_name_prefix="close") as pool:
            list(pool.map(lambda backend: backend.close(), closable))


def _gateway(backends: Backends, source: str, profile: str | None) -> Backend:
    """The gateway of the profile, else the configured one, else the demo agent."""
    settings = backends.settings
    url = _gateway_of_profile(backends, profile)
    if url is not None or settings.hermes_gateway_url is not None:
        address = url or settings.hermes_gateway_url or ""
        key = settings.hermes_gateway_key if _is_same_server(address, settings.hermes_gateway_url) else None
        return GatewayBackend(
            address,
            None if key is None else key.get_secret_value(),
            api=settings.gateway_api,
            settings=settings,
            profile=profile if url is None else None,
            is_typed=url is not None and not _is_same_server(url, settings.hermes_gateway_url),
        )
    if settings.demo_url is None:
        raise BackendRefused(
            "No agent is configured: set HERMES_GATEWAY_URL, or start the portal with `portal up` for the demo agent.",
            retryable=False,
        )
    demo_key = settings.demo_key
    return GatewayBackend(
        settings.demo_url,
        None if demo_key is None else demo_key.get_secret_value(),
        name="Demo agent",
        agent="demo",
        settings=settings,
    )


def _is_same_server(url: str, configured: str | None) -> bool:
    """Whether our key was given for the server of that address: no other one gets to see it (CASES 162)."""
    if configured is None:
        return False
    asked, known = urlsplit(url), urlsplit(configured)
    return (asked.scheme, asked.netloc) == (known.scheme, known.netloc)


def _gateway_of_profile(backends: Backends, profile: str | None) -> str | None:
    return None if profile is None else _profile(backends, profile).gateway_url


def _profile(backends: Backends, name: str) -> Profile:
    with transaction(backends.factory, write=False) as db:
        row = catalogue.profile(db, name)
    if row is None:
        raise BackendRefused(f"The profile {name!r} is gone.", retryable=False)
    return row


def _bridge(backends: Backends, source: str, profile: str | None) -> Backend:
    """Hermes' own agent in the home of the profile, else in the configured one."""
    settings = backends.settings

    def find_home() -> Path:
        return offered.home_of(None if profile is None else _profile(backends, profile), settings)

    def find_key_names() -> list[str]:
        with transaction(backends.factory, write=False) as db:
            return [row.key_ref for row in catalogue.language_models(db) if row.key_ref]

    find_home()  # a profile that is not there has no backend
    return BridgeBackend(settings, find_home, profile=profile, find_key_names=find_key_names)


DEPENDS_ON: dict[str, Callable[[Backends, str], object]] = {
    "api_server": _gateway_of_profile,
}
"""What of a profile a backend is made of, for those that do not look by themselves at each turn."""

SOURCES: dict[str, Callable[[Backends, str, str | None], Backend]] = {
    "api_server": _gateway,
    "cli": _bridge,
}
