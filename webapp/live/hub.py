"""The one Redis pub/sub connection of a web process, and who listens to which session (RELIABILITY 3, STACK D4).

The connection is a socket that redis-py opened (address, TLS, password, handshake) and that this module reads itself:
redis-py's PubSub reconnects silently, but here a reconnect must be told to every follower, so that it reads what it
missed; and what one read brings is handed on at once, which saves a wake-up per event.
"""

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import hiredis
import redis

from shared import logs
from shared.relay import connection
from shared.relay.connection import Client, RelayDown
from shared.relay.event_log import parse_message
from shared.relay.keys import Keys
from shared.settings import Settings
from webapp.live.live_event import LiveEvent, read_entry

log = logs.get("webapp.live.hub")

CONFIRM_S = 5.0
CONFIRM_LOOK_S = 0.1
FAILURES_ENOUGH = 3
"""A subscription that meets so many failed connections waits no longer."""
READ_TIMEOUT_S = 5.0
PING_AFTER_S = 10.0
SILENCE_S = 20.0
"""A connection that answers no ping for so long is made anew."""
RETRY_FIRST_S = 0.05
RETRY_MOST_S = 2.0
RECEIVE_BYTES = 1 << 18
SUBSCRIBE_BATCH = 500
_SUBSCRIBED = (b"subscribe", "subscribe")
_MESSAGE = (b"message", "message")


class Sink(Protocol):
    """Who listens. Called from the hub's threads: no method may wait for anything."""

    def put(self, events: Sequence[LiveEvent]) -> None:
        """Events just published, in order; some may be missing before them, or known already."""

    def heal(self) -> None:
        """Something may have been missed: compare with the log."""

    def relay_lost(self) -> None:
        """Nothing is heard until `heal` is called."""


class Topic:
    """One session that somebody here listens to."""

    __slots__ = ("confirmed", "heard", "session_id", "sinks", "was_confirmed")

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.sinks: tuple[Sink, ...] = ()  # replaced, never changed: read without the lock
        self.confirmed = threading.Event()
        self.was_confirmed = False
        self.heard: tuple[str, int] | None = None  # (epoch, seq) of the last event handed on


class Hub:
    """`subscribe` and `unsubscribe` may be called from any thread. The listener starts with the first subscription
    (so that a fork before it is harmless) and ends with `close`."""

    def __init__(self, settings: Settings, *, client: Client | None = None, keys: Keys | None = None) -> None:
        self._client = client
        self._settings = settings
        self._keys = keys or Keys(settings.redis_prefix)
        self._lock = threading.Lock()
        self._topics: dict[bytes, Topic] = {}
        self._unconfirmed: dict[bytes, deque[Topic]] = {}  # in the order of the SUBSCRIBEs sent on this connection
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._failures = 0
        self.connections = 0  # made so far

    # ---- who listens

    def subscribe(self, session_id: str, sink: Sink, *, timeout_s: float = CONFIRM_S) -> None:
        """Have `sink` hear the session; returns when Redis has confirmed that nothing can be missed from here on.

        Raises RelayDown when Redis does not confirm in time; the sink stays subscribed and its `heal` is called as
        soon as it does."""
        channel = self._channel(session_id)
        with self._lock:
            self._start()
            topic = self._topics.get(channel)
            if topic is None:
                topic = self._topics[channel] = Topic(session_id)
                self._ask(topic, channel)
            topic.sinks = (*topic.sinks, sink)
            failures = self._failures
        deadline = time.monotonic() + timeout_s
        while not topic.confirmed.wait(CONFIRM_LOOK_S):
            if time.monotonic() > deadline or self._failures - failures >= FAILURES_ENOUGH:
                topic.was_confirmed = True  # the sink has been promised a heal()
                raise RelayDown("Redis does not confirm a subscription.")

    def unsubscribe(self, session_id: str, sink: Sink) -> None:
        """The sink hears nothing more, but for a call that is under way. Harmless when it was not subscribed."""
        channel = self._channel(session_id)
        with self._lock:
            topic = self._topics.get(channel)
            if topic is None:
                return
            topic.sinks = tuple(s for s in topic.sinks if s is not sink)
            if not topic.sinks:
                del self._topics[channel]
                self._write(_packed(b"UNSUBSCRIBE", channel))

    def topics(self) -> list[Topic]:
        """What is listened to at this moment."""
        with self._lock:
            return list(self._topics.values())

    @property
    def connected(self) -> bool:
        return self._socket is not None

    def close(self) -> None:
        """End the listener."""
        self._closing.set()
        self._drop_connection()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(5)

    # ---- the connection

    def _start(self) -> None:
        if self._thread is None and not self._closing.is_set():
            self._thread = threading.Thread(target=self._listen, name="live-hub", daemon=True)
            self._thread.start()

    def _listen(self) -> None:
        delay_s = RETRY_FIRST_S
        while not self._closing.is_set():
            made = self.connections
            try:
                self._serve_one_connection()
            except (redis.RedisError, OSError, RelayDown, hiredis.HiredisError) as error:
                self._failures += 1
                if not self._closing.is_set():
                    log.warning("hub.lost", error=type(error).__name__)
            except Exception:
                log.exception("hub.failed")
            self._drop_connection()
            self._tell_lost()
            delay_s = RETRY_FIRST_S if self.connections > made else min(delay_s * 2, RETRY_MOST_S)
            self._closing.wait(delay_s)

    def _serve_one_connection(self) -> None:
        if self._client is None:
            self._client = connection.connect(self._settings)
        opened: Any = self._client.connection_pool.make_connection()
        try:
            opened.connect()
            sock: socket.socket = opened._sock  # redis-py offers no public way to read a connection by oneself
            sock.settimeout(READ_TIMEOUT_S)
            with self._lock:
                self._socket = sock
                self._unconfirmed.clear()
                self.connections += 1
                self._ask_all()
            log.info("hub.connected", sessions=len(self._topics))
            self._read(sock)
        finally:
            opened.disconnect()

    def _read(self, sock: socket.socket) -> None:
        reader = hiredis.Reader()
        heard_at = asked_at = time.monotonic()
        while not self._closing.is_set():
            try:
                received = sock.recv(RECEIVE_BYTES)
            except TimeoutError:
                now = time.monotonic()
                if now - heard_at > SILENCE_S:
                    raise
                if now - asked_at >= PING_AFTER_S:
                    asked_at = now
                    with self._lock:
                        self._write(_packed(b"PING"))
                continue
            if not received:
                raise ConnectionResetError("Redis closed the connection")
            heard_at = time.monotonic()
            reader.feed(received)
            self._hand_on(reader)

    def _hand_on(self, reader: hiredis.Reader) -> None:
        """Give each session's sinks what one read brought, in one call."""
        batches: dict[bytes, list[bytes]] = {}
        while (reply := reader.gets()) is not False:
            if isinstance(reply, hiredis.ReplyError):
                raise redis.ResponseError(str(reply))
            if not isinstance(reply, list) or len(reply) < 3:
                continue  # the answer to a ping
            if reply[0] in _MESSAGE:
                batches.setdefault(reply[1], []).append(reply[2])
            elif reply[0] in _SUBSCRIBED:
                self._confirm(reply[1])
        for channel, messages in batches.items():
            topic = self._topics.get(channel)
            if topic is not None:
                self._distribute(topic, messages)

    def _distribute(self, topic: Topic, messages: list[bytes]) -> None:
        events: list[LiveEvent] = []
        for message in messages:
            try:
                entries = parse_message(message)
            except ValueError as error:
                log.warning("hub.bad_message", session_id=topic.session_id, error=str(error))
                continue
            events += [read_entry(topic.session_id, entry) for entry in entries]
        if not events:
            return
        topic.heard = (events[-1].epoch, events[-1].seq)
        for sink in topic.sinks:
            sink.put(events)

    # ---- subscriptions on this connection; all but _confirm with the lock held

    def _ask(self, topic: Topic, channel: bytes) -> None:
        if self._socket is not None:
            self._unconfirmed.setdefault(channel, deque()).append(topic)
            self._write(_packed(b"SUBSCRIBE", channel))

    def _ask_all(self) -> None:
        channels = list(self._topics)
        for topic in self._topics.values():
            topic.confirmed.clear()
        for start in range(0, len(channels), SUBSCRIBE_BATCH):
            batch = channels[start : start + SUBSCRIBE_BATCH]
            for channel in batch:
                self._unconfirmed.setdefault(channel, deque()).append(self._topics[channel])
            self._write(_packed(b"SUBSCRIBE", *batch))

    def _confirm(self, channel: bytes) -> None:
        with self._lock:
            waiting = self._unconfirmed.get(channel)
            if not waiting:
                return
            topic = waiting.popleft()
            if not waiting:
                del self._unconfirmed[channel]
            again = topic.was_confirmed
            topic.was_confirmed = True
            topic.confirmed.set()
        if again:
            for sink in topic.sinks:
                sink.heal()

    def _write(self, packed: bytes) -> None:
        if self._socket is not None:
            try:
                self._socket.sendall(packed)
            except OSError:  # the listener sees it too, and makes a new connection
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def _drop_connection(self) -> None:
        with self._lock:
            sock, self._socket = self._socket, None
            for topic in self._topics.values():
                topic.confirmed.clear()
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _tell_lost(self) -> None:
        for topic in self.topics():
            for sink in topic.sinks:
                sink.relay_lost()

    def _channel(self, session_id: str) -> bytes:
        return self._keys.channel(session_id).encode()


def _packed(*words: bytes) -> bytes:
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # its type says a tuple of one
    return packed
