"""Journeys with approvals and questions: answered, late, doubled, by a stranger, for another session, unseen."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import select

from shared.database import transaction
from shared.models import AuditEvent, Pause
from shared.run_state import RunState
from tests.rig.journey import Journey, Tab
from tests.rig.portal import wait_until

SHORT_S = 4
"""How long the approvals of background runs wait here; those of other runs wait long enough for a busy machine."""
Headers = dict[str, str]


@pytest.fixture(scope="module")
def office() -> Iterator[Journey]:
    """A portal with sign-in; of background runs the approvals wait only for seconds."""
    environ = {"AUTH_DISABLED": "0", "PORTAL_BACKGROUND_APPROVAL_TIMEOUT_S": str(SHORT_S)}
    with Journey(environ=environ) as made:
        yield made


@pytest.fixture(scope="module")
def ada(office: Journey) -> Headers:
    return office.add_user("Ada", role="administrator")


@pytest.fixture(scope="module")
def bob(office: Journey, ada: Headers) -> Headers:
    return office.add_user("Bob")


def asked(office: Journey, headers: Headers, wish: str) -> tuple[str, Tab, str, str]:
    """(session, page, run, pause) of a turn that waits for its person."""
    session_id = office.new_session(headers)
    tab = office.open(session_id, headers)
    run_id = tab.say(wish)
    pause = tab.wait_pause(run_id)
    return session_id, tab, run_id, getattr(pause, "approval_id", None) or pause.clarify_id


def asked_in_background(office: Journey, headers: Headers) -> tuple[str, Tab, str, str]:
    """The same of an approval that nobody gives: its time may be over before anybody has looked."""
    session_id = office.new_session(headers)
    tab = office.open(session_id, headers)
    run_id = tab.say("Do something dangerous", background=True)
    (pause,) = wait_until(lambda: office.pauses_of(session_id), what="the approval")
    return session_id, tab, run_id, pause.id


def allow(tab: Tab, approval_id: str, choice: str = "once", **more: Any) -> dict[str, Any]:
    return tab.ask(event="approval.respond", approval_id=approval_id, choice=choice, **more)


def stored(office: Journey, pause_id: str) -> Pause:
    with transaction(office.factory, write=False) as db:
        return db.get_one(Pause, pause_id)


def audited(office: Journey, run_id: str) -> list[str]:
    """What was written down of who answered in a run."""
    with transaction(office.factory, write=False) as db:
        rows = db.scalars(select(AuditEvent).where(AuditEvent.run_id == run_id))
        return [row.action for row in rows if row.action.endswith("_answered")]


@pytest.mark.parametrize(("choice", "says"), [("once", "allowed once"), ("deny", "was not run")])
def test_an_approval_is_decided_and_the_same_run_goes_on(office: Journey, ada: Headers, choice: str, says: str) -> None:
    session_id, tab, run_id, approval_id = asked(office, ada, "Do something dangerous")
    other = office.open(session_id, ada)
    assert other.state["pauses"][0]["approval_id"] == approval_id
    assert office.run(run_id).state == RunState.AWAITING_APPROVAL
    answer = allow(other, approval_id, choice)
    assert (answer["event"], answer["choice"], answer["by"]) == ("ack", choice, "Ada")
    tab.wait_end(run_id)
    assert says in tab.text(run_id)
    assert len(office.runs_of(session_id)) == 1
    assert audited(office, run_id) == ["approval_answered"]
    office.check(session_id, tab, other)


def test_of_many_answers_at_once_the_first_counts(office: Journey, ada: Headers) -> None:
    session_id, tab, run_id, approval_id = asked(office, ada, "Do something dangerous")
    tabs = [tab, *(office.open(session_id, ada) for _ in range(4))]
    with ThreadPoolExecutor(len(tabs)) as pool:
        answers = list(pool.map(allow, tabs, [approval_id] * 5, ["once", "deny", "once", "deny", "session"]))
    won = [answer for answer in answers if answer["event"] == "ack"]
    assert len(won) == 1
    assert {answer["code"] for answer in answers if answer["event"] == "error"} == {"already_decided"}
    assert allow(tab, approval_id)["code"] == "already_decided"
    for each in tabs:
        each.wait_end(run_id)
    decided = stored(office, approval_id)
    assert (decided.choice, decided.by_name) == (won[0]["choice"], "Ada")
    assert audited(office, run_id) == ["approval_answered"]
    office.check(session_id, *tabs)


def test_an_answer_after_the_deadline_is_told_to_be_late_and_silence_meant_no(office: Journey, ada: Headers) -> None:
    session_id, tab, run_id, approval_id = asked_in_background(office, ada)
    time.sleep(SHORT_S + 0.1)
    late = allow(tab, approval_id)
    assert (late["event"], late["code"]) == ("error", "expired")
    tab.wait_end(run_id)
    assert "was not run" in tab.text(run_id)
    assert stored(office, approval_id).state == "expired"
    assert audited(office, run_id) == []
    office.check(session_id, tab)


def test_a_stranger_can_neither_see_nor_answer(office: Journey, ada: Headers, bob: Headers) -> None:
    session_id, tab, run_id, approval_id = asked(office, ada, "Do something dangerous")
    stranger = office.open(office.new_session(bob), bob)
    own = office.open(office.new_session(ada), ada)
    for tries in (
        allow(stranger, approval_id, session_id=session_id),
        allow(stranger, approval_id),
        allow(own, approval_id),  # hers, but of another session
        allow(tab, "0" * 32),
        stranger.ask(event="resume", session_id=session_id),
        stranger.ask(event="abort", session_id=session_id),
    ):
        assert (tries["event"], tries["code"]) == ("error", "not_found")
    by_rest = office.post(f"/api/chat/runs/{run_id}/resume", {"approvalId": approval_id, "choice": "once"}, headers=bob)
    assert by_rest.status_code == 404
    assert stored(office, approval_id).state == "pending"
    assert allow(tab, approval_id)["event"] == "ack"
    tab.wait_end(run_id)
    office.check(session_id, tab)
    assert not stranger.problems


def test_a_question_is_answered_once_and_by_rest_as_well(office: Journey, ada: Headers) -> None:
    session_id, tab, run_id, clarify_id = asked(office, ada, "Ask me a question")
    pause = tab.runs[run_id].open_pauses[0]
    by_rest = office.post(
        f"/api/chat/runs/{run_id}/resume", {"clarifyId": clarify_id, "answer": pause.choices[0]}, headers=ada
    )
    assert by_rest.status_code == 200, by_rest.text
    again = tab.ask(event="clarify.respond", clarify_id=clarify_id, answer="Something else")
    assert again["code"] == "already_decided"
    tab.wait_end(run_id)
    assert pause.choices[0] in tab.text(run_id)
    assert audited(office, run_id) == ["question_answered"]
    office.check(session_id, tab)


def test_a_question_waits_for_its_person_to_come_back(office: Journey, ada: Headers) -> None:
    """It has no limit; it is shown after a reload, in a second browser, and only in its own session."""
    session_id, tab, run_id, clarify_id = asked(office, ada, "Ask me a question")
    elsewhere = office.open(office.new_session(ada), ada)
    assert elsewhere.state["pauses"] == []
    office.leave(tab)
    time.sleep(SHORT_S)
    back, second = office.open(session_id, ada), office.open(session_id, ada)
    assert back.wait_pause(run_id).clarify_id == clarify_id
    assert second.wait_pause(run_id).clarify_id == clarify_id
    assert back.ask(event="clarify.respond", clarify_id=clarify_id, answer="my own words")["event"] == "ack"
    back.wait_end(run_id)
    assert "my own words" in back.text(run_id)
    office.check(session_id, back, second)


def test_an_approval_that_nobody_sees_is_denied_and_says_so_on_return(office: Journey, ada: Headers) -> None:
    session_id, tab, run_id, approval_id = asked_in_background(office, ada)
    queued = tab.say("stream 4 every 4 ms")
    office.leave(tab)
    office.wait_state(queued, RunState.COMPLETED)
    back = office.open(session_id, ada)
    assert back.state["pauses"] == []
    shown = next(item for item in back.runs[run_id].items if getattr(item, "approval_id", None) == approval_id)
    assert (shown.reason, shown.choice, shown.is_open) == ("expired", "deny", False)
    office.check(session_id, back)
