"""Keeps the leases of all runs of this process, in one statement, and gives up those that could not be renewed.

Intervals are measured by the monotonic clock, which goes on while the process is paused; whether a lease is over is
decided by the database's clock alone (RELIABILITY 2.2).
"""

import time

from shared import logs
from shared.database import transaction
from shared.store import runs as run_store
from worker.context import WorkerContext

log = logs.get(__name__)


class LeaseKeeper:
    """`renew` is called every `lease_renew_s` by a thread of its own."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context

    def renew(self) -> None:
        """Renew what is held. Raises Unavailable when the database does not answer."""
        self._give_up_what_is_over()
        held = [live for live in self._context.live_runs.all() if not live.gone]
        if not held:
            return
        asked_at = time.monotonic()
        with transaction(self._context.factory) as db:
            ours = run_store.renew_leases(
                db, [(live.run_id, live.fence) for live in held], self._context.settings.lease_s
            )
        for live in held:
            if live.run_id in ours:
                live.renewed_at = asked_at
            elif self._context.live_runs.get(live.run_id) is live:  # else it has just ended
                log.warning("run.lease_taken", run_id=live.run_id, fence=live.fence)
                live.lose_lease(taken=True)

    def _give_up_what_is_over(self) -> None:
        now = time.monotonic()
        for live in self._context.live_runs.all():
            if not live.gone and now - live.renewed_at > self._context.settings.lease_give_up_s:
                log.warning("run.lease_not_renewed", run_id=live.run_id, fence=live.fence)
                live.lose_lease(taken=False)
