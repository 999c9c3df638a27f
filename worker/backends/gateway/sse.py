"""Reads server-sent events from bytes as they come (WHATWG HTML, "Interpreting an event stream").

Our own and not httpx-sse, because that one hides comments (the keepalives that hold off the quiet limit), has no limit
on the length of a line, holds a frame back that ends in CR, and needs text where our frames are parsed from bytes.
Chunks may be cut anywhere, also inside a UTF-8 character or between CR and LF. Lines are never scanned twice.
"""

from dataclasses import dataclass, replace

from shared.errors import BackendProtocolError

MAX_EVENT_BYTES = 40 * 1024 * 1024
"""One event at most: a tool result of 32 MiB and its envelope."""


@dataclass(frozen=True)
class SseEvent:
    """One event: `name` of its `event:` line or "", its data lines joined by LF. Not `is_whole`: the stream ended
    before the blank line that ends an event."""

    name: str
    data: bytes
    is_whole: bool = True


@dataclass(frozen=True)
class Comment:
    """A line that begins with a colon: a keepalive."""


COMMENT = Comment()


class SseDecoder:
    """`feed` every chunk, then `close`. Raises BackendProtocolError for an event above MAX_EVENT_BYTES."""

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._rest: list[bytes] = []  # the unfinished line, in the pieces it came in
        self._held = 0  # bytes in _rest and _data
        self._swallow_lf = False  # the chunk before ended in CR: its LF may follow
        self._name = ""
        self._data: list[bytes] = []
        self._begun = False

    def feed(self, chunk: bytes) -> list[SseEvent | Comment]:
        """The events and comments that `chunk` completes, in order."""
        if self._swallow_lf and chunk:
            self._swallow_lf = False
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
        if b"\r" in chunk:
            self._swallow_lf = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = chunk.split(b"\n")
        last = lines.pop()
        found: list[SseEvent | Comment] = []
        for line in lines:
            if self._rest:
                self._rest.append(line)
                line = b"".join(self._rest)
                self._rest.clear()
            self._read_line(line, found)
        if last:
            self._rest.append(last)
            self._hold(len(last))
        return found

    def close(self) -> list[SseEvent]:
        """What was left when the stream ended. The standard drops it; we hand it on, for peers that forget the last
        blank line: a piece of JSON that was cut does not parse, and is known by that."""
        if self._rest:
            line = b"".join(self._rest)
            self._rest.clear()
            self._read_line(line, [])
        left: list[SseEvent | Comment] = []
        self._read_line(b"", left)
        return [replace(event, is_whole=False) for event in left if isinstance(event, SseEvent)]

    def _read_line(self, line: bytes, found: list[SseEvent | Comment]) -> None:
        if not self._begun:
            self._begun = True
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            self._hold(len(line))
        elif not line:
            if self._data:
                found.append(SseEvent(self._name, self._data[0] if len(self._data) == 1 else b"\n".join(self._data)))
                self._data = []
            self._name = ""
            self._held = 0
        elif line.startswith(b"event:"):
            self._name = line[6:].strip().decode("utf-8", "replace")
        elif line.startswith(b":"):
            found.append(COMMENT)
        elif line == b"data":
            self._data.append(b"")

    def _hold(self, size: int) -> None:
        self._held += size
        if self._held > self._max:
            raise BackendProtocolError(
                f"The gateway sent an event longer than {self._max // (1024 * 1024)} MiB, which is refused."
            )
