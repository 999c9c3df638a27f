"""What a request says, checked once where it comes in. Raises WireError "bad_request" that names the field."""

from dataclasses import dataclass, replace
from typing import Any, cast

from . import wire
from .hermes import ModelSpec

MAX_NAME_CHARS = 500
MAX_PATTERNS = 1000
MAX_ITERATIONS = 10_000
BLOCK_TYPES = ("text", "image_url")


@dataclass(frozen=True)
class ChatRequest:
    run_id: str
    session_id: str
    message: str | list[dict[str, Any]]
    history: list[dict[str, Any]] | None
    after: str | None
    instructions: str | None
    model: ModelSpec
    max_iterations: int | None
    workspace: str | None
    allowed: tuple[str, ...]
    grant_epoch: int = 0


def chat_request(request: dict[str, Any]) -> ChatRequest:
    return ChatRequest(
        run_id=an_id(request, "run_id"),
        session_id=an_id(request, "session_id"),
        message=_message(request),
        history=_history(request),
        after=_optional_text(request, "after", wire.MAX_ID_CHARS),
        instructions=_optional_text(request, "instructions"),
        model=replace(model_spec(request), is_bare=not _flag(request, "tools", default=True)),
        max_iterations=_optional_count(request, "max_iterations", MAX_ITERATIONS),
        workspace=_workspace(request),
        allowed=_patterns(request),
        grant_epoch=cursor(request, "grant_epoch"),
    )


def an_id(request: dict[str, Any], name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str) or not value or len(value) > wire.MAX_ID_CHARS or not value.isprintable():
        raise _bad(name, f"a printable text of 1 to {wire.MAX_ID_CHARS} characters")
    return value


def text(request: dict[str, Any], name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str):
        raise _bad(name, "a text")
    return wire.storable(value)


def cursor(request: dict[str, Any], name: str) -> int:
    value = request.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _bad(name, "a number from 0")
    return value


def one_of(request: dict[str, Any], name: str, among: tuple[str, ...], default: str | None = None) -> str:
    value = request.get(name, default)
    if not isinstance(value, str) or value not in among:
        raise _bad(name, f"one of {', '.join(among)}")
    return value


def answer(request: dict[str, Any]) -> str | None:
    return None if request.get("answer") is None else text(request, "answer")


def _flag(request: dict[str, Any], name: str, *, default: bool) -> bool:
    value = request.get(name, default)
    if not isinstance(value, bool):
        raise _bad(name, "true or false")
    return value


def model_spec(request: dict[str, Any]) -> ModelSpec:
    model = request.get("model")
    if model is None:
        return ModelSpec()
    if not isinstance(model, dict):
        raise _bad("model", "an object")
    name = _optional_text(model, "name", MAX_NAME_CHARS, "model.name")
    if not name:
        raise _bad("model.name", "a text")
    return ModelSpec(
        name=name,
        provider=_optional_text(model, "provider", MAX_NAME_CHARS, "model.provider") or None,
        base_url=_optional_text(model, "base_url", 4 * MAX_NAME_CHARS, "model.base_url") or None,
        api_key=_optional_text(model, "api_key", 100 * MAX_NAME_CHARS, "model.api_key") or None,
        context_length=_optional_count(model, "context_length", 1 << 40, "model.context_length"),
    )


def _message(request: dict[str, Any]) -> str | list[dict[str, Any]]:
    message = request.get("message")
    if isinstance(message, str):
        return wire.storable(message)
    if isinstance(message, list) and message and all(_is_block(block) for block in message):
        return cast(list[dict[str, Any]], message)
    raise _bad("message", "a text or a list of content blocks")


def _is_block(block: Any) -> bool:
    if not isinstance(block, dict) or block.get("type") not in BLOCK_TYPES:
        return False
    if block["type"] == "text":
        return isinstance(block.get("text"), str)
    return isinstance(block.get("image_url"), dict) and isinstance(block["image_url"].get("url"), str)


def _history(request: dict[str, Any]) -> list[dict[str, Any]] | None:
    if "history" not in request:
        raise _bad("history", "a list of messages or null")
    history = request["history"]
    if history is None:
        return None
    if not isinstance(history, list):
        raise _bad("history", "a list of messages or null")
    messages: list[dict[str, Any]] = []
    for message in history:
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("user", "assistant") or not isinstance(message.get("content"), str):
            raise _bad("history", "messages of a role (user, assistant) and a text")
        messages.append({"role": role, "content": wire.storable(message["content"])})
    return messages


def _patterns(request: dict[str, Any]) -> tuple[str, ...]:
    allowed = request.get("allowed", [])
    if not isinstance(allowed, list) or len(allowed) > MAX_PATTERNS:
        raise _bad("allowed", f"a list of at most {MAX_PATTERNS} texts")
    if not all(isinstance(pattern, str) and pattern for pattern in allowed):
        raise _bad("allowed", f"a list of at most {MAX_PATTERNS} texts")
    return tuple(allowed)


def _workspace(request: dict[str, Any]) -> str | None:
    value = _optional_text(request, "workspace")
    if value is not None and ((not value.startswith("/") and value[1:3] not in (":\\", ":/")) or "\0" in value):
        raise _bad("workspace", "an absolute path")
    return value


def _optional_text(
    owner: dict[str, Any], name: str, max_chars: int = wire.MAX_LINE_BYTES, shown: str | None = None
) -> str | None:
    value = owner.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > max_chars:
        raise _bad(shown or name, f"a text of at most {max_chars} characters or null")
    return wire.storable(value)


def _optional_count(owner: dict[str, Any], name: str, highest: int, shown: str | None = None) -> int | None:
    value = owner.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= highest:
        raise _bad(shown or name, f"a number from 1 to {highest} or null")
    return value


def _bad(name: str, wanted: str) -> wire.WireError:
    return wire.WireError("bad_request", f"{name}: must be {wanted}.")
