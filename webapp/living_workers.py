"""What the workers last said of themselves, for pages: asked of Redis once in a moment, not once a page."""

import threading
import time

from shared import logs
from shared.relay.connection import Client, RelayDown
from shared.relay.keys import Keys
from shared.relay.presence import Presence, WorkerFacts
from webapp.relay_breaker import RelayBreaker

log = logs.get("webapp.living_workers")

KEPT_S = 2.0


class LivingWorkers:
    """One of a web process. Safe from any thread."""

    def __init__(self, client: Client, keys: Keys, breaker: RelayBreaker, *, kept_s: float = KEPT_S) -> None:
        self._presence = Presence(client, keys)
        self._breaker = breaker
        self._kept_s = kept_s
        self._lock = threading.Lock()
        self._seen: list[WorkerFacts] | None = None
        self._until = 0.0  # monotonic

    def now(self) -> list[WorkerFacts] | None:
        """The living workers; None while nobody can tell. Never raises."""
        with self._lock:
            if time.monotonic() < self._until:
                return self._seen
        seen = self._ask()
        with self._lock:
            self._seen, self._until = seen, time.monotonic() + self._kept_s
        return seen

    def forget(self) -> None:
        """Ask anew the next time."""
        with self._lock:
            self._until = 0.0

    def _ask(self) -> list[WorkerFacts] | None:
        begun = time.monotonic()
        if self._breaker.is_open:
            return None
        try:
            return self._presence.workers()
        except RelayDown as error:
            self._breaker.failed(begun)
            log.warning("workers.not_known", code=error.code)
            return None
