"""The events: every one goes to JSON and back unchanged, says what DESIGN 5 says, and unknown things do no harm."""

import json
from datetime import UTC, datetime
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from shared.protocol import events as e

AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
USAGE = {"input_tokens": 10, "output_tokens": 2, "context_used": 10}
EXAMPLES: dict[str, dict[str, Any]] = {
    "run.queued": {
        "queue_id": "q",
        "position": 1,
        "queue_length": 2,
        "held": False,
        "message_id": "m",
        "input": "hi",
        "by": "Ann",
    },
    "queue.updated": {
        "queue": [{"queue_id": "q", "run_id": "r", "position": 1, "input": "hi", "by": "Ann"}],
        "held": "failed",
    },
    "run.dequeued": {"queue_id": "q", "reason": "started"},
    "run.started": {"source": "cli", "profile": "p", "model": "m", "skill_folder": "s", "worker": "w"},
    "message.delta": {"part": 2, "offset": 118, "text": '你好 \u2028 "q"'},
    "reasoning.delta": {"part": 0, "offset": 0, "text": ""},
    "thinking.delta": {"part": 1, "offset": 3, "text": "hm"},
    "reasoning.available": {"text": "because"},
    "status.updated": {"text": "reading"},
    "tool.started": {"tool_id": "t", "name": "read", "arguments": {"path": "x", "n": None}, "summary": "x"},
    "tool.progress": {"tool_id": "t", "text": "half"},
    "tool.completed": {"tool_id": "t", "name": "read", "ok": False, "truncated": True, "full_size": 99, "error": "no"},
    "todo.updated": {"todos": [{"id": "1", "text": "do", "status": "pending"}]},
    "approval.requested": {
        "approval_id": "a",
        "kind": "shell",
        "command": "rm -r x",
        "description": "",
        "choices": ["once", "deny"],
        "deadline": "2026-01-02T03:05:05.678Z",
        "may_answer": ["u1"],
    },
    "approval.resolved": {"approval_id": "a", "choice": "once", "by": "Ann", "reason": "answered"},
    "clarify.requested": {"clarify_id": "c", "question": "which?", "choices": ["a", "b"]},
    "clarify.resolved": {"clarify_id": "c", "reason": "expired"},
    "compression.started": {"before_tokens": 100},
    "compression.completed": {"before_tokens": 100, "after_tokens": 120, "summary_tokens": 7, "changed": False},
    "usage.updated": {**USAGE, "cached_tokens": 0, "reasoning_tokens": 0},
    "abort.started": {"by": "Ann", "stage": "requested"},
    "abort.completed": {"stage": "killed", "duration_ms": 30_000},
    "run.completed": {"message_id": "m", "finish_reason": "stop", "duration_ms": 12, "abort": "already_finished"},
    "run.failed": {
        "code": "backend_error",
        "message": "It said no.",
        "retryable": True,
        "retry_after_s": 3,
        "detail_id": "d",
    },
    "run.cancelled": {"queue_id": "q", "by": "Ann"},
    "run.interrupted": {
        "reason": "worker_lost",
        "message": "",
        "tools_already_run": [{"tool_id": "t", "name": "read", "summary": "", "finished": False}],
    },
    "session.updated": {"title": "New", "archived": False},
}


def kinds() -> dict[str, type[e.Event]]:
    union = get_args(e.AnyEvent)[0]
    return {kind.model_fields["event"].default: kind for kind in get_args(union)}


def test_every_event_of_the_design_is_here_and_has_an_example() -> None:
    assert set(kinds()) == set(EXAMPLES)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_event_goes_to_json_and_back_unchanged(name: str) -> None:
    envelope = {"event": name, "session_id": "s", "run_id": "r", "fence": 3, "at": "2026-01-02T03:04:05.678Z"}
    event = e.EVENT.validate_python({**envelope, "data": EXAMPLES[name]})
    payload = e.to_payload(event)
    assert json.loads(payload) == {**envelope, "data": EXAMPLES[name]}
    assert e.EVENT.validate_json(payload) == event
    assert "\n" not in payload


def test_absent_means_absent_on_the_wire() -> None:
    event = e.StatusUpdated(session_id="s", at=AT, data=e.StatusUpdatedData(text="x"))
    assert set(json.loads(e.to_payload(event))) == {"event", "session_id", "at", "data"}


@pytest.mark.parametrize("ok", [True, False, None])
def test_the_outcome_of_a_tool_is_the_same_after_the_wire(ok: bool | None) -> None:
    data = e.ToolCompletedData(tool_id="t", name="n", ok=ok)
    event = e.ToolCompleted(session_id="s", run_id="r", at=AT, data=data)
    again = e.EVENT.validate_json(e.to_payload(event))
    assert isinstance(again, e.ToolCompleted)
    assert again.data.ok is ok


def test_no_field_reads_an_absent_value_as_another_one() -> None:
    """Absent fields are not sent, so what may be None has to be None by default."""
    for kind in kinds().values():
        data = kind.model_fields["data"].annotation
        assert data is not None
        for name, field in data.model_fields.items():
            if type(None) in get_args(field.annotation):
                assert field.default is None, (kind, name)


def test_times_are_milliseconds_of_utc() -> None:
    event = e.StatusUpdated(session_id="s", at=AT.replace(microsecond=678_999), data=e.StatusUpdatedData(text="x"))
    assert json.loads(e.to_payload(event))["at"] == "2026-01-02T03:04:05.678Z"


def test_a_newer_version_may_send_more() -> None:
    raw = {"event": "status.updated", "session_id": "s", "at": AT, "colour": 1, "data": {"text": "x", "mood": "good"}}
    assert e.EVENT.validate_python(raw).data == e.StatusUpdatedData(text="x")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b'{"event": "run.exploded", "session_id": "s", "data": {}}',
        b'{"event": "status.updated", "data": {"text": "x"}}',
        b'{"event": "status.updated", "session_id": "s", "data": {"text": 3}}',
        b'{"event": "status.updated", "session_id": "s"}',
        b'{"event": "message.delta", "session_id": "s", "data": {"part": -1, "offset": 0, "text": ""}}',
        b'{"event": "message.delta", "session_id": "s", "data": {"part": 0, "offset": -1, "text": ""}}',
        b'{"event": "run.dequeued", "session_id": "s", "data": {"queue_id": "q", "reason": "eaten"}}',
        b'{"event": "status.updated", "session_id": "s", "data": {"text": "\xff"}}',
        b"[" * 100_000,
    ],
)
def test_what_is_not_one_of_ours_is_refused(raw: bytes) -> None:
    with pytest.raises(ValidationError):
        e.EVENT.validate_json(raw)


def test_every_end_of_a_run_is_one_of_the_five() -> None:
    ends = {kind.model_fields["event"].default for kind in get_args(e.RunEnd)}
    assert ends == {"run.completed", "run.failed", "run.cancelled", "run.interrupted", "abort.completed"}
