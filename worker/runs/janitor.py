"""Mends what a crash, a lost message or silence has left: a thread of its own in every worker and in beat, never a
task that busy threads could starve (RELIABILITY 2.2).

All it does is a compare-and-set, so any number of janitors may run, also with an old view of things.
"""

import time
from collections.abc import Callable

from shared import logs, task_names
from shared.database import db_time, transaction
from shared.errors import LeaseLost, NotFound, Unavailable
from shared.models import Run
from shared.protocol.events import QueueUpdated, StatusUpdated, StatusUpdatedData, to_payload
from shared.queue_events import queue_told
from shared.relay.connection import RelayDown, relay_errors
from shared.run_state import EndReason, RunState
from shared.store import chat_sessions
from shared.store import runs as run_store
from worker.context import WorkerContext
from worker.heartbeat import sign_off
from worker.runs.claim import dispatch
from worker.runs.expiry import expire_due
from worker.runs.sealing import seal, tell_failed

NOBODY_WORKS = "No worker is there to take this turn. It waits to start."
TOO_OLD = "The turn waited for a day and was never started. Its text is kept; try it again."

log = logs.get(__name__)


class Janitor:
    """`sweep` is called every `janitor_every_s` by a thread of its own."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._connected_at: float | None = None  # monotonic: since when the database has answered without a failure
        self.swept_at: float | None = None  # monotonic
        self._told_to_wait: set[str] = set()  # ids of runs

    def sweep(self) -> None:
        """One round. Raises Unavailable when the database does not answer."""
        try:
            self._look_at_the_database()
            self._dispatch_again()
            self._end_lost_runs()
            expire_due(self._context)
            self._force_aborts()
            self._fail_old_runs()
            self._tell_that_nobody_works()
        except Unavailable as error:
            if not isinstance(error, RelayDown):
                self._connected_at = None
            raise
        self._mend_logs()
        self._forget_dead_workers()
        self.swept_at = time.monotonic()

    def _look_at_the_database(self) -> None:
        with transaction(self._context.factory, write=False) as db:
            db_time(db)
        if self._connected_at is None:
            self._connected_at = time.monotonic()

    # ---- (a) what waits and has no task

    def _dispatch_again(self) -> None:
        with transaction(self._context.factory, write=False) as db:
            waiting = run_store.to_dispatch(
                db,
                again_s=self._context.settings.dispatch_again_s,
                is_broker_empty=self._is_broker_empty(),
            )
        for run in waiting:
            dispatch(run, self._context)
        if waiting:
            log.info("janitor.dispatched", runs=len(waiting))

    def _is_broker_empty(self) -> bool:
        try:
            with relay_errors():
                return not self._context.redis.llen(self._context.queue_key(task_names.RUNS_QUEUE))
        except RelayDown:
            return False

    def _tell_that_nobody_works(self) -> None:
        """Turns that nobody takes because no worker lives say so, once each (C17)."""
        with transaction(self._context.factory, write=False) as db:
            waiting = run_store.unclaimed(db, longer_than_s=self._context.settings.dispatch_again_s)
        self._told_to_wait &= {run.id for run in waiting}
        try:
            if not waiting or self._context.presence.workers():
                return
            for run in waiting:
                if run.id not in self._told_to_wait:
                    data = StatusUpdatedData(text=NOBODY_WORKS)
                    event = StatusUpdated(session_id=run.session_id, run_id=run.id, data=data)
                    self._context.log.append(run.session_id, [to_payload(event)])
                    self._told_to_wait.add(run.id)
        except RelayDown:
            return

    # ---- (b) leases that are over

    def _end_lost_runs(self) -> None:
        """Not soon after the database came back: workers must have had the time to renew."""
        young_s = self._context.settings.janitor_young_s
        if self._connected_at is None or time.monotonic() - self._connected_at < young_s:
            return
        with transaction(self._context.factory, write=False) as db:
            lost = run_store.expired_leases(db)
        for run in lost:
            if not self._has_heartbeat(run):
                self._try(run, self._end_lost)

    def _has_heartbeat(self, run: Run) -> bool:
        try:
            return self._context.presence.run_is_alive(run.id)
        except RelayDown:
            return False

    def _end_lost(self, run: Run) -> None:
        if run.state != RunState.STARTING:
            seal(self._context, run)
            return
        with transaction(self._context.factory) as db:
            finished = run_store.back_to_queue(db, run.id, run.fence)
            run = run_store.get(db, run.id)
        if finished is not None:
            tell_failed(self._context, run, finished)
        else:
            log.warning("run.back_in_queue", run_id=run.id, attempt=run.attempt)
            dispatch(run, self._context)

    # ---- (d) aborts that their worker does not carry out

    def _force_aborts(self) -> None:
        with transaction(self._context.factory, write=False) as db:
            overdue = run_store.overdue_aborts(db, self._context.settings.abort_force_s)
        for run in overdue:
            self._try(run, lambda run: seal(self._context, run))

    # ---- what waited for a day

    def _fail_old_runs(self) -> None:
        with transaction(self._context.factory, write=False) as db:
            old = run_store.too_old(db)
        for run in old:
            self._try(run, self._fail_old)

    def _fail_old(self, run: Run) -> None:
        with transaction(self._context.factory) as db:
            finished = run_store.finish(
                db,
                run.id,
                RunState.QUEUED,
                RunState.FAILED,
                fence=run.fence,
                content=None,
                transcript=None,
                reason=EndReason.TOO_OLD,
                error_code=EndReason.TOO_OLD,
                error=TOO_OLD,
            )
            run = run_store.get(db, run.id)
        tell_failed(self._context, run, finished)

    def _try(self, run: Run, act: Callable[[Run], None]) -> None:
        try:
            act(run)
        except (LeaseLost, NotFound):
            pass  # somebody was first
        except Unavailable:
            raise
        except Exception:
            log.exception("janitor.run_failed", run_id=run.id)

    # ---- the relay

    def _mend_logs(self) -> None:
        """Sessions whose log lacks an event of ours: a new epoch makes every page take a snapshot."""
        for session_id in self._context.holes.all():
            try:
                with transaction(self._context.factory, write=False) as db:
                    session = chat_sessions.get(db, session_id, with_deleted=True)
                    queue = queue_told(run_store.queue(db, session_id), session.held_reason)
                again = QueueUpdated(session_id=session_id, data=queue)
                self._context.log.append(session_id, [to_payload(again)], new_epoch=True)
            except RelayDown:
                return
            except NotFound:
                pass
            self._context.holes.take(session_id)

    # ---- (f) queues of workers that are gone

    def _forget_dead_workers(self) -> None:
        try:
            for worker_id in self._context.presence.dead_workers():
                sign_off(self._context, worker_id)
                log.info("janitor.worker_forgotten", worker_id=worker_id)
        except RelayDown:
            return
