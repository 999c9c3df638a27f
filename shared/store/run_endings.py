"""How runs end: the final state with the final message, what the queue does then, and requests to stop.

Use it as `shared.store.runs`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from shared import clock
from shared.database import db_now
from shared.errors import Conflict, LeaseLost
from shared.models import ChatMessage, ChatSession, Pause, Run
from shared.run_state import FINAL, EndReason, RunState
from shared.store import messages
from shared.store.pauses import withdraw_all
from shared.store.run_moves import active, get, move, state_and_fence
from shared.store.run_queue import cancel_all_queued, cancel_queued, hold, lock, queue

ANSWER_STATUS: Final = {
    RunState.COMPLETED: "SUCCESS",
    RunState.FAILED: "FAILED",
    RunState.ABORTED: "STOPPED",
    RunState.INTERRUPTED: "INTERRUPTED",
}
MAX_STARTS: Final = 3
_TRIES: Final = 10


@dataclass(frozen=True)
class Finished:
    """What the end of a run brought about, for the events that tell it after the commit."""

    message: ChatMessage
    held: bool = False
    cancelled: list[Run] = field(default_factory=list)
    withdrawn: list[Pause] = field(default_factory=list)


def finish(
    db: Session,
    run_id: str,
    source: RunState,
    target: RunState,
    *,
    fence: int,
    content: str | None,
    transcript: dict[str, Any] | None,
    reason: EndReason | str | None = None,
    usage: Mapping[str, Any] | None = None,
    model: str | None = None,
    error_code: str | None = None,
    error: str | None = None,
    detail_id: str | None = None,
    epoch: str | None = None,
    seq: int | None = None,
    raise_fence: bool = False,
) -> Finished:
    """Final state, final message, open pauses and the session's queue, in one transaction.

    `content` and `transcript` of None keep what was saved. A run that never began gets an answer too, so that its end
    is seen. After `failed` and `interrupted` the session's `on_failure` decides over the turns that wait. Raises
    IllegalMove and LeaseLost as `move` does.
    """
    if target not in ANSWER_STATUS:
        raise ValueError(f"{target} is not how a run finishes")
    session = lock(db, get(db, run_id).session_id)
    columns: dict[str, Any] = {"error_code": error_code, "error": error, "detail_id": detail_id}
    if reason is not None or target == RunState.COMPLETED:
        columns["reason"] = reason  # else what the request to stop gave stays
    if usage is not None:
        columns["usage"] = dict(usage)
    if seq is not None:
        columns.update(flushed_epoch=epoch, flushed_seq=seq)
    move(db, run_id, source, target, fence=fence, raise_fence=raise_fence, **columns)
    run = get(db, run_id)
    message = _finish_answer(db, run, target, content, transcript, model)
    session.last_message_at = session.updated_at = clock.now()
    session.total_input_tokens += message.input_tokens or 0
    session.total_output_tokens += message.output_tokens or 0
    withdrawn = withdraw_all(db, run_id)
    held, cancelled = _apply_on_failure(db, session, run)
    db.flush()
    return Finished(message, held, cancelled, withdrawn)


def _finish_answer(
    db: Session,
    run: Run,
    target: RunState,
    content: str | None,
    transcript: dict[str, Any] | None,
    model: str | None,
) -> ChatMessage:
    message = messages.answer_of(db, run.id) or messages.add_answer(db, run, status="RUNNING")
    message.status = ANSWER_STATUS[target]
    if content is not None:
        message.content = content
    if transcript is not None:
        messages.put_transcript(message, transcript)
    if model is not None:
        message.model = model
    message.error_code, message.error = run.error_code, run.error
    if run.usage is not None:
        message.input_tokens = run.usage.get("input_tokens")
        message.output_tokens = run.usage.get("output_tokens")
    message.completed_at = run.ended_at
    db.flush()
    return message


def _apply_on_failure(db: Session, session: ChatSession, run: Run) -> tuple[bool, list[Run]]:
    """Whether the queue is held now, and the runs that were cancelled."""
    if run.state not in (RunState.FAILED, RunState.INTERRUPTED) or session.on_failure == "continue":
        return False, []
    if not queue(db, session.id):
        return False, []
    if session.on_failure == "cancel":
        return False, cancel_all_queued(db, session.id, by=None)
    hold(db, session, reason=run.reason or "failed", run_id=run.id)
    return True, []


# ---- asking to stop


def request_abort(db: Session, run_id: str, *, by_name: str | None, reason: EndReason = EndReason.USER) -> RunState:
    """Ask for the end of a run; gives the state it is in then.

    A queued run is cancelled. One that starts, runs or waits goes to aborting: its worker, or a janitor, ends it. One
    that is aborting or has ended stays as it is.
    """
    for _ in range(_TRIES):
        state, fence = state_and_fence(db, run_id)
        if state == RunState.ABORTING or state in FINAL:
            return state
        if state == RunState.QUEUED:
            if cancel_queued(db, run_id, by=by_name):
                return RunState.CANCELLED
            continue
        try:
            move(
                db, run_id, state, RunState.ABORTING,
                fence=fence, abort_requested_at_db=db_now(), abort_by=by_name, reason=reason,
            )  # fmt: skip
        except LeaseLost:
            continue  # it moved on meanwhile: look again
        return RunState.ABORTING
    raise Conflict("The run changes too fast. Try again.")


def stop_all_of_user(db: Session, user_id: str, *, by_name: str | None) -> tuple[int, int]:
    """As `stop_all`, for what one user has submitted in whatever session: how many waited, and how many ran."""
    wanted = select(Run.id).where(Run.user_id == user_id, Run.state.not_in([state.value for state in FINAL]))
    after = [request_abort(db, run_id, by_name=by_name) for run_id in db.scalars(wanted).all()]
    return after.count(RunState.CANCELLED), after.count(RunState.ABORTING)


def stop_all(db: Session, session_id: str, *, by_name: str | None) -> list[Run]:
    """Cancel all that waits in a session and ask for the end of what runs; gives the runs concerned."""
    lock(db, session_id)
    stopped = cancel_all_queued(db, session_id, by=by_name)
    running = active(db, session_id)
    if running is not None:
        request_abort(db, running.id, by_name=by_name)
        stopped.append(running)
    return stopped
