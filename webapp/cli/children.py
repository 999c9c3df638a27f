"""Child processes of the supervisor: started so that they die with it, read line by line, started again when they die.

Each child leads a process group of its own: Ctrl-C reaches the supervisor alone, and a kill reaches all of the group.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from webapp.cli import launch
from webapp.cli.console import Console, printable

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
STEADY_S = 60.0  # a child that ran this long begins again with the first delay
MAX_LINE_BYTES = 65_536
TAIL_LINES = 15
PIPE_GRACE_S = 1.0


@dataclass(frozen=True)
class Spec:
    """How one child is started. `quiet`: its lines are kept back and shown only when it dies."""

    role: str
    argv: list[str]
    environ: Mapping[str, str]
    pass_fds: tuple[int, ...] = ()
    quiet: bool = False


class Child:
    """One process. `on_line(raw)` gets each line of its output, stdout and stderr together."""

    def __init__(self, role: str, process: asyncio.subprocess.Process, on_line: Callable[[bytes], None]) -> None:
        self.role = role
        self.pid = process.pid
        self.tail: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._process = process
        self._on_line = on_line
        self._pump = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, spec: Spec, on_line: Callable[[bytes], None]) -> "Child":
        """Call from the main thread only: the kernel ties the child to the thread that starts it."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", str(Path(launch.__file__)), str(os.getpid()), *spec.argv,
            env=dict(spec.environ), pass_fds=spec.pass_fds, start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        return cls(spec.role, process, on_line)

    async def wait(self) -> int:
        """The exit code (negative: the signal), after the last line was read and the rest of its group is gone."""
        code = await self._process.wait()
        self.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._pump, PIPE_GRACE_S)
        return code

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        while chunk := await self._process.stdout.read(MAX_LINE_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._take(line)
        self._take(rest)

    def _take(self, line: bytes) -> None:
        if line.strip():
            self.tail.append(line)
            self._on_line(line)


class Keeper:
    """Keeps one child running: when it dies it says so and starts it again, after a delay that doubles to 30 s.

    `on_line(raw)` sees each line first; those it takes (True) are not printed.
    """

    def __init__(self, spec: Spec, console: Console, on_line: Callable[[bytes], bool] | None = None) -> None:
        self.spec = spec  # may be replaced: the next start uses it
        self._on_line = on_line
        self.child: Child | None = None
        self._console = console
        self._stopping = asyncio.Event()
        self._task = asyncio.create_task(self._keep(), name=spec.role)

    @property
    def pid(self) -> int | None:
        return None if self.child is None else self.child.pid

    @property
    def ended(self) -> bool:
        return self._task.done()

    async def stop(self, grace_s: float, at_once: asyncio.Event) -> bool:
        """SIGTERM, then after `grace_s` seconds, or `at_once`, SIGKILL to the group. False if it had to be killed."""
        self._stopping.set()
        if self.child is not None:
            self.child.terminate()
        hurry = asyncio.create_task(at_once.wait())
        await asyncio.wait({self._task, hurry}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        went_by_itself = self._task.done()
        if self.child is not None and not went_by_itself:
            self.child.kill()
        await self._task
        return went_by_itself

    async def _keep(self) -> None:
        delay_s = FIRST_DELAY_S
        while not self._stopping.is_set():
            began = time.monotonic()
            self.child = await Child.start(self.spec, self._line)
            if self._stopping.is_set():  # told to stop while it was being started
                self.child.terminate()
            code = await self.child.wait()
            if self._stopping.is_set():
                return
            if time.monotonic() - began >= STEADY_S:
                delay_s = FIRST_DELAY_S
            self._report(self.child, code, delay_s)
            self.child = None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s)
            delay_s = min(delay_s * 2, LONGEST_DELAY_S)

    def _line(self, raw: bytes) -> None:
        if self._on_line is not None and self._on_line(raw):
            return
        if not self.spec.quiet:
            self._console.child_line(self.spec.role, raw)

    def _report(self, child: Child, code: int, delay_s: float) -> None:
        if self.spec.quiet:
            for line in child.tail:
                self._console.child_line(self.spec.role, line)
        how = how_it_ended(code)
        self._console.say(
            "child.died", f"{child.role} ended ({how}); starting it again in {delay_s:g} s.",
            level="error", role=child.role, pid=child.pid, how=how, again_in_s=delay_s,
        )  # fmt: skip


async def run_once(spec: Spec, timeout_s: float) -> tuple[int, list[str]]:
    """Run a child to its end: its exit code and its last lines. Killed, with code -9, when it takes longer."""
    child = await Child.start(spec, lambda raw: None)
    ended = asyncio.create_task(child.wait())
    try:
        await asyncio.wait({ended}, timeout=timeout_s)
    finally:
        child.kill()
        code = await ended
    return code, [printable(line.decode("utf-8", "replace").rstrip()) for line in child.tail]


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
