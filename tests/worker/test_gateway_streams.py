"""What is sent to `/v1/responses`, and any legal stream that comes back."""

import pytest

from tests.peers.gateway import (
    KEEPALIVE,
    RESPONSE_ID,
    FakeGateway,
    Frames,
    crlf,
    json_answer,
    split,
    stream,
    text_turn,
    tool_turn,
)
from tests.rig.backend_turns import Played, a_turn, play, some_settings
from tests.rig.gateway_turns import TURNS, a_backend, played
from worker.backends import base
from worker.backends.gateway.backend import GatewayBackend

# ---- what is sent


def test_the_turn_is_sent_once_with_history_and_instructions():
    history = (base.HistoryMessage("user", "one"), base.HistoryMessage("assistant", "två 世界"))
    with FakeGateway({TURNS: [stream(*text_turn("Hello"))]}) as gateway:
        play(a_backend(gateway), a_turn("two \ud83d", history=history, instructions="Be brief.", model="fast"))
        (sent,) = gateway.turns
    assert sent.headers["authorization"] == "Bearer a-key"
    assert sent.json == {
        "input": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "två 世界"},
            {"role": "user", "content": "two \ufffd"},
        ],
        "stream": True,
        "store": True,
        "instructions": "Be brief.",
        "model": "fast",
    }


def test_content_blocks_are_sent_as_they_are():
    blocks = (
        {"type": "input_text", "text": "what is it?"},
        {"type": "input_image", "image_url": "data:image/png;base64,"},
    )
    with FakeGateway({TURNS: [stream(*text_turn("A cat"))]}) as gateway:
        play(a_backend(gateway), a_turn("what is it?", blocks=blocks))
        assert gateway.turns[0].json["input"] == [{"role": "user", "content": list(blocks)}]


def test_a_profile_is_served_below_its_path():
    with FakeGateway({"POST /p/ops/v1/responses": [stream(*text_turn("Hello"))]}) as gateway:
        backend = GatewayBackend(gateway.url + "/", None, settings=some_settings(), profile="ops")
        assert play(backend).text == "Hello"
        assert "authorization" not in gateway.of("POST /p/ops/v1/responses")[0].headers


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    assert played(stream(*text_turn("direct"))).text == "direct"


# ---- any legal stream


def whole_turn() -> Played:
    steps, _ = tool_turn()
    return played(stream(*steps))


def test_text_and_tools_arrive_in_order():
    result = whole_turn()
    assert result.error is None
    assert result.content == [
        base.TurnBegun(RESPONSE_ID, None, "hermes-agent"),
        base.Text("Let me "),
        base.Text("look. 世界🌍"),
        base.ToolBegun("call_a", "read_file", {"path": "/a"}),
        base.ToolBegun("call_b", "terminal", {"command": "ls"}),
        base.ToolEnded("call_a", "read_file", ok=True, result='{"content": "alpha"}'),
        base.ToolEnded("call_b", "terminal", ok=True, result='{"output": "beta", "exit_code": 0}'),
        base.Text("\n\nBoth "),
        base.Text("are there."),
        base.Finished("stop", result.of(base.Finished)[0].usage),
    ]
    assert result.of(base.Finished)[0].usage.output_tokens == 12


def test_chunks_may_be_cut_inside_characters_and_lines_may_end_in_crlf():
    expected = whole_turn().content
    steps, _ = tool_turn()
    assert played(stream(*split(steps, 7))).content == expected
    assert played(stream(*split(crlf(steps), 11))).content == expected


def test_blank_empty_and_missing_deltas_make_one_exact_text():
    frames = Frames()
    pieces = ["a", "", "\n\n", " ", "b", "\n\n"] * 50
    begun, deltas = frames.created(), frames.text(*pieces)
    nothing = frames.frame("response.output_text.delta", delta=None)
    result = played(stream(begun, *deltas, nothing, frames.completed()))
    assert result.error is None
    assert result.text == "".join(pieces)


def test_a_lone_surrogate_and_broken_utf8_are_replaced():
    frames = Frames()
    begun = frames.created()
    lone = frames.text("x")[0].replace(b'"x"', b'"\\ud83d"')
    broken = frames.text("y")[0].replace(b'"y"', b'"\xff\xfe"')
    pair = frames.text("😀")[0]
    result = played(stream(begun, lone, broken, pair, frames.completed(usage=None, output=[])))
    assert result.text == "\ufffd\ufffd\ufffd😀"
    assert result.error is None


def test_a_tool_output_of_5_mb_comes_whole():
    frames = Frames()
    big = "x" * 5_000_000
    steps = [
        frames.created(),
        frames.call("c", "cat"),
        *frames.result("c", big),
        *frames.text("ok"),
        frames.completed(),
    ]
    result = played(stream(*steps))
    assert result.error is None
    assert result.of(base.ToolEnded)[0].result == big


def test_arguments_that_are_no_json_stay_a_raw_string():
    frames = Frames()
    steps = [frames.created(), frames.call("c", "cat", '{"path": '), *frames.result("c", "no"), *frames.text("x")]
    assert played(stream(*steps, frames.completed())).of(base.ToolBegun)[0].arguments == '{"path": '


def test_an_item_whose_id_changes_is_still_one_tool():
    frames = Frames()
    steps = [
        frames.created(),
        frames.call("c", "cat", item_id="fc_1"),
        *frames.result("c", "done", item_id="fc_other"),
        *frames.text("x"),
        frames.completed(),
    ]
    result = played(stream(*steps))
    assert len(result.of(base.ToolBegun)) == len(result.of(base.ToolEnded)) == 1


def test_a_call_whose_id_changes_is_matched_by_its_place():
    frames = Frames()
    begun = frames.created()
    added = frames.call("c1", "cat", '{"path": "/a"}')
    call = {"type": "function_call", "name": "cat", "call_id": "c2", "arguments": '{"path": "/a"}'}
    done = frames.frame("response.output_item.done", output_index=1, item=call)
    output = {"type": "function_call_output", "call_id": "c2", "output": "text", "status": "completed"}
    result = played(
        stream(
            begun,
            added,
            done,
            frames.frame("response.output_item.done", output_index=2, item=output),
            *frames.text("x"),
            frames.frame("response.completed", response={"id": RESPONSE_ID, "status": "completed", "output": []}),
        )
    )
    assert result.error is None
    assert [(t.tool_id, t.name) for t in result.of(base.ToolBegun)] == [("c1", "cat")]
    assert [(t.tool_id, t.result) for t in result.of(base.ToolEnded)] == [("c1", "text")]


def test_arguments_that_come_later_are_waited_for():
    frames = Frames()
    begun = frames.created()
    call = {"type": "function_call", "call_id": "c", "name": "cat", "arguments": ""}
    added = frames.frame("response.output_item.added", output_index=1, item=call)
    call = call | {"arguments": '{"path": "/late"}'}
    done = frames.frame("response.output_item.done", output_index=1, item=call)
    result = played(stream(begun, added, done, *frames.text("x"), frames.completed()))
    assert [t.arguments for t in result.of(base.ToolBegun)] == [{"path": "/late"}]


def test_unknown_events_are_signs_of_life_and_no_more():
    frames = Frames()
    strange = frames.frame("response.something.new", anything={"deep": [1, 2]})
    result = played(
        stream(frames.created(), strange, b"event: ping\ndata: no json\n\n", *frames.text("x"), frames.completed())
    )
    assert result.error is None
    assert len(result.of(base.Keepalive)) >= 2


def test_keepalives_hold_nothing_up():
    frames = Frames()
    result = played(stream(frames.created(), *[KEEPALIVE] * 5, *frames.text("x"), frames.completed()))
    assert len(result.of(base.Keepalive)) >= 5
    assert result.text == "x"


def test_a_gateway_that_answers_at_once_instead_of_streaming_is_understood():
    _, stored = tool_turn()
    result = played(json_answer(stored))
    assert result.error is None
    assert result.text == "Let me look. 世界🌍\n\nBoth are there."
    assert [t.tool_id for t in result.of(base.ToolEnded)] == ["call_a", "call_b"]


def test_a_last_event_without_its_blank_line_counts():
    steps = text_turn("Hello")
    steps[-1] = steps[-1].rstrip(b"\n")
    result = played(stream(*steps))
    assert result.error is None
    assert result.of(base.Finished)
