"""Journeys of `cli` sessions whose turn fails, or is stopped: what socket and page tell, and what goes on after it."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from shared.run_state import RunState
from tests.rig.bridge import running
from tests.rig.bridge_journey import BridgeJourney
from tests.rig.bridge_scene import Scene, terminal, thoughts_of
from tests.rig.browser_journey import browser_at
from tests.rig.chromium import Chromium
from tests.rig.portal import wait_until

pytestmark = pytest.mark.component("hermes")


# ---- failures


FAILURES = {
    "401": ("[[error:401]]", "auth_failed", False),
    "429": ("[[error:429]]", "rate_limited", True),
    "500": ("[[say:Before.]] [[tool:todo:{}]] [[then]] [[error:500]]", "model_error", True),
    "a model that says nothing": ("[[empty]]", "empty_answer", True),
}


def test_a_model_that_fails_ends_the_turn_with_its_cause_and_the_next_turn_runs(bridge: BridgeJourney) -> None:
    """All at once: Hermes tries some of them for 8 s."""
    scenes = {name: Scene(bridge, onFailure="continue") for name in FAILURES}
    runs = {name: scenes[name].begin(wish) for name, (wish, _, _) in FAILURES.items()}
    for name, (_, code, retryable) in FAILURES.items():
        scene, run_id = scenes[name], runs[name]
        scene.tab.wait_end(run_id)
        run = bridge.run(run_id)
        assert (run.state, run.error_code) == (RunState.FAILED, code)
        end = scene.shown(run_id).end
        assert end is not None
        assert (end.retryable, end.message) == (retryable, run.error)
        assert scene.names(run_id)[-1] == "run.failed"
        fine = scene.play("[[say:Fine.]]")
        assert scene.tab.text(fine) == "Fine."
        scene.check()
    retried = [data["text"] for data in scenes["500"].heard.data(runs["500"], "status.updated")]
    assert any("retry" in text.lower() for text in retried), "what it waits for is shown while it waits"
    again = bridge.retry(runs["401"])
    scenes["401"].tab.wait_end(again)
    assert bridge.run(again).state == RunState.FAILED
    scenes["401"].check()


def test_what_the_agent_overcomes_itself_is_no_failure(bridge: BridgeJourney) -> None:
    scenes = [Scene(bridge) for _ in range(4)]
    wishes = (
        "[[error:500:1]] [[say:recovered]]",
        "[[say:partial ]] [[drop:1]] [[say:rest]]",
        f"{terminal('echo 1')} [[then]] {terminal('echo 2')} [[then]] {terminal('echo 3')} [[then]] [[say:done]]",
        "[[think:Hm.]] [[drop:1]] [[say:once more]]",
    )
    given: list[dict[str, Any]] = [{}, {}, {"max_iterations": 2}, {}]
    runs = [scene.begin(wish, **more) for scene, wish, more in zip(scenes, wishes, given, strict=True)]
    for scene, run_id in zip(scenes, runs, strict=True):
        scene.tab.wait_end(run_id)
        assert bridge.run(run_id).state == RunState.COMPLETED
    assert scenes[0].tab.text(runs[0]) == "recovered"
    partial, rest = (each.text for each in bridge.asked_for(runs[1]))
    assert len(scenes[2].shown(runs[2]).tools) == 2
    assert scenes[3].tab.text(runs[3]) == "once more"
    assert len(bridge.asked_for(runs[3])) == 2, "Hermes asks its model again, and the turn was given to it once"
    for scene, said in zip(scenes, ({}, {runs[1]: partial + rest}, {}, {}), strict=True):
        scene.check(**said)
    assert scenes[2].shown(runs[2]).end.finish_reason == "max_iterations"  # type: ignore[union-attr]


# ---- interrupts


def wait_for_model(scene: Scene, run_id: str) -> None:
    wait_until(lambda: scene.bridge.asked_for(run_id), what="the request to the model")


def wait_for_retry(scene: Scene, run_id: str) -> None:
    told = scene.heard
    scene.tab.wait(lambda page: any("etry" in data["text"] for data in told.data(run_id, "status.updated")))


STOPS: dict[str, tuple[str, Callable[[Scene, str], Any]]] = {
    "in a stream": ("[[say:Before.]] [[stream:9000:10]]", lambda scene, run_id: scene.tab.wait_text(run_id, 100)),
    "in its thoughts": (
        "[[thinkstream:9000:10]] [[say:x]]",
        lambda scene, run_id: scene.tab.wait(lambda page: run_id in page.runs and thoughts_of(page.runs[run_id])),
    ),
    "in a tool": (
        f"[[say:Before.]] {terminal('sleep 87654.5')}",
        lambda scene, run_id: wait_until(
            lambda: scene.tab.text(run_id).startswith("Before.") and running("sleep 87654.5"), what="the tool"
        ),
    ),
    "in a silent model": ("[[hang:90]] [[say:x]]", wait_for_model),
    "while it waits to try again": ("[[error:500]]", wait_for_retry),
    "in an approval": ("[[say:Before.]] [[danger]]", lambda scene, run_id: scene.tab.wait_pause(run_id)),
    "in a question": ("[[say:Before.]] [[clarify:Which?|a|b]]", lambda scene, run_id: scene.tab.wait_pause(run_id)),
}


@pytest.mark.parametrize("where", STOPS)
def test_stop_is_heard_wherever_the_agent_is(bridge: BridgeJourney, where: str) -> None:
    wish, ready = STOPS[where]
    scene = Scene(bridge)
    run_id, queued = scene.begin(wish), scene.begin("[[say:Next.]]")
    ready(scene, run_id)
    seen, began = scene.tab.text(run_id), time.monotonic()
    scene.abort(run_id)
    scene.tab.wait_end(run_id)
    took_s = time.monotonic() - began
    shown = scene.shown(run_id)
    assert bridge.run(run_id).state == RunState.ABORTED
    assert [step.stage for step in shown.abort][:3] == ["requested", "seen", "acknowledged"]
    assert "killed" not in [step.stage for step in shown.abort]
    assert took_s < 60, "it did not stop by itself"
    assert scene.tab.text(run_id).startswith(seen)
    assert seen.startswith("Before.") or "Before." not in wish
    assert not shown.open_pauses
    assert not any(tool.is_open for tool in shown.tools)
    wait_until(lambda: not running("sleep 87654.5"), what="the end of the tool")
    scene.tab.wait_end(queued)
    assert scene.tab.text(queued) == "Next."
    scene.check()


def test_a_turn_that_was_stopped_never_reaches_into_the_next(bridge: BridgeJourney) -> None:
    """The model answers the stopped request while the next turn streams; its request may not even be ended by then."""
    scenes = [Scene(bridge) for _ in range(6)]
    for number, scene in enumerate(scenes):
        stopped = scene.begin("[[hang:9]] [[say:too late]]")
        wait_for_model(scene, stopped)
        time.sleep(0.1 * number)
        scene.abort(stopped)
        scene.begin("[[stream:400:25]]")
    for scene in scenes:
        stopped, streamed = (run.id for run in bridge.runs_of(scene.session_id))
        scene.tab.wait_end(stopped, streamed)
        assert scene.tab.text(stopped) == ""
        assert len(bridge.asked_for(streamed)) == 1, "nothing cut it off"
        assert len(scene.tab.text(streamed).split()) == 400
        scene.check()


# ---- in a browser


def test_a_page_reloaded_in_mid_stream_and_stopped_shows_all_that_came(
    chromium: Chromium, bridge: BridgeJourney
) -> None:
    session_id = bridge.new_session()
    with browser_at(chromium, bridge, session_id) as person:
        run_id = person.say(bridge.wish("[[stream:30000:10]]"))
        for n in range(1, 6):
            person.wait_text(run_id, n * 300)
            person.reload()
        seen = person.wait_text(run_id, 1800)
        assert not person.has_ended(run_id)
        person.page.fill("#text", "a draft")
        person.page.click("#composer-state .btn--stop")
        person.wait_end(run_id)
        assert bridge.run(run_id).state == RunState.ABORTED
        assert person.text(run_id).split()[: len(seen.split())] == seen.split()
        assert person.page.input_value("#text") == "a draft"
        bridge.check(session_id)
        person.check()


def test_a_tool_that_is_stopped_and_a_model_that_failed_say_so_on_the_page(
    chromium: Chromium, bridge: BridgeJourney
) -> None:
    session_id = bridge.new_session(onFailure="continue")
    with browser_at(chromium, bridge, session_id) as person:
        stopped = person.say(bridge.wish(terminal("sleep 87654.5")))
        person.page.wait_for_selector(f"#run-{stopped} .tool")
        person.page.click("#composer-state .btn--stop")
        person.wait_end(stopped)
        failed = person.say(bridge.wish("[[error:401]]"))
        person.wait_end(failed)
        assert "401" in (person.page.locator(f"#run-{failed}-end").text_content() or "")
        fine = person.say(bridge.wish("[[say:Fine.]]"))
        person.wait_end(fine)
        wait_until(lambda: not running("sleep 87654.5"), what="the end of the tool")
        bridge.check(session_id)
        person.check()
