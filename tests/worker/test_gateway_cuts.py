"""A stream of `/v1/responses` that is cut anywhere (F33, C13), and failures that look like success."""

from collections.abc import Iterator

import pytest

from shared.errors import (
    BackendLost,
    BackendProtocolError,
    BackendRefused,
    StreamCut,
)
from tests.peers.gateway import (
    NO_USAGE,
    Cut,
    FakeGateway,
    Frames,
    json_answer,
    stream,
    tool_turn,
)
from tests.rig.backend_turns import play
from tests.rig.gateway_turns import STORED, TURNS, a_backend, played
from worker.backends import base

# ---- F33, C13: cut at every event index


def cuts() -> Iterator[tuple[str, int]]:
    for how in ("fin", "rst", "end"):
        for place in range(len(tool_turn()[0]) + 1):
            yield how, place


@pytest.mark.parametrize(("how", "place"), list(cuts()))
def test_a_cut_at_any_event_is_looked_up_once_and_finished_from_there(how: str, place: int):
    steps, stored = tool_turn()
    cut = [] if how == "end" else [Cut(how)]
    with FakeGateway({TURNS: [stream(*steps[:place], *cut)], STORED: [json_answer(stored)]}) as gateway:
        result = play(a_backend(gateway))
        assert len(gateway.turns) == 1  # at most once
        looks = len(gateway.of(STORED))
    was_whole = place == len(steps) and how != "rst"
    if place == 0 or (how == "rst" and not result.of(base.TurnBegun)):
        assert isinstance(result.error, BackendLost | BackendProtocolError)  # no id: nothing can be looked up
        assert looks == 0
        return
    assert result.error is None
    assert looks <= 1
    assert not (was_whole and looks)
    assert result.text == "Let me look. 世界🌍\n\nBoth are there."
    assert [t.tool_id for t in result.of(base.ToolBegun)] == ["call_a", "call_b"]
    assert sorted(t.tool_id for t in result.of(base.ToolEnded)) == ["call_a", "call_b"]
    assert isinstance(result.items[-1], base.Finished)


@pytest.mark.parametrize("place", range(1, 12))
def test_a_cut_of_an_answer_that_is_not_finished_is_interrupted_with_its_text_kept(place: int):
    steps, stored = tool_turn()
    stored["status"] = "in_progress"
    result = played(stream(*steps[:place], Cut()), stored=json_answer(stored))
    assert isinstance(result.error, StreamCut)
    assert not result.of(base.Finished)
    assert "Let me look. 世界🌍\n\nBoth are there.".startswith(result.text)


@pytest.mark.parametrize("status", ["incomplete", "queued", "in_progress", "cancelled"])
def test_only_a_finished_answer_counts_after_a_cut(status: str):
    steps, stored = tool_turn()
    result = played(stream(*steps[:4], Cut()), stored=json_answer(stored | {"status": status}))
    assert isinstance(result.error, StreamCut)


def test_a_cut_answer_that_failed_meanwhile_has_failed():
    frames = Frames()
    begun = [frames.created(), *frames.text("HTTP 500: down")]
    result = played(stream(*begun, Cut()), stored=json_answer(frames.body("completed", usage=NO_USAGE)))
    assert isinstance(result.error, BackendRefused)
    assert "HTTP 500: down" in result.error.message


def test_the_look_gives_up_when_the_gateway_does_not_know_the_answer():
    result = played(stream(*tool_turn()[0][:4], Cut()))
    assert isinstance(result.error, StreamCut)


def test_a_cut_in_the_middle_of_an_event_is_a_cut():
    steps, stored = tool_turn()
    for size in (20, 60, 100):
        result = played(stream(*steps[:3], steps[3][:size]), stored=json_answer(stored))
        assert result.error is None
        assert result.text == "Let me look. 世界🌍\n\nBoth are there."


# ---- failures that look like success


def test_an_answer_with_usage_0_has_failed():
    frames = Frames()
    result = played(stream(frames.created(), *frames.text("HTTP 401: bad key"), frames.completed(usage=NO_USAGE)))
    assert isinstance(result.error, BackendRefused)
    assert result.error.code == "model_failed"
    assert result.error.message == "The model failed: HTTP 401: bad key"


def test_an_error_in_place_of_an_answer_after_tools_has_failed():
    frames = Frames()
    steps = [frames.created(), frames.call("c", "cat"), *frames.result("c", "x"), *frames.text("HTTP 401: bad key")]
    result = played(stream(*steps, frames.completed()))
    assert isinstance(result.error, BackendRefused)
    assert result.error.code == "model_failed"


def test_an_answer_that_speaks_of_http_errors_has_not_failed():
    frames = Frames()
    steps = [
        frames.created(),
        frames.call("c", "cat"),
        *frames.result("c", "x"),
        *frames.text("\n\nHTTP 401", " means…"),
    ]
    assert played(stream(*steps, frames.completed())).error is None
    frames = Frames()
    assert played(stream(frames.created(), *frames.text("HTTP 404: not found"), frames.completed())).error is None


def test_an_end_after_a_tool_without_an_answer_has_failed():
    frames = Frames()
    steps = [frames.created(), *frames.text("Let me look."), frames.call("c", "cat"), *frames.result("c", "x")]
    result = played(stream(*steps, frames.completed()))
    assert isinstance(result.error, BackendRefused)
    assert result.error.code == "no_answer"


@pytest.mark.parametrize(
    ("kind", "fields", "code", "said"),
    [
        ("response.failed", {"error": {"message": "no memory", "code": "x"}}, "backend_refused", "no memory"),
        ("response.incomplete", {"incomplete_details": {"reason": "max_tokens"}}, "incomplete_answer", "max_tokens"),
        ("response.completed", {"output": [{"type": "error", "message": "quota"}]}, "backend_refused", "quota"),
        ("response.completed", {"error": "broken"}, "backend_refused", "broken"),
    ],
)  # fmt: skip
def test_failed_and_incomplete_answers_say_why(kind: str, fields: dict[str, object], code: str, said: str):
    frames = Frames()
    body = frames.body(kind.partition(".")[2]) | fields
    result = played(stream(frames.created(), *frames.text("so far"), frames.frame(kind, response=body)))
    assert isinstance(result.error, BackendRefused)
    assert result.error.code == code
    assert said in result.error.message
    assert result.text == "so far"


def test_an_error_event_ends_the_turn():
    frames = Frames()
    begun = [frames.created(), *frames.text("so far")]
    result = played(stream(*begun, frames.frame("error", code="overloaded", message="The model is overloaded")))
    assert isinstance(result.error, BackendRefused)
    assert "overloaded" in result.error.message
