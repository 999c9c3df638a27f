"""Tells what was committed: a session's log, so that every open page hears it, and the worker of a run."""

import threading
import time

from shared import logs
from shared.protocol.events import Event, to_payload
from shared.relay import mailbox
from shared.relay.connection import AppendUnknown, RelayDown
from shared.relay.mailbox import Note
from webapp.context import WebContext

log = logs.get("webapp.announce")

_holes: set[tuple[str, str]] = set()  # (prefix, session) whose log lacks an event: the next append begins a new epoch
_lock = threading.Lock()


def announce(web: WebContext, session_id: str, *events: Event) -> bool:
    """Append the events, after the commit of what they tell. Never raises: False when Redis did not take them.

    Then pages hear of it by a snapshot: the next append of the session begins a new epoch, and the database is
    compared with what was told (RELIABILITY 3).
    """
    if not events:
        return True
    key = (web.keys.prefix, session_id)
    with _lock:
        has_hole = key in _holes
    begun = time.monotonic()
    try:
        if web.breaker.is_open:
            raise RelayDown("Redis is given a rest.")
        web.log.append(session_id, [to_payload(event) for event in events], new_epoch=has_hole)
    except RelayDown as error:
        web.breaker.failed(begun)
        if not isinstance(error, AppendUnknown):  # of these the log itself remembers
            with _lock:
                _holes.add(key)
        log.warning("event.not_told", session_id=session_id, event_name=type(events[0]).__name__, code=error.code)
        return False
    if has_hole:
        with _lock:
            _holes.discard(key)
    return True


def nudge(web: WebContext, worker_id: str | None, note: Note) -> None:
    """Leave a note for the worker of a run. It looks in the database every few seconds, so a lost note costs only
    time: never raises."""
    if worker_id is None:
        return
    begun = time.monotonic()
    try:
        if web.breaker.is_open:
            raise RelayDown("Redis is given a rest.")
        mailbox.post(web.redis, web.keys, worker_id, note)
    except RelayDown as error:
        web.breaker.failed(begun)
        log.warning("note.not_posted", run_id=note.run_id, kind=note.kind, code=error.code)
