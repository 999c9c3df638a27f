"""What a model, a tool or a server may put into any field of any event: it is stored and told on each database, or cut,
and the turn has one end. The child is a stand-in (tests/peers/bridge_child.py)."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.protocol.events import MAX_TOKENS
from tests.rig.bridge import ScriptedHome, running, wait_for
from tests.rig.worker_process import FAST
from tests.worker.bridge_desk import BridgeDesk
from tests.worker.conftest import Desk
from worker.backends.bridge import turn
from worker.backends.bridge.process import wire

HOSTILE = "\x1b[31mred\x1b[0m \x07\r\n\u202eevil\u2066 \x00 \ud83d <script>alert(1)</script> [x](javascript:1)"
STORED = HOSTILE.replace("\x00", "\ufffd").replace("\ud83d", "\ufffd")
USAGE = {"input_tokens": 7, "output_tokens": 3, "cached_tokens": 0, "reasoning_tokens": 0}
HUGE = 10**30


@pytest.fixture
def home(tmp_path: Path) -> ScriptedHome:
    return ScriptedHome(tmp_path / "home")


@pytest.fixture
def bridge(desk: Desk, home: ScriptedHome, monkeypatch: pytest.MonkeyPatch) -> Iterator[BridgeDesk]:
    backend = home.backend(home.settings(**FAST))
    yield BridgeDesk(desk, backend, monkeypatch)
    backend.close()
    wait_for(lambda: running(str(home.path)) == [], "the end of the child")


def tool(tool_id: str, **fields: Any) -> list[dict[str, Any]]:
    """A call and its end."""
    name = fields.get("name", "terminal")
    end = {"ok": False, "result": "", "more": False, "full_size": 0, "duration_ms": 5, "error": None, **fields}
    begun = {"event": "tool.started", "tool_id": tool_id, "name": name, "arguments": {}, "summary": "", **fields}
    return [begun, {"event": "tool.completed", "tool_id": tool_id, "name": name, **end}]


def end(event: str = "run.completed", **fields: Any) -> dict[str, Any]:
    by_event = {"run.completed": {"text": "", "finish_reason": "stop"}, "run.failed": {"code": "x", "message": "m"}}
    return {"event": event, "usage": USAGE, **by_event.get(event, {}), **fields}


def test_hostile_text_in_any_field_is_stored_and_told(bridge: BridgeDesk, home: ScriptedHome) -> None:
    home.script(
        turn=[
            {"event": "run.begun", "model": HOSTILE, "warm": False},
            {"event": "status", "kind": HOSTILE, "text": HOSTILE},
            {"event": "reasoning.delta", "text": HOSTILE},
            {"event": "stream.delta", "text": HOSTILE},
            *tool(HOSTILE, name=HOSTILE, summary=HOSTILE, arguments={HOSTILE: [[{HOSTILE: HOSTILE}]]}, error=HOSTILE),
            *tool("t2", arguments=HOSTILE, result=HOSTILE * 1000),
            *tool("t3", name="n" * 1_000_000, result="r" * 1_000_000, duration_ms=HUGE, full_size=HUGE),
            *tool("", name=""),
            {"event": "tool.progress", "tool_id": HOSTILE, "text": HOSTILE},
            {"event": "todo.updated", "todos": [{"id": HOSTILE, "text": HOSTILE, "status": HOSTILE}] * 100},
            {"event": "stream.delta", "text": "x" * 1_000_000},
            end(finish_reason=HOSTILE),
        ]
    )
    run_id = bridge.run("go")
    assert bridge.ended(run_id) == ("completed", None)
    assert bridge.text(run_id) == STORED + "x" * 1_000_000
    tools = bridge.tools(run_id)
    assert [len(each["name"]) for each in tools] == [len(STORED), 8, 1_000_000, 0]
    assert (tools[0]["name"], tools[0]["error"], list(tools[0]["arguments"])) == (STORED, STORED, [STORED])
    told = {event.event: event.data for event in bridge.desk.events(run_id)}
    assert told["todo.updated"].todos[99].id == STORED
    assert bridge.desk.answer(run_id).model == STORED


def test_hostile_text_in_an_end_is_stored_and_told(bridge: BridgeDesk, home: ScriptedHome) -> None:
    home.script(
        turn=[*tool(HOSTILE, name=HOSTILE, summary=HOSTILE)[:1], end("run.failed", code=HOSTILE, message=HOSTILE)]
    )
    run_id = bridge.run("go")
    assert bridge.ended(run_id) == ("failed", None)
    assert (bridge.desk.row(run_id).error_code, bridge.said(run_id)) == (STORED, STORED)
    home.script(turn=[*tool(HOSTILE, name=HOSTILE, summary=HOSTILE)[:1], {"kill": True}])
    run_id = bridge.run("go")
    assert bridge.ended(run_id) == ("interrupted", "backend_lost")
    (ran,) = bridge.desk.events(run_id)[-1].data.tools_already_run
    assert (ran.name, ran.tool_id, ran.summary, ran.finished) == (STORED, STORED, STORED, False)


def test_hostile_text_in_what_is_asked_keeps_nobody_from_answering(bridge: BridgeDesk, home: ScriptedHome) -> None:
    ask = {
        "event": "approval.requested", "approval_id": "a1", "command": HOSTILE, "description": HOSTILE * 100,
        "pattern_keys": [HOSTILE], "choices": ["once", "session", "always", "deny"],
    }  # fmt: skip
    question = {
        "event": "clarify.requested",
        "clarify_id": "c1",
        "question": HOSTILE * 100,
        "choices": [HOSTILE, "", " "],
    }
    home.script(turn=[ask, {"wait": "approval_respond"}, question, {"wait": "clarify_respond"}])
    bridge.desk.start_threads()
    run_id = bridge.begin("go")
    approval = bridge.asked(run_id)
    assert (approval.tool, approval.request["command"]) == (STORED, STORED)
    bridge.answer(approval, choice="always", reason="because")
    bridge.desk.wait(lambda: (p := bridge.desk.pause(run_id)) and p.id != approval.id, what="the question")
    asked = bridge.asked(run_id)
    assert asked.request["choices"] == [STORED, "", " "]
    bridge.answer(asked, answer=STORED)
    assert bridge.ended(run_id) == ("completed", None)
    assert [each["choice"] for each in home.requests("approval_respond")] == ["always"]
    assert [each["answer"] for each in home.requests("clarify_respond")] == [STORED]
    home.script(turn=[])
    assert bridge.ended(bridge.run("go")) == ("completed", None)
    assert home.requests("chat")[-1]["allowed"] == [STORED]


@pytest.mark.parametrize("event", ["run.completed", "run.failed", "run.interrupted"])
def test_token_counts_beyond_all_reason_end_no_turn_and_fit_the_database(
    bridge: BridgeDesk, home: ScriptedHome, event: str
) -> None:
    """A server of models reports what it likes. Two turns: their sum fits, too."""
    counts = {"input_tokens": HUGE, "output_tokens": -5, "cached_tokens": 2**31, "context_used": HUGE}
    compressed = {"before_tokens": HUGE, "after_tokens": -1}
    home.script(
        turn=[
            {"event": "usage", **USAGE, **counts},
            {"event": "compression.started", "before_tokens": HUGE},
            {"event": "compression.completed", **compressed},
            end(event, usage={**USAGE, **counts}),
        ]
    )
    session_id = bridge.session()
    states = {"run.completed": "completed", "run.failed": "failed", "run.interrupted": "interrupted"}
    for _ in range(2):
        run_id = bridge.run("go", session_id)
        assert bridge.ended(run_id)[0] == states[event]
    usage = bridge.desk.row(run_id).usage or {}
    assert (usage["input_tokens"], usage["output_tokens"], usage["cached_tokens"]) == (MAX_TOKENS, 0, 2**31)
    session = bridge.row_of(session_id)
    assert (session.total_input_tokens, session.total_output_tokens) == (2 * MAX_TOKENS, 0)


# ---- how it ended


@pytest.mark.parametrize("is_over", [True, False])
def test_a_child_that_still_says_that_it_stops_is_said_to_have_ended(
    bridge: BridgeDesk, home: ScriptedHome, is_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that somebody ended politely, or whose launcher was killed (C11)."""
    monkeypatch.setattr(turn, "STORY_S", 60.0 if is_over else 0.2)  # one that lives on has no story
    last = json.dumps({"n": 2, "event": "run.interrupted", "usage": USAGE})
    home.script(turn=[{"line": last}, {"exit": 0} if is_over else {"hang": True}])
    run_id = bridge.run("go")
    assert bridge.ended(run_id) == ("interrupted", "backend_lost")
    assert ("exit code 0" in bridge.said(run_id)) == is_over


# ---- folders


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Where the path of a socket is not too long to be below the data directory."""
    with tempfile.TemporaryDirectory(prefix="p-") as folder:
        yield Path(folder)


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%20b;c", "ü [ñ]"])
def test_a_data_directory_may_have_any_name(short_folder: Path, name: str) -> None:
    """The socket lies in its private folder, not where an address would end."""
    manager = ScriptedHome(short_folder / name / "home").manager()
    try:
        child = manager.take("a-run")
        place = Path(child.spec.endpoint.removeprefix("ipc://"))
        assert place.is_relative_to(short_folder / name)
        assert place.is_socket()
        assert child.client.request("ping")["ok"]
    finally:
        manager.close()


@pytest.mark.parametrize(
    ("endpoint", "place"),
    [
        ("ipc:///run/a#b?c", "/run/a#b?c"),
        ("ipc:///run//a", "/run/a"),
        ("ipc://host/a", None),
        ("tcp://LocalHost:0123", ("localhost", 123)),
        ("tcp://[::1]:5", ("::1", 5)),
        ("tcp://127.0.0.1", None),
        ("tcp://127.0.0.1:none", None),
        ("http://127.0.0.1:5", None),
        ("", None),
    ],
)
def test_what_an_endpoint_means(endpoint: str, place: Any) -> None:
    assert wire.place_of(endpoint) == place
