"""Interrupts of the real agent: it stops soon wherever it is, and says so once."""

import json
import random
import secrets
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.rig.bridge_child import BridgeChild, Running, Turn, processes_with
from tests.rig.hermes import ScriptedModel

pytestmark = [pytest.mark.component("hermes"), pytest.mark.timeout(400)]

SOON_S = 60.0  # on a busy machine; some 0.1 s on an idle one


def chats(model: ScriptedModel, before: int = 0) -> list[dict[str, Any]]:
    """What chats have asked since; Hermes also looks which models there are, now and then."""
    return [request for request in model.requests()[before:] if request.get("kind") == "chat"]


def active_requests(model: ScriptedModel) -> int:
    with urllib.request.urlopen(model.base_url.removesuffix("/v1") + "/__stats", timeout=60) as reply:
        return int(json.load(reply)["active"])


def interrupt(child: BridgeChild, running: Running) -> Turn:
    """Stop the run; it must have ended soon after."""
    asked_at = time.monotonic()
    assert child.ask("interrupt", run_id=running.turn.run_id) == {"ok": True, "told": True}
    turn = running.end()
    took_s = running.ended_at() - asked_at
    print(f"ended after {took_s * 1000:.0f} ms")
    assert took_s < SOON_S
    assert turn.last["event"] == "run.interrupted", turn.events[-3:]
    assert len([event for event in turn.events if event["event"].startswith("run.")]) == 2  # begun, interrupted
    return turn


def test_in_a_stream_the_text_so_far_is_kept(child: BridgeChild, model: ScriptedModel):
    before = len(model.requests())
    running = child.begin("[[stream:9000:20]]")
    running.wait("stream.delta", 5)
    turn = interrupt(child, running)
    assert 5 <= len(turn.text.split()) < 9000
    child.wait_for(lambda: [request["outcome"] for request in chats(model, before)] == ["client_closed"])


def test_in_reasoning(child: BridgeChild):
    running = child.begin("[[thinkstream:9000:20]] [[say:x]]")
    running.wait("reasoning.delta", 3)
    assert interrupt(child, running).reasoning


def test_in_a_tool_its_process_ends(child: BridgeChild):
    mark = f"8{secrets.randbelow(10**8):08d}"
    running = child.begin(f'[[say:Wait.]] [[tool:terminal:{{"command": "sleep {mark}"}}]]')
    running.wait("tool.started")
    child.wait_for(lambda: bool(processes_with(mark)))
    turn = interrupt(child, running)
    assert turn.text == "Wait."
    assert turn.one("tool.completed")["tool_id"] == turn.one("tool.started")["tool_id"]
    child.wait_for(lambda: not processes_with(mark))


def test_in_a_silent_model_its_request_ends_too(child: BridgeChild, model: ScriptedModel):
    child.wait_for(lambda: active_requests(model) == 0)
    before = len(model.requests())
    running = child.begin("[[hang:90]] [[say:x]]")
    child.wait_for(lambda: active_requests(model) == 1)
    interrupt(child, running)
    child.wait_for(lambda: bool(chats(model, before)))
    assert [request["outcome"] for request in chats(model, before)] == ["client_closed"]


def test_a_request_that_was_just_being_made_ends_too(child: BridgeChild, model: ScriptedModel):
    before = len(model.requests())
    for _ in range(8):
        running = child.begin("[[hang:90]] [[say:x]]")
        running.wait("status")  # and at once
        interrupt(child, running)
    child.wait_for(lambda: active_requests(model) == 0)
    assert {request["outcome"] for request in chats(model, before)} <= {"client_closed"}


@pytest.mark.parametrize("wait_s", [0.0, 0.05, 0.1, 0.2, 0.4])
def test_what_a_stopped_turn_left_never_gets_into_the_next(child: BridgeChild, wait_s: float):
    session = {"session_id": f"20260102_030405_leaks{wait_s:g}"}
    running = child.begin("[[hang:0.6]] [[say:LEAK]] [[stream:3000:20]]", **session)
    running.wait("status")
    time.sleep(wait_s)
    first = interrupt(child, running)
    second = child.play("[[stream:80:20]]", history=None, after=first.run_id, **session)
    assert [piece.partition(":")[0] for piece in second.text.split()] == [str(number) for number in range(80)]
    assert second.one("run.begun")["warm"]
    history = child.ask("get_history", session_id=session["session_id"])["messages"]
    assert [message["role"] for message in history] == ["user", "assistant", "user", "assistant"]


def test_while_it_waits_to_try_again(child: BridgeChild):
    running = child.begin("[[error:500]] x")
    running.wait_until(lambda turn: any(event["kind"] == "retry" for event in turn.of("status")))
    interrupt(child, running)


def test_in_an_approval_nothing_is_run(child: BridgeChild, tmp_path: Path):
    target = tmp_path / "target"
    target.mkdir()
    running = child.begin(f"[[danger:{target}]]")
    asked = running.wait("approval.requested")
    turn = interrupt(child, running)
    assert target.exists()
    resolved = turn.one("approval.resolved")
    assert (resolved["choice"], resolved["reason"]) == ("deny", "withdrawn")
    late = child.ask("approval_respond", run_id=turn.run_id, approval_id=asked["approval_id"], choice="once")
    assert late["error"]["code"] == "not_pending"
    assert target.exists()


def test_in_a_question(child: BridgeChild):
    running = child.begin("[[clarify:Which?|a|b]]")
    running.wait("clarify.requested")
    assert interrupt(child, running).one("clarify.resolved")["reason"] == "withdrawn"


def test_in_a_subagent_its_tools_end(child: BridgeChild):
    mark = f"9{secrets.randbelow(10**8):08d}"
    goal = f'[[tool:terminal:{{\\"command\\": \\"sleep {mark}\\"}}]]'
    running = child.begin(f'[[tool:delegate_task:{{"goal": "{goal}"}}]]')
    running.wait("tool.progress")
    child.wait_for(lambda: bool(processes_with(mark)))
    interrupt(child, running)
    child.wait_for(lambda: not processes_with(mark))


def test_before_the_agent_is_made(child: BridgeChild, model: ScriptedModel):
    other = {"name": "scripted-2", "base_url": model.base_url, "api_key": "x", "context_length": 70000}
    line = child.line()
    request = child.chat_fields("[[think:never]] [[say:never]]", model=other)
    first = [child.begin("[[say:first]]", model=other) for _ in range(3)]  # agents are made one after the other
    begun, told = line.ask_all(("chat", request), ("interrupt", {"run_id": request["run_id"]}))
    assert (begun["ok"], told) == (True, {"ok": True, "told": True})
    turn = child.follow(request["run_id"]).end()
    assert turn.last["event"] == "run.interrupted"
    for running in first:
        assert running.end().text == "first"
    asked = [request["markers"] for request in model.requests() if request.get("model") == "scripted-2"]
    assert ["say"] in asked
    assert ["think", "say"] not in asked


def test_one_that_comes_too_late_changes_nothing(child: BridgeChild):
    session = {"session_id": "20260102_030405_late00"}
    turn = child.play("[[say:done]]", **session)
    assert child.ask("interrupt", run_id=turn.run_id) == {"ok": True, "told": False}
    assert child.ask("interrupt", run_id="nobody")["error"]["code"] == "run_not_found"
    again = child.play("[[say:undisturbed]]", history=None, after=turn.run_id, **session)
    assert again.text == "undisturbed"


def test_the_next_turn_knows_what_was_said_before_the_stop(child: BridgeChild, model: ScriptedModel):
    session = {"session_id": "20260102_030405_goeson"}
    running = child.begin("[[stream:9000:20]]", **session)
    running.wait("stream.delta", 5)
    first = interrupt(child, running)
    second = child.play("[[echo:roles]]", history=None, after=first.run_id, **session)
    assert second.text == '["system", "user", "assistant", "user"]'
    history = child.ask("get_history", session_id=session["session_id"])["messages"]
    assert history[1]["content"].startswith(first.text.strip())


def test_another_session_is_not_disturbed(child: BridgeChild):
    running = child.begin("[[stream:9000:20]]")
    running.wait("stream.delta")
    other = child.begin("[[stream:100:20]]")
    other.wait("stream.delta")
    interrupt(child, running)
    assert len(other.end().text.split()) == 100


def test_at_random_moments_it_always_ends_once_and_the_session_goes_on(child: BridgeChild):
    dice = random.Random(3)
    session: dict[str, Any] = {"session_id": "20260102_030405_random"}
    message = '[[think:hm]] [[say:Look.]] [[tool:terminal:{"command": "sleep 0.2"}]] [[then]] [[stream:20:10]]'
    endings = set()
    last = None
    for _ in range(25):
        running = child.begin(message, history=[] if last is None else None, after=last, **session)
        time.sleep(dice.uniform(0, 0.9))
        child.ask("interrupt", run_id=running.turn.run_id)
        turn = running.end()
        endings.add(turn.last["event"])
        assert [event["n"] for event in turn.events] == sorted({event["n"] for event in turn.events})
        assert len(turn.of("tool.started")) == len(turn.of("tool.completed"))
        last = turn.run_id
        child.wait_for(lambda: all(held["run_id"] is None for held in child.ask("list")["sessions"]))
        if not any(held["last_run_id"] == last for held in child.ask("list")["sessions"]):
            last = None
    assert endings <= {"run.interrupted", "run.completed"}
    good = child.play("[[say:fine]]", history=[] if last is None else None, after=last, **session)
    assert good.text == "fine"
