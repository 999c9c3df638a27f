"""What `portal up` prints: its own words and its children's lines, for people or as one JSON object a line.

A thread of its own writes, from a queue with a bound: a terminal that is held (Ctrl-S) or a slow pipe never holds up
the supervisor, and so never the children; lines past the bound are dropped and counted.
"""

import contextlib
import json
import queue
import threading
import time
from typing import Any, TextIO

from shared import clock

MAX_LINES = 10_000
MAX_LINE_CHARS = 16_384
ROLE_WIDTH = 7
HIDDEN_FIELDS = frozenset({"event", "level", "at", "timestamp", "process", "logger", "pid"})


class Console:
    def __init__(self, stream: TextIO, *, as_json: bool) -> None:
        self._stream = stream
        self._as_json = as_json
        self._lines: queue.Queue[str | None] = queue.Queue(MAX_LINES)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write_all, name="console", daemon=True)
        self._thread.start()

    def say(self, event: str, text: str, *, level: str = "info", **facts: Any) -> None:
        """The supervisor's own words: `text` for people; `event` and `facts` for programs."""
        if self._as_json:
            line = {"at": clock.iso_ms(clock.now()), "level": level, "process": "up", "event": event, **facts}
            self._put(json.dumps({**line, "text": text}, ensure_ascii=False))
        else:
            self._put(text)

    def child_line(self, role: str, raw: bytes) -> None:
        """One line of a child. JSON lines go through unchanged, or are made readable; others get the role in front."""
        text = raw.decode("utf-8", "replace").rstrip()[:MAX_LINE_CHARS]
        if not text:
            return
        fields = _json_object(text)
        if self._as_json:
            if fields is None:
                text = json.dumps({"at": clock.iso_ms(clock.now()), "process": role, "event": text}, ensure_ascii=False)
            self._put(text)
        else:
            self._put(f"{role:<{ROLE_WIDTH}} | {printable(text) if fields is None else readable(fields)}")

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what is queued, but wait no longer than `timeout_s` for a reader that does not read."""
        deadline = time.monotonic() + timeout_s
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=timeout_s)
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def _put(self, line: str) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                line = f"({dropped} lines were dropped: nobody read them)\n{line}"
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # the reader is gone (`portal up | head`); the portal goes on without one
                continue


def readable(fields: dict[str, Any]) -> str:
    """`warning redis.lost try=3` from a log object."""
    level = str(fields.get("level", "info"))
    words = [] if level == "info" else [level]
    words.append(str(fields.get("event", "")))
    words += [f"{key}={value}" for key, value in fields.items() if key not in HIDDEN_FIELDS and value is not None]
    return printable(" ".join(words))


def printable(text: str) -> str:
    """Control characters escaped, so that no child's output moves the cursor or recolours the terminal."""
    return "".join(char if char.isprintable() or char == "\t" else repr(char)[1:-1] for char in text)


def _json_object(text: str) -> dict[str, Any] | None:
    if not text.startswith("{"):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
