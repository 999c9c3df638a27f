"""One bridge child, from its start to its end: its process, its ready line, the end of what it says on stderr.

One thread starts it and stays until it is gone: the kernel ties a child to the thread that started it. Between it and
the worker stands `worker/backends/launcher.py`, which ends all that is below it.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from shared import logs, redaction
from shared.text import storable
from worker.backends import launcher
from worker.backends.bridge.client import BridgeClient
from worker.backends.bridge.process import wire

STOP_GRACE_S = launcher.TERM_GRACE_S + launcher.KILL_TRIES_S + 0.5  # the launcher's own steps, and a little
KILL_GRACE_S = launcher.KILL_TRIES_S + 0.5
BEAT_S = launcher.SILENCE_S / 6
LOOK_S = 0.5  # how late a time that is over is seen
MAX_STDOUT_LINE_BYTES = 64 * 1024
TAIL_BYTES = 4 * 1024  # of stderr
SHOWN_TAIL_CHARS = 600  # of it, to people
CHUNK_BYTES = 64 * 1024

log = logs.get(__name__)


@dataclass(frozen=True)
class Spec:
    """How a child is started. `label`: for threads and logs."""

    label: str
    command: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)
    folder: Path
    endpoint: str
    secret: str = field(repr=False)
    startup_timeout_s: float
    response_timeout_s: float


class Child:
    """`on_change` is called from its thread when it is ready, and when it is gone.

    `ready` and `gone` only ever become set; gone without ready means that it could not start."""

    def __init__(self, spec: Spec, on_change: Callable[["Child"], None]) -> None:
        self.spec = spec
        self.client = BridgeClient(spec.endpoint, spec.secret, response_timeout_s=spec.response_timeout_s)
        self.ready = threading.Event()
        self.gone = threading.Event()
        self.started_at = time.monotonic()
        self.ready_at: float | None = None
        self.pid: int | None = None  # of the agent's process, not of the launcher
        self._on_change = on_change
        self._lock = threading.Lock()
        self._runs: set[str] = set()
        self._retired = False
        self._why: str | None = None  # we ended it, for this reason
        self._fault = ""  # why it never became ready
        self._code: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._give_up_at: float | None = None  # monotonic: when the launcher itself is killed
        self._stdout = bytearray()
        self._tail = bytearray()
        self._thread = threading.Thread(target=self._live, name=f"bridge-{spec.label}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # ---- its runs

    def join(self, run_id: str) -> bool:
        """A run begins in it; False when it takes none any more."""
        with self._lock:
            if self._retired or self._why is not None or self.gone.is_set():
                return False
            self._runs.add(run_id)
            return True

    def leave(self, run_id: str) -> None:
        with self._lock:
            self._runs.discard(run_id)
            is_over = self._retired and not self._runs
        if is_over:
            self.stop("it was replaced by a new one")

    def retire(self) -> None:
        """It takes no new runs, and ends when those it has are over."""
        with self._lock:
            self._retired = True
            is_over = not self._runs
        if is_over:
            self.stop("it was replaced by a new one")

    @property
    def runs(self) -> int:
        return len(self._runs)

    # ---- its end

    def stop(self, why: str) -> None:
        """SIGTERM, 1.5 s, SIGKILL of all that is below it. Returns at once."""
        self._end(why, lambda process: process.terminate(), STOP_GRACE_S)

    def kill(self, why: str) -> None:
        """SIGKILL of all that is below it. Returns at once."""

        def close(process: subprocess.Popen[bytes]) -> None:
            assert process.stdin is not None
            process.stdin.close()

        self._end(why, close, KILL_GRACE_S)

    def join_thread(self, timeout_s: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _end(self, why: str, tell: Callable[[subprocess.Popen[bytes]], None], grace_s: float) -> None:
        with self._lock:
            self._why = self._why or why
            process = self._process
            give_up_at = time.monotonic() + grace_s
            self._give_up_at = min(self._give_up_at or give_up_at, give_up_at)
            if process is not None and not self.gone.is_set():
                with contextlib.suppress(OSError, ValueError):
                    tell(process)

    def story(self) -> str:
        """Why it is gone, as the end of a sentence about it; to be read after `gone`."""
        if self._why is not None:
            return f"was stopped: {self._why}"
        return f"ended ({how_it_ended(self._code)})"

    def fault(self) -> str:
        """Why it could not start: a sentence for people, with the end of its stderr."""
        said = self.tail()[-SHOWN_TAIL_CHARS:].strip()
        fault = self._fault or f"The agent's process {self.story()} before it was ready."
        return f"{fault} It said last: {said}" if said else fault

    def tail(self) -> str:
        """The end of what it said on stderr, without secrets."""
        text = bytes(self._tail).decode("utf-8", "replace").replace(self.spec.secret, redaction.HIDDEN)
        return storable(redaction.redact(text))

    def memory_mb(self) -> float | None:
        """Resident, of it and all below it; None when it cannot be told."""
        process = self._process
        if process is None or self.gone.is_set():
            return None
        try:
            below = psutil.Process(process.pid).children(recursive=True)
        except psutil.Error:
            return None
        total = 0
        for each in below:
            with contextlib.suppress(psutil.Error):
                total += each.memory_info().rss
        return round(total / (1024 * 1024), 1)

    # ---- its thread

    def _live(self) -> None:
        try:
            if self._start():
                self._attend()
        except Exception as error:
            log.exception("bridge.thread_broke", bridge=self.spec.label)
            self._fault = f"The agent's process could not be watched ({type(error).__name__})."
        finally:
            self._bury()
            self.gone.set()
            self.client.close()
            self._on_change(self)

    def _start(self) -> bool:
        command = [sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), *self.spec.command]
        try:
            process = subprocess.Popen(
                command,
                env=dict(self.spec.environ),
                cwd=self.spec.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self._fault = f"The agent's process cannot be started: {error.strerror} ({error.filename})."
            return False
        with self._lock:
            self._process = process
            assert process.stdin is not None
            with contextlib.suppress(OSError):  # it ended at once: that shows by itself
                os.write(process.stdin.fileno(), self.spec.secret.encode() + b"\n")
            if self._why is not None:  # stopped before it was there
                process.terminate()
        log.info("bridge.started", bridge=self.spec.label, launcher_pid=process.pid, endpoint=self.spec.endpoint)
        return True

    def _attend(self) -> None:
        """Read what it says until it says no more: its ends of the pipes are closed when all of it is gone."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        beat_at = time.monotonic() + BEAT_S
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ, self._on_stdout)
            selector.register(process.stderr, selectors.EVENT_READ, self._on_stderr)
            while selector.get_map():
                now = time.monotonic()
                if now >= beat_at:
                    beat_at = now + BEAT_S
                    self._beat()
                if self._is_overdue(now):
                    break
                for key, _ in selector.select(min(LOOK_S, beat_at - now)):
                    chunk = os.read(key.fd, CHUNK_BYTES)
                    if chunk:
                        key.data(chunk)
                    else:
                        selector.unregister(key.fileobj)

    def _is_overdue(self, now: float) -> bool:
        """True when even the launcher has to be killed."""
        if not self.ready.is_set() and self._why is None and now - self.started_at > self.spec.startup_timeout_s:
            self._fault = f"The agent's process was not ready after {self.spec.startup_timeout_s:g} s."
            self.kill("it was not ready in time")
        return self._give_up_at is not None and now > self._give_up_at

    def _beat(self) -> None:
        """The launcher ends all when its worker is silent for long."""
        assert self._process is not None
        assert self._process.stdin is not None
        with self._lock, contextlib.suppress(OSError, ValueError):
            os.write(self._process.stdin.fileno(), b".")

    def _on_stderr(self, chunk: bytes) -> None:
        self._tail += chunk
        del self._tail[:-TAIL_BYTES]

    def _on_stdout(self, chunk: bytes) -> None:
        *lines, rest = (bytes(self._stdout) + chunk).split(b"\n")
        if len(rest) > MAX_STDOUT_LINE_BYTES:
            lines, rest = [*lines, rest], b""
        self._stdout[:] = rest
        for line in lines:
            self._on_line(line)

    def _on_line(self, line: bytes) -> None:
        """The ready line; anything else is none of our business, and may be what an agent printed."""
        ready = _ready_of(line)
        if ready is None:
            if line.strip():
                log.warning("bridge.stdout_garbage", bridge=self.spec.label, bytes=len(line))
            return
        if self.ready.is_set():
            log.warning("bridge.ready_again", bridge=self.spec.label)
            return
        fault = self._wrong(ready)
        if fault is not None:
            log.error("bridge.ready_refused", bridge=self.spec.label, cause=fault)
            self._fault = f"The agent's process cannot be used: {fault}."
            self.kill(fault)
            return
        pid = ready.get("pid")
        self.pid = pid if isinstance(pid, int) else None
        self.ready_at = time.monotonic()
        self.ready.set()
        took_ms = int((self.ready_at - self.started_at) * 1000)
        log.info("bridge.ready", bridge=self.spec.label, pid=self.pid, took_ms=took_ms)
        self._on_change(self)

    def _wrong(self, ready: Mapping[str, Any]) -> str | None:
        if wire.place_of(str(ready.get("endpoint"))) != wire.place_of(self.spec.endpoint):
            return "it listens somewhere else than it was told to"
        if ready.get("protocol") != wire.PROTOCOL:
            return f"it speaks version {ready.get('protocol')!r} of the protocol, not {wire.PROTOCOL}"
        return None

    def _bury(self) -> None:
        process = self._process
        if process is None:
            return
        with self._lock, contextlib.suppress(OSError, ValueError):
            if process.stdin is not None:
                process.stdin.close()
        try:
            self._code = process.wait(KILL_GRACE_S)
        except subprocess.TimeoutExpired:
            _kill_below(process.pid)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            self._code = process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        tell = log.info if self._why is not None else log.error
        tell(
            "bridge.ended",
            bridge=self.spec.label,
            how=how_it_ended(self._code),
            why=self._why or "",
            was_ready=self.ready.is_set(),
            lived_s=round(time.monotonic() - self.started_at, 1),
            stderr_tail="" if self._why is not None else self.tail()[-2000:],
        )


def _kill_below(pid: int) -> None:
    with contextlib.suppress(psutil.Error):
        for each in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                each.kill()


def _ready_of(line: bytes) -> dict[str, Any] | None:
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get("event") == "ready" else None


def how_it_ended(code: int | None) -> str:
    """Of an exit code as subprocess gives it."""
    if code is None:
        return "nobody knows how"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
