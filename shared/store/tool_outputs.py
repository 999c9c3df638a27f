"""The whole outputs of tools, where they are longer than what events and transcripts carry (DESIGN 5)."""

import zlib
from typing import Final

from sqlalchemy.orm import Session

from shared import clock
from shared.models import ToolOutput

MAX_BYTES: Final = 32 << 20


def put(db: Session, *, run_id: str, tool_id: str, name: str, text: str) -> ToolOutput:
    """Keep an output, its first 32 MiB at most; `full_size` is that of the whole. Replaces what was there."""
    whole = text.encode("utf-8", "replace")
    row = db.merge(
        ToolOutput(
            run_id=run_id,
            tool_id=tool_id,
            name=name,
            body=zlib.compress(whole[:MAX_BYTES], 1),
            full_size=len(whole),
            created_at=clock.now(),
        )
    )
    db.flush()
    return row


def get(db: Session, run_id: str, tool_id: str) -> ToolOutput | None:
    return db.get(ToolOutput, (run_id, tool_id))


def text_of(output: ToolOutput) -> str:
    return zlib.decompress(output.body).decode("utf-8", "replace")
