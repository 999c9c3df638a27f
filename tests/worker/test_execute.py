"""One run from claim to final state, with a backend that follows a script."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from shared.database import transaction
from shared.models import ChatSession, ToolOutput
from shared.run_state import RunState
from shared.store import run_logs, tool_outputs
from shared.store import runs as run_store
from tests.worker.conftest import Desk
from worker.backends import base
from worker.runs.execute import execute
from worker.runs.recorder import TICK_S


def test_a_turn_is_answered_told_and_kept(desk: Desk) -> None:
    run_id = desk.run([{"text": "word # ", "times": 20, "every_s": 0.002}])
    text = "".join(f"word {n} " for n in range(20))
    assert desk.state(run_id) == "completed"
    answer = desk.answer(run_id)
    assert (answer.content, answer.status, answer.model) == (text, "SUCCESS", "scripted-1")
    assert (answer.input_tokens, answer.output_tokens) == (7, 3)
    assert desk.seen_text(run_id) == text
    assert desk.names(run_id) == ["run.dequeued", "run.started", "message.delta", "run.completed"]
    assert desk.turns(run_id) == 1
    completed = desk.events(run_id)[-1]
    assert completed.data.message_id == answer.id
    assert completed.fence == 1
    row = desk.row(run_id)
    assert (row.backend_run_id, row.usage["output_tokens"]) == (f"peer-{run_id}", 3)
    with desk.db() as db:
        session = db.get(ChatSession, row.session_id)
        assert (session.total_input_tokens, session.total_output_tokens) == (7, 3)


def test_running_is_committed_before_the_turn_is_sent(desk: Desk) -> None:
    states = []
    original = desk.backend.stream

    def stream(turn: Any, controls: Any) -> Any:
        states.append(desk.state(turn.run_id))
        return original(turn, controls)

    desk.backend.stream = stream  # type: ignore[method-assign]
    desk.run("hello")
    assert states == ["running"]


def test_a_new_part_begins_after_a_tool_and_when_the_kind_of_text_changes(sqlite_desk: Desk) -> None:
    run_id = sqlite_desk.run(
        [
            {"reasoning": "hm "},
            {"reasoning": "yes"},
            {"text": "Plan: "},
            {"tool": "ls", "arguments": {"path": "/"}, "result": "a b"},
            {"text": "Done"},
        ]
    )
    parts = {
        event.data.part: event.event
        for event in sqlite_desk.events(run_id)
        if event.event in ("message.delta", "reasoning.delta")
    }
    assert parts == {0: "reasoning.delta", 1: "message.delta", 2: "message.delta"}
    assert sqlite_desk.answer(run_id).content == "Plan: Done"
    kinds = [item["type"] for item in sqlite_desk.transcript(run_id)["items"]]
    assert kinds == ["text", "text", "tool", "text"]


def test_offsets_count_code_points_and_what_cannot_be_stored_is_replaced(desk: Desk) -> None:
    run_id = desk.run([{"text": "a\ud83d"}, {"text": "\U0001f600\x00"}, {"text": "é"}])
    assert desk.seen_text(run_id) == desk.answer(run_id).content == "a\ufffd\U0001f600\ufffdé"


def test_tools_are_redacted_and_long_results_are_kept_whole(desk: Desk) -> None:
    secret = "sk-" + "a1b2c3d4" * 5
    long = "x" * 20_000 + " " + secret
    run_id = desk.run(
        [{"tool": "curl", "id": "t1", "arguments": {"key": secret, "n": 3}, "result": long, "error": f"bad {secret}"}]
    )
    started, completed = [e for e in desk.events(run_id) if e.event.startswith("tool.")]
    assert started.data.arguments["n"] == 3
    assert (len(completed.data.result), completed.data.truncated) == (16_384, True)
    assert completed.data.full_size == len(long) - len(secret) + len("[redacted]")

    def output() -> ToolOutput | None:
        with desk.look() as db:  # and not for longer: it may still be waiting to be written
            return tool_outputs.get(db, run_id, "t1")

    kept = tool_outputs.text_of(desk.wait(output, what="the whole output"))
    assert kept.startswith("x" * 20_000)
    everything = json.dumps(desk.transcript(run_id)) + kept + "".join(e.model_dump_json() for e in desk.events(run_id))
    assert secret not in everything


def test_a_secret_cut_in_two_is_hidden_in_the_answer(sqlite_desk: Desk) -> None:
    secret = "sk-" + "a1b2c3d4" * 5
    run_id = sqlite_desk.run([{"text": f"the key is {secret[:9]}"}, {"sleep": 0.1}, {"text": f"{secret[9:]} !"}])
    assert sqlite_desk.answer(run_id).content == "the key is [redacted] !"
    assert sqlite_desk.seen_text(run_id) == "the key is [redacted] !"


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        ("BackendLost", "interrupted", "backend_lost"),
        ("StreamCut", "interrupted", "stream_cut"),
        ("BackendProtocolError", "interrupted", "protocol_error"),
        ("BackendRefused", "failed", "backend_refused"),
        ("BackendTimeout", "failed", "backend_lost"),
        ("BackendError", "failed", None),
    ],
)
def test_how_a_stream_ends_decides_the_state(sqlite_desk: Desk, error: str, state: str, reason: str | None) -> None:
    desk = sqlite_desk
    run_id = desk.run(
        [{"text": "so far"}, {"tool": "rm", "id": "t", "arguments": {"path": "/x"}}, {"raise": error, "message": "No."}]
    )
    row = desk.row(run_id)
    assert (row.state, row.reason, row.error) == (state, reason, "No.")
    answer = desk.answer(run_id)
    assert (answer.content, answer.error) == ("so far", "No.")
    last = desk.events(run_id)[-1]
    assert last.data.message == "No."
    assert "what only the log has" not in last.model_dump_json()
    assert row.detail_id
    if state == "interrupted":
        assert [(t.name, t.summary, t.finished) for t in last.data.tools_already_run] == [("rm", "/x", True)]
        assert row.fence == last.fence == 2  # raised: nobody else may write for the old one
    else:
        assert last.data.detail_id == row.detail_id


def test_a_key_in_the_words_of_a_backend_that_gives_up_is_hidden(sqlite_desk: Desk) -> None:
    """S42, CASES 153: in the database and in what pages are told."""
    desk = sqlite_desk
    keys = ("sk-proj-aaaa1111bbbb2222cccc3333", "AKIAABCDEFGH12345678", "abcdefghij0123456789")
    words = f"bad key {keys[0]} of {keys[1]}, Bearer {keys[2]}, \ud800"
    run_id = desk.run([{"raise": "BackendRefused", "message": words}])
    row, answer, last = desk.row(run_id), desk.answer(run_id), desk.events(run_id)[-1]
    for told in (row.error, answer.error, last.data.message, last.model_dump_json(), str(desk.transcript(run_id))):
        assert "[redacted]" in told
        assert not any(key in told for key in keys)
    assert row.error.startswith("bad key [redacted] of [redacted], Bearer [redacted]")


def test_a_stream_without_its_last_item_is_never_a_success(sqlite_desk: Desk) -> None:
    run_id = sqlite_desk.run([{"text": "half an ans"}, {"cut": True}])
    assert (sqlite_desk.state(run_id), sqlite_desk.row(run_id).reason) == ("interrupted", "stream_cut")
    assert sqlite_desk.answer(run_id).content == "half an ans"


def test_an_error_of_ours_ends_the_run_with_an_id_and_no_trace(sqlite_desk: Desk) -> None:
    run_id = sqlite_desk.run([{"todos": [{"unknown": 1}]}])
    assert sqlite_desk.state(run_id) == "failed"
    assert sqlite_desk.row(run_id).error_code == "internal_error"
    assert sqlite_desk.row(run_id).detail_id
    assert "Todo" not in (sqlite_desk.row(run_id).error or "")


def test_a_turn_that_was_surely_not_accepted_is_asked_again(sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.runs.pump.PAUSES_S", (0.01, 0.01))
    run_id = sqlite_desk.run([{"refuse": 2}, {"text": "now"}])
    assert sqlite_desk.state(run_id) == "completed"
    assert sqlite_desk.backend.tries[run_id] == 3
    assert sqlite_desk.turns(run_id) == 1


def test_it_is_asked_three_times_at_most(sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.runs.pump.PAUSES_S", (0.01, 0.01))
    run_id = sqlite_desk.run([{"refuse": 9}, {"text": "never"}])
    assert (sqlite_desk.state(run_id), sqlite_desk.backend.tries[run_id]) == ("failed", 3)
    assert sqlite_desk.row(run_id).error_code == "backend_unavailable"


def test_nothing_is_sent_twice_once_something_came(sqlite_desk: Desk) -> None:
    run_id = sqlite_desk.run([{"text": "one"}, {"raise": "BackendUnavailable"}])
    assert (sqlite_desk.state(run_id), sqlite_desk.turns(run_id)) == ("interrupted", 1)


def test_a_source_without_a_backend_fails_with_a_sentence(sqlite_desk: Desk) -> None:
    run_id = sqlite_desk.run("hello", source="acp:nobody")
    assert sqlite_desk.state(run_id) == "failed"
    assert "no agent" in (sqlite_desk.row(run_id).error or "")


def test_the_next_turn_is_sent_when_one_ends(desk: Desk) -> None:
    session_id = desk.session()
    first, second = desk.submit(session_id, "one"), desk.submit(session_id, "two")
    execute(second, desk.context)  # out of order: nothing happens
    assert desk.state(second) == "queued"
    execute(first, desk.context)
    assert desk.sent == [(second, "runs")]
    execute(second, desk.context)
    assert desk.state(second) == "completed"


@pytest.mark.parametrize("policy", ["hold", "continue", "cancel"])
def test_a_failure_holds_continues_or_cancels_the_queue(desk: Desk, policy: str) -> None:
    session_id = desk.session(on_failure=policy)
    first, second = desk.submit(session_id, [{"raise": "BackendRefused"}]), desk.submit(session_id, "two")
    execute(first, desk.context)
    assert desk.sent == ([(second, "runs")] if policy == "continue" else [])
    assert desk.state(second) == ("cancelled" if policy == "cancel" else "queued")
    with desk.db() as db:
        held = db.get(ChatSession, session_id).held_reason
    assert held == ("backend_refused" if policy == "hold" else None)
    if policy == "cancel":
        assert desk.names(second) == ["run.dequeued", "run.cancelled"]
    execute(second, desk.context)
    assert desk.state(second) == {"hold": "queued", "continue": "completed", "cancel": "cancelled"}[policy]


class Clock:
    """That of the loop of a run: it goes as time does, and leaps where a test says so."""

    def __init__(self) -> None:
        self._leapt_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._leapt_s

    def leap(self, seconds: float) -> None:
        self._leapt_s += seconds


@pytest.fixture
def loop_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("worker.runs.drive.time", clock)
    return clock


def test_over_its_time_a_run_is_aborted_with_that_reason(sqlite_desk: Desk, loop_clock: Clock) -> None:
    desk = sqlite_desk
    limits = {"run_time_limit_s": 3_600, "run_quiet_timeout_s": 100_000, "run_keepalive_timeout_s": 100_000}
    desk.context.settings = desk.settings.model_copy(update=limits)
    run_id = desk.submit(desk.session(), [{"text": "tick ", "until_enough": True, "every_s": 0.05}])
    thread = desk.start(run_id)
    desk.wait(lambda: desk.seen_text(run_id), what="some text")
    loop_clock.leap(3_601)
    thread.join(60)
    row = desk.row(run_id)
    assert (row.state, row.reason, row.abort_by) == ("aborted", "time_limit", "time limit")
    assert desk.answer(run_id).content.startswith("tick ")


def test_a_silent_backend_is_stopped_and_keepalives_hold_that_off(sqlite_desk: Desk, loop_clock: Clock) -> None:
    desk = sqlite_desk
    limits = {"run_quiet_timeout_s": 3_600, "run_time_limit_s": 100_000, "run_keepalive_timeout_s": 100_000}
    desk.context.settings = desk.settings.model_copy(update=limits)
    run_id = desk.submit(desk.session(), [{"text": "so far. "}, {"block": True}])
    thread = desk.start(run_id)
    desk.wait(lambda: desk.seen_text(run_id), what="the text")
    loop_clock.leap(3_601)
    thread.join(60)
    assert desk.row(run_id).reason == "time_limit"

    def state_after(every_s: float, *items: base.Item) -> str:
        """Of a turn whose backend says these, each so long after the one before."""

        def stream(turn: base.Turn, controls: Any) -> Iterator[base.Item]:
            yield items[0]
            for item in items[1:]:
                desk.wait(lambda: not controls.inbox.waiting, what="that it is heard")
                loop_clock.leap(every_s)
                time.sleep(TICK_S + 0.1)  # it looks at its limits meanwhile
                yield item
            yield base.Finished()

        desk.backend.stream = stream  # type: ignore[method-assign]
        return desk.state(desk.run("hello"))

    assert state_after(2_400, base.Text("a"), base.Keepalive(), base.Keepalive(), base.Text("b")) == "completed"
    assert state_after(3_601, base.ToolBegun("t", "sleep", {}), base.ToolEnded("t", "sleep", ok=True)) == "completed"


def test_the_events_of_a_run_are_kept_joined(desk: Desk) -> None:
    run_id = desk.run([{"text": "word # ", "times": 200}, {"tool": "ls"}, {"text": "end\u2028"}])
    with transaction(desk.factory, write=False) as db:
        row = run_logs.get(db, run_id)
        assert row is not None
        lines = [json.loads(line) for line in run_logs.lines(row)]
    texts = [line["data"]["text"] for line in lines if line["event"] == "message.delta"]
    assert texts == ["".join(f"word {n} " for n in range(200)), "end\u2028"]
    assert [line["seq"] for line in lines] == sorted(line["seq"] for line in lines)
    assert (lines[-1]["event"], lines[-1]["seq"]) == ("run.completed", row.last_seq)
    assert lines[0]["seq"] == row.first_seq


def test_a_run_aborted_while_it_starts_sends_nothing(desk: Desk) -> None:
    run_id = desk.submit(desk.session(), "hello")
    original = desk.context.backends.backend_for

    def slow(source: str, profile: str | None) -> Any:
        with desk.db() as db:
            assert run_store.request_abort(db, run_id, by_name="Ada") == RunState.ABORTING
        return original(source, profile)

    desk.context.backends.backend_for = slow
    execute(run_id, desk.context)
    assert (desk.state(run_id), desk.turns(run_id)) == ("aborted", 0)
    assert desk.names(run_id) == ["abort.completed"]


def test_a_start_that_fails_goes_back_to_the_queue_three_times(desk: Desk) -> None:
    run_id = desk.submit(desk.session(), "hello")

    def broken(source: str, profile: str | None) -> Any:
        raise RuntimeError("no")

    desk.context.backends.backend_for = broken
    for state in ("queued", "queued", "failed", "failed"):
        execute(run_id, desk.context)
        assert desk.state(run_id) == state
    assert desk.row(run_id).reason == "start_failed"
    assert desk.names(run_id) == ["run.dequeued", "run.failed"]


def test_a_backend_that_stops_by_itself_has_interrupted_the_run(sqlite_desk: Desk) -> None:
    sqlite_desk.backend.stream = lambda turn, controls: iter((base.Text("a"), base.Stopped()))  # type: ignore[method-assign]
    run_id = sqlite_desk.run("hello")
    assert (sqlite_desk.state(run_id), sqlite_desk.row(run_id).reason) == ("interrupted", "backend_lost")
    assert sqlite_desk.answer(run_id).content == "a"
