"""Answers to approvals and questions: decided once, in the database, then told to pages and to the run's worker."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from shared import errors
from shared.database import in_transaction
from shared.models import Pause, Run
from shared.pause_events import resolved_event
from shared.protocol import commands
from shared.relay.mailbox import Note
from shared.store import audit, pauses, runs, users
from shared.text import storable
from webapp import rights
from webapp.announce import announce, nudge
from webapp.auth import Principal
from webapp.context import WebContext

KEPT = "Your answer is kept with the question: you can send it as a turn."
APPROVAL, CLARIFICATION = "approval", "clarification"


@dataclass(frozen=True)
class Answered:
    """The pause as it is decided now."""

    pause_id: str
    run_id: str
    choice: str | None
    answer: str | None
    by: str | None


def respond_approval(web: WebContext, principal: Principal, cmd: commands.ApprovalRespond) -> Answered:
    """Allow or deny what a tool wants to do; only the owner may (S17), and `always` wants a reason (S20).

    Raises NotFound (also for one of another session), Forbidden, InvalidCommand, AlreadyDecided, Expired.
    """
    reason = storable(cmd.reason).strip() if cmd.reason else None

    def work(db: Session) -> tuple[Pause, Run]:
        pause, run = _find(db, principal, cmd.session_id, cmd.approval_id, APPROVAL)
        choices = pause.request.get("choices") or ["once", "deny"]
        if cmd.choice != "deny" and cmd.choice not in choices:
            raise errors.InvalidCommand(f"The choices here are: {', '.join(choices)}.", code="not_offered")
        if cmd.choice == "always" and not reason:
            raise errors.InvalidCommand("Say why this may always run.", code="reason_needed")
        user = users.get(db, principal.user_id)
        decided = pauses.answer(db, pause.id, user=user, choice=cmd.choice, reason=reason)
        audit.record(
            db, "approval_answered", user=user, address=principal.address, session_id=run.session_id, run_id=run.id,
            pause=pause.id, choice=cmd.choice, args_hash=pause.args_hash, reason=reason,
        )  # fmt: skip
        return decided, run

    return _tell(web, *in_transaction(web.factory, work))


def respond_clarification(web: WebContext, principal: Principal, cmd: commands.ClarifyRespond) -> Answered:
    """Answer a question of the agent; whoever may send in the session may. An answer that comes too late is kept with
    the question, which then offers to send it as a turn. Raises as `respond_approval` does."""
    text = storable(cmd.answer)
    if not text.strip():
        raise errors.InvalidCommand("The answer is empty.", code="empty_message")
    if len(text.encode("utf-8")) > web.settings.max_message_kb * 1024:
        raise errors.TooLarge(f"An answer may have {web.settings.max_message_kb} KB at most.")

    def work(db: Session) -> tuple[Pause, Run]:
        pause, run = _find(db, principal, cmd.session_id, cmd.clarify_id, CLARIFICATION)
        user = users.get(db, principal.user_id)
        decided = pauses.answer(db, pause.id, user=user, answer=text)
        audit.record(
            db, "question_answered", user=user, address=principal.address, session_id=run.session_id, run_id=run.id,
            pause=pause.id,
        )  # fmt: skip
        return decided, run

    try:
        return _tell(web, *in_transaction(web.factory, work))
    except (errors.AlreadyDecided, errors.Expired) as refusal:
        max_chars = web.settings.max_message_kb * 1024
        if not in_transaction(web.factory, lambda db: pauses.keep_late(db, cmd.clarify_id, text, max_chars=max_chars)):
            raise
        raise type(refusal)(f"{refusal.message} {KEPT}") from refusal


def _find(db: Session, principal: Principal, session_id: str, pause_id: str, kind: str) -> tuple[Pause, Run]:
    verb: rights.Verb = "approve" if kind == APPROVAL else "answer"
    rights.require(db, principal, verb, session_id)
    pause = pauses.get(db, pause_id)
    if pause.session_id != session_id or pause.kind != kind:
        raise errors.NotFound("There is no such question.")
    return pause, runs.get(db, pause.run_id)


def _tell(web: WebContext, pause: Pause, run: Run) -> Answered:
    """A note without the pause's id lets the worker tell the pages what we could not."""
    is_told = announce(web, run.session_id, resolved_event(pause))
    pause_id = pause.id if is_told else None
    nudge(web, run.worker_id, Note(run_id=run.id, kind="answer", fence=pause.fence, pause_id=pause_id))
    return Answered(pause.id, run.id, pause.choice, pause.answer, pause.by_name)
