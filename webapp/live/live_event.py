"""An event of the log as the web process holds it: checked once, its bytes made once, then given to every client."""

import json
from dataclasses import dataclass

from pydantic import ValidationError

from shared import clock, logs
from shared.protocol.events import EVENT, AnyEvent
from shared.relay.event_log import Entry
from shared.relay.event_log import frame as with_cursor
from webapp.live.safe_socket import text_frame

log = logs.get("webapp.live")


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """`event` is None where the entry is not one of ours: then only its place counts, and `text` says no more."""

    epoch: str
    seq: int
    event: AnyEvent | None
    text: str  # JSON, with seq and epoch
    frame: bytes  # `text` as a WebSocket frame

    @property
    def run_id(self) -> str | None:
        return None if self.event is None else self.event.run_id


def read_entry(session_id: str, entry: Entry) -> LiveEvent:
    """Check an entry of the log against the schema (S48).

    One that is not ours, or names another session, keeps its `seq` and loses its content: no hole appears to a client
    and nothing of it is passed on (F53).
    """
    event: AnyEvent | None
    try:
        event = EVENT.validate_json(entry.payload)
    except ValidationError as error:
        log.warning("live.unknown_event", session_id=session_id, seq=entry.seq, faults=error.error_count())
        event = None
    if event is not None and event.session_id != session_id:
        log.warning("live.foreign_event", session_id=session_id, seq=entry.seq)
        event = None
    text = _placeholder(session_id, entry) if event is None else with_cursor(entry)
    return LiveEvent(entry.epoch, entry.seq, event, text, text_frame(text.encode("utf-8", "replace")))


def _placeholder(session_id: str, entry: Entry) -> str:
    return json.dumps(
        {
            "event": "unknown",
            "session_id": session_id,
            "seq": entry.seq,
            "epoch": entry.epoch,
            "at": clock.iso_ms(clock.now()),
            "data": {},
        }
    )
