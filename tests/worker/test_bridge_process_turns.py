"""Turns of the real hermes-agent 0.19.0 in a bridge child: everything it can show comes, in order and whole."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rig.bridge_child import BridgeChild, Turn
from tests.rig.hermes import ScriptedModel

pytestmark = [pytest.mark.component("hermes"), pytest.mark.timeout(400)]

PLUGIN = """
def register(ctx):
    def big(args, **kwargs):
        return "".join(f"{line:08d}\\n" for line in range(int(args["lines"])))

    def broken(args, **kwargs):
        raise KeyError("the tool is broken")

    def wide(args, **kwargs):
        return "世" * int(args["chars"])

    for name, handler in (("big_result", big), ("broken_tool", broken), ("wide_result", wide)):
        ctx.register_tool(
            name=name,
            toolset="portal-test",
            schema={"name": name, "description": name, "parameters": {"type": "object", "properties": {}}},
            handler=handler,
        )
"""


def with_plugin(home: Path) -> None:
    folder = home / "plugins" / "portal-test"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text("name: portal-test\nversion: 1.0.0\ndescription: tools for tests\n")
    (folder / "__init__.py").write_text(PLUGIN)


@pytest.fixture(scope="module")
def child(model: ScriptedModel) -> Iterator[BridgeChild]:
    child = BridgeChild(model, config="plugins: {enabled: [portal-test]}\n", prepare_home=with_plugin)
    yield child.start()
    child.close()


def names(turn: Turn) -> list[str]:
    """The events without status lines and token counts, neighbouring deltas as one."""
    found: list[str] = []
    for event in turn.events:
        if event["event"] not in ("status", "usage") and found[-1:] != [event["event"]]:
            found.append(event["event"])
    return found


def numbers_rise(turn: Turn) -> bool:
    numbers = [event["n"] for event in turn.events]
    return numbers == sorted(set(numbers))


# ---- text and reasoning


def test_text_comes_exactly_and_the_run_is_complete(child: BridgeChild):
    turn = child.play("[[say:Hello 世界 🌍 👩‍👩‍👧 from the bridge.]]")
    assert names(turn) == ["run.begun", "stream.delta", "run.completed"]
    assert turn.text == "Hello 世界 🌍 👩‍👩‍👧 from the bridge."
    assert turn.last["text"] == turn.text
    assert turn.last["finish_reason"] == "stop"
    assert turn.one("run.begun")["model"] == "scripted-1"
    assert numbers_rise(turn)


def test_a_long_stream_keeps_every_delta(child: BridgeChild):
    turn = child.play("[[stream:200:4]]")
    assert [piece.partition(":")[0] for piece in turn.text.split()] == [str(number) for number in range(200)]


def test_reasoning_is_told_apart_and_comes_once(child: BridgeChild):
    turn = child.play("[[think:First I think. Then I decide.]] [[say:The answer is 42.]]")
    assert names(turn) == ["run.begun", "reasoning.delta", "stream.delta", "run.completed"]
    assert turn.reasoning == "First I think. Then I decide."
    assert turn.text == "The answer is 42."
    assert turn.one("usage")["reasoning_tokens"] > 0


def test_think_tags_in_the_text_become_reasoning_as_they_come(child: BridgeChild):
    turn = child.play("[[thinktag:inner thoughts, longer than one delta of the model]] [[say:visible answer]]")
    assert turn.reasoning == "inner thoughts, longer than one delta of the model"
    assert len(turn.of("reasoning.delta")) > 1
    assert turn.text == "visible answer"
    assert turn.last["text"] == "visible answer"


def test_tags_in_code_stay_in_the_answer(child: BridgeChild):
    turn = child.play("[[say:Write\n```\n<think>x</think>\n```\nor `<think>y</think>` so.]]")
    assert turn.text == "Write\n```\n<think>x</think>\n```\nor `<think>y</think>` so."
    assert turn.reasoning == ""


def test_the_status_is_plain_and_ends_cleared(child: BridgeChild):
    turn = child.play("[[hang:0.2]] [[say:x]]")
    lines = [event["text"] for event in turn.of("status")]
    assert lines[0].endswith("...")
    assert all(line.isascii() and "(" not in line for line in lines)
    assert lines[-1] == ""


# ---- tools


def test_tools_one_after_another_with_text_between(child: BridgeChild):
    turn = child.play(
        '[[think:plan]] [[say:Step one.]] [[tool:terminal:{"command": "echo one"}]] [[then]]'
        ' [[say:Step two.]] [[tool:terminal:{"command": "echo two"}]] [[then]] [[say:All done.]]'
    )
    assert names(turn) == [
        *("run.begun", "reasoning.delta", "stream.delta", "turn.boundary", "tool.started", "tool.completed"),
        *("stream.delta", "turn.boundary", "tool.started", "tool.completed", "stream.delta", "run.completed"),
    ]
    assert turn.text == "Step one.\n\nStep two.\n\nAll done."
    assert turn.last["text"] == "All done."
    first, second = turn.of("tool.started")
    assert first["arguments"] == {"command": "echo one"}
    assert (first["name"], first["summary"]) == ("terminal", "echo one")
    assert first["tool_id"] != second["tool_id"]
    done = turn.of("tool.completed")
    assert [json.loads(event["result"])["output"] for event in done] == ["one", "two"]
    assert all(event["ok"] and event["error"] is None and event["duration_ms"] >= 0 for event in done)
    assert [event["tool_id"] for event in done] == [first["tool_id"], second["tool_id"]]


def test_parallel_tools_all_begin_before_they_end(child: BridgeChild, tmp_path: Path):
    (tmp_path / "a.txt").write_text("alpha")
    turn = child.play(
        f'[[tool:read_file:{{"path": "{tmp_path}/a.txt"}}]][[tool:read_file:{{"path": "{tmp_path}/missing"}}]]'
        f'[[tool:search_files:{{"pattern": "alpha", "path": "{tmp_path}"}}]] [[then]] [[say:ok]]'
    )
    begun, ended = turn.of("tool.started"), turn.of("tool.completed")
    assert len(begun) == len(ended) == 3
    assert begun[-1]["n"] < ended[0]["n"]
    assert [event["name"] for event in begun] == ["read_file", "read_file", "search_files"]
    by_id = {event["tool_id"]: event for event in ended}
    assert "alpha" in by_id[begun[0]["tool_id"]]["result"]
    assert not by_id[begun[1]["tool_id"]]["ok"]
    assert "not found" in by_id[begun[1]["tool_id"]]["error"].lower()
    assert by_id[begun[2]["tool_id"]]["ok"]


def test_a_tool_that_raises_and_one_that_does_not_exist_are_shown_failed(child: BridgeChild):
    turn = child.play('[[tool:broken_tool:{"a": 1}]] [[then]] [[tool:no_such_tool:{"b": 2}]] [[then]] [[say:gave up]]')
    assert turn.last["event"] == "run.completed"
    broken, unknown = turn.of("tool.completed")
    assert (broken["name"], broken["ok"]) == ("broken_tool", False)
    assert "broken" in broken["error"]
    assert (unknown["name"], unknown["ok"]) == ("no_such_tool", False)
    assert "does not exist" in unknown["error"]
    assert [event["arguments"] for event in turn.of("tool.started")] == [{"a": 1}, {"b": 2}]


def test_arguments_that_are_no_json_run_no_tool_and_end_the_turn_with_a_reason(child: BridgeChild):
    turn = child.play("[[badargs:terminal]] [[then]] [[say:after bad args]]")
    assert turn.last["event"] == "run.failed"  # Hermes takes them for cut off and asks four times more
    assert "truncated" in turn.last["message"]
    assert not turn.of("tool.started")


def test_todos_come_whole_also_when_they_are_merged(child: BridgeChild):
    merged = '{"todos":[{"id":"2","content":"analyse","status":"completed"}],"merge":true}'
    turn = child.play(f"[[todo]] [[then]] [[todo:{merged}]] [[then]] [[say:ok]]")
    first, second = turn.of("todo.updated")
    assert first["todos"][0] == {"id": "1", "text": "collect data", "status": "completed"}
    assert [todo["status"] for todo in first["todos"]] == ["completed", "in_progress", "pending"]
    assert [todo["status"] for todo in second["todos"]] == ["completed", "completed", "pending"]
    assert turn.of("tool.completed")[0]["n"] < first["n"]
    assert turn.text == "ok"  # with nothing in front of it


def test_a_result_of_20_mb_comes_whole_in_pieces(child: BridgeChild):
    turn = child.play('[[tool:big_result:{"lines": 2330169}]] [[then]] [[say:seen]]')
    done = turn.one("tool.completed")
    whole = turn.result_of(done["tool_id"])
    assert done["more"]
    assert done["full_size"] == 9 * 2330169
    assert len(whole) == 9 * 2330169 > 20_000_000
    assert whole.splitlines() == [f"{line:08d}" for line in range(2330169)]
    assert turn.of("tool.result")[-1]["last"]
    assert [event["last"] for event in turn.of("tool.result")].count(True) == 1
    assert turn.text.endswith("seen")
    assert child.ask("ping")["rss_bytes"] < 700_000_000


def test_a_result_over_32_mib_is_cut_and_says_so(child: BridgeChild):
    turn = child.play('[[tool:wide_result:{"chars": 12000000}]] [[then]] [[say:seen]]')
    done = turn.one("tool.completed")
    whole = turn.result_of(done["tool_id"])
    assert done["full_size"] == 36_000_000
    assert set(whole) == {"世"}
    assert 32 * 1024 * 1024 - 3 <= len(whole.encode()) <= 32 * 1024 * 1024


def test_a_subagent_works_within_the_turn_and_is_shown_under_its_call(child: BridgeChild):
    goal = '[[say:child says hi]] [[tool:terminal:{\\"command\\": \\"echo from-child\\"}]] [[then]] [[say:child done]]'
    turn = child.play(f'[[tool:delegate_task:{{"goal": "{goal}"}}]] [[then]] [[say:parent done]]')
    (started,) = turn.of("tool.started")
    assert started["name"] == "delegate_task"
    progress = turn.of("tool.progress")
    assert {event["tool_id"] for event in progress} == {started["tool_id"]}
    assert any("terminal: echo from-child" in event["text"] for event in progress)
    done = turn.one("tool.completed")
    assert done["n"] > progress[-1]["n"]
    assert "child done" in done["result"]
    assert turn.last["event"] == "run.completed"
    assert turn.text.endswith("parent done")


# ---- usage, limits, instructions, models


def test_tokens_are_those_of_the_turn(child: BridgeChild):
    session = {"session_id": "20260102_030405_tokens"}
    first = child.play("[[usage:1000:50]] [[say:one]]", **session)
    second = child.play("[[usage:1500:70]] [[say:two]]", history=None, after=first.run_id, **session)
    assert (first.last["usage"]["input_tokens"], first.last["usage"]["output_tokens"]) == (1000, 50)
    assert (second.last["usage"]["input_tokens"], second.last["usage"]["output_tokens"]) == (1500, 70)
    assert second.last["usage"]["context_used"] == 1500
    assert second.last["usage"]["context_window"] == 131072
    assert second.of("usage")[-1]["input_tokens"] == 1500


def test_the_number_of_steps_is_limited_for_the_turn_alone(child: BridgeChild):
    steps = (
        "[[then]]".join(f'[[tool:terminal:{{"command": "echo {step}"}}]]' for step in range(4)) + "[[then]] [[say:all]]"
    )
    session = {"session_id": "20260102_030405_limits"}
    short = child.play(steps, max_iterations=2, **session)
    assert short.last["event"] == "run.completed"
    assert short.last["finish_reason"] == "max_iterations"
    assert len(short.of("tool.completed")) == 2
    assert short.text.endswith("Scripted summary of the conversation.")  # which Hermes does not stream
    whole = child.play(steps, history=None, after=short.run_id, **session)
    assert len(whole.of("tool.completed")) == 4
    assert whole.text.endswith("all")


def test_instructions_are_of_the_turn_alone_and_need_no_new_agent(child: BridgeChild):
    session = {"session_id": "20260102_030405_skills"}
    first = child.play("[[echo:system]]", instructions="ALWAYS-SAY-ZEBRA", **session)
    assert json.loads(first.last["text"]).endswith("ALWAYS-SAY-ZEBRA")
    second = child.play("[[echo:system]]", history=None, after=first.run_id, **session)
    assert "ZEBRA" not in second.text
    assert second.one("run.begun")["warm"]
    other = child.play("[[echo:system]]", instructions="ONLY-HERE")
    assert "ONLY-HERE" in other.text
    assert "ZEBRA" not in other.text


def test_a_model_of_the_list_is_used_with_its_own_key(child: BridgeChild, model: ScriptedModel):
    chosen = {
        "name": "scripted-2",
        "base_url": model.base_url,
        "api_key": "sk-canary-0123456789",
        "context_length": 70000,
    }
    turn = child.play("[[echo:model]]", model=chosen)
    assert json.loads(turn.last["text"]) == "scripted-2"
    assert turn.one("run.begun")["model"] == "scripted-2"
    assert turn.last["usage"]["context_window"] == 70000
    assert "canary" not in child.said()


def test_content_blocks_with_a_picture_reach_the_model(child: BridgeChild):
    pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
    blocks = [
        {"type": "text", "text": "[[echo:roles]]"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{pixel}"}},
    ]
    turn = child.play(blocks)
    assert turn.last["event"] == "run.completed", turn.last


# ---- failures


def failing(child: BridgeChild, message: str, **fields: Any) -> dict[str, Any]:
    turn = child.play(message, **fields)
    assert turn.last["event"] == "run.failed", turn.events
    assert numbers_rise(turn)
    return turn.last


def test_a_wrong_key_fails_at_once_and_says_why(child: BridgeChild):
    last = failing(child, "[[error:401]] x")
    assert (last["code"], last["retryable"]) == ("auth_failed", False)
    assert "401" in last["message"]


def test_an_error_of_the_server_fails_after_retries_that_are_shown_as_they_come(child: BridgeChild):
    running = child.begin("[[error:500]] x")
    retrying = running.wait_until(lambda turn: any(event["kind"] == "retry" for event in turn.of("status")))
    assert retrying.last["event"] != "run.failed"
    last = running.end().last
    assert (last["code"], last["retryable"]) == ("model_error", True)
    assert "500" in last["message"]


def test_an_error_that_passes_is_no_failure(child: BridgeChild):
    turn = child.play(f"[[error:500:1]] [[say:recovered]] {secrets.token_hex(4)}")
    assert turn.last["event"] == "run.completed"
    assert turn.text == "recovered"


def test_a_model_that_answers_nothing_is_a_failure(child: BridgeChild):
    last = failing(child, "[[empty]]")
    assert last["code"] == "empty_answer"


def test_a_server_that_is_not_there_is_a_failure(child: BridgeChild):
    gone = {
        "name": "gone",
        "base_url": "http://127.0.0.1:9/v1",
        "api_key": "sk-canary-9876543210",
        "context_length": 70000,
    }
    last = failing(child, "[[say:x]]", model=gone)
    assert last["code"] == "model_error"
    assert "canary" not in json.dumps(last)


def test_a_failed_turn_is_followed_by_a_good_one(child: BridgeChild):
    session = {"session_id": "20260102_030405_failed"}
    bad = child.play("[[error:401]] first question", **session)
    good = child.play("[[echo:roles]]", history=None, after=bad.run_id, **session)
    assert json.loads(good.last["text"]) == ["system", "user", "assistant", "user"]


# ---- several turns


def test_two_turns_have_one_context_with_the_tools_of_the_first(child: BridgeChild):
    session = {"session_id": "20260102_030405_turns2"}
    first = child.play('[[tool:terminal:{"command": "echo one"}]] [[then]] [[say:done]]', **session)
    second = child.play("[[echo:roles]]", history=None, after=first.run_id, **session)
    assert json.loads(second.last["text"]) == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert second.one("run.begun")["warm"]
    assert not second.of("tool.started")
    history = child.ask("get_history", session_id=session["session_id"])
    assert [message["role"] for message in history["messages"]] == [
        *("user", "assistant", "tool", "assistant"),
        *("user", "assistant"),
    ]
    assert history["messages"][1]["tools"] == ["terminal"]


def test_a_session_begins_with_the_history_that_it_is_given(child: BridgeChild):
    history = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Hello Ada."},
    ]
    turn = child.play("[[echo:roles]]", history=history)
    assert json.loads(turn.last["text"]) == ["system", "user", "assistant", "user"]
    assert not turn.one("run.begun")["warm"]


def test_a_session_that_does_not_stand_where_it_should_is_not_found(child: BridgeChild, model: ScriptedModel):
    session = {"session_id": "20260102_030405_after0"}
    first = child.play("[[say:one]]", **session)

    def code(**fields: Any) -> str:
        request = child.chat_fields("[[say:x]]", history=None, **(session | fields))
        answer = child.ask("chat", **request)
        return "" if answer["ok"] else str(answer["error"]["code"])

    assert code(after="another run") == "session_not_found"
    assert code(session_id="20260102_030405_nobody") == "session_not_found"
    assert code(model={"name": "scripted-2", "base_url": model.base_url}) == "session_not_found"
    assert child.play("[[say:two]]", history=None, after=first.run_id, **session).last["event"] == "run.completed"
    told = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    again = child.play("[[echo:roles]]", history=told, **session)
    assert json.loads(again.last["text"]) == ["system", "user", "assistant", "user"]


def test_a_second_turn_waits_for_nobody_it_is_refused(child: BridgeChild):
    session = {"session_id": "20260102_030405_busy00"}
    running = child.begin("[[clarify:Which?|a|b]]", **session)
    asked = running.wait("clarify.requested")
    for history in (None, []):
        answer = child.ask("chat", **child.chat_fields("[[say:x]]", history=history, **session))
        assert answer["error"]["code"] == "busy"
    answer = {"run_id": running.turn.run_id, "clarify_id": asked["clarify_id"], "answer": "a"}
    assert child.ask("clarify_respond", **answer)["ok"]
    assert running.end().last["event"] == "run.completed"


def test_a_run_is_never_begun_twice(child: BridgeChild, model: ScriptedModel):
    request = child.chat_fields("[[say:only once]]")
    running = child.line()
    assert running.ask("chat", **request)["ok"]
    assert child.ask("chat", **request)["error"]["code"] == "run_exists"
    child.wait_for(lambda: child.ask("get_result", run_id=request["run_id"])["status"] == "completed")
    assert child.ask("chat", **(request | {"session_id": "another"}))["error"]["code"] == "run_exists"


# ---- reading in other ways


def test_polling_gives_what_the_stream_gives(child: BridgeChild):
    running = child.begin(
        '[[think:hm]] [[say:Look.]] [[tool:terminal:{"command": "echo one"}]] [[todo]] [[then]] [[stream:30:5]]'
    )
    answers = list(child.poll(running.turn.run_id))
    turn = running.end()
    assert "".join(answer["delta"] for answer in answers) == turn.text
    polled = [event for answer in answers for event in answer["events"]]
    assert polled == [event for event in turn.events if event["event"] != "stream.delta"]
    assert answers[-1]["status"] == "completed"


def test_a_stream_is_rejoined_by_its_cursors(child: BridgeChild):
    first = child.begin(
        "[[say:Look.]] [[todo]] [[then]] [[stream:60:10]] [[clarify:Which?|a|b]] [[then]] [[say:The end.]]"
    )
    first.wait_until(lambda turn: len(turn.text) > len("Look.") + 100)  # in the middle of it, on most machines
    seen = list(first.turn.events)
    text = "".join(event["text"] for event in seen if event["event"] == "stream.delta")
    known = max(event["n"] for event in seen if event["event"] != "stream.delta")
    again = child.follow(first.turn.run_id, len(text), known)
    asked = first.wait("clarify.requested")
    answer = {"run_id": first.turn.run_id, "clarify_id": asked["clarify_id"], "answer": "a"}
    assert child.ask("clarify_respond", **answer)["ok"]
    rest = again.end()
    whole = first.end()
    assert text + rest.text == whole.text
    others = [event for event in whole.events if event["event"] != "stream.delta"]
    assert [event for event in seen if event["event"] != "stream.delta"] + [
        event for event in rest.events if event["event"] != "stream.delta"
    ] == others
    late = child.follow(first.turn.run_id).end()
    assert late.text == whole.text


def test_the_result_can_be_had_later_in_one_piece(child: BridgeChild):
    turn = child.play("[[say:Look.]] [[todo]] [[then]] [[say:the end]]")
    result = child.ask("get_result", run_id=turn.run_id)
    assert result["status"] == "completed"
    assert result["text"] == turn.text
    assert result["last"] == turn.last
    assert child.ask("get_result", run_id="nobody")["error"]["code"] == "run_not_found"


def test_steering_reaches_the_agent_with_the_next_result(child: BridgeChild, tmp_path: Path):
    steered = tmp_path / "steered"
    running = child.begin(f'[[tool:terminal:{{"command": "until test -e {steered}; do sleep 0.1; done; echo a"}}]]')
    running.wait("tool.started")
    assert child.ask("steer", run_id=running.turn.run_id, text="TURN-LEFT")["accepted"]
    steered.touch()
    assert "TURN-LEFT" in running.end().text
    assert not child.ask("steer", run_id=running.turn.run_id, text="too late")["accepted"]
