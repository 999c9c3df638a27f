"""What a worker can serve and how its agents do, looked at now and then for its heartbeat (shared/relay/presence.py).

The look has a thread of its own: it reads the database and asks children, and a heartbeat must wait for neither.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session, sessionmaker

from shared import clock
from shared.database import transaction
from shared.models import Profile
from shared.relay.presence import ProfileFacts, SourceFacts
from shared.settings import Settings, is_portals
from shared.store import catalogue
from shared.text import storable
from worker.backends import offered
from worker.backends.registry import Backends

SEARCH_EVERY_S = 60.0  # for an installed Hermes: it may start another Python
WHY_CHARS = 1_000
STATES = {"ready": "ready", "retiring": "ready", "starting": "starting"}  # of a child -> of its profile
BEST_FIRST = ("ready", "starting", "retiring")


@dataclass(frozen=True)
class Seen:
    """As of one look. `looked_at` None: none was made yet."""

    sources: tuple[SourceFacts, ...] = ()
    profiles: tuple[ProfileFacts, ...] = ()
    keys: Mapping[str, bool] = field(default_factory=dict)
    looked_at: datetime | None = None


class Served:
    """`look` from one thread, `seen` from any."""

    def __init__(self, settings: Settings, factory: sessionmaker[Session], backends: Backends) -> None:
        self.seen = Seen()
        self._settings = settings
        self._factory = factory
        self._backends = backends
        self._faults: dict[str, str | None] = {}
        self._search_at = 0.0  # monotonic
        self._were_gone: set[str] = set()

    def look(self) -> bool:
        """True when there is something new to say. Raises Unavailable without the database; then the last look counts
        on."""
        with transaction(self._factory, write=False) as db:
            profiles = catalogue.profiles(db)
            names = [row.key_ref for row in catalogue.language_models(db) if row.key_ref]
        now = time.monotonic()
        if now >= self._search_at or self._faults.keys() != offered.FAULTS.keys():
            self._search_at = now + SEARCH_EVERY_S
            self._faults = {source: offered.fault_of(source, self._settings, profiles) for source in offered.FAULTS}
        before = self.seen
        self.seen = Seen(
            sources=tuple(
                SourceFacts(source=source, ok=fault is None, why=_told(fault)) for source, fault in self._faults.items()
            ),
            profiles=tuple(self._profiles(profiles)),
            keys={name: bool(os.environ.get(name)) for name in names if not is_portals(name)},
            looked_at=clock.now(),
        )
        self._forget_gone({row.name for row in profiles})
        return replace(before, looked_at=self.seen.looked_at) != self.seen

    def _forget_gone(self, names: set[str]) -> None:
        """End the agents of profiles that are gone, at the second look: one of them may just have been added."""
        gone = self._backends.profiles() - names
        self._backends.forget(gone & self._were_gone)
        self._were_gone = gone

    def _profiles(self, rows: Sequence[Profile]) -> list[ProfileFacts]:
        agents = _by_profile([facts for backend in self._backends.holding_agents() for facts in backend.describe()])
        found = []
        for row in (None, *rows):
            name = None if row is None else row.name
            fault = offered.home_fault(offered.home_of(row, self._settings))
            found.append(_facts(name, agents.get(name), fault))
        return found


def _by_profile(described: Sequence[dict[str, Any]]) -> dict[str | None, dict[str, Any]]:
    """Of several processes of a profile the one that takes its turns."""

    def rank(facts: dict[str, Any]) -> int:
        state = facts.get("state")
        return BEST_FIRST.index(state) if state in BEST_FIRST else len(BEST_FIRST)

    return {facts.get("profile"): facts for facts in sorted(described, key=rank, reverse=True)}


def _facts(profile: str | None, agent: Mapping[str, Any] | None, home_fault: str | None) -> ProfileFacts:
    """`agent`: as HoldsAgents.describe gives it; None: no turn has needed it yet."""
    agent = agent or {}
    why = str(agent.get("why") or "")
    state = STATES.get(str(agent.get("state")))
    if state == "ready" and agent.get("answers") is False:
        state, why = "failed", why or "It does not answer."
    if state is None:
        state = "missing" if home_fault else "failed" if why else "idle"
        why = home_fault or why
    memory_mb = agent.get("memory_mb")
    return ProfileFacts(
        profile=profile,
        state=state,
        why=_told(why) if state in ("failed", "missing") else "",
        version=_told(str(agent.get("version") or ""))[:40],
        sessions=_count(agent.get("sessions")),
        busy=_count(agent.get("busy")),
        memory_mb=memory_mb if isinstance(memory_mb, int | float) else None,
    )


def _told(text: str | None) -> str:
    """The end says what went wrong, the beginning what it is about."""
    text = storable(text or "").strip()
    return text if len(text) <= WHY_CHARS else f"{text[: WHY_CHARS // 4]} … {text[-(3 * WHY_CHARS) // 4 :]}"


def _count(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
