"""The parts of a bridge child that need no Hermes."""

import itertools
import json
import os
import socket
import stat
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.backends.bridge.process import approvals, endpoint, outcome, requests, run_log, tool_news, usage, wire
from worker.backends.bridge.process.pauses import Pauses
from worker.backends.bridge.process.run_log import RunLog
from worker.backends.bridge.process.statuses import plain
from worker.backends.bridge.process.think import ThinkSplitter
from worker.backends.bridge.process.tool_news import ToolNews
from worker.backends.bridge.process.wire import WireError

# ---- think tags


def split(*pieces: str) -> tuple[str, str]:
    """(thinking, shown)"""
    thought: list[str] = []
    splitter = ThinkSplitter(thought.append)
    shown = [splitter.feed(piece) for piece in pieces] + [splitter.flush()]
    return "".join(thought), "".join(shown)


@pytest.mark.parametrize(
    ("text", "thinking", "shown"),
    [
        ("<think>x</think>y", "x", "y"),
        ("<THINK>x</Think>\n\n y", "x", "y"),
        ("\n\n<think>x</think>y", "x", "\n\ny"),
        ("<thinking>x</think></thinking>y", "x</think>", "y"),
        ("<think>a</think><reasoning>b</reasoning>c", "ab", "c"),
        ("One.\n<think>x < y</think>\nTwo.", "x < y", "One.\nTwo."),
        ("<think>never closed", "never closed", ""),
        ("<think></think>", "", ""),
        ("<thin ice", "", "<thin ice"),
        ("<thi", "", "<thi"),
        ("  plain", "", "  plain"),
        ("a `<think>x</think>` b", "", "a `<think>x</think>` b"),
        ("```\n<think>x</think>\n```\n<think>y</think>z", "y", "```\n<think>x</think>\n```\nz"),
        ("~~~xml\n<think>x</think>\n```\n<think>\n~~~\n", "", "~~~xml\n<think>x</think>\n```\n<think>\n~~~\n"),
        ("text\n    <think>indented code</think>", "", "text\n    <think>indented code</think>"),
        ("``", "", "``"),
        ("a\n<", "", "a\n<"),
    ],
)
def test_thinking_in_the_text_is_told_apart_however_it_is_cut(text: str, thinking: str, shown: str):
    assert split(text) == (thinking, shown)
    assert split(*text) == (thinking, shown)
    for place in range(len(text)):
        assert split(text[:place], text[place:]) == (thinking, shown)


@given(st.text(alphabet="<>/think \nx`~", max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_cuts_never_matter(text: str, places: list[int]):
    edges = [0, *sorted(place for place in places if place < len(text)), len(text)]
    assert split(*(text[a:b] for a, b in itertools.pairwise(edges))) == split(text)


def test_text_without_tags_is_not_held_back():
    splitter = ThinkSplitter(lambda _: None)
    assert [splitter.feed(piece) for piece in ("He", "llo\n", "world <", "b")] == ["He", "llo\n", "world <", "b"]


# ---- status lines


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("(◔_◔) reasoning...", "reasoning..."),
        ("( •_•)>⌐■-■ musing...", "musing..."),
        ("٩(๑❛ᴗ❛๑)۶ contemplating...", "contemplating..."),
        ("ヽ(>∀<☆)☆ pondering...", "pondering..."),
        ("◉_◉ formulating...", "formulating..."),
        ("( ˘⌣˘)♡ computing...", "computing..."),
        ("ಠ_ಠ synthesizing...", "synthesizing..."),
        ("📦 Preflight compression: ~77,677 tokens >= 64,000", "Preflight compression: ~77,677 tokens >= 64,000"),
        ("⏳ Retrying in 3.0s (attempt 1/3)...", "Retrying in 3.0s (attempt 1/3)..."),
        ("⚠️  Session compressed 2 times", "Session compressed 2 times"),
        ("❌ API failed after 3 retries — HTTP 500", "API failed after 3 retries — HTTP 500"),
        ("正在思考...", "正在思考..."),
        ("(⊙_⊙)", ""),
        ("", ""),
    ],
)
def test_a_status_loses_its_face(text: str, line: str):
    assert plain(text) == line


# ---- the log of a run


def lines(log: RunLog, cursor: int = 0, event_cursor: int = 0) -> list[dict[str, Any]]:
    batches = b"".join(log.follow(cursor, event_cursor, lambda: True))
    return [json.loads(line) for line in batches.splitlines()]


def a_log() -> RunLog:
    log = RunLog()
    log.add("run.begun", model="m", warm=False)
    log.say("Hello ")
    log.say("世界")
    log.add("turn.boundary")
    log.say(" 🌍")
    log.end("run.completed", text="Hello 世界 🌍", finish_reason="stop", usage=usage.none_spent())
    return log


def test_a_stream_joins_text_that_waits_and_keeps_the_order():
    assert [(line["n"], line["event"], line.get("text")) for line in lines(a_log())] == [
        (1, "run.begun", None),
        (3, "stream.delta", "Hello 世界"),
        (4, "turn.boundary", None),
        (5, "stream.delta", " 🌍"),
        (6, "run.completed", "Hello 世界 🌍"),
    ]


def test_cursors_count_code_points_and_events():
    told = lines(a_log(), cursor=7, event_cursor=4)
    assert [line.get("text") for line in told] == ["界", " 🌍", "Hello 世界 🌍"]
    output = a_log().output("r", 7, 4)
    assert (output["delta"], output["cursor"]) == ("界 🌍", 10)
    assert [event["event"] for event in output["events"]] == ["run.completed"]
    assert (output["event_cursor"], output["done"], output["status"]) == (6, True, "completed")
    assert a_log().output("r", 10**9, 10**9)["delta"] == ""


def test_polling_in_parts_gives_the_same_as_the_stream():
    log = RunLog()
    log.say("x" * 3_000_000)
    log.add("tool.completed", result="y" * 3_000_000)
    log.add("tool.result", text="z" * 1_500_000)
    log.end("run.interrupted", usage=usage.none_spent())
    text, events, cursor, event_cursor, rounds = "", [], 0, 0, 0
    while True:
        output = log.output("r", cursor, event_cursor)
        assert len(wire.encode({"ok": True, **output})) <= wire.MAX_LINE_BYTES
        text, cursor, event_cursor = text + output["delta"], output["cursor"], output["event_cursor"]
        events += output["events"]
        rounds += 1
        if output["done"]:
            break
    assert rounds > 1
    assert text == "x" * 3_000_000
    assert [event["event"] for event in events] == ["tool.completed", "tool.result", "run.interrupted"]
    assert text == "".join(line["text"] for line in lines(log) if line["event"] == "stream.delta")


def test_nothing_is_said_after_the_end():
    log = a_log()
    assert not log.end("run.failed", code="agent_failed")
    log.say("more")
    log.add("status", kind="x", text="y")
    assert len(lines(log)) == 5
    assert log.status == "completed"


def test_a_reader_hears_at_once_what_is_said_later():
    log = RunLog()
    heard: list[dict[str, Any]] = []
    more = threading.Semaphore(0)

    def read() -> None:
        for batch in log.follow(0, 0, lambda: True):
            heard.extend(json.loads(line) for line in batch.splitlines())
            more.release()

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(20):
        log.say(str(number))
        assert more.acquire(timeout=60)
        assert heard[-1]["text"] == str(number)
    log.end("run.interrupted", usage=usage.none_spent())
    reader.join(60)
    assert heard[-1]["event"] == "run.interrupted"


def test_a_reader_that_has_gone_is_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_log, "ALIVE_CHECK_S", 0.01)
    assert list(RunLog().follow(0, 0, lambda: False)) == []


def test_long_lines_lie_in_a_file_and_a_run_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch):
    stopped = threading.Event()
    log = RunLog(on_overflow=stopped.set)
    log.add("tool.completed", result="x" * 5_000_000)
    assert log.bytes_held() < 1000
    assert lines_of_open(log)[0]["result"] == "x" * 5_000_000
    monkeypatch.setattr(run_log, "MAX_RUN_BYTES", 100_000)
    for _ in range(100):
        log.say("y" * 1000)
    assert stopped.is_set()
    assert log.bytes_held() <= 100_000
    assert log.end("run.failed", code="output_too_large")
    assert lines(log)[-1]["event"] == "run.failed"


def lines_of_open(log: RunLog) -> list[dict[str, Any]]:
    return list(log.output("r", 0, 0)["events"])


# ---- waiting for people


def test_the_first_answer_counts_and_only_what_was_offered():
    log = RunLog()
    pauses = Pauses(log)
    decided: list[Any] = []
    asking = threading.Thread(
        target=lambda: decided.append(
            pauses.ask_approval("rm", "why", ["key"], ["once", "deny"], allow_permanent=False)
        )
    )
    asking.start()
    (asked,) = wait_for_events(log, 1)
    with pytest.raises(WireError, match="choice"):
        pauses.decide_approval(asked["approval_id"], "always", "answered")
    with pytest.raises(WireError, match="not open"):
        pauses.decide_clarify(asked["approval_id"], "an answer")
    pauses.decide_approval(asked["approval_id"], "once", "answered")
    with pytest.raises(WireError, match="not open"):
        pauses.decide_approval(asked["approval_id"], "deny", "answered")
    asking.join(60)
    assert (decided[0].choice, decided[0].reason) == ("once", "answered")
    assert [event["event"] for event in lines_of_open(log)] == ["approval.requested", "approval.resolved"]


def test_a_stop_wakes_all_who_wait_and_those_who_come_later():
    log = RunLog()
    pauses = Pauses(log)
    decided: list[Any] = []
    waiting = [
        threading.Thread(target=lambda: decided.append(pauses.ask_clarify("Which?", ["a", "b"]))),
        threading.Thread(
            target=lambda: decided.append(
                pauses.ask_approval("rm", "", ["key"], ["once", "deny"], allow_permanent=False).choice
            )
        ),
    ]
    for thread in waiting:
        thread.start()
    wait_for_events(log, 2)
    pauses.withdraw()
    for thread in waiting:
        thread.join(60)
    assert sorted(decided, key=str) == [None, "deny"]
    assert pauses.ask_approval("rm", "", ["k"], ["once", "deny"], allow_permanent=False).choice == "deny"
    assert pauses.ask_clarify("Still?", []) is None
    assert [event["reason"] for event in lines_of_open(log)[2:]] == ["withdrawn", "withdrawn"]


def wait_for_events(log: RunLog, count: int) -> list[dict[str, Any]]:
    for batch in log.follow(0, 0, lambda: True):
        del batch
        events = lines_of_open(log)
        if len(events) >= count:
            return events
    raise AssertionError("the log ended")


def test_a_hermes_that_asks_in_another_way_is_refused():
    """Dangerous commands might run unasked there."""
    terminal = SimpleNamespace(set_approval_callback=lambda _: None)
    with pytest.raises(approvals.UnknownHermes, match="_await_gateway_decision"):
        approvals.Approvals(SimpleNamespace(), terminal, object, dict)


# ---- tools


def told(log: RunLog) -> list[tuple[Any, ...]]:
    return [(event["event"], event.get("tool_id"), event.get("name")) for event in lines_of_open(log)]


def test_calls_with_the_same_id_are_told_apart():
    log = RunLog()
    tools = ToolNews(log, lambda *_: None)
    for _ in range(2):
        tools.on_start("call_0", "terminal", {"command": "ls"})
        tools.on_complete("call_0", "terminal", {}, "{}")
    tools.on_complete("unknown", "terminal", {}, "{}")
    assert told(log) == [
        ("tool.started", "call_0", "terminal"),
        ("tool.completed", "call_0", "terminal"),
        ("tool.started", "call_0#2", "terminal"),
        ("tool.completed", "call_0#2", "terminal"),
    ]


def test_refused_calls_are_found_in_the_list_of_the_step():
    log = RunLog()
    tools = ToolNews(log, lambda *_: None)
    tools.on_start("a", "terminal", {})
    tools.on_complete("a", "terminal", {}, "{}")
    tools.on_step(
        [
            {"name": "terminal", "result": "{}", "arguments": "{}"},
            {"name": "no_such_tool", "result": "Tool 'no_such_tool' does not exist.", "arguments": '{"a": 1}'},
        ]
    )
    refused = lines_of_open(log)[2:]
    assert [(event["event"], event["name"]) for event in refused] == [
        ("tool.started", "no_such_tool"),
        ("tool.completed", "no_such_tool"),
    ]
    assert refused[0]["arguments"] == {"a": 1}
    assert (refused[1]["ok"], refused[1]["error"]) == (False, "Tool 'no_such_tool' does not exist.")


def test_a_tool_that_did_not_finish_is_closed():
    log = RunLog()
    tools = ToolNews(log, lambda *_: None)
    tools.on_start("a", "terminal", {})
    tools.close()
    assert (lines_of_open(log)[-1]["ok"], lines_of_open(log)[-1]["error"]) == (False, "It did not finish.")


def test_subagents_are_told_under_their_call_one_line_each():
    log = RunLog()
    spawned: list[tuple[str, bool]] = []
    tools = ToolNews(log, lambda *news: spawned.append(news))
    tools.on_start("a", "delegate_task", {"tasks": []})
    for place in range(2):
        more = {"subagent_id": f"sa-{place}", "task_index": place, "task_count": 2}
        tools.on_progress("subagent.start", None, f"goal {place}", None, **more)
        tools.on_progress("subagent.thinking", None, "(◔_◔) reasoning...", None, **more)
        tools.on_progress("subagent.tool", "terminal", "ls -l", None, **more)
        tools.on_progress("subagent.text", None, "line one\nline two\n", None, **more)
        tools.on_progress("subagent.complete", None, "done", None, status="completed", **more)
    progress = [event["text"] for event in lines_of_open(log) if event["event"] == "tool.progress"]
    assert progress[:5] == [
        "[1/2] goal 0",
        "[1/2] reasoning...",
        "[1/2] terminal: ls -l",
        "[1/2] line two",
        "[1/2] completed",
    ]
    assert spawned == [("sa-0", True), ("sa-0", False), ("sa-1", True), ("sa-1", False)]


@pytest.mark.parametrize("text", ["", "x", "ü" * 300_000, "🌍" * wire.PIECE_CHARS, "a" * (2 * wire.PIECE_CHARS + 1)])
def test_pieces_are_the_whole(text: str):
    pieces, full_size = tool_news.pieces_of(text)
    assert "".join(pieces) == text
    assert full_size == len(text.encode())
    assert all(len(piece) <= wire.PIECE_CHARS for piece in pieces)


def test_a_result_is_cut_at_its_limit_between_characters():
    pieces, full_size = tool_news.pieces_of("世" * (wire.MAX_RESULT_BYTES // 3 + 5))
    assert full_size == wire.MAX_RESULT_BYTES // 3 * 3 + 15
    assert set("".join(pieces)) == {"世"}
    assert len("".join(pieces).encode()) <= wire.MAX_RESULT_BYTES


def test_arguments_that_no_line_carries_come_as_text():
    deep: Any = 1
    for _ in range(200):
        deep = {"a": deep}
    assert isinstance(tool_news.safe_arguments({"deep": deep}), str)
    assert isinstance(tool_news.safe_arguments({"long": "x" * (wire.MAX_ARGUMENTS_CHARS + 1)}), str)
    assert len(tool_news.safe_arguments({"long": "x" * (wire.MAX_ARGUMENTS_CHARS + 1)})) <= wire.MAX_ARGUMENTS_CHARS
    assert tool_news.safe_arguments({"nan": float("nan")})
    assert tool_news.safe_arguments("{not json") == "{not json"
    assert tool_news.safe_arguments({"path": Path("/x")}) == {"path": "/x"}
    for arguments in ({"deep": deep}, {"nan": float("nan")}, {"s": "\ud800"}, {1: 2}):
        wire.encode({"arguments": tool_news.safe_arguments(arguments)})


def test_the_error_of_a_failed_tool_is_read_from_its_result():
    assert tool_news.error_of('{"error": "no such file"}') == "no such file"
    assert tool_news.error_of('{"exit_code": 1, "output": "bad", "error": null}') == "bad"
    assert tool_news.error_of("Tool 'x' does not exist.") == "Tool 'x' does not exist."
    assert tool_news.error_of("") == "It failed."


def test_todos_are_read_from_the_tools_result():
    result = json.dumps({"todos": [{"id": 1, "content": "collect", "status": "completed"}], "summary": {}})
    assert tool_news.todos_of(result) == [{"id": "1", "text": "collect", "status": "completed"}]
    for no_list in ('{"error": "x"}', "not json", "[]", '{"todos": 5}'):
        assert tool_news.todos_of(no_list) is None


# ---- how a turn ended


FINISHED = {"final_response": "Hi.", "completed": True, "turn_exit_reason": "text_response(finish_reason=stop)"}
TRUNCATED = "Response remained truncated after 4 continuation attempts"
TOO_LONG = "HTTP 400: maximum context length"
POLICY = "content_policy_blocked: x"


def failed(error: str, **more: Any) -> dict[str, Any]:
    return {"final_response": "y", "failed": True, "completed": False, "error": error} | more


def exited(reason: str, text: str | None) -> dict[str, Any]:
    return {"final_response": text, "completed": text is not None, "turn_exit_reason": reason}


@pytest.mark.parametrize(
    ("result", "was_interrupted", "expected"),
    [
        (FINISHED, False, outcome.Completed("Hi.", "stop")),
        (FINISHED, True, outcome.Completed("Hi.", "stop")),
        (exited("text_response(finish_reason=length)", "Hi."), False, outcome.Completed("Hi.", "length")),
        (exited("max_iterations_reached(2/2)", "S."), False, outcome.Completed("S.", "max_iterations")),
        (FINISHED | {"interrupted": True}, True, outcome.Interrupted()),
        (failed("HTTP 500: x"), True, outcome.Interrupted()),
        (failed("HTTP 401: no"), False, outcome.Failed("auth_failed", "HTTP 401: no", False, "y")),
        (failed("HTTP 429: no"), False, outcome.Failed("rate_limited", "HTTP 429: no", True, "y")),
        (failed("HTTP 500: no"), False, outcome.Failed("model_error", "HTTP 500: no", True, "y")),
        (failed("HTTP 400: no"), False, outcome.Failed("model_error", "HTTP 400: no", False, "y")),
        (failed(TOO_LONG), False, outcome.Failed("context_overflow", TOO_LONG, False, "y")),
        (failed("x", failure_reason="billing"), False, outcome.Failed("quota_exceeded", "x", False, "y")),
        (failed(POLICY), False, outcome.Failed("content_filtered", POLICY, False, "y")),
        (failed(TRUNCATED, failed=False, partial=True), False, outcome.Completed("y", "length")),
        (exited("empty_response_exhausted", "-"), False, outcome.Failed("empty_answer", "-", True, "-")),
        (
            exited("local_processing_error(X)", None),
            False,
            outcome.Failed("agent_failed", "local_processing_error(X)", False),
        ),
    ],
)
def test_the_result_says_how_the_turn_ended(result: dict[str, Any], was_interrupted: bool, expected: outcome.Outcome):
    assert outcome.outcome_of(result, was_interrupted=was_interrupted) == expected


@pytest.mark.parametrize(
    ("final", "streamed", "last", "missing"),
    [
        ("All done.", "Step one.\n\nAll done.", "\n\nAll done.", ""),
        ("partialrest", "partial rest", "partial rest", ""),
        ("Done.\n\nNote: 2 files failed.", "Look.\n\nDone.", "\n\nDone.", "\n\nNote: 2 files failed."),
        ("Summary.", "Look.", "", "\n\nSummary."),
        ("Summary.", "", "", "Summary."),
        ("Look.", "Look.\n\nMore.", "More.", ""),
        ("", "x", "x", ""),
        ("Use `` so.", "Use `<think>x</think>` so.", "Use `<think>x</think>` so.", ""),
    ],
)
def test_only_what_was_not_streamed_is_missing(final: str, streamed: str, last: str, missing: str):
    assert outcome.missing_text(final, streamed, last) == missing


def test_the_conversation_always_ends_with_an_answer():
    asked = {"role": "user", "content": "q"}
    answered = {"role": "assistant", "content": "a"}
    calls = {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}
    stopped, failed = outcome.Interrupted(), outcome.Failed("model_error", "x", True)
    after = outcome.conversation_after
    assert after([], "q", {"messages": [asked, answered]}, outcome.Completed("a", "stop"), "a") == [asked, answered]
    assert after([], "q", {"messages": [asked]}, stopped, " half ")[-1]["content"].startswith(
        "half\n\n[The user stopped"
    )
    assert after([], "q", None, failed, "") == [asked, {"role": "assistant", "content": outcome.FAILED_NOTE}]
    assert [m["role"] for m in after([], "q", {"messages": [asked, calls]}, stopped, "")] == ["user", "assistant"]
    assert after([asked, answered], "r", None, stopped, "")[:3] == [asked, answered, {"role": "user", "content": "r"}]


def test_tokens_are_of_the_turn_alone():
    class Agent:
        session_prompt_tokens, session_completion_tokens = 100, 10
        session_cache_read_tokens, session_reasoning_tokens = 40, 4
        context_compressor = type("Compressor", (), {"last_prompt_tokens": -1, "context_length": 1000})

    agent = Agent()
    turn = usage.TurnUsage(agent)
    assert turn.read() == usage.none_spent() | {"context_window": 1000}
    agent.session_prompt_tokens += 50
    agent.session_completion_tokens += 5
    agent.session_reasoning_tokens = 1  # set to 0 in between
    agent.context_compressor.last_prompt_tokens = 50
    assert turn.read() == {
        "input_tokens": 50,
        "output_tokens": 5,
        "cached_tokens": 0,
        "reasoning_tokens": 1,
        "context_used": 50,
        "context_window": 1000,
    }


# ---- requests

CHAT = {"run_id": "r", "session_id": "s", "message": "m", "history": None, "allowed": []}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"run_id": ""}, "run_id"),
        ({"run_id": 5}, "run_id"),
        ({"run_id": "x" * 201}, "run_id"),
        ({"session_id": "a\nb"}, "session_id"),
        ({"message": None}, "message"),
        ({"message": []}, "message"),
        ({"message": [{"type": "audio"}]}, "message"),
        ({"message": [{"type": "image_url", "image_url": "x"}]}, "message"),
        ({"history": "x"}, "history"),
        ({"history": [{"role": "system", "content": "x"}]}, "history"),
        ({"history": [{"role": "user", "content": None}]}, "history"),
        ({"after": 5}, "after"),
        ({"instructions": ["x"]}, "instructions"),
        ({"model": "gpt"}, "model"),
        ({"model": {}}, "model.name"),
        ({"model": {"name": "m", "api_key": 5}}, "model.api_key"),
        ({"model": {"name": "m", "context_length": -1}}, "model.context_length"),
        ({"max_iterations": 0}, "max_iterations"),
        ({"max_iterations": True}, "max_iterations"),
        ({"workspace": "relative"}, "workspace"),
        ({"workspace": "/a\0b"}, "workspace"),
        ({"allowed": [5]}, "allowed"),
        ({"allowed": "x"}, "allowed"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], field: str):
    with pytest.raises(WireError) as caught:
        requests.chat_request(CHAT | change)
    assert caught.value.code == "bad_request"
    assert caught.value.message.startswith(f"{field}:")


def test_the_key_of_a_model_is_not_shown():
    request = requests.chat_request(CHAT | {"model": {"name": "m", "api_key": "sk-secret-canary"}})
    assert request.model.api_key == "sk-secret-canary"
    assert "canary" not in repr(request)


def test_lone_surrogates_are_replaced_where_they_come_in():
    request = requests.chat_request(CHAT | {"message": "a\ud800", "history": [{"role": "user", "content": "\udfff"}]})
    assert request.message == "a\ufffd"
    assert request.history == [{"role": "user", "content": "\ufffd"}]


# ---- endpoints


@pytest.mark.parametrize(
    "address",
    [
        *("tcp://0.0.0.0:0", "tcp://10.0.0.1:80", "tcp://127.0.0.1", "tcp://127.0.0.1:99999"),
        *("ipc://relative", "http://x", ""),
    ],
)
def test_an_endpoint_that_others_could_reach_is_refused(address: str):
    with pytest.raises(endpoint.EndpointRefused):
        endpoint.listen(address)


def test_a_socket_is_for_its_user_alone(tmp_path: Path):
    path = tmp_path / "new" / "b.sock"
    listener = endpoint.listen(f"ipc://{path}")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    listener.close()
    assert not path.exists()


def test_a_folder_that_others_can_read_is_refused(tmp_path: Path):
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    with pytest.raises(endpoint.EndpointRefused, match="chmod 700"):
        endpoint.listen(f"ipc://{folder / 'b.sock'}")
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "private")
    with pytest.raises(endpoint.EndpointRefused, match="no directory"):
        endpoint.listen(f"ipc://{tmp_path / 'link' / 'b.sock'}")


def test_a_stale_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path):
    folder = tmp_path / "s"
    folder.mkdir(mode=0o700)
    path = folder / "b.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    listener = endpoint.listen(f"ipc://{path}")
    with pytest.raises(endpoint.EndpointRefused, match="answers"):
        endpoint.listen(f"ipc://{path}")
    listener.close()


@pytest.mark.parametrize("kind", ["file", "symlink", "folder"])
def test_what_is_no_socket_is_not_touched(tmp_path: Path, kind: str):
    folder = tmp_path / "s"
    folder.mkdir(mode=0o700)
    path = folder / "b.sock"
    other = tmp_path / "other"
    other.write_text("precious")
    if kind == "file":
        path.write_text("precious")
    elif kind == "symlink":
        path.symlink_to(other)
    else:
        path.mkdir()
    with pytest.raises(endpoint.EndpointRefused, match="no socket"):
        endpoint.listen(f"ipc://{path}")
    assert other.read_text() == "precious"
    assert path.exists()


def test_a_path_that_is_too_long_is_refused(tmp_path: Path):
    with pytest.raises(endpoint.EndpointRefused, match="longer"):
        endpoint.listen(f"ipc://{tmp_path / ('x' * 120)}")


def test_a_free_port_is_told():
    listener = endpoint.listen("tcp://127.0.0.1:0")
    assert listener.address == f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"
    assert not listener.address.endswith(":0")
    listener.close()


def test_the_user_at_the_other_end_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    here, there = socket.socketpair(socket.AF_UNIX)
    assert endpoint.is_own_user(here)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert not endpoint.is_own_user(here)
    here.close()
    there.close()
