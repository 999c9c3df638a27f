"""New identifiers. Sessions are UUIDs, or `YYYYMMDD_HHMMSS_xxxxxx` for `cli` (DESIGN 3); others are 32 hex digits."""

import secrets
import uuid

from shared import clock


def new_session_id(source: str) -> str:
    """An id for a new chat session; `cli` sessions carry the time in the form that the Hermes CLI uses."""
    if source == "cli":
        return f"{clock.now():%Y%m%d_%H%M%S}_{secrets.token_hex(3)}"
    return str(uuid.uuid4())


def new_id() -> str:
    """An id of 128 random bits, as 32 hex digits: runs, messages, pauses, users, tokens."""
    return secrets.token_hex(16)
