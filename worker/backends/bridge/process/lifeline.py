"""The process never outlives the one that started it, and takes its tools with it.

On Linux the kernel tells us by SIGTERM that our parent, or the thread of it that started us, has ended. Elsewhere, and
beside that, we look who our parent is; and where our stdin is a pipe its end says the same.
"""

import contextlib
import ctypes
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
LOOK_S = 1.0
KILL_TRIES_S = 0.5
KILL_TRIES = 10  # at least: we may stand still for that time
IS_LINUX = sys.platform.startswith("linux")


def hold_on_to(parent: int | None, end: Callable[[], None]) -> None:
    """Have `end` called once the parent is gone. `parent`: its pid; None: whoever it is now."""
    parent = os.getppid() if parent is None else parent
    if IS_LINUX and ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if hasattr(os, "getppid") and os.name != "nt":
        threading.Thread(target=_watch_parent, args=(parent, end), name="parent", daemon=True).start()
    pipe = _own_stdin()
    if pipe is not None:
        threading.Thread(target=_watch_pipe, args=(pipe, end), name="stdin", daemon=True).start()


def end_tools() -> None:
    """Kill all processes below this one. What has no parent any more is out of reach here: the worker's launcher gets
    it."""
    give_up_at = time.monotonic() + KILL_TRIES_S
    tries = 0
    while IS_LINUX and (tries < KILL_TRIES or time.monotonic() < give_up_at):
        tries += 1
        below = descendants(os.getpid())
        for pid in below:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not below:
            return
        time.sleep(0.01)
    if not IS_LINUX and hasattr(os, "killpg") and os.getpgid(0) == os.getpid():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)


def _watch_parent(parent: int, end: Callable[[], None]) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    end()


def _watch_pipe(pipe: int, end: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):
        while os.read(pipe, 4096):
            pass
    end()


def _own_stdin() -> int | None:
    """Our stdin when somebody holds its other end; no tool gets it."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        mode = 0
    pipe = os.dup(0) if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    if nothing != 0:
        os.close(nothing)
    return pipe


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
