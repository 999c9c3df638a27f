"""Recordings of hermes-agent 0.19.0, replayed byte by byte and cut at random places, give the same items.

A few stand in tests/wire/gateway; the whole set is read from ../shared where it is (tests/rig/hermes.py).
"""

import itertools
import json
import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from shared.errors import BackendError, BackendRefused
from shared.protocol.events import Todo
from tests.rig.hermes import shared_folder
from worker.backends import base
from worker.backends.gateway import frames
from worker.backends.gateway.responses import Answers, ResponseReader
from worker.backends.gateway.runs import RunReader
from worker.backends.gateway.sse import SseDecoder, SseEvent

WIRE = Path(__file__).parents[1] / "wire" / "gateway"
SHARED = shared_folder() / "hermes" / "traces" / "gateway"
RECORDINGS = sorted(
    {path.name: path for folder in (SHARED, WIRE) for path in folder.glob("r*s_*.sse")}.values(), key=lambda p: p.name
)
ANSWERS = Answers(approve=lambda *_: None, clarify=lambda *_: None)


def is_run(path: Path) -> bool:
    return path.name.startswith("runs_")


def replay(path: Path, chunks: Iterable[bytes]) -> tuple[list[base.Item], str]:
    """The items of a recording cut into `chunks`, `respond` left out, and the error that ended it."""
    decoder = SseDecoder()
    whole = path.read_bytes()
    run_id = whole.partition(b'"run_id": "')[2].partition(b'"')[0].decode()
    reader = RunReader(run_id, lambda choice: None) if is_run(path) else ResponseReader(ANSWERS)
    items: list[base.Item] = []
    try:
        for event in [e for chunk in chunks for e in decoder.feed(chunk)] + decoder.close():
            if not isinstance(event, SseEvent) or reader.ended:
                continue
            frame = frames.parse_run_frame(event) if is_run(path) else frames.parse_response_frame(event)
            items += reader.read(frame)
    except BackendError as error:
        return [_comparable(item) for item in items], f"{error.code}: {error.message}"
    return [_comparable(item) for item in items], ""


def _comparable(item: base.Item) -> base.Item:
    if isinstance(item, base.ApprovalAsked):
        return base.ApprovalAsked(item.key, item.kind, item.command, item.description, item.choices, respond=print)
    return item


def pieces(whole: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(places), len(whole)]
    return [whole[a:b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda p: p.stem)
def test_any_cut_of_the_bytes_gives_the_same_items(path: Path):
    whole = path.read_bytes()
    expected = replay(path, [whole])
    assert expected[0] or expected[1]
    assert replay(path, [whole[i : i + 1] for i in range(len(whole))]) == expected
    dice = random.Random(path.name)
    for _ in range(10):
        places = [dice.randrange(len(whole)) for _ in range(dice.randint(1, 60))]
        assert replay(path, pieces(whole, places)) == expected
    with_crlf = whole.replace(b"\n", b"\r\n")
    places = [dice.randrange(len(with_crlf)) for _ in range(200)]
    assert replay(path, pieces(with_crlf, places)) == expected


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda p: p.stem)
def test_every_tool_begins_once_before_it_ends_once(path: Path):
    items, _ = replay(path, [path.read_bytes()])
    begun = [item.tool_id for item in items if isinstance(item, base.ToolBegun)]
    ended = [item.tool_id for item in items if isinstance(item, base.ToolEnded)]
    assert len(set(begun)) == len(begun)
    assert len(set(ended)) == len(ended)
    assert set(ended) <= set(begun)


def recorded(name: str) -> tuple[list[base.Item], str]:
    path = WIRE / f"{name}.sse"
    return replay(path, [path.read_bytes()])


def test_text_arrives_exactly_and_ends_with_its_usage():
    items, error = recorded("responses_unicode")
    assert error == ""
    said = "".join(i.text for i in items if isinstance(i, base.Text))
    whole = json.loads((WIRE / "responses_unicode.sse").read_text("utf-8").rpartition("data: ")[2])
    assert said == whole["response"]["output"][-1]["content"][0]["text"]
    assert "世界 🌍" in said
    assert "👩\u200d👩\u200d👧 \u202eabc" in said
    assert isinstance(items[0], base.TurnBegun)
    assert items[0].backend_run_id is not None
    assert isinstance(items[-1], base.Finished)
    assert items[-1].usage is not None
    assert items[-1].usage.input_tokens == 14990


def test_text_and_tools_keep_their_order():
    items, _ = recorded("responses_two_steps")
    kinds = [type(item).__name__ for item in items]
    assert kinds == [
        "TurnBegun", "Text", "ToolBegun", "ToolEnded", "Text", "ToolBegun", "ToolEnded", "Text", "Finished",
    ]  # fmt: skip
    assert [i.text for i in items if isinstance(i, base.Text)] == ["Step one.", "\n\nStep two.", "\n\nAll done."]


def test_parallel_tools_are_told_before_any_result():
    items, _ = recorded("responses_parallel_reads")
    kinds = [type(item).__name__ for item in items if isinstance(item, base.ToolBegun | base.ToolEnded)]
    assert kinds == ["ToolBegun", "ToolBegun", "ToolEnded", "ToolEnded"]


def test_the_todo_tool_gives_the_list_too():
    items, _ = recorded("responses_parallel_tools")
    assert [i.todos for i in items if isinstance(i, base.Todos)] == [(Todo(id="a", text="one", status="pending"),)]
    ended = [i for i in items if isinstance(i, base.ToolEnded)]
    assert [i.name for i in ended] == ["terminal", "terminal", "todo"]
    assert ended[0].result == '{"output": "first", "exit_code": 0, "error": null}'
    assert next(i.arguments for i in items if isinstance(i, base.ToolBegun)) == {"command": "echo first; sleep 0.4"}


def test_a_tool_that_failed_says_so():
    items, _ = recorded("responses_tool_error")
    (ended,) = [i for i in items if isinstance(i, base.ToolEnded)]
    assert ended.ok is False
    assert "not found" in (ended.error or "").lower()


def test_a_command_that_needs_an_approval_is_shown_as_not_run():
    items, error = recorded("responses_danger")
    (ended,) = [i for i in items if isinstance(i, base.ToolEnded)]
    assert ended.ok is False
    assert "approval" in (ended.error or "")
    assert '"pending_approval"' in (ended.result or "")
    assert error == ""


@pytest.mark.parametrize("name", ["responses_error401", "responses_badargs"])
def test_an_answer_with_usage_0_has_failed_with_its_text_as_the_cause(name: str):
    items, error = recorded(name)
    said = "".join(i.text for i in items if isinstance(i, base.Text))
    assert said
    assert error == f"model_failed: The model failed: {said}"
    assert not any(isinstance(i, base.Finished) for i in items)


def test_a_run_gives_tools_ids_by_order_and_name():
    items, _ = recorded("runs_tool_events")
    tools = [i for i in items if isinstance(i, base.ToolBegun | base.ToolEnded)]
    assert tools == [
        base.ToolBegun("tool-1", "terminal", None, summary="echo run"),
        base.ToolEnded("tool-1", "terminal", ok=True, duration_ms=15),
        base.ToolBegun("tool-2", "read_file", None, summary="nonexistent"),
        base.ToolEnded("tool-2", "read_file", ok=False, duration_ms=39),
    ]


def test_a_run_does_not_repeat_its_text_as_reasoning():
    items, _ = recorded("runs_tool_events")
    assert not any(isinstance(i, base.Reasoning) for i in items)
    assert "".join(i.text for i in items if isinstance(i, base.Text)).count("Checking.") == 1


def test_an_approval_that_timed_out_there_is_withdrawn_before_its_tool_ends():
    items, _ = recorded("runs_approval_timeout_events")
    kinds = [type(i).__name__ for i in items if not isinstance(i, base.Text)]
    assert kinds == ["ToolBegun", "ApprovalAsked", "PauseWithdrawn", "ToolEnded", "Finished"]
    (asked,) = [i for i in items if isinstance(i, base.ApprovalAsked)]
    assert asked.command == "rm -rf /tmp/scripted-c"
    assert asked.choices == ("once", "session", "always", "deny")


def test_a_run_that_failed_says_why():
    _, error = recorded("runs_error401_events")
    assert error == "model_failed: The model failed: HTTP 401: scripted error 401"


def test_a_run_that_was_stopped_ends_without_a_finish():
    path = WIRE / "runs_stop_events.sse"
    items, error = replay(path, [path.read_bytes()])
    assert error == ""
    assert all(isinstance(i, base.Text) for i in items)


def test_a_refusal_is_an_error_of_the_backend():
    with pytest.raises(BackendRefused):
        list(ResponseReader(ANSWERS).read(frames.StreamError(message="overloaded")))
