"""What a person or program can do with turns: submit, stop, withdraw, change, move, go on, try again.

Each checks the rights, commits, then tells the log, then wakes a worker: in that order, so that nobody looks for a row
that is not there yet.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from shared import errors, ids, logs
from shared.database import in_transaction, transaction
from shared.models import Run
from shared.protocol import commands
from shared.protocol.events import (
    AbortData,
    AbortStarted,
    Event,
    RunQueued,
    RunQueuedData,
    SessionUpdated,
    SessionUpdatedData,
)
from shared.queue_events import SHOWN_INPUT_CHARS, cancelled_events
from shared.relay.mailbox import Note
from shared.run_state import FINAL, RunState
from shared.store import audit, chat_sessions, runs, users
from webapp import rights
from webapp.actions import names
from webapp.actions.input import checked
from webapp.actions.queue_events import Queue, QueueChanged, queue_of
from webapp.announce import announce, nudge
from webapp.auth import Principal
from webapp.context import WebContext
from webapp.dispatch import not_sent, send_turn
from webapp.throttle import network_of

log = logs.get("webapp.actions.runs")

USERS_AT_ONE_ADDRESS = 5  # who submit as fast as one user may, behind one network address


@dataclass(frozen=True)
class Submitted:
    """`position`: 0 when it starts at once, else its place in the queue. `created`: False for a repeated submit.
    `held`: why the queue waits for a person."""

    run_id: str
    queue_id: str
    message_id: str
    position: int
    created: bool
    queue_length: int
    held: str | None


@dataclass(frozen=True)
class Aborted:
    """`state`: the run's after the request; `cancelled` for one that waited, a final one for one that had ended."""

    run_id: str
    state: str


# ---- submitting


def submit(web: WebContext, principal: Principal, cmd: commands.Run) -> Submitted:
    """Accept a turn. The same `queue_id` and body give the same run again.

    Raises NotFound, Forbidden, InvalidCommand, TooLarge, Conflict (`queue_id_reused`, `session_archived`), QueueFull,
    TooManyRequests, Unavailable.
    """
    limit = web.settings.submits_per_minute
    web.throttle.take("submit", principal.user_id, limit=limit)
    web.throttle.take("submit-from", network_of(principal.address), limit=USERS_AT_ONE_ADDRESS * limit)
    turn = checked(cmd.input, max_kb=web.settings.max_message_kb)
    if cmd.attachments:
        raise errors.InvalidCommand("Attachments are not known here.", code="unknown_attachment")
    return _enqueue(
        web,
        principal,
        cmd.session_id,
        queue_id=_key(cmd.queue_id),
        input=turn.text,
        blocks=turn.blocks,
        instructions=_instructions(web, cmd.instructions),
        model=names.model(cmd.model),
        skill_folder=names.name(cmd.skill_folder, "skill"),
        source=names.source(cmd.source),
        background=cmd.background,
        max_iterations=cmd.max_iterations,
    )


def retry(web: WebContext, principal: Principal, run_id: str) -> Submitted:
    """Run the turn of an ended run anew, as a new run. Pressed twice it is one retry.

    When the queue is held because of that run, the retry goes first and the queue goes on: that is the decision it
    waited for. Raises Conflict while the run has not ended.
    """

    with transaction(web.factory, write=False) as db:
        run = run_for(db, principal, "send", run_id)
        if run.state not in FINAL:
            raise errors.Conflict("This turn has not ended yet.", code="not_ended")
        tries = 0
        while (again := _retry_of(db, run, tries)) is not None and again.state in FINAL:
            tries += 1
        goes_first = chat_sessions.get(db, run.session_id).held_by_run_id == run.id
    return _enqueue(
        web,
        principal,
        run.session_id,
        queue_id=f"retry-{run.id}-{tries}",
        retry_of=run.id,
        goes_first=goes_first,
        input=run.input,
        blocks=run.blocks,
        instructions=run.instructions,
        model=run.model,
        skill_folder=run.skill_folder,
        source=run.source,
        background=run.background,
        max_iterations=run.max_iterations,
    )


def _retry_of(db: Session, run: Run, number: int) -> Run | None:
    try:
        return runs.by_queue_id(db, run.session_id, f"retry-{run.id}-{number}")
    except errors.NotFound:
        return None


@dataclass(frozen=True)
class _Accepted:
    enqueued: runs.Enqueued
    title: str | None  # given by this message
    queue: Queue | None  # its new order, when this turn went first
    warm_worker: str | None


def _enqueue(
    web: WebContext,
    principal: Principal,
    session_id: str,
    *,
    queue_id: str,
    source: str | None,
    retry_of: str | None = None,
    goes_first: bool = False,
    **turn: object,
) -> Submitted:
    body_hash = runs.hash_body(source=source, **turn)

    def work(db: Session) -> _Accepted:
        session = rights.require(db, principal, "send", session_id)
        if session.status == "ARCHIVED":
            raise errors.Conflict("This session is archived. Bring it back to go on.", code="session_archived")
        done = runs.enqueue(
            db,
            session=session,
            user=users.get(db, principal.user_id),
            source=source or session.source,
            queue_id=queue_id,
            body_hash=body_hash,
            limit=web.settings.max_queue_per_session,
            retry_of=retry_of,
            dispatched=True,
            **turn,  # type: ignore[arg-type]
        )
        first = done.created and goes_first
        if first:
            runs.move_queued(db, session_id, queue_id, 1)
            runs.release_queue(db, session_id)
            done = replace(done, place=0, held=None)
            runs.mark_dispatched(db, done.run.id)
        queue = queue_of(db, session_id) if first else None
        return _Accepted(done, session.title if done.titled else None, queue, session.warm_worker)

    accepted = in_transaction(web.factory, work)
    if accepted.enqueued.created:
        _tell_accepted(web, session_id, accepted)
    done = accepted.enqueued
    return Submitted(
        run_id=done.run.id,
        queue_id=done.run.queue_id,
        message_id=done.message.id,
        position=done.place,
        created=done.created,
        queue_length=done.queue_length,
        held=done.held,
    )


def _tell_accepted(web: WebContext, session_id: str, accepted: _Accepted) -> None:
    done = accepted.enqueued
    told: list[Event] = [_queued_event(session_id, done)]
    if accepted.title is not None:
        told.append(SessionUpdated(session_id=session_id, data=SessionUpdatedData(title=accepted.title)))
    if accepted.queue is not None:
        told.append(accepted.queue.event())
    reachable = announce(web, session_id, *told)
    if done.place == 0:
        if reachable:
            send_turn(web, done.run, warm_worker=accepted.warm_worker, marked=True)
        else:
            not_sent(web, done.run)
    elif reachable:
        wake_head(web, session_id, again=False)  # the turn before may have ended while this one was accepted


def _queued_event(session_id: str, done: runs.Enqueued) -> RunQueued:
    return RunQueued(
        session_id=session_id,
        run_id=done.run.id,
        data=RunQueuedData(
            queue_id=done.run.queue_id,
            position=done.place,
            queue_length=done.queue_length,
            held=done.held is not None,
            message_id=done.message.id,
            input=done.run.input[:SHOWN_INPUT_CHARS],
            by=done.run.user_name,
            number=done.run.position,
            retry_of=done.run.retry_of,
        ),
    )


# ---- stopping


def abort(web: WebContext, principal: Principal, session_id: str, run_id: str | None = None) -> Aborted:
    """Ask for the end of a run; without `run_id` of the one that is active. A waiting run is cancelled, one that has
    ended stays as it is. Raises NotFound, Forbidden, Conflict (`nothing_runs`)."""

    def work(db: Session) -> tuple[Run, RunState, RunState, Queue | None]:
        rights.require(db, principal, "abort", session_id)
        run = runs.active(db, session_id) if run_id is None else _of_session(db, session_id, run_id)
        if run is None:
            raise errors.Conflict("Nothing runs in this session.", code="nothing_runs")
        before = RunState(run.state)
        after = runs.request_abort(db, run.id, by_name=principal.name)
        if after != before:
            user = users.get(db, principal.user_id)
            audit.record(
                db, "run_aborted", user=user, address=principal.address, session_id=session_id, run_id=run.id,
                state=before.value,
            )  # fmt: skip
        was_waiting = after == RunState.CANCELLED and before != after
        return run, before, after, queue_of(db, session_id) if was_waiting else None

    run, before, after, queue = in_transaction(web.factory, work)
    if queue is not None:
        announce(web, session_id, *cancelled_events([run], principal.name), queue.event())
        wake_head(web, session_id)
    elif after == RunState.ABORTING:
        if before != after:
            announce(web, session_id, _abort_event(run, principal.name))
        nudge_abort(web, run)
    return Aborted(run.id, after.value)


def nudge_abort(web: WebContext, run: Run) -> None:
    """Tell the run's worker to look. It looks by itself every few seconds, so a lost note costs only time."""
    nudge(web, run.worker_id, Note(run_id=run.id, kind="abort", fence=run.fence))


def tell_stopped(web: WebContext, queue: Queue, stopped: Iterable[Run], by: str) -> None:
    """Tell what `runs.stop_all` did, after its commit."""
    cancelled = [run for run in stopped if run.state == RunState.CANCELLED]
    running = [run for run in stopped if run.state == RunState.ABORTING]
    told = [*cancelled_events(cancelled, by), *([queue.event()] if cancelled else [])]
    announce(web, queue.session_id, *told, *(_abort_event(run, by) for run in running))
    for run in running:
        nudge_abort(web, run)


def _abort_event(run: Run, by: str) -> AbortStarted:
    return AbortStarted(session_id=run.session_id, run_id=run.id, data=AbortData(by=by, stage="requested"))


# ---- the queue


def cancel_queued(web: WebContext, principal: Principal, session_id: str, queue_id: str) -> QueueChanged:
    """Withdraw a waiting turn. Withdrawing it again is harmless. Raises NotFound, Conflict (`not_queued`) when it has
    started."""

    def work(db: Session) -> tuple[Run | None, Queue]:
        rights.require(db, principal, "queue", session_id)
        run = runs.by_queue_id(db, session_id, queue_id)
        if runs.cancel_queued(db, run.id, by=principal.name):
            return run, queue_of(db, session_id)
        if runs.get(db, run.id).state == RunState.CANCELLED:
            return None, queue_of(db, session_id)
        raise errors.Conflict("This turn has started already. Stop it instead.", code="not_queued")

    cancelled, queue = in_transaction(web.factory, work)
    if cancelled is not None:
        announce(web, session_id, *cancelled_events([cancelled], principal.name), queue.event())
        wake_head(web, session_id)
    return queue.changed(queue_id)


def edit_queued(
    web: WebContext, principal: Principal, session_id: str, queue_id: str, given: commands.Input
) -> QueueChanged:
    """Change what a waiting turn says. Raises NotFound, Conflict (`not_queued`), InvalidCommand, TooLarge."""
    turn = checked(given, max_kb=web.settings.max_message_kb)

    def work(db: Session) -> Queue:
        rights.require(db, principal, "queue", session_id)
        runs.edit_queued(db, session_id, queue_id, input=turn.text, blocks=turn.blocks)
        return queue_of(db, session_id)

    queue = in_transaction(web.factory, work)
    announce(web, session_id, queue.event())
    return queue.changed(queue_id)


def move_queued(web: WebContext, principal: Principal, session_id: str, queue_id: str, position: int) -> QueueChanged:
    """Put a waiting turn at a place; 1 is next. Raises NotFound, Conflict (`not_queued`)."""

    def work(db: Session) -> Queue:
        rights.require(db, principal, "queue", session_id)
        runs.move_queued(db, session_id, queue_id, position)
        return queue_of(db, session_id)

    queue = in_transaction(web.factory, work)
    announce(web, session_id, queue.event())
    wake_head(web, session_id)
    return queue.changed(queue_id)


def continue_queue(web: WebContext, principal: Principal, session_id: str) -> QueueChanged:
    """Let a held queue go on. Harmless when it is not held."""

    def work(db: Session) -> tuple[bool, Queue]:
        rights.require(db, principal, "queue", session_id)
        return runs.release_queue(db, session_id), queue_of(db, session_id)

    released, queue = in_transaction(web.factory, work)
    if released:
        announce(web, session_id, queue.event())
    wake_head(web, session_id)
    return queue.changed(None)


def wake_head(web: WebContext, session_id: str, *, again: bool = True) -> None:
    """Wake a worker for the run that may start now, if there is one; `again`: also when a task was sent before.

    It comes after a commit, so it never raises: what is not sent now the janitor sends later.
    """
    try:
        with transaction(web.factory, write=False) as db:
            run = runs.head(db, session_id)
            warm_worker = None if run is None else chat_sessions.get(db, session_id).warm_worker
    except errors.PlatformError as error:
        log.warning("head.not_woken", session_id=session_id, code=error.code)
        return
    if run is not None and (again or run.dispatched_at_db is None):
        send_turn(web, run, warm_worker=warm_worker)


# ---- shared with other actions


def run_for(db: Session, principal: Principal, verb: rights.Verb, run_id: str) -> Run:
    """The run, if its session allows the verb. Raises NotFound, Forbidden."""
    run = runs.get(db, run_id)
    rights.require(db, principal, verb, run.session_id)
    return run


def _of_session(db: Session, session_id: str, run_id: str) -> Run:
    run = runs.get(db, run_id)
    if run.session_id != session_id:
        raise errors.NotFound("There is no such turn in this session.")
    return run


def _key(queue_id: str | None) -> str:
    if queue_id is None:
        return ids.new_id()
    if not queue_id.isprintable():
        raise errors.InvalidCommand("A queue_id has printable characters only.", code="bad_name")
    return queue_id


def _instructions(web: WebContext, given: str | None) -> str | None:
    return checked(given, max_kb=web.settings.max_message_kb).text if given and given.strip() else None
