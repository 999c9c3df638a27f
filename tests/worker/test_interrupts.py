"""Aborts: asked in the database, heard by a note or by looking, and one outcome whatever the timing."""

import random
import time
from typing import Any

import pytest

from shared.relay import mailbox
from shared.relay.mailbox import Note
from shared.run_state import FINAL, RunState
from shared.store import runs as run_store
from tests.worker.conftest import Desk
from worker.backends import base
from worker.runs.execute import execute

ENDS = {"aborted", "completed", "cancelled"}
END_EVENTS = {"run.completed", "run.failed", "run.cancelled", "run.interrupted", "abort.completed"}


def abort(desk: Desk, run_id: str, *, note: bool = True) -> RunState:
    """As the web process does it; gives the state that it left the run in."""
    with desk.db() as db:
        state = run_store.request_abort(db, run_id, by_name="Ada")
        run = run_store.get(db, run_id)
    if note and state == RunState.ABORTING and run.worker_id:
        mailbox.post(
            desk.context.redis, desk.context.keys, run.worker_id, Note(run_id=run_id, kind="abort", fence=run.fence)
        )
    return state


def running(desk: Desk, steps: Any, **given: Any) -> str:
    run_id = desk.submit(desk.session(), steps, **given)
    desk.start(run_id)
    desk.wait(lambda: desk.turns(run_id), what="the turn at its backend")
    return run_id


def active_of(desk: Desk, run_id: str) -> Any:
    session_id = desk.row(run_id).session_id
    with desk.look() as db:
        return run_store.active(db, session_id)


@pytest.mark.parametrize("note", [True, False], ids=["by a note", "by looking in the database"])
def test_an_abort_stops_the_backend_and_keeps_what_came(desk: Desk, note: bool) -> None:
    desk.start_threads()
    run_id = running(desk, [{"reasoning": "hm"}, {"tool": "ls"}, {"text": "twenty words"}, {"block": True}])
    desk.wait(lambda: desk.seen_text(run_id) == "twenty words", what="the text")
    assert abort(desk, run_id, note=note) == RunState.ABORTING
    assert desk.wait_final(run_id) == "aborted"
    row = desk.row(run_id)
    assert (row.reason, row.abort_by) == ("user", "Ada")
    answer = desk.answer(run_id)
    assert (answer.content, answer.status) == ("twenty words", "STOPPED")
    desk.wait(lambda: desk.names(run_id)[-1] == "abort.completed", what="the end told")
    stages = [e.data.stage for e in desk.events(run_id) if e.event == "abort.started"]
    assert stages in (["seen", "acknowledged"], ["seen"])
    steps = [step["stage"] for step in desk.transcript(run_id)["abort"]]
    assert steps == ["requested", *stages]
    last = desk.events(run_id)[-1]
    assert (last.data.by, last.data.note) == ("Ada", None)
    assert [item["type"] for item in desk.transcript(run_id)["items"]] == ["text", "tool", "text"]


def test_a_backend_that_does_not_stop_is_left_after_its_grace(sqlite_desk: Desk) -> None:
    desk = sqlite_desk
    desk.context.settings = desk.settings.model_copy(update={"abort_grace_s": 1.5})
    desk.start_threads()
    run_id = running(desk, [{"text": "a"}, {"deaf": 300}, {"text": "too late"}])
    desk.wait(lambda: f"deaf {run_id}" in desk.effects(), what="that it hears nothing")
    asked_at = time.monotonic()
    abort(desk, run_id)
    assert desk.wait_final(run_id) == "aborted"
    assert time.monotonic() - asked_at >= 1.5
    assert desk.answer(run_id).content == "a"
    desk.wait(lambda: desk.names(run_id)[-1] == "abort.completed", what="the end told")
    assert "killed" in [e.data.stage for e in desk.events(run_id) if e.event == "abort.started"]


def test_a_backend_that_cannot_be_stopped_is_said_to_go_on(sqlite_desk: Desk) -> None:
    desk = sqlite_desk
    desk.backend.capabilities = base.Capabilities(stop=False)
    desk.start_threads()
    run_id = running(desk, [{"text": "a"}, {"block": True}])
    abort(desk, run_id)
    desk.wait_final(run_id)
    desk.wait(lambda: desk.names(run_id)[-1] == "abort.completed", what="the end told")
    assert "cannot be stopped" in desk.events(run_id)[-1].data.note


def test_an_abort_that_comes_too_late_keeps_the_answer(desk: Desk) -> None:
    """The backend has finished, and nobody has told the run of the abort yet."""
    original = desk.backend.stream

    def stream(turn: Any, controls: Any) -> Any:
        yield from list(original(turn, controls))[:-1]
        assert abort(desk, turn.run_id, note=False) == RunState.ABORTING
        yield base.Finished()

    desk.backend.stream = stream  # type: ignore[method-assign]
    run_id = desk.run("whole")
    assert (desk.state(run_id), desk.answer(run_id).content) == ("completed", "whole")
    assert desk.events(run_id)[-1].data.abort == "already_finished"


def test_an_abort_while_it_waits_withdraws_the_question(desk: Desk) -> None:
    desk.start_threads()
    run_id = running(desk, [{"approval": "ls"}])
    desk.wait(lambda: desk.state(run_id) == "awaiting_approval", what="the approval")
    abort(desk, run_id)
    assert desk.wait_final(run_id) == "aborted"
    assert desk.backend.answers == []
    assert desk.pause(run_id) is None


def test_after_an_abort_the_queue_goes_on(desk: Desk) -> None:
    desk.start_threads()
    session_id = desk.session()
    first, second = desk.submit(session_id, [{"block": True}]), desk.submit(session_id, "next")
    desk.start(first)
    desk.wait(lambda: desk.turns(first), what="the first turn")
    abort(desk, first)
    desk.wait_final(first)
    desk.wait(lambda: (second, "runs") in desk.sent, what="the next task")
    execute(second, desk.context)
    assert desk.state(second) == "completed"


def test_a_note_is_not_believed(sqlite_desk: Desk) -> None:
    desk = sqlite_desk
    desk.start_threads()
    run_id = running(desk, [{"text": "a"}, {"sleep": 0.6}, {"text": "b"}])
    for fence in (0, 1, 7):
        note = Note(run_id=run_id, kind="abort", fence=fence)
        mailbox.post(desk.context.redis, desk.context.keys, desk.context.worker_id, note)
    assert desk.wait_final(run_id) == "completed"
    assert desk.answer(run_id).content == "ab"


def test_an_abort_at_any_moment_has_one_outcome(desk: Desk) -> None:
    """F36: 100 aborts at random moments of starting, streaming, tools, waiting and ending."""
    desk.start_threads()
    chance = random.Random(36)
    steps = [
        {"text": "w ", "times": 5, "every_s": 0.005},
        {"tool": "t", "takes_s": 0.01},
        {"approval": "ls"},
        {"text": "end", "times": 2},
    ]
    outcomes = []
    for start in range(0, 100, 10):
        batch = []
        for n in range(start, start + 10):
            run_id = desk.submit(desk.session(), steps if n % 3 else steps[:2] + steps[3:])
            desk.start(run_id)
            batch.append(run_id)
        if not start:
            desk.wait(
                lambda run_id=batch[1]: desk.turns(run_id), what="one that has begun, and waits for an approval at last"
            )
        for run_id in batch:
            time.sleep(chance.random() * 0.02)
            abort(desk, run_id, note=chance.random() < 0.7)
        for run_id in batch:
            outcomes.append(desk.wait_final(run_id))
            assert active_of(desk, run_id) is None
            assert desk.turns(run_id) <= 1
            if outcomes[-1] == "aborted" and desk.turns(run_id):
                assert desk.answer(run_id).status == "STOPPED"
            desk.wait(lambda run_id=run_id: _ends(desk, run_id) or desk.state(run_id) == "cancelled", what="its end")
            assert len(_ends(desk, run_id)) <= 1
    assert set(outcomes) <= ENDS
    assert "aborted" in outcomes


def _ends(desk: Desk, run_id: str) -> list[str]:
    return [event.event for event in desk.events(run_id) if event.event in END_EVENTS]


def test_a_cancel_that_races_the_claim_has_one_winner(desk: Desk) -> None:
    """F39: cancelled without effects, or run; never both. 100 rounds on each kind of database."""
    chance = random.Random(39)
    outcomes = set()
    for _ in range(100):
        run_id = desk.submit(desk.session(), "hi")
        thread = desk.start(run_id)
        time.sleep(chance.random() * 0.008)
        with desk.db() as db:
            cancelled = run_store.cancel_queued(db, run_id, by="Ada")
        thread.join(60)
        state = desk.state(run_id)
        outcomes.add(state)
        assert state == ("cancelled" if cancelled else "completed")
        assert desk.turns(run_id) == (0 if cancelled else 1)
    assert outcomes <= FINAL
