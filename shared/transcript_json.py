"""A transcript as JSON, for the database, snapshots and exports. `from_json(to_json(t)) == t` for every transcript.

What has its default is left out. Unknown fields and items are ignored: a newer version of us may have written them.
"""

from dataclasses import MISSING, fields
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from shared import clock
from shared.protocol.events import Todo, ToolRan, Usage
from shared.run_state import RunState
from shared.transcript_items import (
    AbortStep,
    Approval,
    Clarification,
    Compression,
    EarlyDecision,
    End,
    Item,
    ReasoningText,
    TextPart,
    ToolCall,
    Transcript,
)

VERSION = 1
ITEM_TYPES: dict[str, type[Any]] = {
    "reasoning": ReasoningText,
    "tool": ToolCall,
    "approval": Approval,
    "clarification": Clarification,
    "compression": Compression,
}
NESTED = ("items", "abort", "early", "end")
ITEM_NAMES = {kind: name for name, kind in ITEM_TYPES.items()}


def to_json(transcript: Transcript) -> dict[str, Any]:
    """The transcript as an object that `json.dumps` takes."""
    packed = _pack(transcript, skip=NESTED)
    packed["v"] = VERSION
    packed["items"] = [_pack_item(item) for item in transcript.items]
    if transcript.abort:
        packed["abort"] = [_pack(step) for step in transcript.abort]
    if transcript.early:
        packed["early"] = [_pack(decision) for decision in transcript.early]
    if transcript.end is not None:
        packed["end"] = _pack(transcript.end)
    return packed


def from_json(data: dict[str, Any]) -> Transcript:
    """Read what `to_json` wrote. Raises KeyError, TypeError or ValueError for what it cannot have written."""
    transcript: Transcript = _unpack(Transcript, data, skip=NESTED)
    for packed in data.get("items", ()):
        item = _unpack_item(packed)
        if item is not None:
            transcript.add(item)
    transcript.abort = [_unpack(AbortStep, step) for step in data.get("abort", ())]
    transcript.early = [_unpack(EarlyDecision, decision) for decision in data.get("early", ())]
    if "end" in data:
        transcript.end = _unpack(End, data["end"])
    return transcript


def _pack_item(item: Item) -> dict[str, Any]:
    if isinstance(item, TextPart):
        return {
            "type": "text",
            "part": item.part,
            "kind": item.kind,
            "started_at": clock.iso_ms(item.started_at),
            "ended_at": clock.iso_ms(item.ended_at),
            "text": item.text,
        }
    return {"type": ITEM_NAMES[type(item)], **_pack(item)}


def _unpack_item(packed: dict[str, Any]) -> Item | None:
    if packed["type"] != "text":
        kind = ITEM_TYPES.get(packed["type"])
        return None if kind is None else _unpack(kind, packed)
    text = packed["text"]
    return TextPart(
        part=packed["part"],
        kind=packed["kind"],
        started_at=datetime.fromisoformat(packed["started_at"]),
        ended_at=datetime.fromisoformat(packed["ended_at"]),
        length=len(text),
        pieces=[text] if text else [],
    )


def _pack(source: Any, *, skip: tuple[str, ...] = ()) -> dict[str, Any]:
    packed = {}
    for each in fields(source):
        if each.name.startswith("_") or each.name in skip:
            continue
        value = getattr(source, each.name)
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        if value != default or type(value) is not type(default):
            packed[each.name] = _plain(value)
    return packed


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return clock.iso_ms(value)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value


def _unpack(kind: type[Any], packed: dict[str, Any], *, skip: tuple[str, ...] = ()) -> Any:
    names = {each.name for each in fields(kind) if not each.name.startswith("_")}
    return kind(**{name: _typed(name, packed[name]) for name in names.difference(skip) if name in packed})


def _typed(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name == "at" or name.endswith("_at") or name == "deadline":
        return datetime.fromisoformat(value)
    if name == "state":
        return RunState(value)
    if name == "todos":
        return [Todo(**each) for each in value]
    if name == "usage":
        return Usage(**value)
    if name == "tools_already_run":
        return [ToolRan(**each) for each in value]
    return value
