"""The fold: order is kept, snapshots and replays meet, nothing doubles, JSON is exact, a long text costs no more."""

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.protocol import events as e
from shared.run_state import RunState
from shared.transcript import (
    Approval,
    Clarification,
    Compression,
    Gap,
    ReasoningText,
    TextPart,
    ToolCall,
    Transcript,
    answer_text,
    close,
    fold,
    from_json,
    to_json,
)

RUN = "0123456789abcdef0123456789abcdef"
START = datetime(2026, 11, 30, 12, 0, 0, 1_000, tzinfo=UTC)
DELTAS: dict[str, type[Any]] = {
    "message": e.MessageDelta,
    "reasoning": e.ReasoningDelta,
    "thinking": e.ThinkingDelta,
}


class Recording:
    """Makes the events of a run as the worker's recorder does: parts and offsets right, a millisecond between them."""

    def __init__(self, fence: int | None = 3) -> None:
        self.events: list[Any] = []
        self.fence = fence
        self._part = -1
        self._kind: str | None = None
        self._offset = 0

    def say(self, kind: type[Any], /, **data: Any) -> "Recording":
        at = START + timedelta(milliseconds=len(self.events))
        if kind in (e.ToolStarted, e.ToolCompleted):
            self._kind = None
        name = kind.model_fields["data"].annotation
        self.events.append(kind(session_id="s", run_id=RUN, fence=self.fence, at=at, data=name(**data)))
        return self

    def text(self, kind: str, text: str) -> "Recording":
        if kind != self._kind:
            self._part, self._kind, self._offset = self._part + 1, kind, 0
        self.say(DELTAS[kind], part=self._part, offset=self._offset, text=text)
        self._offset += len(text)
        return self

    def folded(self, count: int | None = None) -> Transcript:
        transcript = Transcript(run_id=RUN)
        for event in self.events[:count]:
            fold(transcript, event)
        return transcript


def through_json(transcript: Transcript) -> Transcript:
    return from_json(json.loads(json.dumps(to_json(transcript))))


# ---- random recorded runs

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)
NAME = st.sampled_from(["a", "b", "c", "d"])
JSON_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
ARGUMENTS = st.none() | TEXT | st.dictionaries(TEXT, JSON_VALUE, max_size=3)
DEADLINE = st.none() | st.datetimes(
    timezones=st.just(UTC), min_value=datetime(2020, 1, 1), max_value=datetime(2050, 1, 1)
)
WHO = st.none() | TEXT
COUNT = st.none() | st.integers(0, 10**9)
ENDED = st.sampled_from(["answered", "expired", "withdrawn"])
TODO = st.builds(e.Todo, id=NAME, text=TEXT, status=st.sampled_from(["pending", "in_progress", "completed"]))
USAGE = st.builds(e.Usage, input_tokens=st.integers(0, 9999), output_tokens=st.integers(0, 9999), context_used=COUNT)
MIDDLE = st.one_of(
    st.tuples(st.sampled_from(["message", "reasoning", "thinking"]), TEXT),
    st.tuples(st.just(e.ReasoningAvailable), st.fixed_dictionaries({"text": TEXT})),
    st.tuples(st.just(e.StatusUpdated), st.fixed_dictionaries({"text": TEXT})),
    st.tuples(
        st.just(e.ToolStarted),
        st.fixed_dictionaries({"tool_id": NAME, "name": NAME, "arguments": ARGUMENTS, "summary": TEXT}),
    ),
    st.tuples(st.just(e.ToolProgress), st.fixed_dictionaries({"tool_id": NAME, "text": TEXT})),
    st.tuples(
        st.just(e.ToolCompleted),
        st.fixed_dictionaries(
            {
                "tool_id": NAME,
                "name": NAME,
                "ok": st.sampled_from([True, False, None]),
                "result": st.none() | TEXT,
                "truncated": st.booleans(),
                "full_size": COUNT,
                "duration_ms": COUNT,
                "error": st.none() | TEXT,
            }
        ),
    ),
    st.tuples(st.just(e.TodoUpdated), st.fixed_dictionaries({"todos": st.lists(TODO, max_size=3)})),
    st.tuples(st.just(e.UsageUpdated), USAGE.map(e.Usage.model_dump)),
    st.tuples(
        st.just(e.ApprovalRequested),
        st.fixed_dictionaries(
            {
                "approval_id": NAME,
                "kind": NAME,
                "command": TEXT,
                "choices": st.lists(NAME, max_size=2),
                "deadline": DEADLINE,
                "may_answer": st.none() | st.lists(NAME, max_size=2),
            }
        ),
    ),
    st.tuples(
        st.just(e.ApprovalResolved),
        st.fixed_dictionaries({"approval_id": NAME, "choice": st.none() | NAME, "by": WHO, "reason": ENDED}),
    ),
    st.tuples(
        st.just(e.ClarifyRequested),
        st.fixed_dictionaries({"clarify_id": NAME.map(str.upper), "question": TEXT, "deadline": DEADLINE}),
    ),
    st.tuples(
        st.just(e.ClarifyResolved),
        st.fixed_dictionaries({"clarify_id": NAME.map(str.upper), "answer": st.none() | TEXT, "reason": ENDED}),
    ),
    st.tuples(st.just(e.CompressionStarted), st.fixed_dictionaries({"before_tokens": st.integers(0, 9)})),
    st.tuples(
        st.just(e.CompressionCompleted),
        st.fixed_dictionaries(
            {"before_tokens": st.integers(0, 9), "after_tokens": st.integers(0, 9), "changed": st.booleans()}
        ),
    ),
    st.tuples(
        st.just(e.AbortStarted),
        st.fixed_dictionaries({"stage": st.sampled_from(["requested", "seen", "acknowledged"]), "by": WHO}),
    ),
)
ENDS = st.one_of(
    st.none(),
    st.tuples(
        st.just(e.RunCompleted),
        st.fixed_dictionaries(
            {"message_id": NAME, "duration_ms": st.integers(0, 99), "usage": st.none() | USAGE.map(e.Usage.model_dump)}
        ),
    ),
    st.tuples(st.just(e.RunFailed), st.fixed_dictionaries({"code": NAME, "message": TEXT, "retryable": st.booleans()})),
    st.tuples(
        st.just(e.RunInterrupted),
        st.fixed_dictionaries(
            {
                "reason": st.just("worker_lost"),
                "tools_already_run": st.lists(
                    st.fixed_dictionaries({"tool_id": NAME, "name": NAME, "finished": st.booleans()}), max_size=2
                ),
            }
        ),
    ),
    st.tuples(st.just(e.AbortCompleted), st.fixed_dictionaries({"stage": st.just("killed"), "duration_ms": COUNT})),
)


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    recording = Recording(fence=draw(st.sampled_from([None, 3])))
    if draw(st.booleans()):
        recording.say(e.RunQueued, queue_id="q", position=0, queue_length=1, message_id="m1", input="x", by="Ann")
    recording.say(e.RunStarted, source="api_server", message_id="m2", model="big", agent="Demo agent")
    begun = set()
    for kind, data in draw(st.lists(MIDDLE, max_size=25)):
        if kind is e.ToolProgress and data["tool_id"] not in begun:
            continue  # of one worker, in order
        if kind in (e.ToolStarted, e.ToolCompleted):
            begun.add(data["tool_id"])
        _ = recording.text(kind, data) if isinstance(kind, str) else recording.say(kind, **data)
    end = draw(ENDS)
    if end is not None:
        if draw(st.booleans()) and recording.fence:
            recording.fence += 1  # a janitor ended it
        recording.say(end[0], **end[1])
        if draw(st.booleans()):  # a tool's outcome that comes late
            recording.say(e.ToolCompleted, tool_id="a", name="a", ok=True, result="late")
    return recording


MANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@MANY
@given(recordings(), st.data())
def test_a_snapshot_and_what_follows_it_is_the_later_snapshot(recording: Recording, data: st.DataObject) -> None:
    total = len(recording.events)
    n = data.draw(st.integers(0, total))
    m = data.draw(st.integers(n, total))
    transcript = through_json(recording.folded(n))
    for event in recording.events[n:m]:
        fold(transcript, e.EVENT.validate_json(e.to_payload(event)))  # as a page gets them
    assert transcript == recording.folded(m)
    assert to_json(transcript) == to_json(recording.folded(m))


@MANY
@given(recordings(), st.data())
def test_what_was_applied_last_may_be_applied_again(recording: Recording, data: st.DataObject) -> None:
    m = data.draw(st.integers(0, len(recording.events)))
    n = data.draw(st.integers(0, m))
    transcript = through_json(recording.folded(m))
    for event in recording.events[n:m]:
        fold(transcript, event)
    assert transcript == recording.folded(m)


@MANY
@given(recordings(), st.data())
def test_any_event_twice_in_a_row_is_once_and_an_old_one_undoes_nothing_final(
    recording: Recording, data: st.DataObject
) -> None:
    transcript = Transcript(run_id=RUN)
    for event in recording.events:
        fold(transcript, event)
        fold(transcript, event)
    assert transcript == recording.folded()
    live = (e.StatusUpdated, e.TodoUpdated, e.UsageUpdated, e.ToolProgress, e.ToolStarted)  # the last one counts
    settled = [event for event in recording.events if not isinstance(event, live)]
    fold(transcript, data.draw(st.sampled_from(settled)))
    assert transcript == recording.folded()


@MANY
@given(recordings())
def test_json_is_exact_and_the_answer_is_its_deltas_joined(recording: Recording) -> None:
    transcript = recording.folded()
    assert through_json(transcript) == transcript
    assert to_json(through_json(transcript)) == to_json(transcript)
    deltas = [event.data.text for event in recording.events if isinstance(event, e.MessageDelta)]
    assert answer_text(transcript) == "".join(deltas)
    assert answer_text(through_json(transcript)) == "".join(deltas)


@MANY
@given(recordings(), st.data())
def test_a_lost_piece_of_text_is_noticed_at_the_next_of_its_part(recording: Recording, data: st.DataObject) -> None:
    deltas = [each for each in recording.events if type(each) in DELTAS.values() and each.data.text]
    followed = [
        each
        for each in deltas
        if any(o.data.part == each.data.part and o.data.offset > each.data.offset for o in deltas)
    ]
    if not followed:
        return
    lost = data.draw(st.sampled_from(followed))
    recording.events.remove(lost)
    with pytest.raises(Gap):
        recording.folded()


# ---- particular promises


def test_text_tools_and_text_keep_their_order_and_their_times() -> None:
    recording = Recording().say(e.RunStarted, source="cli").text("thinking", "hm").text("message", "a")
    recording.say(e.ToolStarted, tool_id="1", name="read", arguments={"path": "x"}, summary="x")
    recording.say(e.ToolCompleted, tool_id="1", name="read", ok=True, result="r", duration_ms=7)
    recording.text("message", "b").text("message", "c").say(e.RunCompleted, message_id="m", duration_ms=9)
    transcript = recording.folded()
    kinds = [item.kind if isinstance(item, TextPart) else type(item).__name__ for item in transcript.items]
    assert kinds == ["thinking", "message", "ToolCall", "message"]
    assert answer_text(transcript) == "abc"
    assert [part.part for part in transcript.thinking] == [0]
    last = transcript.answer_parts[-1]
    assert (last.text, last.length) == ("bc", 2)
    assert last.ended_at - last.started_at == timedelta(milliseconds=1)
    assert transcript.state is RunState.COMPLETED
    assert transcript.tools[0].duration_ms == 7
    assert transcript.end is not None
    assert transcript.end.duration_ms == 9


def test_the_whole_way_of_states_is_told_by_the_events() -> None:
    recording = Recording()
    steps = [
        (
            e.RunQueued,
            {"queue_id": "q", "position": 0, "queue_length": 1, "message_id": "m", "input": ""},
            RunState.QUEUED,
        ),
        (e.RunStarted, {"source": "cli"}, RunState.RUNNING),
        (
            e.ApprovalRequested,
            {"approval_id": "a", "kind": "k", "command": "rm", "choices": ["once"]},
            "awaiting_approval",
        ),
        (e.ClarifyRequested, {"clarify_id": "c", "question": "?"}, "awaiting_approval"),
        (e.ApprovalResolved, {"approval_id": "a", "choice": "once", "reason": "answered"}, "awaiting_clarification"),
        (e.ClarifyResolved, {"clarify_id": "c", "answer": "yes", "reason": "answered"}, RunState.RUNNING),
        (e.AbortStarted, {"by": "Ann"}, RunState.ABORTING),
        (e.AbortStarted, {"stage": "seen"}, RunState.ABORTING),
        (e.AbortCompleted, {"stage": "acknowledged", "duration_ms": 40}, RunState.ABORTED),
        (e.RunCompleted, {"message_id": "m", "duration_ms": 1}, RunState.ABORTED),
    ]
    for kind, data, state in steps:
        recording.say(kind, **data)
        assert recording.folded().state == state
    ladder = recording.folded().abort
    assert [step.stage for step in ladder] == ["requested", "seen", "acknowledged"]
    assert ladder[0].by == "Ann"


def test_tools_that_run_side_by_side_are_one_group() -> None:
    recording = Recording().say(e.RunStarted, source="cli")
    for tool_id in ("1", "2"):
        recording.say(e.ToolStarted, tool_id=tool_id, name="t")
    recording.say(e.ToolCompleted, tool_id="1", name="t").say(e.ToolStarted, tool_id="3", name="t")
    for tool_id in ("2", "3"):
        recording.say(e.ToolCompleted, tool_id=tool_id, name="t")
    recording.say(e.ToolStarted, tool_id="4", name="t")
    groups = [[tool.tool_id for tool in group] for group in recording.folded().tool_groups]
    assert groups == [["1", "2", "3"], ["4"]]


def test_an_end_closes_what_is_open_as_unknown_and_a_late_outcome_is_still_taken() -> None:
    recording = Recording().say(e.RunStarted, source="cli").say(e.ToolStarted, tool_id="1", name="t")
    recording.say(e.ToolProgress, tool_id="1", text="half").say(e.StatusUpdated, text="busy")
    recording.say(e.ClarifyRequested, clarify_id="c", question="?")
    recording.say(e.RunInterrupted, reason="worker_lost", message="The worker was lost.")
    transcript = recording.folded()
    tool = transcript.tools[0]
    assert (tool.is_open, tool.ok, tool.progress) == (False, None, "half")
    assert transcript.status == ""
    assert transcript.open_pauses == []
    assert transcript.pauses[0].reason == "withdrawn"
    recording.say(e.ToolCompleted, tool_id="1", name="t", ok=False, error="late")
    late = recording.folded().tools[0]
    assert (late.ok, late.error) == (False, "late")
    recording.say(e.ToolCompleted, tool_id="1", name="t", ok=True)
    assert recording.folded().tools[0].ok is False  # the first known outcome stays


def test_close_without_an_end_is_what_a_janitor_knows() -> None:
    recording = Recording().say(e.RunStarted, source="cli").say(e.ToolStarted, tool_id="1", name="t")
    transcript = recording.folded()
    close(transcript, START + timedelta(seconds=9))
    assert transcript.end is None
    assert not transcript.tools[0].is_open
    assert through_json(transcript) == transcript


def test_a_decision_is_not_reopened_and_not_changed() -> None:
    recording = Recording().say(e.RunStarted, source="cli")
    request = {"approval_id": "a", "kind": "k", "command": "rm", "choices": ["once"]}
    recording.say(e.ApprovalRequested, **request)
    recording.say(e.ApprovalResolved, approval_id="a", choice="deny", by="Ann", reason="answered")
    recording.say(e.ApprovalResolved, approval_id="a", choice="once", by="Bob", reason="answered")
    recording.say(e.ApprovalRequested, **request)
    pause = recording.folded().pause("a")
    assert isinstance(pause, Approval)
    assert (pause.choice, pause.by, pause.is_open) == ("deny", "Ann", False)


def test_an_answer_that_is_heard_before_its_question_is_kept() -> None:
    recording = Recording().say(e.RunStarted, source="cli")
    recording.say(e.ApprovalResolved, approval_id="a", choice="once", by="Ann", reason="answered")
    recording.say(e.ClarifyResolved, clarify_id="c", answer="blue", by="Bob", reason="answered")
    assert through_json(recording.folded()) == recording.folded()
    recording.say(e.ApprovalRequested, approval_id="a", kind="k", command="rm", choices=["once"])
    recording.say(e.ClarifyRequested, clarify_id="c", question="which?")
    transcript = recording.folded()
    approval, clarification = transcript.pauses
    assert isinstance(approval, Approval)
    assert isinstance(clarification, Clarification)
    assert (approval.choice, approval.by) == ("once", "Ann")
    assert (clarification.answer, clarification.by) == ("blue", "Bob")
    assert transcript.open_pauses == []
    assert transcript.state is RunState.RUNNING


def test_a_decision_that_comes_after_the_end_replaces_what_the_end_assumed() -> None:
    recording = Recording().say(e.RunStarted, source="cli").say(e.ClarifyRequested, clarify_id="c", question="?")
    recording.say(e.AbortCompleted, by="Ann").say(e.ClarifyResolved, clarify_id="c", answer="yes", reason="answered")
    recording.say(e.ClarifyResolved, clarify_id="c", answer="no", reason="answered")
    (pause,) = recording.folded().pauses
    assert isinstance(pause, Clarification)
    assert (pause.reason, pause.answer) == ("answered", "yes")


def test_a_tool_that_tells_its_arguments_later_is_one_card() -> None:
    recording = Recording().say(e.ToolStarted, tool_id="1", name="t")
    recording.say(e.ToolStarted, tool_id="1", name="t", arguments='{"broken', summary="s")
    recording.say(e.ToolStarted, tool_id="1", name="t")
    (tool,) = recording.folded().tools
    assert (tool.arguments, tool.summary) == ('{"broken', "s")


def test_a_tool_that_is_only_completed_still_shows() -> None:
    (tool,) = Recording().say(e.ToolCompleted, tool_id="1", name="t", ok=True, result="r").folded().tools
    assert (tool.ok, tool.result) == (True, "r")


def test_reasoning_told_whole_stands_once() -> None:
    recording = Recording().say(e.ReasoningAvailable, text="because").say(e.ReasoningAvailable, text="because")
    assert [item.text for item in recording.folded().items if isinstance(item, ReasoningText)] == ["because"]


def test_compressions_are_marks_in_their_place() -> None:
    recording = Recording().say(e.CompressionStarted, before_tokens=100)
    recording.say(e.CompressionCompleted, before_tokens=100, after_tokens=40, changed=True).text("message", "x")
    mark, text = recording.folded().items
    assert isinstance(mark, Compression)
    assert isinstance(text, TextPart)
    assert (mark.after_tokens, mark.changed) == (40, True)


def test_other_runs_and_lower_fences_change_nothing() -> None:
    recording = Recording().say(e.RunStarted, source="cli").text("message", "a")
    transcript = recording.folded()
    before = to_json(transcript)
    stray = recording.events[-1].model_copy(update={"run_id": "f" * 32})
    stale = e.MessageDelta(session_id="s", run_id=RUN, fence=2, data=e.TextPiece(part=0, offset=1, text="zombie"))
    about_session = e.SessionUpdated(session_id="s", data=e.SessionUpdatedData(title="t"))
    for event in (stray, stale, about_session):
        fold(transcript, event)
    assert to_json(transcript) == before


def test_a_piece_that_overlaps_adds_only_what_is_new() -> None:
    transcript = Recording().text("message", "你好").folded()
    piece = e.TextPiece(part=0, offset=1, text="好😀!")
    fold(transcript, e.MessageDelta(session_id="s", run_id=RUN, fence=3, data=piece))
    assert answer_text(transcript) == "你好😀!"


@pytest.mark.parametrize(("part", "offset"), [(0, 3), (1, 1)])
def test_text_beyond_what_is_there_is_a_gap(part: int, offset: int) -> None:
    transcript = Recording().text("message", "ab").folded()
    with pytest.raises(Gap):
        fold(
            transcript,
            e.MessageDelta(session_id="s", run_id=RUN, data=e.TextPiece(part=part, offset=offset, text="x")),
        )
    assert answer_text(transcript) == "ab"


def test_the_end_and_the_rest_of_a_part_are_cut_without_joining_it() -> None:
    recording = Recording()
    for piece in ("ab", "", "cde", "f", "gh"):
        recording.text("message", piece)
    part = recording.folded().answer_parts[0]
    whole = "abcdefgh"
    for length in range(10):
        assert part.tail(length) == whole[max(0, 8 - length) :]
        assert part.since(length) == whole[length:]
    assert len(part.pieces) > 1
    assert part.text == whole


def test_a_newer_version_may_have_written_more() -> None:
    transcript = Recording().text("message", "a").say(e.ToolStarted, tool_id="1", name="t").folded()
    data = to_json(transcript)
    data["colour"] = "blue"
    data["items"].append({"type": "hologram", "x": 1})
    data["items"][1]["weight"] = 3
    assert from_json(data) == transcript


@pytest.mark.parametrize(
    "text", ["", "\u2028\u2029\ufeff", "a\tb\r\n\x1b", "👨‍👩‍👧‍👦🇨🇳", "\ufffd", "‮abc", "\U0010ffff"]
)
def test_any_text_survives(text: str) -> None:
    transcript = Recording().text("message", text).say(e.StatusUpdated, text=text).folded()
    again = through_json(transcript)
    assert answer_text(again) == text
    assert again.status == text


def test_the_last_piece_of_a_long_answer_costs_as_much_as_the_first() -> None:
    recording = Recording()
    for _ in range(40_000):
        recording.text("message", "ten chars.")
    transcript = Transcript(run_id=RUN)
    costs = []
    for at in range(0, 40_000, 1_000):
        began = time.process_time()
        for event in recording.events[at : at + 1_000]:
            fold(transcript, event)
        costs.append(time.process_time() - began)
    assert transcript.answer_parts[0].length == 400_000
    assert min(costs[-10:]) < 2 * min(costs[:10])


def test_every_item_type_is_known_to_json() -> None:
    recording = Recording().text("thinking", "t").say(e.ReasoningAvailable, text="r")
    recording.say(e.ToolStarted, tool_id="1", name="t").say(e.CompressionStarted, before_tokens=1)
    recording.say(e.ApprovalRequested, approval_id="a", kind="k", command="c", choices=[])
    recording.say(e.ClarifyRequested, clarify_id="c", question="q")
    again = through_json(recording.folded())
    kinds = [type(item) for item in again.items]
    assert kinds == [TextPart, ReasoningText, ToolCall, Compression, Approval, Clarification]
    assert again.tool("1") is again.items[2]
    assert again.pause("c") is again.items[5]
    assert again.part(0) is again.items[0]
