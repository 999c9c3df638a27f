"""JSON from outside, for the API and the sockets: limited in size and depth (S34), and with text that can be stored."""

import json
import re
from typing import Any, NoReturn

from shared import errors
from shared.text import storable

MAX_BYTES = 1 << 20
MAX_DEPTH = 32

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # also one that never ends: the search stays linear
_BRACKET = re.compile(rb"[\[\]{}]")
_UNSTORABLE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])|[\x00\ud800-\udfff]")


def parse(body: bytes | str, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> Any:
    """The value of a JSON text. Raises TooLarge, or InvalidCommand (code `bad_json`) with what is wrong and where."""
    raw = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    if len(raw) > max_bytes:
        raise errors.TooLarge(f"At most {max_bytes // 1024} KB can be sent at once.")
    if _is_deeper_than(max_depth, raw):
        raise _bad(f"it is nested deeper than {max_depth} levels")
    try:
        text = raw.decode("utf-8", "surrogatepass")
        value = json.loads(text, parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise _bad("it is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise _bad(str(error)) from None
    return _clean(value) if _UNSTORABLE.search(text) else value


def parse_object(body: bytes | str, *, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Like `parse`, for what must be an object."""
    value = parse(body, max_bytes=max_bytes)
    if not isinstance(value, dict):
        raise _bad("it must be an object")
    return value


def _is_deeper_than(limit: int, raw: bytes) -> bool:
    depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub(b"", raw)):
        depth += 1 if bracket.group() in b"[{" else -1
        if depth > limit:
            return True
    return False


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {storable(key): _clean(item) for key, item in value.items()}
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _bad(why: str) -> errors.InvalidCommand:
    return errors.InvalidCommand(f"This is not JSON that can be read: {why}.", code="bad_json")
