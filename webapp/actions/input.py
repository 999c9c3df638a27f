"""What a turn says, as it comes in: a string or content blocks, checked and made fit to store (F55)."""

from dataclasses import dataclass
from typing import Any

from shared import errors
from shared.protocol.commands import ContentBlock, ImageBlock, Input
from shared.text import storable

MAX_BLOCKS = 50
IMAGE_PREFIXES = (
    "data:image/png;base64,",
    "data:image/jpeg;base64,",
    "data:image/gif;base64,",
    "data:image/webp;base64,",
)


@dataclass(frozen=True)
class TurnInput:
    """`text` is what is shown and searched; `blocks` what the backend gets instead, where there is more than text."""

    text: str
    blocks: list[Any] | None = None


def checked(given: Input, *, max_kb: int) -> TurnInput:
    """The input, or InvalidCommand (code `empty_message`), or TooLarge above `max_kb`."""
    if isinstance(given, str):
        text, blocks = storable(given), None
    else:
        if len(given) > MAX_BLOCKS:
            raise errors.InvalidCommand(f"A message may have {MAX_BLOCKS} parts at most.")
        blocks = [_block(block) for block in given]
        text = "\n\n".join(block["text"] for block in blocks if block["type"] == "text")
    if not text.strip() and not any(block["type"] != "text" for block in blocks or ()):
        raise errors.InvalidCommand("There is nothing to send: the message is empty.", code="empty_message")
    size = len(text.encode("utf-8"))
    if size > max_kb * 1024:
        raise errors.TooLarge(
            f"A message may have {max_kb} KB at most; this one has {size // 1024} KB. Send it as a file instead."
        )
    if blocks is not None and all(block["type"] == "text" for block in blocks):
        blocks = None
    return TurnInput(text, blocks)


def _block(block: ContentBlock) -> dict[str, Any]:
    if not isinstance(block, ImageBlock):
        return {"type": "text", "text": storable(block.text)}
    address = block.image_url.get("url") if isinstance(block.image_url, dict) else block.image_url
    if not isinstance(address, str) or not address.startswith(IMAGE_PREFIXES):
        raise errors.InvalidCommand("An image comes as data (data:image/png;base64,...): nothing is fetched.")
    return {"type": "image_url", "image_url": {"url": address}}
