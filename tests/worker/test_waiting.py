"""Approvals and questions of a run: asked, decided once, and the backend told exactly once."""

from typing import Any

import pytest

from shared.errors import AlreadyDecided, Expired
from shared.models import Pause
from shared.relay import mailbox
from shared.relay.mailbox import Note
from shared.store import pauses, users
from shared.store import runs as run_store
from tests.worker.conftest import Desk
from worker.backends import base
from worker.runs.expiry import expire_due
from worker.runs.inbox import ShutdownDue
from worker.runs.interrupts import MailboxThread, look

ASKS = [{"text": "May I? "}, {"approval": "rm -rf /tmp/x"}, {"text": " Done."}]


def asked(desk: Desk, run_id: str) -> Pause:
    """The run's first pause, whatever has become of it."""
    return desk.wait(lambda: pauses_of(desk, run_id), what="the pause")[0]


def told(desk: Desk, run_id: str, name: str) -> Any:
    """The first event of that name; it follows its commit."""
    return desk.wait(lambda: next((e for e in desk.events(run_id) if e.event == name), None), what=name)


def pauses_of(desk: Desk, run_id: str) -> list[Pause]:
    with desk.db() as db:
        return pauses.of_run(db, run_id)


def answer(desk: Desk, pause: Pause, *, note: bool = True, **decision: Any) -> None:
    """As the web process does it: decide, commit, then nudge."""
    with desk.db() as db:
        pauses.answer(db, pause.id, user=users.get(db, desk.user_id), **decision)
        worker_id = run_store.get(db, pause.run_id).worker_id
    if note:
        posted = Note(run_id=pause.run_id, kind="answer", fence=pause.fence, pause_id=pause.id)
        mailbox.post(desk.context.redis, desk.context.keys, worker_id, posted)


@pytest.mark.parametrize("note", [True, False], ids=["by a note", "by looking in the database"])
def test_an_approval_is_asked_and_its_answer_reaches_the_backend_once(desk: Desk, note: bool) -> None:
    desk.start_threads()
    run_id = desk.submit(desk.session(), ASKS)
    thread = desk.start(run_id)
    pause = asked(desk, run_id)
    assert desk.state(run_id) == "awaiting_approval"
    requested = told(desk, run_id, "approval.requested")
    assert (requested.data.command, requested.data.kind) == ("rm -rf /tmp/x", "shell")
    assert (requested.data.deadline - requested.at).total_seconds() == 60
    answer(desk, pause, note=note, choice="once")
    thread.join(60)
    assert desk.state(run_id) == "completed"
    assert desk.backend.answers == [("1", "once")]
    assert desk.answer(run_id).content == "May I? [once] Done."
    kept = next(item for item in desk.transcript(run_id)["items"] if item["type"] == "approval")
    assert (kept["choice"], kept["by"], kept["reason"]) == ("once", "Ada", "answered")


def test_silence_means_deny_and_is_said_as_no_answer(desk: Desk) -> None:
    desk.start_threads()
    desk.context.settings = desk.settings.model_copy(update={"approval_timeout_s": 1})
    run_id = desk.submit(desk.session(), ASKS)
    thread = desk.start(run_id)
    pause = asked(desk, run_id)
    thread.join(60)
    assert desk.backend.answers == [("1", "deny")]
    resolved = [e for e in desk.events(run_id) if e.event == "approval.resolved"]  # more than once where threads meet
    assert {(e.data.choice, e.data.reason, e.data.by) for e in resolved} == {("deny", "expired", None)}
    with pytest.raises(Expired):
        answer(desk, pause, note=False, choice="once")
    assert desk.state(run_id) == "completed"


def test_the_backends_own_shorter_limit_is_the_deadline(sqlite_desk: Desk) -> None:
    desk = sqlite_desk
    desk.backend.capabilities = base.Capabilities(approvals=True, approval_limit_s=0.5, stop=True)
    run_id = desk.run(ASKS)
    assert desk.backend.answers == [("1", "deny")]
    requested = told(desk, run_id, "approval.requested")
    assert (requested.data.deadline - requested.at).total_seconds() == 0.5


@pytest.mark.parametrize(("background", "seconds"), [(False, 1), (True, 86_400)])
def test_background_runs_wait_longer(sqlite_desk: Desk, background: bool, seconds: int) -> None:
    desk = sqlite_desk
    desk.start_threads()
    desk.context.settings = desk.settings.model_copy(update={"approval_timeout_s": 1})
    run_id = desk.submit(desk.session(), ASKS, background=background)
    thread = desk.start(run_id)
    pause = asked(desk, run_id)
    requested = told(desk, run_id, "approval.requested")
    assert (requested.data.deadline - requested.at).total_seconds() == seconds
    if background:
        answer(desk, pause, choice="deny")
    thread.join(60)
    assert desk.backend.answers == [("1", "deny")]


def test_a_question_has_no_limit_and_takes_own_words(sqlite_desk: Desk) -> None:
    desk = sqlite_desk
    desk.start_threads()
    run_id = desk.submit(desk.session(), [{"clarify": "Which colour?"}])
    thread = desk.start(run_id)
    pause = asked(desk, run_id)
    assert desk.state(run_id) == "awaiting_clarification"
    requested = told(desk, run_id, "clarify.requested")
    assert (requested.data.question, requested.data.choices) == ("Which colour?", ["yes", "no"])
    assert requested.data.deadline is None
    answer(desk, pause, answer="mauve")
    thread.join(60)
    assert desk.backend.answers == [("0", "mauve")]
    assert desk.answer(run_id).content == "[mauve]"


def test_a_question_that_nobody_answers_ends_at_its_limit_without_an_answer(sqlite_desk: Desk) -> None:
    """PORTAL_CLARIFY_TIMEOUT_S; the run goes on, and what it hears is no answer of anybody."""
    desk = sqlite_desk
    desk.start_threads()
    desk.context.settings = desk.settings.model_copy(update={"clarify_timeout_s": 1})
    run_id = desk.run([{"clarify": "Which colour?"}, {"text": " Then blue."}])
    assert desk.backend.answers == [("0", None)]
    assert desk.state(run_id) == "completed"
    resolved = told(desk, run_id, "clarify.resolved")
    assert (resolved.data.answer, resolved.data.by, resolved.data.reason) == (None, None, "expired")


def test_a_limit_of_0_is_no_limit(sqlite_desk: Desk) -> None:
    """CASES 72: the approval stays open past any janitor, and can still be given."""
    desk = sqlite_desk
    desk.start_threads()
    desk.context.settings = desk.settings.model_copy(update={"approval_timeout_s": 0})
    run_id = desk.submit(desk.session(), ASKS)
    thread = desk.start(run_id)
    pause = asked(desk, run_id)
    assert told(desk, run_id, "approval.requested").data.deadline is None
    assert expire_due(desk.context) == []
    answer(desk, pause, choice="once")
    thread.join(60)
    assert desk.backend.answers == [("1", "once")]


def test_the_stream_goes_on_while_several_wait(desk: Desk) -> None:
    desk.start_threads()
    run_id = desk.submit(
        desk.session(),
        [{"ask_and_go_on": "first"}, {"ask_and_go_on": "second"}, {"text": "meanwhile"}, {"block": True}],
    )
    desk.start(run_id)
    desk.wait(lambda: desk.names(run_id).count("approval.requested") and len(pauses_of(desk, run_id)) == 2)
    desk.wait(lambda: desk.seen_text(run_id) == "meanwhile", what="text while it waits")
    first, second = pauses_of(desk, run_id)
    answer(desk, second, choice="once")
    desk.wait(lambda: desk.backend.answers == [("1", "once")], what="the first answer")
    assert desk.state(run_id) == "awaiting_approval"
    answer(desk, first, choice="deny")
    desk.wait(lambda: desk.state(run_id) == "running", what="running again")
    desk.wait(lambda: len(desk.backend.answers) == 2, what="the second answer")
    assert desk.backend.answers == [("1", "once"), ("0", "deny")]


def test_what_the_backend_no_longer_waits_for_is_withdrawn(desk: Desk) -> None:
    run_id = desk.run([{"ask_and_go_on": "ls"}, {"withdraw": "0"}, {"text": "went on"}])
    assert desk.state(run_id) == "completed"
    assert desk.backend.answers == []
    assert [e.data.reason for e in desk.events(run_id) if e.event == "approval.resolved"] == ["withdrawn"]


def test_the_end_of_a_run_withdraws_what_it_waits_for(desk: Desk) -> None:
    run_id = desk.run([{"ask_and_go_on": "ls"}, {"raise": "BackendLost"}])
    assert desk.state(run_id) == "interrupted"
    assert desk.names(run_id)[-2:] == ["approval.resolved", "run.interrupted"]
    with desk.db() as db:
        pause = pauses.of_run(db, run_id)[0]
    assert pause.state == "withdrawn"
    with pytest.raises(AlreadyDecided):
        answer(desk, pause, note=False, choice="once")
    assert desk.backend.answers == []


@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
def test_pages_hear_of_a_decision_that_whoever_took_it_could_not_tell(sqlite_desk: Desk, told: bool) -> None:
    """The relay was away, or the web process died, between the commit of an answer and its event.

    Of the worker's threads only the one that reads its notes works here. One that looks by itself may see a decision
    before its note comes, and then tells it as well; that does no harm, but would be told here by chance."""
    desk = sqlite_desk
    run_id = desk.submit(desk.session(), ASKS)
    thread = desk.start(run_id)
    pause = asked(desk, run_id)
    desk.wait(lambda: (live := desk.context.live_runs.get(run_id)) and live.open_pauses, what="a run that waits")
    answer(desk, pause, note=told, choice="once")  # where it tells, the web process appends the event itself
    if told:
        mailbox_thread = MailboxThread(desk.context)
        mailbox_thread.start()
        thread.join(60)
        mailbox_thread.stop()
    else:
        look(desk.context, desk.context.live_runs.all())
        thread.join(60)
    assert desk.backend.answers == [("1", "once")]
    resolved = [e for e in desk.events(run_id) if e.event == "approval.resolved"]
    if told:
        assert resolved == []
    else:
        assert [(e.data.choice, e.data.by, e.data.reason) for e in resolved] == [("once", "Ada", "answered")]


def test_a_decision_that_the_end_of_the_run_overtakes_stands_in_it(desk: Desk) -> None:
    """P6: the page shows the winner that the database has, not that the question was withdrawn."""
    run_id = desk.submit(desk.session(), [{"ask_and_go_on": "ls"}, {"block": True}])
    thread = desk.start(run_id)  # without its threads: it hears of nothing
    pause = asked(desk, run_id)
    answer(desk, pause, note=False, choice="once")
    live = desk.wait(lambda: desk.context.live_runs.get(run_id), what="the run")
    live.signal(ShutdownDue())
    thread.join(60)
    assert desk.state(run_id) == "interrupted"
    kept = next(item for item in desk.transcript(run_id)["items"] if item["type"] == "approval")
    assert (kept["choice"], kept["by"], kept["reason"]) == ("once", "Ada", "answered")
    resolved = [e for e in desk.events(run_id) if e.event == "approval.resolved"]
    assert [(e.data.choice, e.data.by, e.data.reason) for e in resolved] == [("once", "Ada", "answered")]


def test_an_approval_that_was_changed_in_the_database_is_denied(sqlite_desk: Desk) -> None:
    """S18: the hash is checked at delivery."""
    desk = sqlite_desk
    desk.start_threads()
    run_id = desk.submit(desk.session(), ASKS)
    thread = desk.start(run_id)
    pause = asked(desk, run_id)
    with desk.db() as db:
        db.get(Pause, pause.id).args_hash = "0" * 64
    answer(desk, pause, choice="always")
    thread.join(60)
    assert desk.backend.answers == [("1", "deny")]


def test_an_answer_that_cannot_be_given_is_told(sqlite_desk: Desk) -> None:
    desk = sqlite_desk
    desk.start_threads()
    original = desk.backend._answer

    def broken(key: str, answer: Any) -> Any:
        def respond(given: Any) -> None:
            original(key, answer)(given)
            raise RuntimeError("the peer hung up")

        return respond

    desk.backend._answer = broken  # type: ignore[method-assign]
    run_id = desk.submit(desk.session(), [{"approval": "ls"}, {"block": True}])
    desk.start(run_id)
    answer(desk, asked(desk, run_id), choice="once")
    told(desk, run_id, "status.updated")
    said = [e.data.text for e in desk.events(run_id) if e.event == "status.updated"]
    assert said == ["The answer could not be given to the agent."]


def test_who_decides_sees_all_that_was_said_before(sqlite_desk: Desk) -> None:
    """Nothing is held back as the possible beginning of a secret while a person is asked."""
    desk = sqlite_desk
    desk.start_threads()
    run_id = desk.submit(desk.session(), [{"text": "May I use this api"}, {"approval": "ls"}, {"text": "done"}])
    thread = desk.start(run_id)
    told(desk, run_id, "approval.requested")
    assert desk.seen_text(run_id) == "May I use this api"
    answer(desk, asked(desk, run_id), choice="once")
    thread.join(60)
    assert desk.answer(run_id).content == "May I use this api[once]done"
