"""What comes at the same moment: answers, deadlines and stops of one pause; restarts of a child with many runs. What
the agent's process heard is what the database holds, and it heard it once. The child is a stand-in."""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.errors import PlatformError
from shared.models import Pause
from shared.store import pauses
from tests.rig.bridge import ScriptedHome, running, wait_for
from tests.rig.worker_process import FAST
from tests.worker.bridge_desk import BridgeDesk
from tests.worker.conftest import Desk
from worker.runs.waiting import Waiting

ROUNDS = 10
LIMIT_S = 0.4  # of what is asked here: a second is the least that the setting takes
APPROVAL = {
    "event": "approval.requested", "approval_id": "a1", "command": "rm -rf /x", "description": "delete in root path",
    "pattern_keys": ["delete in root path"], "allow_permanent": True, "choices": ["once", "session", "always", "deny"],
}  # fmt: skip
QUESTION = {"event": "clarify.requested", "clarify_id": "c1", "question": "Which?", "choices": ["A", "B"]}


@pytest.fixture
def home(tmp_path: Path) -> ScriptedHome:
    return ScriptedHome(tmp_path / "home")


@pytest.fixture
def bridge(sqlite_desk: Desk, home: ScriptedHome, monkeypatch: pytest.MonkeyPatch) -> Iterator[BridgeDesk]:
    backend = home.backend(home.settings(**FAST))
    yield BridgeDesk(sqlite_desk, backend, monkeypatch)
    backend.close()
    wait_for(lambda: running(str(home.path)) == [], "the end of the child")


def at_about(moment: float, act: Callable[..., None], *args: Any, **given: Any) -> threading.Thread:
    """`act` once the clock is there, give or take what decides a race."""

    def call() -> None:
        with contextlib.suppress(PlatformError):  # another came first
            act(*args, **given)

    delay_s = max(0.0, moment + random.uniform(-0.03, 0.03) - time.monotonic())
    timer = threading.Timer(delay_s, call)
    timer.start()
    return timer


@pytest.mark.parametrize("kind", ["approval", "clarification"])
def test_of_answers_a_deadline_and_a_stop_at_once_one_wins_and_the_agent_hears_it_once(
    bridge: BridgeDesk, home: ScriptedHome, kind: str
) -> None:
    action = "approval_respond" if kind == "approval" else "clarify_respond"
    limits = {"approval_timeout_s": LIMIT_S, "clarify_timeout_s": LIMIT_S}
    bridge.desk.context.settings = bridge.desk.settings.model_copy(update=limits)
    home.script(turn=[APPROVAL if kind == "approval" else QUESTION, {"wait_either": [action, "interrupt"]}])
    bridge.desk.start_threads()
    decisions = [{"choice": "once"}, {"choice": "deny"}] if kind == "approval" else [{"answer": "A"}, {"answer": "B"}]
    for _ in range(ROUNDS):
        known = len(home.requests(action))
        run_id = bridge.begin("go")
        (pause,) = bridge.desk.wait(lambda run_id=run_id: pauses_of(bridge, run_id), what="the pause")
        moment = time.monotonic() + random.choice((0.1, LIMIT_S - 0.1))
        acts = [at_about(moment, bridge.answer, pause, **given) for given in decisions]
        if random.random() < 0.5:
            acts.append(at_about(moment, bridge.abort, run_id))
        for act in acts:
            act.join()
        state, _ = bridge.ended(run_id)
        with bridge.desk.look() as db:
            row = db.get_one(Pause, pause.id)
        heard = [each for each in home.requests(action)[known:] if each["run_id"] == run_id]
        assert len(heard) <= 1
        if row.state == "answered" and state == "completed":
            assert [each.get("choice", each.get("answer")) for each in heard] == [row.choice or row.answer]
        elif row.state == "expired" and state == "completed":
            assert [each.get("choice", each.get("answer")) for each in heard] == [
                "deny" if kind == "approval" else None
            ]
        elif row.state == "withdrawn":
            assert state == "aborted"
            assert not any(each.get("choice", "deny") != "deny" or each.get("answer") for each in heard)
        # a janitor that found the deadline tells it beside the run
        reasons = bridge.desk.wait(lambda run_id=run_id: resolved_as(bridge, run_id), what="that pages hear of it")
        assert reasons == {row.state}


def pauses_of(bridge: BridgeDesk, run_id: str) -> list[Pause]:
    """Also those whose deadline is over before anybody looks."""
    with bridge.desk.look() as db:
        return list(pauses.of_run(db, run_id))


def resolved_as(bridge: BridgeDesk, run_id: str) -> set[str]:
    return {event.data.reason for event in bridge.desk.events(run_id) if event.event.endswith(".resolved")}


def test_an_answer_that_is_only_found_at_the_deadline_counts_and_is_told(
    bridge: BridgeDesk, home: ScriptedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever took it could tell neither the pages nor the worker, which looks nowhere here but at its deadline."""
    is_answered = threading.Event()
    tick = Waiting.tick

    def tick_at_the_deadline(waiting: Waiting, now: float) -> None:
        if is_answered.is_set():
            for each in waiting._open.values():
                each.due = now
        tick(waiting, now)

    monkeypatch.setattr(Waiting, "tick", tick_at_the_deadline)
    home.script(turn=[APPROVAL, {"wait_either": ["approval_respond", "interrupt"]}])
    run_id = bridge.begin("go")
    bridge.answer(bridge.asked(run_id), choice="once")
    is_answered.set()
    assert bridge.ended(run_id) == ("completed", None)
    assert [each["choice"] for each in home.requests("approval_respond")] == ["once"]
    (told,) = [event.data for event in bridge.desk.events(run_id) if event.event == "approval.resolved"]
    assert (told.reason, told.choice) == ("answered", "once")


@pytest.mark.parametrize("at_once", [False, True])
def test_a_restart_under_ten_runs_leaves_each_with_one_end(
    bridge: BridgeDesk, home: ScriptedHome, at_once: bool
) -> None:
    home.script(turn=[{"event": "stream.delta", "text": "Hello"}, {"wait": "steer"}])
    runs = [bridge.begin("go") for _ in range(10)]
    for run_id in runs:
        bridge.desk.wait(lambda run_id=run_id: bridge.desk.seen_text(run_id) == "Hello", what="the first text")
    (old,) = bridge.backend._manager.children()
    assert bridge.backend.restart(at_once=at_once) == 10
    for _ in range(2):  # while the one that takes its place is still being started
        assert bridge.backend.restart(at_once=at_once) == 0
    home.script(turn=[])
    assert bridge.ended(bridge.run("go")) == ("completed", None)
    if not at_once:
        assert not old.gone.is_set()
        old.client.request("steer")
    ends = {bridge.ended(run_id) for run_id in runs}
    assert ends == {("interrupted", "backend_lost") if at_once else ("completed", None)}
    assert {bridge.text(run_id) for run_id in runs} == {"Hello"}
    wait_for(lambda: len(bridge.backend._manager.children()) == 1, "the end of all but one child")
    assert old.gone.is_set()
