"""`GET /api/chat/runs/<id>/stream`: the events of one run as server-sent events (DESIGN 6).

`id:` is `<seq>-<epoch>`, so ids rise, with holes where other runs' events stand. A run that has ended plays from its
`run_log`; else the session's log is followed. Where replay is impossible `resumed` comes first. The stream ends after
the run's final event.
"""

import json
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flask import Blueprint, Flask, Response, request

from shared import errors, logs
from shared.database import transaction
from shared.models import Run
from shared.protocol.events import RunEnd
from shared.relay.connection import RelayDown
from shared.relay.event_log import Cursor
from shared.run_state import FINAL
from shared.store import run_logs
from shared.store import runs as run_store
from webapp import rights
from webapp.auth import current
from webapp.context import web
from webapp.live.connections import Connection
from webapp.live.follower import Follower, Item, Resumed, Sources, Wanted
from webapp.live.inbox import Inbox
from webapp.live.live import live
from webapp.live.live_event import LiveEvent
from webapp.live.run_place import place_of
from webapp.live.snapshot import resumed_text, take

log = logs.get("webapp.live.sse")

HEARTBEAT_S = 15.0
HEARTBEAT = b": working\n\n"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_END_NAMES = frozenset({"run.completed", "run.failed", "run.cancelled", "run.interrupted", "abort.completed"})
_MAX_SEQ = 2**53


def register(app: Flask) -> None:
    """Add the stream to the app; `webapp.live.socket.register` comes first."""
    door = Blueprint("stream", __name__)
    door.get("/api/chat/runs/<run_id>/stream")(stream)
    app.register_blueprint(door)


def stream(run_id: str) -> Response:
    """The route. Raises NotFound, Unavailable."""
    principal = current()
    with transaction(web().factory, write=False) as db:
        run = run_store.get(db, run_id)
        rights.require(db, principal, "read", run.session_id)
        kept = run_logs.get(db, run_id) if run.state in FINAL else None
    wanted = wanted_of(request.headers.get("Last-Event-ID") or request.args.get("lastEventId"))
    here = live()
    if kept is not None:
        body: Iterable[bytes] = _played(here.sources, run, run_logs.lines(kept), wanted)
        return Response(body, mimetype="text/event-stream", headers=HEADERS)
    connection = here.connections.admit(principal, is_socket=False)
    here.watch.start()
    response = Response(
        RunStream(here.sources, connection, run, wanted).pieces(), mimetype="text/event-stream", headers=HEADERS
    )
    response.call_on_close(lambda: here.connections.release(connection))
    return response


def wanted_of(text: str | None) -> Wanted:
    """Where a client says it stands: `<seq>-<epoch>`, or a bare number of the current epoch; else nowhere."""
    cursor = Cursor.parse(text or "")
    if cursor is not None:
        return Wanted(cursor.seq, cursor.epoch)
    if text and text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= _MAX_SEQ:
        return Wanted(int(text))
    return Wanted()


# ---- a run that has ended


@dataclass(frozen=True)
class _Line:
    text: str
    event: str
    first: int
    seq: int
    epoch: str


def _played(sources: Sources, run: Run, texts: Iterable[str], wanted: Wanted) -> Iterator[bytes]:
    """The kept events after the client's cursor. Neighbouring deltas were joined: a cursor in the midst of such a
    piece fits to nothing, and a snapshot comes instead."""
    lines = [_line(text) for text in texts]
    rest = _after(lines, wanted)
    if rest is None:
        view = take(sources.factory, sources.log, run.session_id)
        yield _piece("resumed", resumed_text(view), view.cursor)
        rest = [line for line in lines if line.event in _END_NAMES]
    told: Cursor | None = None
    for line in rest:
        at = Cursor(line.epoch, line.seq)
        yield _piece(line.event, line.text, None if at == told else at)  # what no log held has no place of its own
        told = at


def _line(text: str) -> _Line:
    fields = json.loads(text)
    return _Line(text, fields["event"], fields.get("first_seq", fields["seq"]), fields["seq"], fields["epoch"])


def _after(lines: list[_Line], wanted: Wanted) -> list[_Line] | None:
    """None where the cursor is of another epoch or in the midst of a joined piece."""
    if wanted.seq is None or not lines:
        return lines
    epoch = wanted.epoch or lines[-1].epoch
    if all(line.epoch != epoch for line in lines):
        return None
    known = [n for n, line in enumerate(lines) if line.epoch == epoch and line.first <= wanted.seq]
    if not known:
        return lines[next(n for n, line in enumerate(lines) if line.epoch == epoch) :]
    last = lines[known[-1]]
    return lines[known[-1] + 1 :] if last.seq <= wanted.seq else None


# ---- a run that goes on


class RunStream:
    """Follows the session's log and passes on what is of the run. Made in the request, read outside of it."""

    def __init__(self, sources: Sources, connection: Connection, run: Run, wanted: Wanted) -> None:
        self._sources = sources
        self._connection = connection
        self._run = run
        self._wanted = wanted
        self._woken = threading.Event()
        self._inbox: Inbox[Follower] = Inbox(self._woken.set)
        self._ended = False
        connection.wake = self._woken.set

    def pieces(self) -> Iterator[bytes]:
        """The body, piece by piece; ends after the run's final event, or when the client shall come back."""
        follower = Follower(self._sources, self._run.session_id, self._inbox)
        try:
            yield HEARTBEAT  # headers and a first sign, at once
            yield from self._told(follower.open(self._from(self._wanted)))
            yield from self._follow(follower)
        except errors.PlatformError as error:
            log.info("stream.ended", run_id=self._run.id, code=error.code)
        finally:
            follower.close()

    def _follow(self, follower: Follower) -> Iterator[bytes]:
        beat_at = time.monotonic() + HEARTBEAT_S
        while not self._ended and self._connection.ending is None and not self._inbox.overflowed:
            due_at = follower.due_at()
            self._woken.wait(max(0.0, min(beat_at, beat_at if due_at is None else due_at) - time.monotonic()))
            self._woken.clear()
            self._inbox.called()
            for _, events in self._inbox.take():
                yield from self._told(follower.feed(events))
            now = time.monotonic()
            yield from self._told(follower.look(now))
            if now >= beat_at:
                beat_at = now + HEARTBEAT_S
                yield HEARTBEAT
                yield from self._told(self._untold_end(follower))

    def _told(self, items: list[Item]) -> Iterator[bytes]:
        events: list[LiveEvent] = []
        for item in items:
            if isinstance(item, LiveEvent):
                events.append(item)
            elif item.replay is not None:
                events += item.replay
            else:
                yield _piece("resumed", resumed_text(item.view), item.cursor)
        for live_event in events:
            event = live_event.event
            if event is None or event.run_id != self._run.id or self._ended:
                continue
            yield _piece(event.event, live_event.text, Cursor(live_event.epoch, live_event.seq))
            self._ended = isinstance(event, RunEnd)

    def _untold_end(self, follower: Follower) -> list[Item]:
        """A run that has ended while no event told it: a snapshot, and the end of the stream."""
        with transaction(self._sources.factory, write=False) as db:
            if run_store.get(db, self._run.id).state not in FINAL:
                return []
        if self._run.state not in FINAL:  # its event may be on its way: the next time counts
            self._run = _refreshed(self._sources, self._run)
            return []
        self._ended = True
        view = take(self._sources.factory, self._sources.log, self._run.session_id)
        return [Resumed(view, None, view.cursor)]

    def _from(self, wanted: Wanted) -> Wanted:
        """Without a cursor: from the run's first event."""
        if wanted.seq is not None:
            return wanted
        events = self._sources.log
        try:
            head = events.head(self._run.session_id)
            place = None if head is None else place_of(events, self._run, head, is_near=False)
        except RelayDown:
            return Wanted()
        if head is None or place is None or not place.is_sure:
            return Wanted()
        first = place.before or head
        return Wanted(first.seq, first.epoch)


def _refreshed(sources: Sources, run: Run) -> Run:
    with transaction(sources.factory, write=False) as db:
        return run_store.get(db, run.id)


def _piece(name: str, data: str, at: Cursor | None) -> bytes:
    place = "" if at is None else f"id: {at}\n"
    return f"{place}event: {name}\ndata: {data}\n\n".encode("utf-8", "replace")
