"""Turns by REST: submit, look, answer, stop, withdraw. The event stream of a run is in webapp/live/sse.py."""

from datetime import UTC, datetime
from typing import Literal

from flask import Blueprint, Response, request

from shared import errors
from shared.models import Pause, Run
from shared.protocol import commands
from shared.relay.connection import RelayDown
from shared.relay.event_log import Cursor
from shared.store import messages, pauses
from webapp import rights
from webapp.actions import pauses as pause_actions
from webapp.actions import runs as run_actions
from webapp.api import body
from webapp.api.schemas import (
    NewRun,
    OpenPause,
    PauseAnswer,
    PauseAnswered,
    QueueNow,
    RunAborted,
    RunMade,
    RunStateNow,
)
from webapp.auth import current
from webapp.context import db, web

bp = Blueprint("api_runs", __name__, url_prefix="/api/chat")


@bp.post("/sessions/<session_id>/runs")
def submit(session_id: str) -> Response:
    """202 for a new run, 200 when the `Idempotency-Key` gives one that is there already."""
    asked = body.read(NewRun)
    done = run_actions.submit(
        web(),
        current(),
        commands.Run(
            session_id=session_id,
            input=asked.message,
            queue_id=request.headers.get("Idempotency-Key") or None,
            model=asked.model_id,
            instructions=asked.instructions,
            source=asked.source,
            skill_folder=asked.skill_folder,
            attachments=asked.attachments,
            background=asked.background,
            max_iterations=asked.max_iterations,
        ),
    )
    return body.answer(_made(done), 202 if done.created else 200)


@bp.get("/runs/<run_id>/state")
def state(run_id: str) -> Response:
    run = run_actions.run_for(db(), current(), "read", run_id)
    answer = messages.answer_of(db(), run.id)
    open_now = [pause for pause in pauses.of_run(db(), run.id) if pause.state == "pending"]
    head = _head(run.session_id)
    return body.answer(
        RunStateNow(
            run_id=run.id,
            session_id=run.session_id,
            state=run.state,
            reason=run.reason,
            message_id=None if answer is None else answer.id,
            seq=None if head is None else head.seq,
            epoch=None if head is None else head.epoch,
            pause=_open_pause(open_now[0]) if open_now else None,
            error_code=run.error_code,
            error=run.error,
        )
    )


@bp.post("/runs/<run_id>/resume")
def resume(run_id: str) -> Response:
    """Answer what the run waits for."""
    asked = body.read(PauseAnswer)
    run = _run_to(run_id, "read")
    given = _answer(run, asked)
    if isinstance(given, commands.ApprovalRespond):
        _check_of_run(run, given.approval_id)
        done = pause_actions.respond_approval(web(), current(), given)
    else:
        _check_of_run(run, given.clarify_id)
        done = pause_actions.respond_clarification(web(), current(), given)
    return body.answer(
        PauseAnswered(run_id=done.run_id, pause_id=done.pause_id, choice=done.choice, answer=done.answer, by=done.by)
    )


@bp.post("/runs/<run_id>/abort")
def abort(run_id: str) -> Response:
    run = _run_to(run_id, "read")
    done = run_actions.abort(web(), current(), run.session_id, run.id)
    return body.answer(RunAborted(run_id=done.run_id, state=done.state))


@bp.post("/runs/<run_id>/retry")
def retry(run_id: str) -> Response:
    """Run the same turn anew, as a new run."""
    done = run_actions.retry(web(), current(), run_id)
    return body.answer(_made(done), 202 if done.created else 200)


@bp.delete("/sessions/<session_id>/queue/<queue_id>")
def cancel_queued(session_id: str, queue_id: str) -> Response:
    done = run_actions.cancel_queued(web(), current(), session_id, queue_id)
    return body.answer(QueueNow(queue_id=done.queue_id, queue_length=done.queue_length, held=done.held))


@bp.post("/sessions/<session_id>/queue/continue")
def continue_queue(session_id: str) -> Response:
    """Let a held queue go on."""
    done = run_actions.continue_queue(web(), current(), session_id)
    return body.answer(QueueNow(queue_id=None, queue_length=done.queue_length, held=done.held))


def _run_to(run_id: str, verb: rights.Verb) -> Run:
    return run_actions.run_for(db(), current(), verb, run_id)


def _answer(run: Run, asked: PauseAnswer) -> commands.ApprovalRespond | commands.ClarifyRespond:
    if asked.approval_id is not None and asked.choice is not None and asked.clarify_id is None:
        return commands.ApprovalRespond(
            session_id=run.session_id, approval_id=asked.approval_id, choice=asked.choice, reason=asked.reason
        )
    if asked.clarify_id is not None and asked.answer is not None and asked.approval_id is None:
        return commands.ClarifyRespond(session_id=run.session_id, clarify_id=asked.clarify_id, answer=asked.answer)
    raise errors.InvalidCommand("Give clarifyId and answer, or approvalId and choice.")


def _check_of_run(run: Run, pause_id: str) -> None:
    if pauses.get(db(), pause_id).run_id != run.id:
        raise errors.NotFound("There is no such question.")


def _head(session_id: str) -> Cursor | None:
    try:
        return web().log.head(session_id)
    except RelayDown:
        return None


def _open_pause(pause: Pause) -> OpenPause:
    deadline = None if pause.expires_at_db is None else datetime.fromtimestamp(pause.expires_at_db, UTC)
    kind: Literal["approval", "clarification"] = "approval" if pause.kind == "approval" else "clarification"
    return OpenPause(kind=kind, id=pause.id, tool=pause.tool, request=pause.request, deadline=deadline)


def _made(done: run_actions.Submitted) -> RunMade:
    return RunMade(
        run_id=done.run_id, queue_id=done.queue_id, message_id=done.message_id, position=done.position, held=done.held
    )
