"""The end of a run: final state, final message and the session's queue in one transaction, then the events that tell
it, then the next turn, then the run's log.

An end waits for a database that is away, since nothing else can be done with it; whoever else has moved the run
meanwhile wins (the fence decides), and then nothing is written.
"""

import time
from dataclasses import dataclass, replace
from typing import Any, Literal

from shared import clock, ids, logs
from shared.database import db_time, transaction
from shared.errors import LeaseLost, Unavailable
from shared.models import ChatSession, Run
from shared.protocol.events import (
    AbortCompleted,
    AbortData,
    AnyEvent,
    RunCompleted,
    RunCompletedData,
    RunFailed,
    RunFailedData,
    RunInterrupted,
    RunInterruptedData,
    ToolRan,
    Usage,
)
from shared.run_state import FINAL, EndReason, RunState
from shared.store import chat_sessions
from shared.store import runs as run_store
from shared.transcript import answer_text, fold
from shared.transcript_items import Transcript
from shared.transcript_json import from_json, to_json
from worker.context import WorkerContext
from worker.runs import interrupts
from worker.runs.claim import dispatch
from worker.runs.expiry import as_decided
from worker.runs.live_run import LiveRun
from worker.runs.outcome import Outcome
from worker.runs.queue_events import queue_events
from worker.runs.recorder import Recorder

RETRY_S = 1.0
GIVE_UP_S = 900.0  # then a janitor ends the run when the database is back
CAS_TRIES = 5

AbortStage = Literal["requested", "seen", "acknowledged", "killed"]

log = logs.get(__name__)


@dataclass(frozen=True)
class Circumstances:
    """What is known about the run beside its outcome."""

    message_id: str
    began_at: float  # monotonic
    usage: Usage | None = None
    model: str | None = None
    backend_run_id: str | None = None
    backend_session_id: str | None = None
    holds_session: bool = False  # the worker keeps the session's agent
    tools: tuple[ToolRan, ...] = ()
    abort_by: str | None = None
    abort_at: float | None = None  # monotonic, when it was requested
    abort_stage: AbortStage = "requested"
    abort_note: str | None = None


@dataclass(frozen=True)
class _Written:
    outcome: Outcome
    events: list[AnyEvent]
    next_run: Run | None
    warm_worker: str | None


def end_run(
    context: WorkerContext,
    live: LiveRun,
    recorder: Recorder,
    outcome: Outcome,
    circumstances: Circumstances,
    withdrawn: list[AnyEvent],
) -> None:
    """End the run as `outcome` says, or as an abort that came first makes it. `withdrawn`: events of open pauses."""
    try:
        recorder.end_text()
        written = _write(context, live, recorder, outcome, circumstances, withdrawn)
    except LeaseLost:
        log.warning("run.lost_before_its_end", run_id=live.run_id, fence=live.fence)
        return
    if written is None:
        return
    context.live_runs.remove(live.run_id)
    if written.next_run is not None:
        dispatch(written.next_run, context, warm_worker=written.warm_worker, marked=True)
    recorder.last(*written.events)
    log.info(
        "run.ended",
        run_id=live.run_id,
        state=str(written.outcome.target),
        reason=str(written.outcome.reason or ""),
        code=written.outcome.code or "",
        duration_ms=_ms_since(circumstances.began_at),
    )
    recorder.joined.keep(context.factory, live.run_id, live.session_id)


def _write(
    context: WorkerContext,
    live: LiveRun,
    recorder: Recorder,
    outcome: Outcome,
    circumstances: Circumstances,
    withdrawn: list[AnyEvent],
) -> _Written | None:
    """Write the end; None when the database stayed away. Raises LeaseLost when the run is not ours."""
    detail_id = _detail_id(live, outcome)
    give_up_at = time.monotonic() + GIVE_UP_S
    tries = 0
    while True:
        try:
            return _write_once(context, live, recorder, outcome, circumstances, withdrawn, detail_id)
        except LeaseLost:  # moved by an abort between the look and the write, or lost
            tries += 1
            if tries == CAS_TRIES:
                raise
        except Unavailable as error:
            log.warning("run.end_waits", run_id=live.run_id, code=error.code)
            if time.monotonic() > give_up_at:
                log.error("run.end_given_up", run_id=live.run_id)
                return None
            time.sleep(RETRY_S)


def _write_once(
    context: WorkerContext,
    live: LiveRun,
    recorder: Recorder,
    outcome: Outcome,
    facts: Circumstances,
    withdrawn: list[AnyEvent],
    detail_id: str | None,
) -> _Written:
    with transaction(context.factory, write=False) as db:
        run = run_store.get(db, live.run_id)
        session = chat_sessions.get(db, live.session_id, with_deleted=True)
        abort_age_s = None if run.abort_requested_at_db is None else db_time(db) - run.abort_requested_at_db
        pauses = as_decided(db, live.run_id, withdrawn)
    state = RunState(run.state)
    if run.fence != live.fence or state in FINAL:
        raise LeaseLost(live.run_id)
    final = outcome.in_state(state)
    takes_away = final.target is RunState.INTERRUPTED
    usage = _with_totals(final.usage or facts.usage, session)
    if abort_age_s is not None:  # also where it came too early or too late for the loop of the run to see it
        recorder.note(interrupts.abort_requested(live, run.abort_by, abort_age_s))
        facts = replace(facts, abort_by=run.abort_by)
    ended = _end_event(live, final, facts, usage, detail_id, live.fence + takes_away)
    sealed = _sealed(recorder.transcript, [*pauses, ended])
    content, packed = answer_text(sealed), to_json(sealed)
    epoch, seq = recorder.cursor
    with transaction(context.factory) as db:
        finished = run_store.finish(
            db,
            live.run_id,
            state,
            final.target,
            fence=live.fence,
            content=content,
            transcript=packed,
            reason=(run.reason or EndReason.USER) if final.target is RunState.ABORTED else final.reason,
            usage=None if usage is None else usage.model_dump(exclude_none=True),
            model=facts.model,
            error_code=final.code,
            error=final.message or None,
            detail_id=detail_id,
            epoch=epoch or None,
            seq=seq,
            raise_fence=takes_away,
        )
        run = run_store.get(db, live.run_id)
        run.backend_run_id = facts.backend_run_id or run.backend_run_id
        session = chat_sessions.get(db, live.session_id, with_deleted=True)
        session.backend_session_id = facts.backend_session_id or session.backend_session_id
        if facts.holds_session:
            session.warm_worker = None if final.reason is EndReason.BACKEND_LOST else context.worker_id
        next_run = run_store.head(db, live.session_id)
        if next_run is not None:
            run_store.mark_dispatched(db, next_run.id)
        waiting = run_store.queue(db, live.session_id) if finished.held or finished.cancelled else []
        events = [*pauses, ended, *queue_events(live.session_id, finished, waiting, session.held_reason)]
    return _Written(final, events, next_run, session.warm_worker)


def _sealed(transcript: Transcript, events: list[AnyEvent]) -> Transcript:
    """A copy with the end folded in: the one that lives stays as it is until the end is committed."""
    sealed = from_json(to_json(transcript))
    for event in events:
        fold(sealed, event)
    return sealed


def _end_event(
    live: LiveRun, outcome: Outcome, facts: Circumstances, usage: Usage | None, detail_id: str | None, fence: int
) -> AnyEvent:
    envelope: dict[str, Any] = {"session_id": live.session_id, "run_id": live.run_id, "fence": fence, "at": clock.now()}
    if outcome.target is RunState.COMPLETED:
        completed = RunCompletedData(
            message_id=facts.message_id,
            finish_reason=outcome.finish_reason,
            usage=usage,
            duration_ms=_ms_since(facts.began_at),
            abort="already_finished" if outcome.came_too_late else None,
        )
        return RunCompleted(**envelope, data=completed)
    if outcome.target is RunState.ABORTED:
        since = facts.abort_at if facts.abort_at is not None else facts.began_at
        aborted = AbortData(
            by=facts.abort_by, stage=facts.abort_stage, duration_ms=_ms_since(since), note=facts.abort_note
        )
        return AbortCompleted(**envelope, data=aborted)
    if outcome.target is RunState.INTERRUPTED:
        interrupted = RunInterruptedData(
            reason=outcome.reason or EndReason.WORKER_LOST,
            message=outcome.message,
            tools_already_run=list(facts.tools),
        )
        return RunInterrupted(**envelope, data=interrupted)
    failed = RunFailedData(
        code=outcome.code or "failed",
        message=outcome.message,
        retryable=outcome.retryable,
        retry_after_s=outcome.retry_after_s,
        detail_id=detail_id,
        reason=outcome.reason,
    )
    return RunFailed(**envelope, data=failed)


def _with_totals(usage: Usage | None, session: ChatSession) -> Usage | None:
    """With the sums over the session, which the end of the run is about to write."""
    if usage is None:
        return None
    totals = {
        "total_input_tokens": session.total_input_tokens + usage.input_tokens,
        "total_output_tokens": session.total_output_tokens + usage.output_tokens,
    }
    return usage.model_copy(update=totals)


def _detail_id(live: LiveRun, outcome: Outcome) -> str | None:
    """The id by which an operator finds in the log what a person is not shown."""
    if not outcome.detail:
        return None
    detail_id = ids.new_id()[:12]
    log.warning("run.detail", run_id=live.run_id, detail_id=detail_id, code=outcome.code, detail=outcome.detail[:4000])
    return detail_id


def _ms_since(moment: float) -> int:
    return max(0, int((time.monotonic() - moment) * 1000))
