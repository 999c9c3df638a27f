"""The states of a run and the legal moves between them (RELIABILITY 2.1). Pure: no I/O, no other module of ours."""

from enum import StrEnum


class RunState(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    AWAITING_APPROVAL = "awaiting_approval"
    AWAITING_CLARIFICATION = "awaiting_clarification"
    ABORTING = "aborting"
    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED = "aborted"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"


S = RunState
_ENDS = frozenset({S.COMPLETED, S.FAILED, S.INTERRUPTED, S.ABORTING})

MOVES: dict[RunState, frozenset[RunState]] = {
    S.QUEUED: frozenset({S.STARTING, S.CANCELLED, S.FAILED}),
    S.STARTING: frozenset({S.RUNNING, S.QUEUED, S.ABORTING}),
    S.RUNNING: _ENDS | {S.AWAITING_APPROVAL, S.AWAITING_CLARIFICATION},
    S.AWAITING_APPROVAL: _ENDS | {S.RUNNING},
    S.AWAITING_CLARIFICATION: _ENDS | {S.RUNNING},
    S.ABORTING: frozenset({S.ABORTED, S.COMPLETED}),
}
FINAL: frozenset[RunState] = frozenset(RunState) - MOVES.keys()
ACTIVE: frozenset[RunState] = frozenset(RunState) - FINAL - {S.QUEUED}
WAITING: frozenset[RunState] = frozenset({S.AWAITING_APPROVAL, S.AWAITING_CLARIFICATION})


class EndReason(StrEnum):
    """Why a run ended other than well: the closed list of RELIABILITY 2.1."""

    WORKER_LOST = "worker_lost"
    BACKEND_LOST = "backend_lost"
    STREAM_CUT = "stream_cut"
    PROTOCOL_ERROR = "protocol_error"
    BACKEND_REFUSED = "backend_refused"
    TIME_LIMIT = "time_limit"
    SHUTDOWN = "shutdown"
    REDIS_LOST = "redis_lost"
    DISK_FULL = "disk_full"
    START_FAILED = "start_failed"
    USER = "user"
    TOO_OLD = "too_old"


def is_legal(source: RunState, target: RunState) -> bool:
    return target in MOVES.get(source, frozenset())
