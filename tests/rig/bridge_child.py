"""The real bridge child, in Hermes' own interpreter, with the scripted model behind it; and a reader of its lines."""

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.rig.hermes import CONFIG, ScriptedModel, hermes_venv
from worker.backends.bridge.process import wire

PROGRAM = Path(wire.__file__).parent
READY_S = 120.0
ANSWER_S = 180.0
END_S = 120.0


class Line:
    """One connection to a child, by hand."""

    def __init__(self, endpoint: str, secret: str) -> None:
        scheme, _, place = endpoint.partition("://")
        if scheme == "ipc":
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.connect(place)
        else:
            host, _, port = place.rpartition(":")
            self.socket = socket.create_connection((host, int(port)))
        self.socket.settimeout(ANSWER_S)
        self.secret = secret
        self._file = self.socket.makefile("rb")

    def ask(self, action: str, **fields: Any) -> dict[str, Any]:
        return self.ask_all((action, fields))[0]

    def ask_all(self, *requests: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """Several that are sent together, which the child takes one right after the other; their answers."""
        encoded = [wire.encode({"action": action, "secret": self.secret, **fields}) for action, fields in requests]
        self.send(b"".join(encoded))
        return [self.read() for _ in requests]

    def send(self, line: bytes) -> None:
        self.socket.sendall(line)

    def read(self) -> dict[str, Any]:
        """The next object. Raises EOFError when the child has closed."""
        line = self._file.readline()
        if not line:
            raise EOFError
        assert line.endswith(b"\n")
        assert len(line) <= wire.MAX_LINE_BYTES
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    def is_closed(self) -> bool:
        """Whether the child closes it without another word."""
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:  # it closed without reading all that it was sent
            return True

    def close(self) -> None:
        self._file.close()
        self.socket.close()


@dataclass
class Turn:
    """What one run said, in order."""

    run_id: str
    session_id: str
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def last(self) -> dict[str, Any]:
        return self.events[-1]

    @property
    def text(self) -> str:
        return "".join(event["text"] for event in self.of("stream.delta"))

    @property
    def reasoning(self) -> str:
        return "".join(event["text"] for event in self.of("reasoning.delta"))

    def of(self, *names: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] in names]

    def one(self, name: str) -> dict[str, Any]:
        (found,) = self.of(name)
        return found

    def result_of(self, tool_id: str) -> str:
        """A tool's whole result, out of its pieces."""
        first = next(event for event in self.of("tool.completed") if event["tool_id"] == tool_id)
        rest = [event for event in self.of("tool.result") if event["tool_id"] == tool_id]
        return str(first["result"]) + "".join(event["text"] for event in rest)


class Running:
    """A run that is read in a thread of its own; the test waits for what it says."""

    def __init__(self, line: Line, turn: Turn) -> None:
        self.turn = turn
        self._line = line
        self._changed = threading.Condition()
        self._is_over = False
        self._at: list[float] = []  # monotonic, of each event
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while not self.turn.events or self.turn.last["event"] not in wire.LAST_EVENTS:
                event = self._line.read()
                with self._changed:
                    self.turn.events.append(event)
                    self._at.append(time.monotonic())
                    self._changed.notify_all()
        except (OSError, EOFError, ValueError):
            pass
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()
            self._line.close()

    def wait(self, name: str, count: int = 1, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """The event of that name, the `count`th."""
        return self.wait_until(lambda turn: len(turn.of(name)) >= count, timeout_s).of(name)[count - 1]

    def wait_until(self, is_so: Callable[[Turn], bool], timeout_s: float = ANSWER_S) -> Turn:
        with self._changed:
            assert self._changed.wait_for(lambda: is_so(self.turn) or self._is_over, timeout_s), self.turn.events[-5:]
            assert is_so(self.turn), f"it ended before: {self.turn.events[-5:]}"
            return self.turn

    def end(self, timeout_s: float = ANSWER_S) -> Turn:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"it did not end: {self.turn.events[-5:]}"
        return self.turn

    def ended_at(self) -> float:
        """When the last event came, monotonic."""
        return self._at[-1]


class BridgeChild:
    """Started on a home of its own, which `config` may add to. Close it."""

    def __init__(
        self,
        model: ScriptedModel,
        *,
        config: str = "",
        endpoint: str | None = None,
        arguments: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        prepare_home: Callable[[Path], None] = lambda _: None,
        command: Callable[[list[str]], list[str]] = lambda command: command,
        secret: str | None = None,
    ) -> None:
        self.model = model
        self.folder = Path(tempfile.mkdtemp(prefix="portal-bc-"))
        self.home = self.folder / "home"
        self.home.mkdir()
        temp = self.folder / "t"
        temp.mkdir()
        (self.home / "config.yaml").write_text(CONFIG.format(model=model.base_url, approval_limit_s=1) + config)
        prepare_home(self.home)
        self.secret = secrets.token_hex(16) if secret is None else secret
        self.environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(self.home),
            "TMPDIR": str(temp),
            "PYTHONDONTWRITEBYTECODE": "1",
            **(environment or {}),
        }
        asked = endpoint or f"ipc://{self.folder / 's' / 'bridge.sock'}"
        self.errors = self.folder / "stderr"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                command(
                    [
                        str(hermes_venv() / "bin" / "python"),
                        str(PROGRAM),
                        *("--endpoint", asked, "--hermes-home", str(self.home), *arguments),
                    ]
                ),
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # some shall not start
            os.write(self.process.stdin.fileno(), self.secret.encode() + b"\n")
        self._lines: list[Line] = []
        self.ready: dict[str, Any] = {}

    def start(self) -> "BridgeChild":
        """Wait for the ready line."""
        assert self.process.stdout is not None
        timer = threading.Timer(READY_S, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        assert line, f"it did not get ready: {self.said()}"
        self.ready = json.loads(line)
        return self

    @property
    def endpoint(self) -> str:
        return str(self.ready["endpoint"])

    def said(self) -> str:
        """What stands on its stderr."""
        return self.errors.read_text("utf-8", "replace")

    def line(self) -> Line:
        line = Line(self.endpoint, self.secret)
        self._lines.append(line)
        return line

    def ask(self, action: str, **fields: Any) -> dict[str, Any]:
        line = Line(self.endpoint, self.secret)
        try:
            return line.ask(action, **fields)
        finally:
            line.close()

    # ---- turns

    def chat_fields(self, message: Any, **fields: Any) -> dict[str, Any]:
        return {
            "run_id": secrets.token_hex(16),
            "session_id": f"20260102_030405_{secrets.token_hex(3)}",
            "message": message,
            "history": [],
            "after": None,
            "instructions": None,
            "model": None,
            "max_iterations": None,
            "workspace": None,
            "allowed": [],
        } | fields

    def begin(self, message: Any, **fields: Any) -> Running:
        """Send a turn and read what it says."""
        request = self.chat_fields(message, **fields)
        run_id = request["run_id"]
        line = self.line()
        chat, stream = line.ask_all(
            ("chat", request), ("stream", {"run_id": run_id, "cursor": 0, "event_cursor": 0})
        )  # at once: however slow the test is, nothing is forgotten in between
        assert chat["ok"], chat
        assert chat["status"] == "running"
        assert stream["ok"], stream
        return Running(line, Turn(run_id, request["session_id"]))

    def follow(self, run_id: str, cursor: int = 0, event_cursor: int = 0) -> Running:
        line = self.line()
        answer = line.ask("stream", run_id=run_id, cursor=cursor, event_cursor=event_cursor)
        assert answer["ok"], answer
        return Running(line, Turn(run_id, ""))

    def play(self, message: Any, **fields: Any) -> Turn:
        """A turn to its end."""
        return self.begin(message, **fields).end()

    def poll(self, run_id: str) -> Iterator[dict[str, Any]]:
        """The answers of get_output to the end."""
        cursor = event_cursor = 0
        while True:
            answer = self.ask("get_output", run_id=run_id, cursor=cursor, event_cursor=event_cursor)
            assert answer["ok"], answer
            yield answer
            if answer["done"]:
                return
            cursor, event_cursor = answer["cursor"], answer["event_cursor"]

    def wait_for(self, is_so: Callable[[], bool], timeout_s: float = ANSWER_S) -> None:
        """For what the child tells only when asked."""
        deadline = time.monotonic() + timeout_s
        while not is_so():
            assert time.monotonic() < deadline, self.said()[-2000:]
            time.sleep(0.02)

    def wait_for_spare(self) -> None:
        self.wait_for(lambda: bool(self.ask("ping")["spare"]))

    def change_config(self, old: str, new: str) -> None:
        """In one step: it may be reading it."""
        path = self.home / "config.yaml"
        changed = path.with_suffix(".new")
        changed.write_text(path.read_text().replace(old, new))
        changed.replace(path)

    # ---- the end

    def stop(self) -> int:
        """SIGTERM, as the worker does; gives the exit code."""
        self.process.terminate()
        try:
            return self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def close(self) -> None:
        for line in self._lines:
            line.close()
        if self.process.poll() is None:
            self.stop()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def processes_with(text: str) -> list[int]:
    """The living processes that have the text in their command line."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                command = Path(f"/proc/{name}/cmdline").read_bytes()
                is_dead = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
            except OSError:  # it has ended
                continue
            if text.encode() in command and not is_dead:
                found.append(int(name))
    return found
