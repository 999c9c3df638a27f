"""Makes agents, one at a time: their construction takes the processor, and streams run meanwhile.

One agent is kept ready for a session that is new, so that its first turn need not wait.
"""

import logging
import threading
import time
import uuid
from collections import deque
from dataclasses import dataclass
from typing import Any

from .hermes import Hermes, ModelSpec

SPARE_QUIET_S = 1.0  # no spare is begun so soon after a turn: its first request goes first
RETRY_SPARE_S = 60.0

log = logging.getLogger("portal_bridge")


class Cancelled(Exception):
    """The turn was stopped before it had its agent."""


@dataclass(eq=False)
class _Job:
    spec: ModelSpec
    signature: str
    session_id: str | None  # None: a spare
    taker: str | None = None  # the session that waits for a spare which is being made
    is_given_up: bool = False  # nobody waits any more
    is_done: bool = False
    agent: Any = None
    error: BaseException | None = None


class Builder:
    """Safe from any thread. `close` ends its thread after the agent that it is at."""

    def __init__(self, hermes: Hermes, *, spare_quiet_s: float = SPARE_QUIET_S) -> None:
        self._hermes = hermes
        self._spare_quiet_s = spare_quiet_s
        self._changed = threading.Condition()
        self._waiting: deque[_Job] = deque()
        self._current: _Job | None = None
        self._spare: _Job | None = None  # made, and not taken
        self._spare_spec: ModelSpec | None = None  # None: none is wanted
        self._can_have_spares = True
        self._not_before = 0.0  # monotonic, of the next spare
        self._is_closed = False
        threading.Thread(target=self._work, name="builder", daemon=True).start()

    @property
    def has_spare(self) -> bool:
        with self._changed:
            return self._spare is not None

    @property
    def waiting(self) -> int:
        """How many turns wait for their agent."""
        with self._changed:
            current = [] if self._current is None else [self._current]
            return sum((job.session_id or job.taker) is not None for job in [*self._waiting, *current])

    def prepare(self, spec: ModelSpec) -> bool:
        """Keep a spare of that kind from now on. True when it is there."""
        with self._changed:
            if self._can_have_spares:
                self._spare_spec = spec
            self._drop_other_spare()
            self._changed.notify_all()
            return self._spare is not None

    def take(self, spec: ModelSpec, session_id: str, stop: threading.Event) -> tuple[Any, str]:
        """An agent for the session, and its signature. Blocks until it is there, or until `stop` is set and `wake` was
        called: then it raises Cancelled. Raises what Hermes raises, too."""
        signature = self._hermes.signature(spec)
        with self._changed:
            job = self._enter(spec, signature, session_id)
            while not job.is_done and not stop.is_set():
                self._changed.wait()
            if not job.is_done:
                job.taker, job.is_given_up = None, True
                raise Cancelled
        if job.error is not None:
            raise job.error
        if job.session_id is None:
            self._hermes.adopt(job.agent, session_id)
        return job.agent, signature

    def wake(self) -> None:
        """Have all who wait look whether they are to stop."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    # ---- inside

    def _enter(self, spec: ModelSpec, signature: str, session_id: str) -> _Job:
        """Take the spare, or the one that is being made, else queue."""
        self._not_before = time.monotonic() + self._spare_quiet_s
        self._drop_other_spare()
        made = self._current
        if self._spare is not None and self._spare.signature == signature:
            job, self._spare = self._spare, None
        elif made is not None and made.session_id is None and made.taker is None and made.signature == signature:
            job = made
            job.taker, job.is_given_up = session_id, False
        else:
            job = _Job(spec, signature, session_id)
            self._waiting.append(job)
        self._changed.notify_all()
        return job

    def _drop_other_spare(self) -> None:
        """The home's configuration may have changed since it was made, or another kind be wanted."""
        spare = self._spare
        if spare is not None and (
            spare.spec != self._spare_spec or spare.signature != self._hermes.signature(spare.spec)
        ):
            self._spare = None

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                job.agent = self._hermes.make_agent(job.spec, job.session_id or f"spare-{uuid.uuid4().hex}")
            except BaseException as error:  # the turn that waits tells it; it may be SystemExit  # noqa: BLE001
                job.error = error
                log.warning("agent.not_made error=%s", type(error).__name__)
            self._deliver(job)

    def _next(self) -> _Job | None:
        with self._changed:
            while not self._is_closed:
                while self._waiting:
                    job = self._waiting.popleft()
                    if not job.is_given_up:
                        self._current = job
                        return job
                left_s = self._not_before - time.monotonic()
                if self._spare_spec is None or self._spare is not None:
                    self._changed.wait()
                elif left_s > 0:
                    self._changed.wait(left_s)
                else:
                    spec = self._spare_spec
                    self._current = _Job(spec, self._hermes.signature(spec), None)
                    return self._current
            return None

    def _deliver(self, job: _Job) -> None:
        with self._changed:
            self._current = None
            job.is_done = True
            if job.session_id is None:
                self._deliver_spare(job)
            self._changed.notify_all()
        if job.is_given_up and job.session_id is not None and job.agent is not None:
            self._hermes.release(job.agent, [])

    def _deliver_spare(self, job: _Job) -> None:
        if job.error is not None:
            self._not_before = time.monotonic() + RETRY_SPARE_S
        elif not self._hermes.can_be_adopted(job.agent):
            # What is configured binds an agent to its session.
            self._can_have_spares, self._spare_spec = False, None
            if job.taker is not None:
                job.is_done, job.agent, job.session_id = False, None, job.taker
                self._waiting.appendleft(job)
        elif job.taker is None:
            self._spare = job
