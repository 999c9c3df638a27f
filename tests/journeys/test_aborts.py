"""Journeys that a person stops, in each state and at random moments: what was there stays, and nothing goes on."""

import random
import time

import pytest

from shared.run_state import RunState
from tests.rig.journey import Journey, Tab
from tests.rig.portal import wait_until


def abort(tab: Tab, run_id: str | None = None) -> str:
    """Press stop; the state that the portal then tells."""
    answer = tab.ask(event="abort", **({} if run_id is None else {"run_id": run_id}))
    assert answer["event"] == "ack", answer
    return str(answer["state"])


def was_stopped(journey: Journey, run_id: str) -> bool:
    """Whether the demo gateway was told to stop that turn."""
    play_id = journey.run(run_id).backend_run_id
    return any(play["id"] == play_id and play["stopped_at_ns"] is not None for play in journey.plays())


def test_a_turn_stopped_in_mid_text_keeps_its_text_and_the_agent_stops(journey: Journey) -> None:
    session_id = journey.new_session()
    tab, other = journey.open(session_id), journey.open(session_id)
    run_id = tab.say("stream 30000 every 5 ms")
    seen = tab.wait_text(run_id, 300)
    assert abort(other) == RunState.ABORTING
    tab.wait_end(run_id)
    run = journey.run(run_id)
    assert (run.state, run.reason, run.abort_by) == (RunState.ABORTED, "user", "Local administrator")
    assert tab.text(run_id).startswith(seen)
    stages = [step.stage for step in tab.runs[run_id].abort]
    assert stages[:2] == ["requested", "seen"]
    assert "killed" not in stages
    wait_until(lambda: was_stopped(journey, run_id), what="the agent's stop")
    said = len(journey.said(str(run.backend_run_id)))
    time.sleep(0.3)
    assert len(journey.said(str(run.backend_run_id))) == said
    assert abort(tab, run_id) == RunState.ABORTED  # again: it stays as it is
    journey.check(session_id, tab, other)


def test_thinking_tools_and_text_of_a_stopped_turn_are_kept(journey: Journey) -> None:
    """CASES 44."""
    session_id = journey.new_session()
    tab = journey.open(session_id)
    run_id = tab.say("Show everything, the whole tour")
    tab.wait(lambda page: run_id in page.runs and len(page.runs[run_id].tools) >= 2)
    abort(tab, run_id)
    tab.wait_end(run_id)
    kept = tab.runs[run_id]
    assert kept.todos
    assert kept.tools
    assert not any(tool.is_open for tool in kept.tools)
    assert tab.text(run_id)
    assert any(part.kind == "reasoning" for part in kept.items if hasattr(part, "kind"))
    journey.check(session_id, tab)


@pytest.mark.parametrize("wish", ["Do something dangerous", "Ask me a question"])
def test_a_turn_that_waits_for_a_person_can_be_stopped(journey: Journey, wish: str) -> None:
    session_id = journey.new_session()
    tab = journey.open(session_id)
    run_id = tab.say(wish)
    tab.wait_pause(run_id)
    assert abort(tab) == RunState.ABORTING
    tab.wait_end(run_id)
    assert journey.run(run_id).state == RunState.ABORTED
    assert not tab.runs[run_id].open_pauses
    next_run = tab.say("Hello again")
    tab.wait_end(next_run)
    journey.check(session_id, tab)


def test_after_an_abort_the_queue_goes_on(journey: Journey) -> None:
    session_id = journey.new_session()
    tab = journey.open(session_id)
    said = [tab.say("stream 30000 every 5 ms, first"), tab.say("stream 5 every 5 ms"), tab.say("stream 6 every 5 ms")]
    tab.wait_text(said[0])
    abort(tab)
    tab.wait_end(*said)
    assert [run.state for run in journey.runs_of(session_id)] == [
        RunState.ABORTED, RunState.COMPLETED, RunState.COMPLETED,
    ]  # fmt: skip
    journey.check(session_id, tab)


def test_a_queued_turn_that_is_stopped_never_reaches_the_agent(journey: Journey) -> None:
    session_id = journey.new_session()
    tab = journey.open(session_id)
    first, queued = tab.say("stream 30000 every 20 ms"), tab.say("stream 3 every 3 ms")
    assert abort(tab, queued) == RunState.CANCELLED
    assert abort(tab, first) == RunState.ABORTING
    tab.wait_end(first, queued)
    assert journey.run(queued).begun_at is None
    journey.check(session_id, tab)


def test_stopping_at_random_moments_ends_each_turn_once(journey: Journey) -> None:
    """F36, fewer rounds: from before the claim to after the end."""
    chance = random.Random(36)
    sessions = [journey.new_session() for _ in range(4)]
    tabs = [journey.open(session_id) for session_id in sessions]
    ends: set[str] = set()
    early, late = tabs[0].say("stream 30000 every 20 ms"), tabs[1].say("stream 3 every 3 ms")
    tabs[0].wait_text(early)
    tabs[1].wait_end(late)
    for tab, run_id in zip(tabs, (early, late), strict=False):  # both ends surely, whatever the moments below meet
        abort(tab, run_id)
        tab.wait_end(run_id)
        ends.add(journey.run(run_id).state)
    for n in range(8):
        said = [tab.say(f"stream 8 every 5 ms, round {n}") for tab in tabs]
        moments = sorted(
            ((chance.choice([0.0, 0.005, 0.02, 0.05, 0.1]) * chance.random(), tab) for tab in tabs), key=lambda m: m[0]
        )
        began = time.monotonic()
        for at, tab in moments:
            time.sleep(max(0.0, began + at - time.monotonic()))
            abort(tab, said[tabs.index(tab)])
        for tab, run_id in zip(tabs, said, strict=True):
            tab.wait_end(run_id)
            ends.add(journey.run(run_id).state)
    assert ends <= {RunState.ABORTED, RunState.COMPLETED, RunState.CANCELLED}
    assert ends >= {RunState.ABORTED, RunState.COMPLETED}
    for session_id, tab in zip(sessions, tabs, strict=True):
        journey.check(session_id, tab)
