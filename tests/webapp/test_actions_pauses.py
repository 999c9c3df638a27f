"""Answers to approvals and questions: one winner, recorded, told (P6, S17, S20, F40, F41)."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import update

from shared import errors
from shared.database import db_now, transaction
from shared.models import AuditEvent, Pause, Run
from shared.protocol import commands
from shared.run_state import RunState
from shared.store import chat_sessions, pauses, users
from tests.factories import a_run, a_session
from tests.rig.web import Web
from tests.webapp.test_actions_runs import Mine, principal
from tests.webapp.told import events, notes
from webapp.actions import pauses as actions
from webapp.actions import runs as run_actions

COMMAND = {
    "command": "rm -rf build",
    "description": "Remove the build",
    "choices": ["once", "session", "always", "deny"],
}


class Asked(Mine):
    """A run of a member waits for an approval and for an answer."""

    def __init__(self, web: Web, *, timeout_s: float | None = 60, request: dict[str, Any] | None = None) -> None:
        super().__init__(web)
        with transaction(web.factory) as db:
            run = a_run(db, chat_sessions.get(db, self.id), state=RunState.RUNNING, worker_id="w1")
            given = {"run_id": run.id, "fence": run.fence, "session_id": self.id, "timeout_s": timeout_s}
            self.approval = pauses.open(db, **given, kind="approval", tool="terminal", request=request or COMMAND)
            self.question = pauses.open(
                db, **given, kind="clarification", tool="", request={"question": "Which?", "choices": ["a", "b"]}
            )
            self.run_id = run.id

    def approve(
        self, choice: str = "once", *, reason: str | None = None, approval_id: str | None = None
    ) -> actions.Answered:
        command = commands.ApprovalRespond(
            session_id=self.id, approval_id=approval_id or self.approval.id, choice=choice, reason=reason
        )
        return actions.respond_approval(self.web.context, self.me, command)

    def answer(self, text: str, *, clarify_id: str | None = None) -> actions.Answered:
        command = commands.ClarifyRespond(session_id=self.id, clarify_id=clarify_id or self.question.id, answer=text)
        return actions.respond_clarification(self.web.context, self.me, command)

    def stored(self, pause: Pause) -> Pause:
        with transaction(self.web.factory, write=False) as db:
            return pauses.get(db, pause.id)

    def audit(self) -> list[AuditEvent]:
        with transaction(self.web.factory, write=False) as db:
            return list(db.query(AuditEvent).order_by(AuditEvent.id))


@pytest.fixture
def asked(web: Web) -> Asked:
    return Asked(web)


def test_an_approval_is_stored_then_told_then_left_for_the_worker(asked: Asked) -> None:
    done = asked.approve("once")
    assert (done.pause_id, done.run_id, done.choice, done.by) == (asked.approval.id, asked.run_id, "once", "Mara")
    row = asked.stored(asked.approval)
    assert (row.state, row.choice, row.by_name) == ("answered", "once", "Mara")
    [event] = events(asked.web, asked.id)
    assert (event.event, event.data.choice, event.data.by, event.data.reason) == (
        "approval.resolved", "once", "Mara", "answered",
    )  # fmt: skip
    [note] = notes(asked.web, "w1")
    assert (note["kind"], note["pause_id"], note["run_id"]) == ("answer", asked.approval.id, asked.run_id)
    [audit] = asked.audit()
    assert audit.action == "approval_answered"
    assert audit.facts is not None
    assert audit.facts["args_hash"] == asked.approval.args_hash
    assert "rm -rf" not in str(audit.facts)


def test_a_question_is_answered(asked: Asked) -> None:
    done = asked.answer("the second\x00 one")
    assert done.answer == "the second\ufffd one"
    [event] = events(asked.web, asked.id)
    assert (event.event, event.data.answer, event.data.by) == ("clarify.resolved", "the second\ufffd one", "Mara")
    assert "second" not in str(asked.audit()[0].facts)


def test_of_two_who_answer_at_once_one_wins(web_on_each: Web) -> None:
    """F40: one 200, the others learn how it was decided; the audit shows the winner alone."""
    asked = Asked(web_on_each)

    def one(choice: str) -> str:
        try:
            return str(asked.approve(choice).choice)
        except errors.AlreadyDecided as error:
            return error.message

    with ThreadPoolExecutor(10) as pool:
        results = list(pool.map(one, ["once", "deny"] * 5))
    winners = [result for result in results if result in ("once", "deny")]
    assert len(winners) == 1
    assert all(f"Mara has decided this already: {winners[0]}." == r for r in results if r not in ("once", "deny"))
    assert [row.facts["choice"] for row in asked.audit() if row.facts] == winners
    assert len(events(web_on_each, asked.id)) == len(notes(web_on_each, "w1")) == 1


def test_an_answer_after_the_deadline_is_refused(asked: Asked) -> None:
    with transaction(asked.web.factory) as db:
        db.execute(update(Pause).values(expires_at_db=db_now() - 1))
    with pytest.raises(errors.Expired):
        asked.approve()
    with pytest.raises(errors.Expired):
        asked.answer("late")
    assert asked.stored(asked.approval).state == "pending", "the janitor closes it"
    assert events(asked.web, asked.id) == []
    assert asked.audit() == []


def test_an_answer_that_is_too_late_is_kept_and_an_approval_is_not(asked: Asked) -> None:
    with transaction(asked.web.factory) as db:
        db.execute(update(Pause).values(expires_at_db=db_now() - 1))
    for text in ("late", "later", "late"):
        with pytest.raises(errors.Expired, match="Your answer is kept"):
            asked.answer(text)
    assert asked.stored(asked.question).late_answer == "late\n\nlater"
    with pytest.raises(errors.Expired) as refused:
        asked.answer("x" * 512 * 1024)
    assert "kept" not in refused.value.message, "all of it would be more than a turn can be"
    assert asked.stored(asked.question).late_answer == "late\n\nlater"
    with pytest.raises(errors.Expired):
        asked.approve()
    assert asked.stored(asked.approval).late_answer is None


def test_the_same_answer_twice_is_not_kept_as_a_late_one(asked: Asked) -> None:
    asked.answer("a")
    with pytest.raises(errors.AlreadyDecided) as refused:
        asked.answer("a")
    assert "kept" not in refused.value.message
    assert asked.stored(asked.question).late_answer is None
    with pytest.raises(errors.AlreadyDecided, match=r"Mara has decided this already: answered\. Your answer is kept"):
        asked.answer("another")
    assert asked.stored(asked.question).late_answer == "another"


def test_who_may_not_answer_keeps_nothing(asked: Asked) -> None:
    asked.answer("a")
    asked.me = principal(asked.web.user("stranger"))
    with pytest.raises(errors.NotFound):
        asked.answer("mine")
    assert asked.stored(asked.question).late_answer is None


def test_an_answer_after_an_abort_is_refused(asked: Asked) -> None:
    run_actions.abort(asked.web.context, asked.me, asked.id)
    with pytest.raises(errors.AlreadyDecided):
        asked.approve()
    with pytest.raises(errors.AlreadyDecided):
        asked.answer("late")


def test_an_answer_for_an_old_fence_is_refused(asked: Asked) -> None:
    with transaction(asked.web.factory) as db:
        db.execute(update(Run).values(fence=Run.fence + 1))
    with pytest.raises(errors.AlreadyDecided):
        asked.approve()


def test_an_answer_through_another_session_is_not_found(asked: Asked) -> None:
    with transaction(asked.web.factory) as db:
        other = a_session(db, owner=users.get(db, asked.user.id))
    asked.id = other.id
    with pytest.raises(errors.NotFound):
        asked.approve()
    with pytest.raises(errors.NotFound):
        asked.answer("x")


def test_an_approval_is_no_question_and_a_question_no_approval(asked: Asked) -> None:
    with pytest.raises(errors.NotFound):
        asked.approve(approval_id=asked.question.id)
    with pytest.raises(errors.NotFound):
        asked.answer("yes", clarify_id=asked.approval.id)
    with pytest.raises(errors.NotFound):
        asked.approve(approval_id="0" * 32)


def test_only_what_is_offered_can_be_chosen_and_deny_always_can(web: Web) -> None:
    asked = Asked(web, request={"command": "ls", "description": "", "choices": ["once"]})
    with pytest.raises(errors.InvalidCommand) as refused:
        asked.approve("session")
    assert refused.value.code == "not_offered"
    assert asked.approve("deny").choice == "deny"


def test_always_wants_a_reason(asked: Asked) -> None:
    for reason in (None, "", "  "):
        with pytest.raises(errors.InvalidCommand) as refused:
            asked.approve("always", reason=reason)
        assert refused.value.code == "reason_needed"
    assert asked.approve("always", reason="it is our own build folder").choice == "always"
    assert asked.stored(asked.approval).reason == "it is our own build folder"


@pytest.mark.parametrize("text", ["", " \n ", "x" * (513 * 1024)])
def test_an_answer_says_something(asked: Asked, text: str) -> None:
    with pytest.raises((errors.InvalidCommand, ValueError)):
        asked.answer(text)
    assert asked.stored(asked.question).state == "pending"


def test_answers_by_rest(asked: Asked) -> None:
    program = asked.web.program(asked.user)
    state = program.get(f"/api/chat/runs/{asked.run_id}/state").json
    assert state["state"] == "awaiting_approval"
    assert state["pause"]["id"] == asked.approval.id
    assert state["pause"]["request"]["command"] == "rm -rf build"
    path = f"/api/chat/runs/{asked.run_id}/resume"
    first = program.send("POST", path, {"approvalId": asked.approval.id, "choice": "deny"})
    assert (first.status_code, first.json["choice"], first.json["by"]) == (200, "deny", "Mara")
    second = program.send("POST", path, {"approvalId": asked.approval.id, "choice": "once"})
    assert (second.status_code, second.json["code"]) == (409, "already_decided")
    assert program.send("POST", path, {"clarifyId": asked.question.id, "answer": "b"}).status_code == 200
    for body in (
        {},
        {"approvalId": "x"},
        {"clarifyId": "x"},
        {"approvalId": "x", "choice": "maybe"},
        {"choice": "once"},
    ):
        assert program.send("POST", path, body).status_code == 400
    assert program.send("POST", path, {"approvalId": "0" * 32, "choice": "once"}).status_code == 404
    assert program.get(f"/api/chat/runs/{asked.run_id}/state").json["pause"] is None


def test_an_approval_is_never_answered_by_reading(asked: Asked) -> None:
    """S17: not by a link."""
    browser = asked.web.browser(asked.user)
    for path in (
        f"/api/chat/runs/{asked.run_id}/resume?approvalId={asked.approval.id}&choice=once",
        f"/chat/{asked.id}/approval?approval_id={asked.approval.id}&choice=once",
        f"/chat/{asked.id}?approval_id={asked.approval.id}&choice=once",
    ):
        browser.get(path)
    assert asked.stored(asked.approval).state == "pending"


def test_of_two_programs_that_answer_at_once_one_gets_409(asked: Asked) -> None:
    """F40 by HTTP."""
    program = asked.web.program(asked.user)
    body = {"approvalId": asked.approval.id, "choice": "once"}

    def post(_: int) -> int:
        return program.send("POST", f"/api/chat/runs/{asked.run_id}/resume", body).status_code

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(post, range(2))) == [200, 409]
