"""Runs: every query and every write. Four modules hold them; everybody else reads them under this one name.

`run_moves` is the one function that changes a state, `run_queue` what waits, `run_endings` how runs end, `run_upkeep`
what janitors look for.
"""

from shared.store.run_endings import MAX_STARTS, Finished, finish, request_abort, stop_all, stop_all_of_user
from shared.store.run_moves import (
    active,
    begin,
    claim,
    get,
    move,
    previous,
    renew_leases,
    save_progress,
    state_and_fence,
)
from shared.store.run_queue import (
    Enqueued,
    by_queue_id,
    cancel_queued,
    edit_queued,
    enqueue,
    hash_body,
    head,
    move_queued,
    queue,
    release_queue,
)
from shared.store.run_upkeep import (
    MAX_WAIT_S,
    back_to_queue,
    counts,
    expired_leases,
    mark_dispatched,
    mark_unsent,
    overdue_aborts,
    to_dispatch,
    too_old,
    unclaimed,
)

__all__ = [
    "MAX_STARTS",
    "MAX_WAIT_S",
    "Enqueued",
    "Finished",
    "active",
    "back_to_queue",
    "begin",
    "by_queue_id",
    "cancel_queued",
    "claim",
    "counts",
    "edit_queued",
    "enqueue",
    "expired_leases",
    "finish",
    "get",
    "hash_body",
    "head",
    "mark_dispatched",
    "mark_unsent",
    "move",
    "move_queued",
    "overdue_aborts",
    "previous",
    "queue",
    "release_queue",
    "renew_leases",
    "request_abort",
    "save_progress",
    "state_and_fence",
    "stop_all",
    "stop_all_of_user",
    "to_dispatch",
    "too_old",
    "unclaimed",
]
