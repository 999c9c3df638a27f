"""What clients ask by the socket: read, checked, and handed to the actions that every door shares."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from shared import errors
from shared.protocol import commands as c
from webapp import json_input
from webapp.actions import pauses, runs
from webapp.auth import Principal
from webapp.context import WebContext
from webapp.errors import problem_of

CommandId = str | int | None
_FORM_EXTRAS = ("HEADERS", "headers", "csrf_token")
_MAY_BE_EMPTY = ("input", "answer")
_MAX_SEQ = 2**53


@dataclass(frozen=True)
class Asked:
    """A frame from a client: the command, or why it is none. `id` is echoed in the answer."""

    id: CommandId
    command: c.AnyCommand | None
    error: Exception | None = None


def read(frame: str | bytes, *, page_of: str | None = None) -> Asked:
    """Read a frame. Never raises for what a client sends: the fault stands in `error`.

    `page_of`: it is a form that htmx sent from that session's page, so every value is text, and an empty one was not
    filled in."""
    given: CommandId = None
    try:
        if isinstance(frame, bytes):
            raise errors.InvalidCommand("Commands are text frames.")
        asked = json_input.parse_object(frame)
        if isinstance(asked.get("id"), str | int):
            given = asked["id"]
        return Asked(given, c.COMMAND.validate_python(_tidied(asked, page_of)))
    except (errors.PlatformError, ValueError) as error:  # pydantic's ValidationError is a ValueError
        return Asked(given, None, error)


def _tidied(asked: dict[str, Any], page_of: str | None) -> dict[str, Any]:
    fields = {name: value for name, value in asked.items() if name not in _FORM_EXTRAS}
    if page_of is not None:
        if fields.get("event") != "ping":
            fields.setdefault("session_id", page_of)
        fields = {name: value for name, value in fields.items() if value != "" or name in _MAY_BE_EMPTY}
        if isinstance(fields.get("attachments"), str):
            fields["attachments"] = [fields["attachments"]]
    if fields.get("event") == "resume" and not _is_cursor(fields):
        fields.pop("last_seq", None)  # what is no place in a log is no place: a snapshot (F47)
        fields.pop("epoch", None)
    return fields


def resume_of(session_id: str, last_seq: str | None, epoch: str | None) -> c.Resume:
    """The `resume` that a page's address stands for."""
    fields = {"event": "resume", "session_id": session_id, "last_seq": last_seq, "epoch": epoch or None}
    return c.Resume.model_validate(_tidied(fields, session_id))


def _is_cursor(fields: dict[str, Any]) -> bool:
    seq, epoch = fields.get("last_seq"), fields.get("epoch")
    if isinstance(seq, str) and seq.isascii() and seq.isdigit() and len(seq) <= 16:
        seq = int(seq)
    is_seq = isinstance(seq, int) and not isinstance(seq, bool) and 0 <= seq <= _MAX_SEQ
    return is_seq and (epoch is None or (isinstance(epoch, str) and len(epoch) <= 40))


# ---- carrying out


def carry_out(web: WebContext, principal: Principal, command: c.AnyCommand) -> dict[str, Any]:
    """Do what is asked; gives the facts of the `ack`. Each action checks the rights anew (S13).

    Raises PlatformError. `resume`, `leave` and `ping` are the socket's own."""
    return _ACTIONS[type(command)](web, principal, command)


def _run(web: WebContext, principal: Principal, command: c.Run) -> dict[str, Any]:
    done = runs.submit(web, principal, command)
    return {
        "run_id": done.run_id,
        "queue_id": done.queue_id,
        "message_id": done.message_id,
        "position": done.position,
    }


def _abort(web: WebContext, principal: Principal, command: c.Abort) -> dict[str, Any]:
    return _facts(runs.abort(web, principal, command.session_id, command.run_id))


def _cancel(web: WebContext, principal: Principal, command: c.CancelQueuedRun) -> dict[str, Any]:
    return _facts(runs.cancel_queued(web, principal, command.session_id, command.queue_id))


def _edit(web: WebContext, principal: Principal, command: c.EditQueuedRun) -> dict[str, Any]:
    return _facts(runs.edit_queued(web, principal, command.session_id, command.queue_id, command.input))


def _move(web: WebContext, principal: Principal, command: c.MoveQueuedRun) -> dict[str, Any]:
    return _facts(runs.move_queued(web, principal, command.session_id, command.queue_id, command.position))


def _continue(web: WebContext, principal: Principal, command: c.ContinueQueue) -> dict[str, Any]:
    return _facts(runs.continue_queue(web, principal, command.session_id))


def _approval(web: WebContext, principal: Principal, command: c.ApprovalRespond) -> dict[str, Any]:
    return _facts(pauses.respond_approval(web, principal, command))


def _clarification(web: WebContext, principal: Principal, command: c.ClarifyRespond) -> dict[str, Any]:
    return _facts(pauses.respond_clarification(web, principal, command))


_ACTIONS: dict[type[c.Command], Callable[[WebContext, Principal, Any], dict[str, Any]]] = {
    c.Run: _run,
    c.Abort: _abort,
    c.CancelQueuedRun: _cancel,
    c.EditQueuedRun: _edit,
    c.MoveQueuedRun: _move,
    c.ContinueQueue: _continue,
    c.ApprovalRespond: _approval,
    c.ClarifyRespond: _clarification,
}


def _facts(done: Any) -> dict[str, Any]:
    """The fields of what an action gives (a frozen dataclass)."""
    return asdict(done)


# ---- answers


def ack(command_id: CommandId, facts: dict[str, Any]) -> str:
    return _text({"event": "ack", "id": command_id, **facts})


def error(command_id: CommandId, fault: Exception) -> str:
    """`error` with the stable code; faults that nobody foresaw are logged and told by an id only (S44)."""
    problem = problem_of(fault)
    told: dict[str, Any] = {"event": "error", "id": command_id, "code": problem.code, "message": problem.detail}
    if problem.retry_after_s is not None:
        told["retry_after_s"] = problem.retry_after_s
    if problem.fields:
        told["fields"] = [{"field": field, "message": message} for field, message in problem.fields]
    return _text(told)


def pong(command_id: CommandId) -> str:
    return _text({"event": "pong", "id": command_id})


def _text(answer: dict[str, Any]) -> str:
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
