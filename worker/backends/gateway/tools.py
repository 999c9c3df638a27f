"""What a tool of Hermes took and gave: arguments, outcome and to-do list out of their JSON texts."""

import json
from collections.abc import Mapping
from typing import Any

from shared.protocol.events import Todo

TODO_TOOL = "todo"
MAX_JUDGED_CHARS = 1_000_000
"""Results above it are passed on without a look inside: their outcome lies in no small field we could trust."""
NEEDS_APPROVAL = (
    "Not run: it needs an approval, and this gateway API cannot ask for one. With PORTAL_GATEWAY_API=runs it can."
)


def arguments_of(raw: str | Mapping[str, Any] | None) -> Mapping[str, Any] | str | None:
    """The object; the raw text where it is no JSON object; None where nothing is told."""
    if raw is None or raw == "":
        return None
    if not isinstance(raw, str):
        return raw
    shape = _json(raw)
    return shape if isinstance(shape, dict) else raw


def outcome_of(result: str) -> tuple[bool | None, str | None]:
    """Whether a tool went well, and if not its error. Hermes' tools give JSON with `error`, `exit_code`, `status`;
    what is no JSON object went well as far as anybody can tell."""
    shape = _json(result) if len(result) <= MAX_JUDGED_CHARS else None
    if not isinstance(shape, dict):
        return True, None
    if shape.get("status") == "pending_approval" or shape.get("approval_pending") is True:
        return False, NEEDS_APPROVAL
    error = shape.get("error")
    if isinstance(error, str) and error.strip():
        return False, error
    if shape.get("success") is False:
        return False, None
    code = shape.get("exit_code")
    if isinstance(code, int) and not isinstance(code, bool) and code != 0:
        return False, f"exit code {code}"
    return True, None


def todos_of(result: str) -> tuple[Todo, ...] | None:
    """The list in a result of the todo tool, `{"todos": [{id, content, status}]}`: always the whole list."""
    shape = _json(result)
    items = shape.get("todos") if isinstance(shape, dict) else None
    if not isinstance(items, list):
        return None
    return tuple(
        Todo(
            id=str(item.get("id") or number),
            text=str(item.get("content") or item.get("text") or ""),
            status=str(item.get("status") or "pending"),
        )
        for number, item in enumerate(items, start=1)
        if isinstance(item, dict)
    )


def _json(text: str) -> Any:
    """None for what is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
