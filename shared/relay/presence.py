"""Heartbeats in Redis: which workers live, which run is driven by whom, who watches which session.

A missing heartbeat proves nothing (Redis may have lost it); a present one proves that somebody was there within its
lifetime (`keys.py`). All times are those of the Redis server. What is read back is checked: Redis is untrusted.
"""

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.protocol.events import Time
from shared.relay.connection import Client, relay_errors
from shared.relay.keys import WATCH_TTL_S, WORKER_TTL_S, WORKERS_TTL_S, Keys

Facts = TypeVar("Facts", bound=BaseModel)


class SourceFacts(BaseModel):
    """Whether a worker can serve sessions of a source. `why`: what is missing, for operators."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    source: str
    ok: bool
    why: str = ""


class ProfileFacts(BaseModel):
    """How the agent process of a profile (None: the default one) does in a worker. `state`: `ready`, `starting`,
    `idle` (it starts with the first turn), `failed` (its last start, or it hangs), `missing` (its home cannot be used).
    `why`: for operators; it may name paths."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    profile: str | None
    state: str
    why: str = ""
    version: str = ""
    sessions: int = 0  # held warm
    busy: int = 0
    memory_mb: float | None = None


class WorkerFacts(BaseModel):
    """What a worker says of itself with each heartbeat. `queues`: the Celery queues it takes turns from.

    `sources`, `profiles` and `keys` (whether the variable that holds the key of a model is set) are of its last look,
    `looked_at` by its own clock; an older worker says nothing of them."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    worker_id: str
    host: str
    pid: int
    started_at: Time
    version: str = ""
    concurrency: int = 0
    queues: list[str] = []
    runs: list[str] = []
    draining: bool = False
    backends: list[str] = []
    sources: list[SourceFacts] = []
    profiles: list[ProfileFacts] = []
    keys: dict[str, bool] = {}
    looked_at: Time | None = None


class Watcher(BaseModel):
    """Somebody who has a session open."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    user_id: str
    name: str = Field(max_length=200)


class Presence:
    """All heartbeats. Every method raises RelayDown when Redis does not answer."""

    def __init__(self, client: Client, keys: Keys, *, ttl_s: float = WORKER_TTL_S) -> None:
        """`ttl_s`: for how long one heartbeat of a worker and of its runs counts."""
        self._client = client
        self._keys = keys
        self._ttl_ms = int(ttl_s * 1000)

    # ---- workers and runs

    def beat_worker(self, facts: WorkerFacts) -> None:
        """Say that a worker lives and drives `facts.runs`; to be repeated every 15 s."""
        with relay_errors():
            now = self._now_s()
            pipe = self._client.pipeline(transaction=False)
            pipe.set(self._keys.worker(facts.worker_id), facts.model_dump_json(), px=self._ttl_ms)
            pipe.zadd(self._keys.workers(), {facts.worker_id: now})
            pipe.expire(self._keys.workers(), WORKERS_TTL_S)
            for run_id in facts.runs:
                pipe.set(self._keys.run_heartbeat(run_id), facts.worker_id, px=self._ttl_ms)
            pipe.execute()

    def leave_worker(self, worker_id: str) -> None:
        """Say that a worker ends now."""
        with relay_errors():
            pipe = self._client.pipeline(transaction=False)
            pipe.delete(self._keys.worker(worker_id))
            pipe.zrem(self._keys.workers(), worker_id)
            pipe.execute()

    def workers(self) -> list[WorkerFacts]:
        """The living workers, by id."""
        with relay_errors():
            ids = [raw.decode("utf-8", "replace") for raw in self._client.zrange(self._keys.workers(), 0, -1)]
            found = self._client.mget([self._keys.worker(worker_id) for worker_id in ids]) if ids else []
        facts = (_read(WorkerFacts, raw) for raw in found if raw is not None)
        return sorted((each for each in facts if each is not None), key=lambda each: each.worker_id)

    def dead_workers(self) -> list[str]:
        """Ids of workers that were heard of in the last days and have no heartbeat any more."""
        with relay_errors():
            ids = [raw.decode("utf-8", "replace") for raw in self._client.zrange(self._keys.workers(), 0, -1)]
            found = self._client.mget([self._keys.worker(worker_id) for worker_id in ids]) if ids else []
        return [worker_id for worker_id, raw in zip(ids, found, strict=True) if raw is None]

    def forget_worker(self, worker_id: str) -> None:
        """Take a dead worker off the list and drop its mailbox."""
        with relay_errors():
            pipe = self._client.pipeline(transaction=False)
            pipe.zrem(self._keys.workers(), worker_id)
            pipe.delete(self._keys.mailbox(worker_id))
            pipe.execute()

    def takes_turns(self, worker_id: str) -> bool:
        """Whether it lives and is not draining."""
        with relay_errors():
            raw = self._client.get(self._keys.worker(worker_id))
        facts = None if raw is None else _read(WorkerFacts, raw)
        return facts is not None and not facts.draining

    def run_is_alive(self, run_id: str) -> bool:
        with relay_errors():
            return bool(self._client.exists(self._keys.run_heartbeat(run_id)))

    # ---- people

    def watch(self, session_id: str, watcher: Watcher) -> None:
        """Say that somebody has the session open; to be repeated every 20 s."""
        key = self._keys.watchers(session_id)
        with relay_errors():
            pipe = self._client.pipeline(transaction=False)
            pipe.zadd(key, {watcher.model_dump_json(): self._now_s()})
            pipe.expire(key, WATCH_TTL_S)
            pipe.execute()

    def unwatch(self, session_id: str, watcher: Watcher) -> None:
        with relay_errors():
            self._client.zrem(self._keys.watchers(session_id), watcher.model_dump_json())

    def watchers(self, session_id: str) -> list[Watcher]:
        """Who has the session open, first come first."""
        key = self._keys.watchers(session_id)
        with relay_errors():
            fresh = self._now_s() - WATCH_TTL_S
            raw = self._client.zrangebyscore(key, fresh, "+inf")
        return [each for each in (_read(Watcher, one) for one in raw) if each is not None]

    def _now_s(self) -> float:
        seconds, microseconds = self._client.time()
        return float(seconds) + float(microseconds) / 1e6


def _read(kind: type[Facts], raw: bytes) -> Facts | None:
    try:
        return kind.model_validate_json(raw)
    except ValidationError:
        return None
