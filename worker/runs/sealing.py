"""Ends a run whose worker does not: the text that is only in the relay is copied first (RELIABILITY 2.2, janitor e).

Any number of processes may try: state and fence decide who wins, and the event of the winner carries the raised
fence, so that the log refuses the old worker from then on. A run that completed meanwhile stays completed.
"""

from dataclasses import dataclass
from typing import Any

from shared import logs
from shared.database import transaction
from shared.models import Run
from shared.protocol.events import (
    AbortCompleted,
    AbortData,
    AnyEvent,
    RunDequeued,
    RunDequeuedData,
    RunFailed,
    RunFailedData,
    RunInterrupted,
    RunInterruptedData,
    ToolRan,
    to_payload,
)
from shared.relay.connection import RelayDown
from shared.relay.event_log import Cursor, Entry, event_of
from shared.run_state import EndReason, RunState
from shared.store import chat_sessions, messages
from shared.store import runs as run_store
from shared.transcript import Gap, answer_text, fold
from shared.transcript_items import Transcript
from shared.transcript_json import from_json, to_json
from worker.context import WorkerContext
from worker.runs.claim import dispatch
from worker.runs.expiry import as_decided, withdrawn_event
from worker.runs.joined_log import JoinedLog
from worker.runs.outcome import WORKER_LOST, Outcome
from worker.runs.queue_events import queue_events

DRAIN_EVENTS = 10_000
DRAIN_BYTES = 64 << 20
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError)

log = logs.get(__name__)


@dataclass(frozen=True)
class _Drained:
    """The transcript as saved and as the log goes on, packed; None: it cannot be read, and stays as it is. `cursor`:
    how far the log was read; None: it was not."""

    packed: dict[str, Any] | None
    cursor: Cursor | None


def seal(context: WorkerContext, run: Run, outcome: Outcome = WORKER_LOST) -> None:
    """End a begun or aborting run that its worker no longer drives. Raises LeaseLost when somebody was first,
    Unavailable."""
    try:
        drained = _drain(context, run)
    except UNREADABLE:
        log.exception("run.transcript_unreadable", run_id=run.id)
        drained = _Drained(None, None)
    target = RunState.ABORTED if run.state == RunState.ABORTING else outcome.target
    is_abort = target is RunState.ABORTED
    transcript = Transcript(run_id=run.id) if drained.packed is None else from_json(drained.packed)
    endings = _endings(context, run, target, outcome, transcript)
    for event in endings:
        fold(transcript, event)
    with transaction(context.factory) as db:
        finished = run_store.finish(
            db,
            run.id,
            RunState(run.state),
            target,
            fence=run.fence,
            content=None if drained.packed is None else answer_text(transcript),
            transcript=None if drained.packed is None else to_json(transcript),
            reason=(run.reason or EndReason.USER) if is_abort else outcome.reason,
            error_code=None if is_abort else outcome.code,
            error=None if is_abort else outcome.message,
            raise_fence=True,
        )
    log.warning("run.sealed", run_id=run.id, state=str(target), fence=run.fence + 1, worker_id=run.worker_id)
    if _tell(context, run, finished, endings) and drained.cursor is not None:
        _copy_rest(context, run, drained, endings)
        _keep_log(context, run, drained.cursor.epoch)


def tell_failed(context: WorkerContext, run: Run, finished: run_store.Finished) -> None:
    """Tell the end of a run that never began, which the database already holds, and wake the next one."""
    envelope: dict[str, Any] = {"session_id": run.session_id, "run_id": run.id, "fence": run.fence}
    failed = RunFailedData(code=run.error_code or "failed", message=run.error or "", reason=run.reason)
    endings: list[AnyEvent] = [
        RunDequeued(**envelope, data=RunDequeuedData(queue_id=run.queue_id, reason="failed")),
        RunFailed(**envelope, data=failed),
    ]
    _tell(context, run, finished, endings)


# ---- the log


def _drain(context: WorkerContext, run: Run) -> _Drained:
    with transaction(context.factory, write=False) as db:
        message = messages.answer_of(db, run.id)
        packed = None if message is None else messages.transcript_of(message)
    transcript = Transcript(run_id=run.id) if packed is None else from_json(packed)
    try:
        head = context.log.head(run.session_id)
        if head is None:
            return _Drained(to_json(transcript), None)
        saved_seq = run.flushed_seq if head.epoch == run.flushed_epoch else 0
        entries = _read(context, run, Cursor(head.epoch, saved_seq))
    except RelayDown as error:
        log.warning("run.not_drained", run_id=run.id, error=type(error).__name__)
        return _Drained(to_json(transcript), None)
    _fold_entries(transcript, run, entries)
    last_seq = entries[-1].seq if entries else head.seq
    return _Drained(to_json(transcript), Cursor(head.epoch, last_seq))


def _read(context: WorkerContext, run: Run, cursor: Cursor) -> list[Entry]:
    entries = context.log.read_after(run.session_id, cursor, limit=DRAIN_EVENTS, max_bytes=DRAIN_BYTES)
    if entries is None:
        log.warning("run.log_cut", run_id=run.id, seq=cursor.seq)
    return entries or []


def _fold_entries(transcript: Transcript, run: Run, entries: list[Entry]) -> int:
    """Fold what the run's worker said; gives how many events that were."""
    folded = 0
    for entry in entries:
        event = event_of(entry, run.session_id)
        if event is None or event.run_id != run.id or (event.fence or 0) > run.fence:
            continue
        try:
            fold(transcript, event)
        except Gap:  # what comes after a hole cannot be placed
            log.warning("run.gap_in_log", run_id=run.id, seq=entry.seq)
            break
        folded += 1
    return folded


def _copy_rest(context: WorkerContext, run: Run, drained: _Drained, endings: list[AnyEvent]) -> None:
    """What the old worker said between the reading of the log and the raised fence: the page has seen it."""
    assert drained.cursor is not None
    assert drained.packed is not None
    try:
        entries = _read(context, run, drained.cursor)
    except RelayDown:
        return
    transcript = from_json(drained.packed)
    if not _fold_entries(transcript, run, entries):
        return
    for event in endings:
        fold(transcript, event)
    with transaction(context.factory) as db:
        messages.save_answer(db, run.id, content=answer_text(transcript), transcript=to_json(transcript))


def _keep_log(context: WorkerContext, run: Run, epoch: str) -> None:
    """The run's events, as far as the log still has them, for playing it back."""
    joined = JoinedLog()
    try:
        for entry in _read(context, run, Cursor(epoch, 0)):
            event = event_of(entry, run.session_id)
            if event is not None and event.run_id == run.id:
                joined.add(event, entry.payload.decode("utf-8", "replace"), entry.epoch, entry.seq)
    except RelayDown:
        return
    if joined.last_seq:
        joined.keep(context.factory, run.id, run.session_id)


# ---- the events


def _endings(
    context: WorkerContext, run: Run, target: RunState, outcome: Outcome, transcript: Transcript
) -> list[AnyEvent]:
    """How the run and what it waited for end, in the order of their events."""
    fence = run.fence + 1
    withdrawn = [withdrawn_event(run.session_id, run.id, fence, pause) for pause in transcript.open_pauses]
    with transaction(context.factory, write=False) as db:
        endings = as_decided(db, run.id, withdrawn)
    envelope: dict[str, Any] = {"session_id": run.session_id, "run_id": run.id, "fence": fence}
    if target is RunState.ABORTED:
        endings.append(AbortCompleted(**envelope, data=AbortData(by=run.abort_by, stage="killed")))
        return endings
    tools = [
        ToolRan(tool_id=tool.tool_id, name=tool.name, summary=tool.summary, finished=not tool.is_open)
        for tool in transcript.tools
    ]
    data = RunInterruptedData(
        reason=outcome.reason or EndReason.WORKER_LOST, message=outcome.message, tools_already_run=tools
    )
    endings.append(RunInterrupted(**envelope, data=data))
    return endings


def _tell(context: WorkerContext, run: Run, finished: run_store.Finished, endings: list[AnyEvent]) -> bool:
    """Append the end, with the raised fence, and wake the next run; False when the relay did not take it."""
    with transaction(context.factory, write=False) as db:
        session = chat_sessions.get(db, run.session_id, with_deleted=True)
        waiting = run_store.queue(db, run.session_id)
        next_run = run_store.head(db, run.session_id)
    told = [*endings, *queue_events(run.session_id, finished, waiting, session.held_reason)]
    fence = max((event.fence or 0 for event in endings), default=0)
    is_told = True
    try:
        context.log.append(run.session_id, [to_payload(event) for event in told], run_id=run.id, fence=fence)
    except RelayDown as error:
        context.holes.add(run.session_id)
        log.warning("run.end_not_told", run_id=run.id, error=type(error).__name__)
        is_told = False
    if next_run is not None:
        dispatch(next_run, context, warm_worker=session.warm_worker)
    return is_told
