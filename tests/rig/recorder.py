"""A page without a browser: it follows the JSON protocol of `/chat-run` exactly as a page must, and writes down all it
was told (RELIABILITY 3, Oracle).

It reconnects by itself with its cursor, applies each event once and in order, and checks what a client can check: `seq`
is the last one plus one, `offset` is the length it has. On a misfit it asks for a snapshot, and counts it.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import websocket

from shared.protocol.events import EVENT, Delta
from shared.transcript import Transcript, answer_text, fold, from_json, to_json

RESUME_ID = "resume"
OUTSIDE_THE_LOG = frozenset({"ack", "error", "pong", "presence.updated"})


class RecorderPage:
    """One page on one session. `seen` holds each (epoch, seq) as it was applied, `problems` what may never happen."""

    def __init__(self, url: str, session_id: str, *, headers: Mapping[str, str] | None = None) -> None:
        self.url, self.session_id = url, session_id
        self.headers = [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.seen: list[tuple[str, int]] = []
        self.problems: list[str] = []
        self.answers: list[dict[str, Any]] = []  # ack, error, pong
        self.closes: list[int | None] = []  # the close codes heard
        self.misfits = self.snapshots = self.connects = 0
        self.epoch: str | None = None
        self.seq = 0
        self.state: dict[str, Any] = {}  # the facts of the last `resumed`
        self.messages: dict[str, dict[str, Any]] = {}  # by id, in order
        self.runs: dict[str, Transcript] = {}
        self.ended: set[str] = set()
        self.hooks: list[Callable[[dict[str, Any]], None]] = []  # called with each frame before it is applied
        self.arrived: dict[int, float] = {}  # seq -> time.monotonic()
        self._ws: websocket.WebSocket | None = None
        self._is_placed = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    # ---- what a test does

    def send(self, **command: Any) -> None:
        """Send a command; raises when the page is not connected."""
        assert self._ws is not None
        self._ws.send(json.dumps({"session_id": self.session_id, **command}))

    def cut(self) -> None:
        """Lose the connection as a dropped network does: no close frame."""
        ws = self._ws
        if ws is not None and ws.sock is not None:
            with contextlib.suppress(OSError):
                ws.sock.shutdown(2)

    def stop(self) -> None:
        self._stopping = True
        self.cut()
        self._thread.join(60)
        assert not self.problems, self.problems

    def text(self, run_id: str) -> str:
        """The answer's text as shown."""
        run = self.runs.get(run_id)
        return "" if run is None else answer_text(run)

    def transcript(self, run_id: str) -> dict[str, Any]:
        return to_json(self.runs[run_id])

    def wait(self, condition: Callable[["RecorderPage"], Any], *, timeout_s: float = 60) -> Any:
        """The first true value of `condition(page)`."""
        deadline = time.monotonic() + timeout_s
        while not (value := condition(self)):
            assert not self.problems, self.problems
            if time.monotonic() > deadline:
                raise AssertionError(f"the page did not come there in {timeout_s} s: {self}")
            time.sleep(0.005)
        return value

    def __repr__(self) -> str:
        return (
            f"<page at {self.seq}-{self.epoch}, {len(self.seen)} events, {self.snapshots} snapshots, "
            f"{self.misfits} misfits, {self.connects} connects, closes {self.closes}, "
            f"runs {[(run_id[:6], len(self.text(run_id))) for run_id in self.runs]}>"
        )

    # ---- the page's own thread

    def _run(self) -> None:
        pause_s = 0.02
        while not self._stopping:
            try:
                self._ws = websocket.create_connection(self.url, header=self.headers, timeout=60)
            except (OSError, websocket.WebSocketException):
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, 1.0)
                continue
            pause_s = 0.02
            self.connects += 1
            try:
                self._resume(with_cursor=True)
                self._listen(self._ws)
            except (OSError, websocket.WebSocketException):
                pass
            finally:
                self._ws.close(timeout=0)

    def _listen(self, ws: websocket.WebSocket) -> None:
        while not self._stopping:
            opcode, data = ws.recv_data()
            if opcode == websocket.ABNF.OPCODE_CLOSE:
                self.closes.append(int.from_bytes(data[:2], "big") if len(data) >= 2 else None)
                return
            frame = json.loads(data)
            for hook in self.hooks:
                hook(frame)
            self._frame(frame)

    def _resume(self, *, with_cursor: bool) -> None:
        self._is_placed = False
        place = {"last_seq": self.seq, "epoch": self.epoch} if with_cursor and self.epoch else {}
        self.send(event="resume", id=RESUME_ID, **place)

    def _frame(self, frame: dict[str, Any]) -> None:
        if frame["event"] in OUTSIDE_THE_LOG:
            self.answers.append(frame)
            if frame["event"] == "error" and frame["id"] == RESUME_ID:  # the database is away: once more, later
                time.sleep(0.5)
                self._resume(with_cursor=True)
        elif frame["session_id"] != self.session_id:
            self.problems.append(f"an event of another session: {frame['event']}")
        elif frame["event"] == "resumed":
            self._resumed(frame)
        elif self._is_placed:
            self._event(frame)

    def _resumed(self, frame: dict[str, Any]) -> None:
        self._is_placed = True
        self.state = frame
        if not frame["snapshot"]:
            for event in frame["events"]:
                self._event(event)
            if (self.epoch, self.seq) != (frame["epoch"], frame["seq"]) and self._is_placed:
                self.problems.append(f"`resumed` ends at {frame['seq']}, its events at {self.seq}")
            return
        self.snapshots += 1
        self.epoch, self.seq = frame["epoch"], frame["seq"]
        self.messages = {message["id"]: message for message in frame["messages"]}
        self.runs = {}
        for message in frame["messages"]:
            if message["role"] == "ASSISTANT" and message["runId"]:
                saved = message["logs"]
                self.runs[message["runId"]] = from_json(saved) if saved else Transcript(run_id=message["runId"])
                if message["status"] != "RUNNING":
                    self.ended.add(message["runId"])

    def _event(self, frame: dict[str, Any]) -> None:
        epoch, seq = frame["epoch"], frame["seq"]
        if self.epoch is None and seq == 1:
            self.epoch, self.seq = epoch, 0
        if (epoch, seq) != (self.epoch, self.seq + 1):
            return self._misfit()
        event = None if frame["event"] == "unknown" else EVENT.validate_python(frame)
        run = None
        if event is not None and event.run_id is not None:
            run = self.runs.setdefault(event.run_id, Transcript(run_id=event.run_id))
            if isinstance(event, Delta):
                part = run.part(event.data.part)
                if event.data.offset != (0 if part is None else part.length):
                    return self._misfit()
        if (epoch, seq) in self.seen:
            self.problems.append(f"{seq}-{epoch} was applied twice")
        self.epoch, self.seq = epoch, seq
        self.seen.append((epoch, seq))
        self.arrived[seq] = time.monotonic()
        if run is not None and event is not None:
            fold(run, event)
            if run.end is not None:
                self.ended.add(run.run_id)
        return None

    def _misfit(self) -> None:
        """What does not fit is not applied: the page asks for a snapshot and shows nothing until it is there."""
        self.misfits += 1
        self._resume(with_cursor=False)
