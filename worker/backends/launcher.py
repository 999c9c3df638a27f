"""Run as `python -I -S launcher.py <worker's pid> <command...>`: stands between a worker and an agent's process, and
ends all that is below it when the time has come: tools too that the agent moved into groups of their own.

The first line that the worker writes to its stdin goes to the stdin of the command, which then stays open until the
launcher ends: the way for what stands neither in an environment nor in arguments.

It ends everything at once when its stdin ends (the worker is gone, or wants it so), and politely (SIGTERM, 1.5 s,
SIGKILL) when it is sent SIGTERM, when the thread of the worker that started it has ended (Linux), and when the worker
has written nothing to its stdin for 60 s. When the command ends by itself, so does the rest. It then ends as the
command did. `{launcher}` in the command becomes its own pid: the parent that the command has.

On Linux it is the reaper of all below it, so nothing gets away. Elsewhere the process group is what can be reached.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>
TERM_GRACE_S = 1.5
SILENCE_S = 60.0
MAX_LINE_BYTES = 4096  # of that first line: a pipe holds as much, so writing it never waits
KILL_TRIES_S = 2.0
KILL_TRIES = 20  # at least: we may stand still for that time
NOT_STARTED = 127
PLACEHOLDER = "{launcher}"
IS_LINUX = sys.platform.startswith("linux")


class Launcher:
    def __init__(self, command: list[str], first_line: bytes) -> None:
        self._signals, wakeup = os.pipe()
        for end in (self._signals, wakeup):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        self._kill_at: float | None = None  # monotonic
        self._status: int | None = None  # of the command, as waitpid gives it
        self._command = self._start([part.replace(PLACEHOLDER, str(os.getpid())) for part in command], first_line)

    def _start(self, command: list[str], first_line: bytes) -> int:
        stdin, self._stdin = os.pipe()
        os.write(self._stdin, first_line)
        actions = [(os.POSIX_SPAWN_DUP2, stdin, 0)]
        defaults = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE)
        pid = os.posix_spawnp(command[0], command, os.environ, file_actions=actions, setsigdef=defaults)
        os.close(stdin)
        return pid

    def run(self) -> int:
        """Until the command has ended; gives its status."""
        heard_at = time.monotonic()
        while self._status is None:
            now = time.monotonic()
            if self._kill_at is not None and now >= self._kill_at:
                break
            silent_at = heard_at + SILENCE_S
            if self._kill_at is None and now >= silent_at:
                self._end_politely()
            due = silent_at if self._kill_at is None else self._kill_at
            readable, _, _ = select.select([0, self._signals], [], [], max(0.0, due - now))
            if 0 in readable:
                if not os.read(0, 4096):
                    break
                heard_at = time.monotonic()
            if self._signals in readable:
                self._on_signals(os.read(self._signals, 4096))
        self._kill_all()
        return signal.SIGKILL if self._status is None else self._status  # as waitpid would give it

    def _on_signals(self, numbers: bytes) -> None:
        if signal.SIGCHLD in numbers:
            self._reap()
        if (signal.SIGTERM in numbers or signal.SIGINT in numbers) and self._kill_at is None:
            self._end_politely()

    def _end_politely(self) -> None:
        self._kill_at = time.monotonic() + TERM_GRACE_S
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._command, signal.SIGTERM)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._command:
                    self._status = status

    def _kill_all(self) -> None:
        """Again and again, since what is killed may just have started something."""
        give_up_at = time.monotonic() + KILL_TRIES_S
        tries = 0
        while tries < KILL_TRIES or time.monotonic() < give_up_at:
            tries += 1
            below = descendants(os.getpid()) if IS_LINUX else [] if self._status is not None else [self._command]
            for pid in below:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            if not below:
                break
            time.sleep(0.005)
        if not IS_LINUX:
            os.killpg(0, signal.SIGKILL)


def descendants(ancestor: int) -> list[int]:
    """All processes below that one, by /proc; the dead that nobody has reaped yet are left out, but not what is below
    them: of a process that is being killed the first thread may be dead while others of it still have its children."""
    children: dict[int, list[int]] = {}
    dead: set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:  # it has ended
            continue
        state, parent, threads = fields[0], int(fields[1]), int(fields[17])
        children.setdefault(parent, []).append(int(name))
        if state in (b"Z", b"X") and threads <= 1:
            dead.add(int(name))
    found: list[int] = []
    waiting = [ancestor]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += [pid for pid in below if pid not in dead]
        waiting += below
    return found


def tie_to(worker: int) -> None:
    """Have the kernel say when the worker has gone, and give us what is orphaned below us."""
    if IS_LINUX:
        libc = ctypes.CDLL(None, use_errno=True)
        for option, value in ((PR_SET_CHILD_SUBREAPER, 1), (PR_SET_PDEATHSIG, signal.SIGTERM)):
            if libc.prctl(option, int(value), 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), f"prctl({option})")
    if os.getppid() != worker:
        sys.exit("the worker is gone")


def read_line() -> bytes:
    """The first line of stdin, with its end. No more is taken."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte or len(line) == MAX_LINE_BYTES:
            sys.exit("the worker has sent no line")
        line += byte
    return line


def end_as(status: int) -> None:
    """End with the status of another process."""
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def main() -> None:
    tie_to(int(sys.argv[1]))
    try:
        launcher = Launcher(sys.argv[2:], read_line())
    except OSError as error:
        sys.stderr.write(f"{sys.argv[2]} cannot be run: {error.strerror}\n")
        sys.exit(NOT_STARTED)
    end_as(launcher.run())


if __name__ == "__main__":
    main()
