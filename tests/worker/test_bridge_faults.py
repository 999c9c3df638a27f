"""Faults of a bridge child that Hermes cannot be made to show: what is stored and told when it speaks garbage, stops in
the middle, or does not stop. The child is a stand-in (tests/peers/bridge_child.py)."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from shared import settings as portal_settings
from shared.errors import BackendError
from shared.store import runs as run_store
from shared.store import tool_outputs
from tests.rig.bridge import ScriptedHome, running, wait_for
from tests.rig.worker_process import FAST
from tests.worker.bridge_desk import BridgeDesk
from tests.worker.conftest import Desk
from worker.backends.bridge import items, manager, turn
from worker.backends.bridge.backend import BridgeBackend
from worker.backends.bridge.child import Child
from worker.backends.bridge.process import wire

HELLO = {"event": "stream.delta", "text": "Hello"}
TOOL = {"event": "tool.started", "tool_id": "t1", "name": "terminal", "arguments": {"command": "ls"}, "summary": "ls"}
APPROVAL = {
    "event": "approval.requested", "approval_id": "a1", "command": "rm -rf /x", "description": "delete in root path",
    "pattern_keys": ["delete in root path"], "allow_permanent": True, "choices": ["once", "session", "always", "deny"],
}  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> ScriptedHome:
    return ScriptedHome(tmp_path / "home")


@pytest.fixture
def make(sqlite_desk: Desk, home: ScriptedHome, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., BridgeDesk]]:
    """A desk whose `cli` sessions are answered by the stand-in; nothing of it is left after the test."""
    monkeypatch.setattr(manager, "FIRST_DELAY_S", 0.05)
    monkeypatch.setattr(turn, "STORY_S", 60.0)
    made: list[BridgeBackend] = []

    def make(**environ: str) -> BridgeDesk:
        made.append(home.backend(home.settings(**{**FAST, **environ})))
        return BridgeDesk(sqlite_desk, made[-1], monkeypatch)

    yield make
    for backend in made:
        backend.close()
    wait_for(lambda: running(str(home.path)) == [], "the end of all children")


@pytest.fixture
def desk(make: Callable[..., BridgeDesk]) -> BridgeDesk:
    return make()


def pid_of(desk: BridgeDesk) -> int:
    return int(desk.backend.describe()[0]["pid"])


@pytest.fixture
def may_kill(home: ScriptedHome, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Who kills a child whose grace is over waits until that one has read that it is to stop, and until this is set,
    which it is unless the test clears it."""
    allowed = threading.Event()
    allowed.set()
    still_runs = turn.still_runs

    def look(child: Child, run_id: str) -> bool:
        wait_for(lambda: home.requests("interrupt"), "that the child is told first")
        allowed.wait(60)
        return still_runs(child, run_id)

    monkeypatch.setattr(turn, "still_runs", look)
    return allowed


# ---- garbage (F30)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([{"bytes": b'{"n":2,"event":"stre'.hex()}, {"close": True}], "in the middle of a line"),
        ([{"bytes": ("x" * 1024 * 1024).encode().hex(), "times": 50}], "too long"),
        ([{"bytes": (b'{"text":"\xff\xfe"}\n').hex()}], "cannot be read"),
        ([{"line": '{"a":' * 5_000 + "1" + "}" * 5_000}], "cannot be read"),
        ([{"line": "[" * 300_000}], "cannot be read"),
        ([{"line": "Traceback (most recent call last):"}], "cannot be read"),
        ([{"line": '["no", "object"]'}], "cannot be read"),
        ([{"event": "stream.delta", "text": 7}], "cannot be understood"),
        ([{"event": "tool.started", "tool_id": "t", "name": None}], "cannot be understood"),
        ([{"event": "tool.result", "tool_id": "unknown", "text": "x", "last": True}], "cannot be understood"),
        ([{"event": "todo.updated", "todos": [1]}], "cannot be understood"),
        ([{**APPROVAL, "choices": ["maybe"]}], "cannot be understood"),
        ([{"event": "usage", "input_tokens": "many"}], "cannot be understood"),
    ],
)
def test_garbage_is_a_protocol_error_and_what_came_is_kept(
    desk: BridgeDesk, home: ScriptedHome, steps: list[dict[str, Any]], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "STORY_S", 0.2)  # it lives on: there is no story
    home.script(turn=[HELLO, *steps, {"hang": True}])
    before = psutil.Process().memory_info().rss
    run_id = desk.run("go")
    assert desk.ended(run_id) == ("interrupted", "protocol_error")
    assert said in desk.said(run_id)
    assert desk.text(run_id) == "Hello"
    assert psutil.Process().memory_info().rss - before < 64 * 1024 * 1024
    assert wait_for(lambda: home.requests("interrupt"), "that the child is told")[0]["run_id"] == run_id


def test_one_runs_garbage_leaves_the_others_alone(desk: BridgeDesk, home: ScriptedHome) -> None:
    home.script(turn=[HELLO, {"wait": "steer"}])
    good = desk.begin("go")
    desk.desk.wait(lambda: desk.desk.seen_text(good) == "Hello", what="the first text")
    home.script(turn=[{"line": "nonsense"}, {"hang": True}])
    assert desk.ended(desk.run("go")) == ("interrupted", "protocol_error")
    (child,) = desk.backend._manager.children()
    child.client.request("steer")
    assert desk.ended(good) == ("completed", None)
    assert desk.text(good) == "Hello"


def test_what_a_newer_child_says_more_is_ignored(desk: BridgeDesk, home: ScriptedHome) -> None:
    home.script(turn=[{"event": "mood.changed", "text": "happy"}, {"line": '{"n":1}'}, {**HELLO, "colour": "blue"}])
    assert desk.text(desk.run("go")) == "Hello"


# ---- tools


def completed(**fields: Any) -> dict[str, Any]:
    end = {"ok": True, "result": "", "more": False, "full_size": 0, "duration_ms": 5, "error": None}
    return {"event": "tool.completed", "tool_id": "t1", "name": "terminal", **end, **fields}


def pieces(count: int) -> list[dict[str, Any]]:
    piece = "世" * (wire.PIECE_CHARS // 2)
    return [
        {"event": "tool.result", "tool_id": "t1", "text": piece, "last": number == count - 1} for number in range(count)
    ]


def test_a_result_of_20_mb_comes_in_pieces_and_is_whole_again(desk: BridgeDesk, home: ScriptedHome) -> None:
    """S42's limit is ours, 32 MiB; a line has 8."""
    count = 105
    home.script(turn=[TOOL, completed(result="begin ", more=True), *pieces(count), HELLO])
    run_id = desk.run("go")
    assert desk.ended(run_id) == ("completed", None)
    (tool,) = desk.tools(run_id)
    whole = "begin " + "世" * (wire.PIECE_CHARS // 2) * count
    assert tool["full_size"] == len(whole.encode()) > 20_000_000

    def stored() -> Any:
        with desk.desk.look() as db:
            return tool_outputs.get(db, run_id, "t1")

    output = desk.desk.wait(stored, what="the whole result")
    assert tool_outputs.text_of(output) == whole


def test_a_result_beyond_the_limit_is_cut_and_says_how_long_it_was(
    desk: BridgeDesk, home: ScriptedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items, "MAX_RESULT_CHARS", 100_000)
    home.script(turn=[TOOL, completed(more=True, full_size=10**9), *pieces(5)])
    run_id = desk.run("go")
    (tool,) = desk.tools(run_id)
    assert (desk.desk.state(run_id), tool["full_size"], tool["truncated"]) == ("completed", 10**9, True)


@pytest.mark.parametrize("then", [[HELLO], []])
def test_a_result_whose_rest_never_comes_is_what_came(
    desk: BridgeDesk, home: ScriptedHome, then: list[dict[str, Any]]
) -> None:
    home.script(turn=[TOOL, completed(result="begin", more=True), *then])
    run_id = desk.run("go")
    assert desk.ended(run_id) == ("completed", None)
    assert [tool["result"] for tool in desk.tools(run_id)] == ["begin"]


# ---- text


@pytest.mark.parametrize(
    ("turn_steps", "text"),
    [
        ([], "The whole."),
        ([HELLO], "Hello"),
        ([HELLO, {"event": "turn.boundary"}, TOOL, completed()], "Hello\n\nThe whole."),
        ([{**HELLO, "text": "The whole."}, {"event": "turn.boundary"}], "The whole."),
    ],
)
def test_an_answer_that_was_not_streamed_is_not_lost_and_one_that_was_not_doubled(
    desk: BridgeDesk, home: ScriptedHome, turn_steps: list[dict[str, Any]], text: str
) -> None:
    whole = "\n\nThe whole." if len(turn_steps) > 2 else "The whole."
    usage = {"input_tokens": 1, "output_tokens": 2, "cached_tokens": 0, "reasoning_tokens": 0}
    end = {"event": "run.completed", "text": whole, "finish_reason": "length", "usage": usage}
    home.script(turn=[*turn_steps, end])
    run_id = desk.run("go")
    assert desk.text(run_id) == text
    assert desk.desk.events(run_id)[-1].data.finish_reason == "length"


def test_reasoning_told_as_a_whole_counts_only_where_none_was_streamed(desk: BridgeDesk, home: ScriptedHome) -> None:
    whole = {"event": "reasoning.available", "text": "hm"}
    home.script(
        turn=[{**whole, "event": "reasoning.delta"}, whole, {"event": "turn.boundary"}, TOOL, completed(), whole]
    )
    run_id = desk.run("go")
    assert [event.data.text for event in desk.desk.events(run_id) if event.event == "reasoning.delta"] == ["hm", "hm"]


def test_a_failed_run_says_why_and_counts_its_tokens(desk: BridgeDesk, home: ScriptedHome) -> None:
    failure = {"code": "rate_limited", "message": "HTTP 429: slow down", "retryable": False, "text": ""}
    usage = {"input_tokens": 11, "output_tokens": 2, "cached_tokens": 0, "reasoning_tokens": 0}
    home.script(turn=[HELLO, {"event": "run.failed", **failure, "usage": usage}])
    run_id = desk.run("go")
    assert (desk.ended(run_id), desk.said(run_id)) == (("failed", None), "HTTP 429: slow down")
    end = desk.desk.events(run_id)[-1]
    assert (end.event, end.data.code, end.data.retryable) == ("run.failed", "rate_limited", False)
    assert desk.desk.row(run_id).usage["input_tokens"] == 11


# ---- it ends in the middle (C11, F29)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ({"exit": 1}, "exit code 1"),
        ({"exit": 0}, "exit code 0"),
        ({"kill": True}, "killed by SIGKILL"),
        ({"close": True}, "closed the connection"),
    ],
)
@pytest.mark.parametrize("place", ["in mid-token", "in a tool", "in an approval", "in a question"])
def test_a_child_that_ends_interrupts_its_runs_at_once(
    desk: BridgeDesk,
    home: ScriptedHome,
    end: dict[str, Any],
    said: str,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "close" in end:
        monkeypatch.setattr(turn, "STORY_S", 0.2)  # it lives on: there is no story
    question = {"event": "clarify.requested", "clarify_id": "c1", "question": "Which?", "choices": []}
    asks = {"in a tool": [TOOL], "in an approval": [TOOL, APPROVAL], "in a question": [question]}
    is_pause = place in ("in an approval", "in a question")
    home.script(turn=[HELLO, *asks.get(place, []), *([{"wait": "steer"}] if is_pause else []), end])
    run_id = desk.begin("go")
    if is_pause:
        pause = desk.asked(run_id)
        for child in desk.backend._manager.children():
            with contextlib.suppress(BackendError):  # it may die before it answers
                child.client.request("steer", timeout_s=60)
    assert desk.ended(run_id) == ("interrupted", "backend_lost")
    assert said in desk.said(run_id)
    assert desk.text(run_id) == "Hello"
    tools = [(tool["name"], tool.get("ok")) for tool in desk.tools(run_id)]
    assert tools == ([("terminal", None)] if place in ("in a tool", "in an approval") else [])
    if is_pause:
        with desk.desk.look() as db:
            assert desk.desk.pause(run_id) is None
            assert db.get(type(pause), pause.id).state == "withdrawn"
    home.script(turn=[HELLO])
    assert desk.ended(desk.run("again")) == ("completed", None), "the next run gets a child"


def test_the_other_turns_of_a_child_that_dies_are_interrupted_too(
    desk: BridgeDesk, home: ScriptedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "QUIET_S", 600.0)  # nobody has to ask whether it lives
    home.script(turn=[HELLO, {"hang": True}])
    runs = [desk.begin("go") for _ in range(3)]
    for run_id in runs:
        desk.desk.wait(lambda run_id=run_id: desk.desk.seen_text(run_id), what="the first text")
    os.kill(pid_of(desk), signal.SIGKILL)
    assert [desk.ended(run_id) for run_id in runs] == [("interrupted", "backend_lost")] * 3


def test_a_child_that_died_while_nobody_looked_is_replaced_for_the_next_turn(
    desk: BridgeDesk, home: ScriptedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Surely nothing was sent: the turn is tried again, with a child that lives."""
    desk.run("go")
    (child,) = desk.backend._manager.children()
    open_to = child.client.open

    def die_first() -> Any:
        os.kill(child.pid or 0, signal.SIGKILL)
        child.gone.wait(60)
        return open_to()

    monkeypatch.setattr(child.client, "open", die_first)
    run_id = desk.run("go")
    assert desk.ended(run_id) == ("completed", None)
    assert len(home.requests("chat")) == 2
    assert desk.backend._manager.starts == 2


def test_a_turn_that_was_taken_is_never_sent_to_the_next_child(desk: BridgeDesk, home: ScriptedHome) -> None:
    """P2: the child dies when it has taken the turn, before its stream is asked for."""
    home.script(chat=["die"], turn=[HELLO])
    run_id = desk.run("go")
    assert desk.ended(run_id) == ("interrupted", "backend_lost")
    assert "killed by SIGKILL" in desk.said(run_id)
    assert len(home.requests("chat")) == 1


# ---- it cannot start


def test_a_child_that_cannot_start_fails_its_turns_with_a_sentence_and_the_worker_stays_up(
    make: Callable[..., BridgeDesk], home: ScriptedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "FIRST_DELAY_S", 300.0)  # no machine is that slow
    desk = make()
    home.script(start=[{"stderr": "ImportError: libssl.so.3\n"}, {"exit": 3}])
    session_id = desk.session(title="Mine", on_failure="continue")
    run_id = desk.run("go", session_id)
    assert desk.ended(run_id) == ("failed", "start_failed")
    assert "exit code 3" in desk.said(run_id)
    assert "ImportError: libssl.so.3" in desk.said(run_id)
    assert desk.row_of(session_id).title == "Mine", "CASES 34"
    assert desk.backend._manager.starts == 1, "asking again at once would bring the same"
    assert "ImportError" in desk.backend.describe()[0]["why"]
    home.script(turn=[HELLO])
    desk.backend._manager._start_at = time.monotonic()  # the end of the delay
    assert desk.text(desk.run("again", session_id)) == "Hello"


def test_one_that_is_never_ready_is_said_in_time(make: Callable[..., BridgeDesk], home: ScriptedHome) -> None:
    desk = make(HERMES_AGENT_BRIDGE_STARTUP_TIMEOUT_MS="300")
    home.script(start=[{"hang": True}])
    run_id = desk.run("go")
    assert desk.ended(run_id) == ("failed", "start_failed")
    assert "not ready after 0.3 s" in desk.said(run_id)


def test_an_abort_does_not_wait_for_a_start(desk: BridgeDesk, home: ScriptedHome) -> None:
    home.script(start=[{"hang": True}])
    desk.desk.start_threads()
    run_id = desk.begin("go")
    desk.desk.wait(lambda: "status.updated" in desk.desk.names(run_id), what="that it starts the agent")
    desk.abort(run_id)
    assert desk.ended(run_id)[0] == "aborted"
    assert home.requests("chat") == []
    (child,) = desk.backend._manager.children()
    assert not child.ready.is_set(), "it still starts"
    assert not child.gone.is_set()


# ---- refusals


@pytest.mark.parametrize("code", ["busy", "full", "shutting_down"])
def test_not_now_is_asked_again(desk: BridgeDesk, home: ScriptedHome, code: str) -> None:
    home.script(chat=[code], turn=[HELLO])
    run_id = desk.run("go")
    assert (desk.ended(run_id), desk.text(run_id)) == (("completed", None), "Hello")
    assert len(home.requests("chat")) == 2


def test_what_still_works_in_the_session_is_told_to_stop(desk: BridgeDesk, home: ScriptedHome) -> None:
    """P4: the portal has ended that turn, so nothing of it goes on beside the next one."""
    session_id = desk.session(on_failure="continue")
    home.script(turn=[{"line": "nonsense"}, {"hang": True}])
    first = desk.run("go", session_id)
    wait_for(lambda: home.requests("interrupt"), "the stop of the broken run")
    home.script(chat=[None, "busy"], turn=[HELLO])
    second = desk.run("go on", session_id)
    assert desk.ended(second) == ("completed", None)
    assert [each["run_id"] for each in home.requests("interrupt")].count(first) >= 2


@pytest.mark.parametrize(
    ("code", "state", "reason"),
    [
        ("bad_request", "failed", "backend_refused"),
        ("wrong_secret", "failed", "backend_refused"),
        ("run_exists", "interrupted", "backend_lost"),
    ],
)
def test_a_no_is_not_asked_again(desk: BridgeDesk, home: ScriptedHome, code: str, state: str, reason: str) -> None:
    home.script(chat=[code])
    run_id = desk.run("go")
    assert desk.ended(run_id) == (state, reason)
    assert len(home.requests("chat")) == 1


# ---- it does not stop (S42 of the abort: told, then killed)


def test_a_run_that_does_not_stop_takes_the_whole_child_with_it_and_says_so(
    make: Callable[..., BridgeDesk], home: ScriptedHome, tmp_path: Path, may_kill: threading.Event
) -> None:
    desk = make(PORTAL_ABORT_GRACE_S="1.5")
    word = f"portal-tool-of-{tmp_path.name}-{os.getpid()}"
    desk.desk.start_threads()
    home.script(turn=[HELLO, {"hang": True}])
    other = desk.begin("go")
    desk.desk.wait(lambda: desk.desk.seen_text(other), what="the other's text")
    home.script(turn=[HELLO, TOOL, {"tool": f"trap '' TERM; while :; do sleep 0.1; done # {word}"}, {"hang": True}])
    run_id = desk.begin("go")
    wait_for(lambda: running(word), "the tool")
    began = time.monotonic()
    desk.abort(run_id)
    assert desk.ended(run_id)[0] == "aborted"
    assert time.monotonic() - began > 1.4
    assert [each["run_id"] for each in home.requests("interrupt")] == [run_id], "told once, and politely first"
    assert desk.desk.events(run_id)[-1].data.stage == "killed"
    assert desk.ended(other) == ("interrupted", "backend_lost")
    assert "another turn in it did not stop" in desk.said(other)
    wait_for(lambda: running(word) == [], "the end of the tool")
    assert desk.text(run_id) == desk.text(other) == "Hello"


def test_a_run_that_talks_on_after_it_was_told_to_stop_is_ended_too(
    make: Callable[..., BridgeDesk], home: ScriptedHome
) -> None:
    desk = make(PORTAL_ABORT_GRACE_S="1.5")
    desk.desk.start_threads()
    home.script(turn=[{"event": "stream.delta", "text": "on and on "}, {"sleep": 0.01}] * 20_000)
    run_id = desk.begin("go")
    desk.desk.wait(lambda: desk.desk.seen_text(run_id), what="some text")
    pid = pid_of(desk)
    desk.abort(run_id)
    assert desk.ended(run_id)[0] == "aborted"
    wait_for(lambda: not psutil.pid_exists(pid), "the end of the child")


def test_a_run_that_was_ended_here_and_goes_on_there_is_ended_there_too(
    make: Callable[..., BridgeDesk], home: ScriptedHome, may_kill: threading.Event
) -> None:
    """Nobody reads it any more, so no end of it is seen."""
    may_kill.clear()
    desk = make(PORTAL_ABORT_GRACE_S="1.5")
    home.script(turn=[{"event": "stream.delta", "text": "on and on "}, {"sleep": 0.01}] * 20_000)
    run_id = desk.begin("go")
    desk.desk.wait(lambda: desk.desk.seen_text(run_id), what="some text")
    pid = pid_of(desk)
    desk.desk.context.live_runs.get(run_id).shut_down()
    assert desk.ended(run_id) == ("interrupted", "shutdown")
    assert psutil.pid_exists(pid), "it was told first"
    may_kill.set()
    wait_for(lambda: not psutil.pid_exists(pid), "the end of the child")
    assert [each["run_id"] for each in home.requests("interrupt")] == [run_id]


def test_one_that_stops_when_told_is_left_alive(make: Callable[..., BridgeDesk], home: ScriptedHome) -> None:
    desk = make(PORTAL_ABORT_GRACE_S="60")
    desk.desk.start_threads()
    usage = {"input_tokens": 1, "output_tokens": 2, "cached_tokens": 0, "reasoning_tokens": 0}
    home.script(turn=[HELLO, {"wait": "interrupt"}, {"event": "run.interrupted", "usage": usage}])
    run_id = desk.begin("go")
    desk.desk.wait(lambda: desk.desk.seen_text(run_id), what="the text")
    pid = pid_of(desk)
    desk.abort(run_id)
    assert desk.ended(run_id)[0] == "aborted"
    end = desk.desk.events(run_id)[-1].data
    assert (end.stage, end.note) == ("acknowledged", None)
    killer = f"kill-{run_id[:8]}"
    wait_for(lambda: killer not in [thread.name for thread in threading.enumerate()], "that nobody waits to kill it")
    assert pid_of(desk) == pid
    assert desk.desk.row(run_id).usage["input_tokens"] == 1


# ---- it says nothing


def test_a_quiet_child_that_lives_holds_off_the_limit_and_a_dead_one_does_not(
    make: Callable[..., BridgeDesk], home: ScriptedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "QUIET_S", 0.05)
    monkeypatch.setattr(turn, "ASIDE_TIMEOUT_S", 1.0)
    desk = make(PORTAL_ABORT_GRACE_S="0.5")

    def limit(quiet_s: float) -> None:
        desk.desk.context.settings = desk.desk.settings.model_copy(update={"run_quiet_timeout_s": quiet_s})

    limit(6.0)
    desk.desk.start_threads()
    home.script(turn=[HELLO, {"sleep": 7.0}, HELLO])
    assert desk.text(desk.run("go")) == "HelloHello"
    assert len(home.requests("ping")) > 5
    limit(0.5)
    home.script(turn=[HELLO, {"deaf": True}, {"hang": True}])
    run_id = desk.run("go")
    assert desk.ended(run_id) == ("aborted", "time_limit")


# ---- history


def test_a_session_that_is_not_held_is_told_its_history(desk: BridgeDesk, home: ScriptedHome) -> None:
    home.script(turn=[HELLO])
    session_id = desk.session()
    first = desk.run("one", session_id)
    home.script(chat=[None, None, "session_not_found"], turn=[HELLO])
    second = desk.run("two", session_id)
    third = desk.run("three", session_id)
    chats = home.requests("chat")
    assert [(chat["history"], chat["after"]) for chat in chats[:2]] == [([], None), (None, first)]
    assert (chats[2]["history"], chats[2]["after"]) == (None, second)
    told = [(message["role"], message["content"]) for message in chats[3]["history"]]
    assert told == [("user", "one"), ("assistant", "Hello"), ("user", "two"), ("assistant", "Hello")]
    assert (chats[3]["after"], chats[3]["run_id"]) == (None, third)


def test_what_a_warm_session_must_stand_after(desk: BridgeDesk, home: ScriptedHome) -> None:
    """Cancelled turns were never told; one that is tried again must not be remembered."""
    home.script(turn=[HELLO])
    session_id = desk.session(on_failure="continue")
    first = desk.run("one", session_id)
    cancelled = desk.desk.submit(session_id, "never")
    with desk.desk.db() as db:
        assert run_store.cancel_queued(db, cancelled, by="Ada")
    desk.run("two", session_id)
    desk.run("two again", session_id, retry_of=first)
    chats = home.requests("chat")
    assert chats[1]["after"] == first
    assert (chats[2]["after"], chats[2]["history"] is None) == (None, False)


def test_a_session_of_a_child_that_is_slow_is_dropped_and_not_said_to_be_unknown(
    desk: BridgeDesk, home: ScriptedHome
) -> None:
    session_id = desk.session()
    desk.run("go", session_id)
    pid = pid_of(desk)
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(1.5, os.kill, (pid, signal.SIGCONT)).start()
    assert desk.backend.drop_session(session_id)


def test_the_spare_agent_is_of_the_model_that_new_sessions_want(desk: BridgeDesk, home: ScriptedHome) -> None:
    def prepared() -> list[Any]:
        return [each["model"] and each["model"]["name"] for each in home.requests("prepare")]

    session_id = desk.session(model="small")
    desk.run("go", session_id)
    wait_for(lambda: prepared() == ["small"], "the first spare")
    desk.run("go on", session_id, model="large")  # no new session
    for model in ("large", "small", "large", "large"):
        desk.run("go", desk.session(model=model))
    wait_for(lambda: prepared() == ["small", "large"], "a spare of the other model")


def test_the_settings_of_the_source_document_reach_the_child(tmp_path: Path) -> None:
    settings = portal_settings.load({}, cwd=tmp_path)
    assert (settings.bridge_timeout_ms, settings.bridge_startup_timeout_ms) == (120_000, 120_000)
    assert (settings.bridge_platform, settings.bridge_max_turns, settings.bridge_idle_minutes) == ("cli", 100, 30)
