"""A session's ordered events in Redis: append (gives the cursor, refuses a stale fence), head, read_after.

The log is a fast path beside the database (RELIABILITY 3). Each append is one Lua script, so a batch stands in the
log whole or not at all, every `seq` is the one before plus 1, and a reader either gets all that follows its cursor or
is told to take a snapshot. Redis' content is untrusted: `event_of` checks an entry before it is used.
"""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis
from pydantic import ValidationError

from shared.errors import LeaseLost
from shared.protocol.events import EVENT, AnyEvent
from shared.relay.append_line import AppendLine
from shared.relay.connection import AppendUnknown, Client, RelayDown, relay_errors
from shared.relay.keys import Keys
from shared.relay.scripts import HEAD, READ, Script

REPLAY_EVENTS = 2_000
REPLAY_BYTES = 1 << 20
_EPOCH = re.compile("[0-9a-zA-Z]{1,40}")
_CURSOR = re.compile(f"([0-9]{{1,16}})-({_EPOCH.pattern})")


@dataclass(frozen=True)
class Cursor:
    """The place in a log up to which somebody has read. `seq` 0 is before the first event of its epoch."""

    epoch: str
    seq: int

    @classmethod
    def parse(cls, text: str) -> "Cursor | None":
        """Read `<seq>-<epoch>`, the `id:` of a server-sent event; None for anything else."""
        match = _CURSOR.fullmatch(text)
        return None if match is None else cls(epoch=match[2], seq=int(match[1]))

    def __str__(self) -> str:
        return f"{self.seq}-{self.epoch}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One event as it stands in the log. `payload`: the JSON text of the envelope without `seq` and `epoch`."""

    epoch: str
    seq: int
    payload: bytes


@dataclass(frozen=True)
class Appended:
    """`epoch_changed`: a new epoch began with this batch (also with the first event of a new log)."""

    epoch: str
    first_seq: int
    last_seq: int
    epoch_changed: bool


class EventLog:
    """The logs of all sessions. Threads may share it; it holds no connection of its own."""

    def __init__(self, client: Client, keys: Keys, *, max_events: int = 5_000, ttl_s: int = 86_400) -> None:
        self._client = client
        self._keys = keys
        self._max_events = max_events
        self._ttl_s = ttl_s
        self._doubtful: set[str] = set()  # sessions whose last append had no answer: the next begins a new epoch

    def append(
        self,
        session_id: str,
        payloads: Sequence[str],
        *,
        run_id: str | None = None,
        fence: int | None = None,
        new_epoch: bool = False,
    ) -> Appended:
        """Append events (`protocol.events.to_payload`) as one batch and publish them.

        With `run_id` and `fence` a batch below the greatest fence the run has had is refused with LeaseLost.
        AppendUnknown: it was sent and no answer came; never append the same again. The next append of the session
        through this object begins a new epoch by itself, so that everybody takes a snapshot. RelayDown: it surely
        does not stand in the log and may be tried again.
        """
        line = self.line(session_id, run_id=run_id, fence=fence)
        try:
            line.send(payloads, new_epoch=new_epoch)
            return line.answer()
        finally:
            line.close()

    def line(self, session_id: str, *, run_id: str | None = None, fence: int | None = None) -> "RunLine":
        """For appends to one session that do not wait for their answer."""
        return RunLine(self, session_id, run_id, fence)

    def head(self, session_id: str) -> Cursor | None:
        """The cursor of the last event; None without a log, or when it is that of an earlier run of Redis."""
        return _cursor(self._ask(HEAD, 1, self._keys.log_hash(session_id)))

    def heads(self, session_ids: Sequence[str]) -> dict[str, Cursor | None]:
        """`head` of many sessions in one round trip."""
        if not session_ids:
            return {}
        with relay_errors():
            pipe = self._client.pipeline(transaction=False)
            for session_id in session_ids:
                pipe.eval(HEAD.text, 1, self._keys.log_hash(session_id))
            answers = pipe.execute()
        return {session_id: _cursor(answer) for session_id, answer in zip(session_ids, answers, strict=True)}

    def read_after(
        self, session_id: str, cursor: Cursor | None, *, limit: int = REPLAY_EVENTS, max_bytes: int = REPLAY_BYTES
    ) -> list[Entry] | None:
        """All events after the cursor up to the head, in order and without a hole (maybe none at all).

        None: replay is impossible, take a snapshot. That is so for no cursor or another epoch, a cursor above the
        head or below the first kept event, no log or one of another run of Redis, and for more than `limit` events
        or `max_bytes` (RELIABILITY 3). The cursor may come from a client as it is. Raises RelayDown.
        """
        if cursor is None or not 0 <= cursor.seq < 2**53 or not _EPOCH.fullmatch(cursor.epoch):
            return None
        keys = self._keys.log_hash(session_id), self._keys.log_stream(session_id)
        payloads = self._ask(READ, 2, *keys, cursor.epoch, cursor.seq, limit, max_bytes)
        if payloads is None:
            return None
        return [Entry(cursor.epoch, seq, payload) for seq, payload in enumerate(payloads, cursor.seq + 1)]

    def _ask(self, script: Script, *arguments: Any) -> Any:
        """Run a script that only reads; it may be asked again, once for a lost connection and once to load it."""
        with relay_errors():
            try:
                return self._client.evalsha(script.sha, *arguments)
            except redis.exceptions.NoScriptError:
                return self._client.eval(script.text, *arguments)


class RunLine:
    """The appends of one writer to one session: `send`, then `answer`; what each raises is told at EventLog.append.
    Used by one thread at a time; `close` gives its connection back."""

    def __init__(self, log: EventLog, session_id: str, run_id: str | None, fence: int | None) -> None:
        keys = log._keys
        self._line = AppendLine(log._client)
        self._doubtful = log._doubtful
        self._session_id = session_id
        self._run_id = run_id
        self._fence = fence
        self._keys = keys.log_hash(session_id), keys.log_stream(session_id)
        self._limits = log._max_events, log._ttl_s, run_id or "", "" if fence is None else fence
        self._channel = keys.channel(session_id)
        self._was_doubtful = False

    def send(self, payloads: Sequence[str], *, new_epoch: bool = False) -> None:
        """Send a batch. Raises RelayDown: it surely does not stand in the log and may be tried again."""
        if not payloads:
            raise ValueError("nothing to append")
        self._was_doubtful = self._session_id in self._doubtful
        begin = "1" if new_epoch or self._was_doubtful else ""
        lines = map(_one_line, payloads)
        self._line.send((*self._keys, secrets.token_hex(6), begin, *self._limits, self._channel, *lines))

    def answer(self) -> Appended:
        """Where the batch sent last stands. Raises LeaseLost, AppendUnknown, RelayDown."""
        try:
            answer = self._line.answer()
        except AppendUnknown:
            self._doubtful.add(self._session_id)
            raise
        if answer[0] == 0:
            raise LeaseLost(f"run {self._run_id} is driven by fence {answer[1]}, not {self._fence}")
        if self._was_doubtful:
            self._doubtful.discard(self._session_id)
        return Appended(answer[1].decode(), answer[2], answer[3], answer[4] == 1)

    def close(self) -> None:
        if self._line.waits:  # whoever goes without looking at the answer does not know the outcome
            self._doubtful.add(self._session_id)
        self._line.close()


def frame(entry: Entry) -> str:
    """The event as clients hear it, with its cursor. The cursor goes last: of two equal keys, readers take the last."""
    return f'{entry.payload.decode("utf-8", "replace")[:-1]},"seq":{entry.seq},"epoch":"{entry.epoch}"}}'


def event_of(entry: Entry, session_id: str) -> AnyEvent | None:
    """The entry as a checked event of that session; None for what is not one of ours (unknown or planted)."""
    try:
        event = EVENT.validate_json(entry.payload)
    except ValidationError:
        return None
    return event if event.session_id == session_id else None


def parse_message(message: bytes) -> list[Entry]:
    """The entries of one published batch: `<epoch> <first seq>`, then one payload a line. A message that is not of
    that form gives none: its place shows up as a gap, and the log is read instead."""
    header, _, body = message.partition(b"\n")
    match = re.fullmatch(rb"([0-9a-zA-Z]{1,40}) ([0-9]{1,16})", header)
    if match is None or not body:
        return []
    epoch, first = match[1].decode(), int(match[2])
    return [Entry(epoch, seq, payload) for seq, payload in enumerate(body.split(b"\n"), first)]


def _cursor(answer: Any) -> Cursor | None:
    if answer is None or not isinstance(answer[1], int):
        return None
    epoch = answer[0].decode("utf-8", "replace")
    return Cursor(epoch, answer[1]) if _EPOCH.fullmatch(epoch) else None


def _one_line(payload: str) -> str:
    """A payload as one line, as the published message needs it; a raw line end in JSON is only space."""
    if not (payload.startswith("{") and payload.endswith("}")):
        raise ValueError("a payload is the text of a JSON object")
    return payload.replace("\r", " ").replace("\n", " ") if "\n" in payload or "\r" in payload else payload


__all__ = [
    "AppendUnknown",
    "Appended",
    "Cursor",
    "Entry",
    "EventLog",
    "RelayDown",
    "event_of",
    "frame",
    "parse_message",
]
