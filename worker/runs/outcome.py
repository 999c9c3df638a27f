"""How a run ends, as a value: what happened, said for the database, for programs and for people. Pure."""

from dataclasses import dataclass, replace

from shared.errors import (
    BackendError,
    BackendLost,
    BackendProtocolError,
    BackendRefused,
    BackendTimeout,
    BackendUnavailable,
    StreamCut,
)
from shared.protocol.events import Usage
from shared.redaction import redact
from shared.run_state import EndReason, RunState
from shared.text import storable


@dataclass(frozen=True)
class Outcome:
    """`target` is the state that is wanted; `in_state` says what comes of it. `detail` is
    for the log."""

    target: RunState
    reason: EndReason | None = None
    code: str | None = None
    message: str = ""
    retryable: bool = True
    retry_after_s: int | None = None
    detail: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None
    came_too_late: bool = False  # an abort, after the backend had finished

    def in_state(self, state: RunState) -> "Outcome":
        """What it comes to for a run in that state: under an abort a finished answer is kept and all else counts as
        aborted; without one nothing does."""
        if state is not RunState.ABORTING:
            return STOPPED_BY_ITSELF if self.target is RunState.ABORTED else self
        if self.target is RunState.COMPLETED:
            return replace(self, came_too_late=True)
        return STOPPED


STOPPED = Outcome(RunState.ABORTED)
STOPPED_BY_ITSELF = Outcome(
    RunState.INTERRUPTED, EndReason.BACKEND_LOST, "backend_lost", "The agent stopped, although nobody had asked it to."
)
SHUTDOWN = Outcome(
    RunState.INTERRUPTED, EndReason.SHUTDOWN, "shutdown", "The portal was restarted while this turn ran. Try it again."
)
LEASE_NOT_RENEWED = Outcome(
    RunState.INTERRUPTED,
    EndReason.WORKER_LOST,
    "worker_lost",
    "The database could not be reached for too long, so this turn was stopped. Try it again.",
)
DISK_FULL = Outcome(
    RunState.INTERRUPTED,
    EndReason.DISK_FULL,
    "disk_full",
    "The disk of the portal is full, so this turn was stopped. Its text up to the last save is kept.",
)
WORKER_LOST = Outcome(
    RunState.INTERRUPTED,
    EndReason.WORKER_LOST,
    "worker_lost",
    "The process that ran this turn is gone. What it had brought is kept; nothing was sent a second time.",
)

_INTERRUPTS: tuple[tuple[type[BackendError], EndReason], ...] = (
    (StreamCut, EndReason.STREAM_CUT),
    (BackendLost, EndReason.BACKEND_LOST),
    (BackendProtocolError, EndReason.PROTOCOL_ERROR),
)
_FAILURES: tuple[tuple[type[BackendError], EndReason], ...] = (
    (BackendRefused, EndReason.BACKEND_REFUSED),
    (BackendUnavailable, EndReason.START_FAILED),
    (BackendTimeout, EndReason.BACKEND_LOST),
)


def of_error(error: BaseException | None) -> Outcome:
    """What the end of a stream by `error` means; None: it just ended, without its last item."""
    if error is None:
        error = StreamCut("The agent's answer broke off before its end. What came is kept.")
    for kinds, target in ((_INTERRUPTS, RunState.INTERRUPTED), (_FAILURES, RunState.FAILED)):
        for kind, reason in kinds:
            if isinstance(error, kind):
                return _outcome(target, reason, error)
    if isinstance(error, BackendError):
        return _outcome(RunState.FAILED, None, error)
    return Outcome(
        RunState.FAILED,
        code="internal_error",
        message="Something went wrong inside the portal. The log has the details.",
        detail=f"{type(error).__name__}: {error}",
    )


def _outcome(target: RunState, reason: EndReason | None, error: BackendError) -> Outcome:
    """The message may hold the backend's own words, and those a key (S42)."""
    return Outcome(
        target,
        reason,
        code=storable(error.code),
        message=storable(redact(error.message)),
        retryable=error.retryable,
        retry_after_s=error.retry_after_s,
        detail=error.detail,
    )
