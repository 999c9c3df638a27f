"""What one run has said, kept for whoever reads it: by a stream that waits, or by cursors.

Text and events stand in one order and are numbered together. Memory is bounded: long lines (results) lie in a file
without a name, and a run that still says too much is cut off by `on_overflow`.
"""

import bisect
import json
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import IO, Any

from .wire import MAX_LINE_BYTES, PIECE_CHARS, Output, RunStatus, WireError, encode, storable

MAX_RUN_BYTES = 64 * 1024 * 1024  # in memory
MAX_RUN_FILE_BYTES = 1024 * 1024 * 1024
LONG_LINE_BYTES = 32 * 1024  # from which on it lies in the file
ENTRY_BYTES = 150  # about what an entry takes beside its content
BATCH_BYTES = 256 * 1024  # of lines that a stream sends at once
OUTPUT_BYTES = MAX_LINE_BYTES // 4  # of text, and again of events, in an answer of get_output
ALIVE_CHECK_S = 5.0
STATUS: dict[str, RunStatus] = {
    "run.completed": "completed",
    "run.failed": "failed",
    "run.interrupted": "interrupted",
}

_number = attrgetter("n")


@dataclass(frozen=True)
class _Text:
    n: int
    start: int  # code points before it in the answer
    text: str

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True)
class _Event:
    n: int
    line: bytes  # empty: it lies in the file
    offset: int = 0
    size: int = 0


class RunLog:
    """Safe from any thread. After the event that ends the run nothing is taken any more."""

    def __init__(self, on_overflow: Callable[[], None] = lambda: None) -> None:
        self._changed = threading.Condition()
        self._on_overflow = on_overflow
        self._entries: list[_Text | _Event] = []
        self._texts: list[_Text] = []
        self._events: list[_Event] = []
        self._bytes = 0
        self._length = 0  # code points of the answer
        self._last: dict[str, Any] | None = None
        self._file: IO[bytes] | None = None
        self._file_size = 0
        self._has_overflown = False

    # ---- writing

    def say(self, text: str) -> None:
        """A piece of the answer."""
        if not text:
            return
        text = storable(text)
        with self._changed:
            if not self._takes(len(text) * 4):
                return
            entry = _Text(len(self._entries) + 1, self._length, text)
            self._length += len(text)
            self._entries.append(entry)
            self._texts.append(entry)
            self._changed.notify_all()

    def add(self, event: str, **fields: Any) -> None:
        with self._changed:
            if self._last is None:
                self._append(event, fields)

    def add_all(self, events: list[tuple[str, dict[str, Any]]]) -> None:
        """Several, with nothing in between."""
        with self._changed:
            for event, fields in events:
                if self._last is None:
                    self._append(event, fields)

    def end(self, event: str, **fields: Any) -> bool:
        """The last event. False when there was one before."""
        with self._changed:
            if self._last is not None:
                return False
            n = self._append(event, fields, is_last=True)
            self._last = {"n": n, "event": event, **fields}
            self._changed.notify_all()
            return True

    def _append(self, event: str, fields: dict[str, Any], *, is_last: bool = False) -> int:
        n = len(self._entries) + 1
        line = encode({"n": n, "event": event, **fields})
        if len(line) > LONG_LINE_BYTES and (entry := self._put_aside(n, line)) is not None:
            self._takes(0)
        elif self._takes(len(line)) or is_last:
            entry = _Event(n, line)
        else:
            return n
        self._entries.append(entry)
        self._events.append(entry)
        self._changed.notify_all()
        return n

    def _takes(self, size: int) -> bool:
        """Whether there is room; who comes first without any hears of it."""
        if self._last is not None:
            return False
        if self._bytes + size + ENTRY_BYTES <= MAX_RUN_BYTES:
            self._bytes += size + ENTRY_BYTES
            return True
        if not self._has_overflown:
            self._has_overflown = True
            self._on_overflow()
        return False

    def _put_aside(self, n: int, line: bytes) -> _Event | None:
        """Into the file; None when that cannot be."""
        if self._file_size + len(line) > MAX_RUN_FILE_BYTES:
            return None
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="portal-bridge-", buffering=0)  # noqa: SIM115
            self._file.seek(self._file_size)
            if self._file.write(line) != len(line):
                return None  # the disk is full
        except OSError:
            return None
        entry = _Event(n, b"", self._file_size, len(line))
        self._file_size += len(line)
        return entry

    # ---- reading

    @property
    def status(self) -> RunStatus:
        last = self._last
        return "running" if last is None else STATUS[last["event"]]

    @property
    def last(self) -> dict[str, Any] | None:
        """The event that ended the run."""
        return self._last

    @property
    def length(self) -> int:
        """Code points of the answer so far."""
        return self._length

    def bytes_held(self) -> int:
        return self._bytes

    def text(self, cursor: int = 0, max_bytes: int = OUTPUT_BYTES) -> str:
        """The answer from there on, as much as fits."""
        with self._changed:
            return self._text(cursor, max_bytes)

    def output(self, run_id: str, cursor: int, event_cursor: int) -> Output:
        """The answer of get_output."""
        with self._changed:
            cursor = min(cursor, self._length)
            delta = self._text(cursor, OUTPUT_BYTES)
            events, event_cursor, is_all = self._events_after(event_cursor)
            cursor += len(delta)
            return Output(
                run_id=run_id,
                status=self.status,
                delta=delta,
                cursor=cursor,
                events=events,
                event_cursor=event_cursor,
                done=self._last is not None and is_all and cursor == self._length,
            )

    def follow(self, cursor: int, event_cursor: int, is_alive: Callable[[], bool]) -> Iterator[bytes]:
        """Batches of lines, as they come, until the run has ended or the reader has gone."""
        place = 0
        while True:
            with self._changed:
                while len(self._entries) == place:
                    if self._last is not None:
                        return
                    if not self._changed.wait(ALIVE_CHECK_S) and not is_alive():
                        return
                pending = self._entries[place:]
            place += len(pending)
            yield from self._batches(pending, cursor, event_cursor)

    def _batches(self, entries: list[_Text | _Event], cursor: int, event_cursor: int) -> Iterator[bytes]:
        """Neighbouring pieces of text that wait together become one line."""
        batch: list[bytes] = []
        size = 0
        joined: list[str] = []
        n = joined_chars = 0

        def close_text() -> None:
            nonlocal size, joined_chars
            if joined:
                batch.append(encode({"n": n, "event": "stream.delta", "text": "".join(joined)}))
                size += len(batch[-1])
                joined.clear()
                joined_chars = 0

        for entry in entries:
            if isinstance(entry, _Text):
                if entry.end <= cursor:
                    continue
                joined.append(entry.text[max(cursor - entry.start, 0) :])
                n, joined_chars = entry.n, joined_chars + len(joined[-1])
                if joined_chars >= PIECE_CHARS:
                    close_text()
                continue
            close_text()
            if entry.n > event_cursor:
                batch.append(self._line(entry))
                size += len(batch[-1])
            if size >= BATCH_BYTES:
                yield b"".join(batch)
                batch, size = [], 0
        close_text()
        if batch:
            yield b"".join(batch)

    def _text(self, cursor: int, max_bytes: int) -> str:
        first = bisect.bisect_right(self._texts, cursor, key=attrgetter("end"))
        pieces: list[str] = []
        room = max_bytes
        for entry in self._texts[first:]:
            piece = entry.text[max(cursor - entry.start, 0) :]
            size = len(json.dumps(piece, ensure_ascii=False).encode())
            if size > room:
                if not pieces:
                    pieces.append(piece[: max(room // 6, 1)])  # at most six bytes each in JSON
                break
            pieces.append(piece)
            room -= size
        return "".join(pieces)

    def _events_after(self, event_cursor: int) -> tuple[list[Any], int, bool]:
        first = bisect.bisect_right(self._events, event_cursor, key=_number)
        found: list[Any] = []
        room = OUTPUT_BYTES
        for entry in self._events[first:]:
            line = self._line(entry)
            if found and len(line) > room:
                return found, event_cursor, False
            room -= len(line)
            found.append(json.loads(line))
            event_cursor = entry.n
        return found, event_cursor, True

    def _line(self, entry: _Event) -> bytes:
        if entry.line:
            return entry.line
        with self._changed:
            if self._file is None:
                raise WireError("internal", "What the run said is gone.")
            self._file.seek(entry.offset)
            return self._file.read(entry.size)
