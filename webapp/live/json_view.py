"""The JSON side of `/chat-run`: every event by itself, as it stands in the log."""

import json
from typing import Any

from shared.protocol import commands as c
from webapp.live import commands
from webapp.live.follower import Follower, Item, Resumed
from webapp.live.safe_socket import text_frame
from webapp.live.snapshot import resumed_text


class JsonView:
    """Events go out as they come; nothing is kept back."""

    passes_on = True

    def tell(self, follower: Follower, items: list[Item]) -> list[bytes]:
        return [_frame(item) for item in items]

    def resumed(self, command: c.Resume, follower: Follower, items: list[Item]) -> list[bytes]:
        return [_frame(item, command.id) for item in items]

    def due(self, now: float) -> list[bytes]:
        return []

    def due_at(self) -> float | None:
        return None

    def done(self, command: c.AnyCommand, facts: dict[str, Any]) -> list[bytes]:
        return [_text(commands.ack(command.id, facts))]

    def failed(self, command_id: commands.CommandId, fault: Exception) -> list[bytes]:
        return [_text(commands.error(command_id, fault))]

    def pong(self, command_id: commands.CommandId) -> list[bytes]:
        return [_text(commands.pong(command_id))]


def _frame(item: Item, command_id: commands.CommandId = None) -> bytes:
    if not isinstance(item, Resumed):
        return item.frame
    text = resumed_text(item.view, replay=item.replay, cursor=item.cursor)
    if command_id is not None:
        text = f'{text[:-1]},"id":{json.dumps(command_id)}}}'
    return _text(text)


def _text(text: str) -> bytes:
    return text_frame(text.encode("utf-8", "replace"))
