"""What no event tells, looked at for all connections of the process at once: one thread, a few batched reads.

- every GUARD_S: whose sign-in or token has ended, whose rights have changed: their connections close (S8);
- every HEADS_S: sessions whose log has gone further than what was published to us (RELIABILITY 3, Lost publishes);
- every STATES_S: sessions of which the database holds what no event has told. A commit is told a moment later, so a
  difference counts only when a second look finds the database unchanged and the difference still there.
"""

import threading
import time

from sqlalchemy.orm import Session, sessionmaker

from shared import clock, logs
from shared.database import transaction
from shared.errors import PlatformError
from shared.relay.event_log import Cursor, EventLog
from shared.store.session_state import SessionState, states_of
from webapp.live import states
from webapp.live.connections import GOING_AWAY, POLICY, Connections
from webapp.live.follower import Follower
from webapp.live.hub import Hub
from webapp.live.standing import note_use, standings

log = logs.get("webapp.live.watch")

GUARD_S = 2.0
HEADS_S = 3.0  # with the time of one look, and of the second, surely below 5 s
SECOND_HEAD_S = 0.5
STATES_S = 30.0
SECOND_LOOK_S = 3.0


class Watch:
    """Starts with the first connection, ends with `close`."""

    def __init__(self, factory: sessionmaker[Session], log: EventLog, hub: Hub, connections: Connections) -> None:
        self._factory = factory
        self._log = log
        self._hub = hub
        self._connections = connections
        self._closing = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._suspects: dict[str, SessionState] = {}
        self._checked_at = clock.now().timestamp()

    def start(self) -> None:
        """Harmless when it runs already."""
        with self._starting:
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._run, name="live-watch", daemon=True)
                self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join(5)

    def _run(self) -> None:
        now = time.monotonic()
        guard_at, heads_at, states_at, second_at = now + GUARD_S, now + HEADS_S, now + STATES_S, float("inf")
        while not self._closing.wait(max(0.0, min(guard_at, heads_at, states_at, second_at) - time.monotonic())):
            now = time.monotonic()
            try:
                if now >= guard_at:
                    guard_at = now + GUARD_S
                    self.check_standing()
                if now >= heads_at:
                    heads_at = now + HEADS_S
                    self.compare_heads()
                if now >= states_at:
                    states_at = now + STATES_S
                    self.note_use()
                    second_at = now + SECOND_LOOK_S if self.compare_states() else float("inf")
                if now >= second_at:
                    second_at = float("inf")
                    self.compare_suspects()
            except PlatformError as error:
                log.warning("watch.waits", code=error.code)
            except Exception:
                log.exception("watch.failed")

    def check_standing(self) -> None:
        """End the connections of people and programs that may not be here any more."""
        connections = self._connections.all()
        if not connections:
            return
        now = clock.now().timestamp()
        with transaction(self._factory, write=False) as db:
            found = standings(db, {connection.principal for connection in connections}, since=self._checked_at)
        self._checked_at = now
        for connection in connections:
            standing = found.get(connection.principal, "gone")
            if standing != "good":
                log.info("connection.ended", user_id=connection.principal.user_id, standing=standing)
                connection.end(POLICY if standing == "gone" else GOING_AWAY)

    def note_use(self) -> None:
        """Write down which sign-ins were used by commands."""
        used = [connection for connection in self._connections.all() if connection.is_used]
        for connection in used:
            connection.is_used = False
        if used:
            with transaction(self._factory) as db:
                note_use(db, {connection.principal for connection in used})

    def compare_heads(self) -> None:
        """Have followers read the log where it holds more than they have been given. What was appended a moment ago may
        be on its way, so a second look decides: a follower of a log that has just begun would need a whole snapshot."""
        topics = {topic.session_id: topic for topic in self._hub.topics()}
        if not topics:
            return
        late: list[tuple[Follower, Cursor]] = []
        for session_id, head in self._log.heads(list(topics)).items():
            topic = topics[session_id]
            if head is None or topic.heard == (head.epoch, head.seq):
                continue
            late += [(sink, head) for sink in topic.sinks if isinstance(sink, Follower) and _is_behind(sink, head)]
        if not late or self._closing.wait(SECOND_HEAD_S):
            return
        for follower, head in late:
            if _is_behind(follower, head):
                follower.heal()

    def compare_states(self) -> bool:
        """Remember the sessions whose followers were told something else than the database holds; true when any."""
        followers = self._followers()
        with transaction(self._factory, write=False) as db:
            stored = states_of(db, followers)
        self._suspects = {
            session_id: stored[session_id]
            for session_id, here in followers.items()
            if session_id in stored and any(states.differ(follower.state, stored[session_id]) for follower in here)
        }
        return bool(self._suspects)

    def compare_suspects(self) -> None:
        """The second look: a snapshot for the followers that still were not told what has not changed since."""
        suspects, self._suspects = self._suspects, {}
        followers = self._followers()
        with transaction(self._factory, write=False) as db:
            stored = states_of(db, suspects)
        for session_id, state in stored.items():
            if state != suspects[session_id]:
                continue
            for follower in followers.get(session_id, ()):
                if states.differ(follower.state, state):
                    log.warning("watch.untold_change", session_id=session_id)
                    follower.replace()

    def _followers(self) -> dict[str, list[Follower]]:
        """Live ones by session; those that poll the database see it anyway."""
        return {
            topic.session_id: [sink for sink in topic.sinks if isinstance(sink, Follower) and sink.is_live]
            for topic in self._hub.topics()
        }


def _is_behind(follower: Follower, head: Cursor) -> bool:
    at = follower.position
    return follower.is_live and (at is None or at.epoch != head.epoch or at.seq < head.seq)
