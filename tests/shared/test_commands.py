"""The commands: those of DESIGN 5 are read, everything else is refused with the fault named."""

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from shared.protocol.commands import COMMAND, AnyCommand, Run

GOOD: list[dict[str, Any]] = [
    {"event": "run", "session_id": "s", "input": "hello"},
    {"event": "run", "id": "c1", "session_id": "s", "input": "/not a command", "model": "m", "instructions": "i"},
    {"event": "run", "session_id": "s", "input": [{"type": "text", "text": "hi"}], "queue_id": "q", "source": "cli"},
    {"event": "run", "session_id": "s", "input": "x", "skill_folder": "f", "attachments": ["a"], "background": True},
    {"event": "run", "session_id": "s", "input": "x", "max_iterations": 10},
    {"event": "run", "session_id": "s", "input": [{"type": "image_url", "image_url": {"url": "blob"}}]},
    {"event": "resume", "session_id": "s"},
    {"event": "resume", "id": 7, "session_id": "s", "last_seq": 412, "epoch": "k3f9"},
    {"event": "resume", "session_id": "s", "last_seq": 0},
    {"event": "leave", "session_id": "s"},
    {"event": "abort", "session_id": "s"},
    {"event": "abort", "session_id": "s", "run_id": "r"},
    {"event": "cancel_queued_run", "session_id": "s", "queue_id": "q"},
    {"event": "edit_queued_run", "session_id": "s", "queue_id": "q", "input": "new"},
    {"event": "move_queued_run", "session_id": "s", "queue_id": "q", "position": 1},
    {"event": "continue_queue", "session_id": "s"},
    *(
        {"event": "approval.respond", "session_id": "s", "approval_id": "a", "choice": choice, "reason": "r"}
        for choice in ("once", "session", "always", "deny")
    ),
    {"event": "clarify.respond", "session_id": "s", "clarify_id": "c", "answer": "yes"},
    {"event": "ping", "id": "p"},
]

BAD: list[Any] = [
    None,
    [],
    "run",
    {},
    {"event": "explode"},
    {"event": 3},
    {"event": "run"},
    {"event": "run", "session_id": "s"},
    {"event": "run", "session_id": "", "input": "x"},
    {"event": "run", "session_id": "s" * 201, "input": "x"},
    {"event": "run", "session_id": 7, "input": "x"},
    {"event": "run", "session_id": "s", "input": 3},
    {"event": "run", "session_id": "s", "input": [{"type": "video", "text": "x"}]},
    {"event": "run", "session_id": "s", "input": "x", "modle": "m"},
    {"event": "run", "session_id": "s", "input": "x", "max_iterations": 0},
    {"event": "run", "session_id": "s", "input": "x", "id": {"a": 1}},
    {"event": "run", "session_id": "s", "input": "x", "queue_id": ""},
    {"event": "resume", "session_id": "s", "last_seq": -1},
    {"event": "resume", "session_id": "s", "last_seq": 2**53 + 1},
    {"event": "resume", "session_id": "s", "last_seq": "many"},
    {"event": "resume", "session_id": "s", "epoch": "e" * 41},
    {"event": "move_queued_run", "session_id": "s", "queue_id": "q", "position": 0},
    {"event": "approval.respond", "session_id": "s", "approval_id": "a", "choice": "maybe"},
    {"event": "approval.respond", "session_id": "s", "approval_id": "a"},
    {"event": "clarify.respond", "session_id": "s", "clarify_id": "c", "answer": ""},
    {"event": "ping", "HEADERS": {}},
]


@pytest.mark.parametrize("command", GOOD)
def test_a_command_of_the_design_is_read(command: dict[str, Any]) -> None:
    read = COMMAND.validate_python(command)
    assert read.event == command["event"]
    assert read.id == command.get("id")
    assert read.model_dump(exclude_unset=True) == command


def test_every_command_is_tried() -> None:
    names = {kind.model_fields["event"].default for kind in get_args(get_args(AnyCommand)[0])}
    assert names == {command["event"] for command in GOOD}


@pytest.mark.parametrize("command", BAD)
def test_anything_else_is_refused(command: Any) -> None:
    with pytest.raises(ValidationError):
        COMMAND.validate_python(command)


def test_what_is_typed_is_kept_as_it_is() -> None:
    text = "  /help \u202e \r\n\ttab\n"
    read = COMMAND.validate_python({"event": "run", "session_id": "s", "input": text})
    assert isinstance(read, Run)
    assert read.input == text
