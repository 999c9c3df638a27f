"""One client's reading of one session: replay or snapshot, then live; no hole, no doubled event (RELIABILITY 3).

The order of Connect is what it all hangs on: subscribe and have it confirmed, only then read the log, send that, and of
what was published meanwhile send what is newer. An event is in the log before it is published, so after any doubt it is
enough to read the log from the last one sent.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session, sessionmaker

from shared import logs
from shared.errors import Unavailable
from shared.protocol.events import Delta
from shared.relay.connection import RelayDown
from shared.relay.event_log import Cursor, EventLog
from shared.store.session_state import SessionState
from webapp.live import snapshot, states
from webapp.live.hub import Hub
from webapp.live.inbox import Inbox
from webapp.live.live_event import LiveEvent, read_entry
from webapp.live.snapshot import Snapshot

log = logs.get("webapp.live.follower")

POLL_S = 5.0
POLL_FIRST_S = 3.0
"""A Redis that is back so soon costs the client nothing; saved text is up to a second behind what was shown."""
MISFIT_PAUSE_S = 0.25
SNAPSHOT_TRIES = 4


@dataclass(frozen=True)
class Resumed:
    """Everything the client needs to go on: `replay` is None when `view` replaces all it has."""

    view: Snapshot
    replay: tuple[LiveEvent, ...] | None
    cursor: Cursor | None


Item = Resumed | LiveEvent


@dataclass(frozen=True)
class Wanted:
    """Where a client says it stands; it may come from the client as it is. Without `seq`: nowhere. Without `epoch`: in
    the log as it is now, 0 being its beginning (DESIGN 5)."""

    seq: int | None = None
    epoch: str | None = None


START = Wanted(0)


@dataclass(frozen=True)
class Sources:
    """Where a follower reads: the database, the log, the hub."""

    factory: sessionmaker[Session]
    log: EventLog
    hub: Hub


class Follower:
    """Owned by one thread at a time, which calls all but these: `put`, `heal`, `relay_lost` and `replace` are called by
    the hub and the watch, from theirs."""

    def __init__(self, sources: Sources, session_id: str, inbox: "Inbox[Follower]") -> None:
        self.session_id = session_id
        self.position: Cursor | None = None  # the last event sent
        self.state = SessionState()  # what the client has been told; replaced whole, the watch reads it
        self.is_live = False  # False: not opened yet, or polling the database
        self._sources = sources
        self._inbox = inbox
        self._doubtful = False
        self._stale = False
        self._look_at: float | None = None
        self._shown: object = None  # the pulse of the snapshot that was polled last

    # ---- called by other threads

    def put(self, events: Sequence[LiveEvent]) -> None:
        self._inbox.put(self, events)

    def heal(self) -> None:
        self._doubtful = True
        self._inbox.call(self)

    def relay_lost(self) -> None:
        if self._look_at is None:
            self._look_at = time.monotonic() + POLL_FIRST_S
            self._inbox.call(self)

    def replace(self) -> None:
        """Have the client's view replaced by a snapshot."""
        self._stale = True
        self._inbox.call(self)

    # ---- called by the owner

    def open(self, wanted: Wanted) -> list[Item]:
        """Begin: what the client gets first. Raises NotFound, Unavailable."""
        try:
            self._sources.hub.subscribe(self.session_id, self)
        except RelayDown:
            return self._poll()
        return self.reopen(wanted)

    def reopen(self, wanted: Wanted) -> list[Item]:
        """Go on from another place, still subscribed. Raises NotFound, Unavailable."""
        self._doubtful = self._stale = False
        self._look_at = self._shown = None
        try:
            return self._replayed(self._cursor(wanted)) or self._snapshot()
        except RelayDown:
            return self._poll()
        except Unavailable as error:
            self.later(error)
            raise

    def feed(self, events: Iterable[LiveEvent]) -> list[Item]:
        """What the client gets of published events: the next ones in order; the log's where some are missing."""
        if not self.is_live or self._stale or self._doubtful:
            return []  # what comes next reads the log, and these stand in it
        ready: list[Item] = []
        healed = False
        for event in events:
            at = self.position
            if at is not None and at.epoch == event.epoch and event.seq <= at.seq:
                continue
            if not self._follows(event):
                if healed:
                    continue  # the log was read since it was published: it is not of this log
                healed = True
                ready += self._heal()
                if not self.is_live or not self._follows(event):
                    continue
            self._tell(event)
            ready.append(event)
        return ready

    def goes_on_with(self, events: Sequence[LiveEvent]) -> bool:
        """Whether all of them are pieces of text that follow at once upon the last event sent. Anything else is for
        `feed`."""
        at = self.position
        if at is None or not self.is_live or self._stale or self._doubtful:
            return False
        seq = at.seq
        for event in events:
            seq += 1
            if event.seq != seq or event.epoch != at.epoch or not isinstance(event.event, Delta):
                return False
        return True

    def went_on(self, last: LiveEvent) -> None:
        """They have been sent, up to `last`."""
        self.position = Cursor(last.epoch, last.seq)

    def look(self, now: float) -> list[Item]:
        """What is due without a published event: after a lost connection, a doubt, a stale view, or while polling."""
        if self._stale:
            self._stale = self.is_live = False
            return self._heal()
        if self._doubtful:
            self._doubtful = False
            return self._heal()
        if self._look_at is not None and now >= self._look_at:
            self._look_at = None
            return self._heal()
        return []

    def due_at(self) -> float | None:
        """When `look` wants to be called, by time.monotonic(); None: not before something wakes the owner."""
        if self._stale or self._doubtful:
            return 0.0
        return self._look_at

    def misfit(self) -> list[Item]:
        """The client cannot fit an event to its view: a snapshot, after a moment in which what is missing is saved."""
        time.sleep(MISFIT_PAUSE_S)
        self.is_live = False
        return self._heal()

    def later(self, error: Unavailable) -> list[Item]:
        """Nothing can be read or shown now: a snapshot in POLL_S."""
        log.warning("follower.waits", session_id=self.session_id, code=error.code)
        self.is_live = False
        self._look_at = time.monotonic() + POLL_S
        return []

    def close(self) -> None:
        self._sources.hub.unsubscribe(self.session_id, self)

    # ---- reading

    def _follows(self, event: LiveEvent) -> bool:
        at = self.position
        if at is None:
            # There was no log, and this is its first event. In a turn it was lost, perhaps with what was not saved yet.
            return event.seq == 1 and self.state.active is None
        return at.epoch == event.epoch and event.seq == at.seq + 1

    def _cursor(self, wanted: Wanted) -> Cursor | None:
        if wanted.seq is None:
            return None
        if wanted.epoch is not None:
            return Cursor(wanted.epoch, wanted.seq)
        head = self._sources.log.head(self.session_id)
        return None if head is None else Cursor(head.epoch, wanted.seq)

    def _replayed(self, cursor: Cursor | None) -> list[Item] | None:
        entries = None if cursor is None else self._sources.log.read_after(self.session_id, cursor)
        if entries is None or cursor is None:
            return None
        events = tuple(read_entry(self.session_id, entry) for entry in entries)
        view = snapshot.read(self._sources.factory, self.session_id, limit=1)
        self.position = Cursor(cursor.epoch, cursor.seq + len(events))
        self.state = view.state
        self.is_live = True
        return [Resumed(view, events, self.position)]

    def _snapshot(self) -> list[Item]:
        for _ in range(SNAPSHOT_TRIES):
            view = snapshot.take(self._sources.factory, self._sources.log, self.session_id)
            if not view.relay_up:
                raise RelayDown("Redis does not answer.")
            entries = [] if view.cursor is None else self._sources.log.read_after(self.session_id, view.cursor)
            if entries is not None:
                events = [read_entry(self.session_id, entry) for entry in entries]
                if snapshot.fits(view, events):
                    break
            time.sleep(MISFIT_PAUSE_S)  # what the log holds no more is just being saved
        else:
            raise Unavailable("The session cannot be read at the moment.", retry_after_s=1)
        self.position = view.cursor
        self.state = view.state
        self.is_live = True
        self._shown = None
        for event in events:
            self._tell(event)
        return [Resumed(view, None, view.cursor), *events]

    def _heal(self) -> list[Item]:
        """Read what the log has beyond the last event sent; a snapshot where it cannot tell. Raises NotFound."""
        self._look_at = None
        try:
            if not self.is_live:
                self._sources.log.head(self.session_id)  # while Redis is away, nothing else is read in vain
            events = self._missed() if self.is_live else None
            return self._snapshot() if events is None else events
        except RelayDown:
            return self._poll()
        except Unavailable as error:
            return self.later(error)

    def _missed(self) -> list[Item] | None:
        at = self.position
        if at is None:
            return [] if self._sources.log.head(self.session_id) is None else None
        entries = self._sources.log.read_after(self.session_id, at)
        if entries is None:
            return None
        events = [read_entry(self.session_id, entry) for entry in entries]
        for event in events:
            self._tell(event)
        return list(events)

    def _tell(self, event: LiveEvent) -> None:
        self.position = Cursor(event.epoch, event.seq)
        if event.event is not None:
            self.state = states.after(self.state, event.event)

    def _poll(self) -> list[Item]:
        """Redis does not answer: the database's view, when it shows something new, and again in POLL_S."""
        self.is_live = False
        self.position = None
        self._look_at = time.monotonic() + POLL_S
        try:
            pulse = snapshot.pulse(self._sources.factory, self.session_id)
            if pulse == self._shown:
                return []
            view = snapshot.without_relay(snapshot.read(self._sources.factory, self.session_id))
        except Unavailable as error:
            return self.later(error)
        self._shown = pulse
        self.state = view.state
        return [Resumed(view, None, None)]
