"""What is below a process is found, whatever state what stands between is in."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.rig.bridge_child import processes_with
from tests.rig.portal import clean_environ, wait_until
from worker.backends import launcher
from worker.backends.bridge.process import lifeline

HEADLESS = """
    import ctypes, subprocess, sys, threading, time
    def work():
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", sys.argv[1]], start_new_session=True)
        time.sleep(300)
    threading.Thread(target=work).start()
    ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.mark.parametrize("descendants", [launcher.descendants, lifeline.descendants], ids=["launcher", "lifeline"])
def test_what_a_process_without_its_first_thread_has_started_is_found(
    tmp_path: Path, descendants: Callable[[int], list[int]]
) -> None:
    """As each process with threads is for a moment when it is killed: its tools were left behind then."""
    word = f"far-{tmp_path.name}"

    def tools() -> list[int]:
        return [pid for pid in processes_with(word) if pid != agent.pid]

    agent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(HEADLESS), word])
    try:
        wait_until(lambda: psutil.Process(agent.pid).status() == psutil.STATUS_ZOMBIE, what="the end of its thread")
        wait_until(tools, what="its tool")
        found = descendants(os.getpid())
        assert agent.pid in found
        assert set(tools()) <= set(found)
    finally:
        for pid in tools():
            os.kill(pid, signal.SIGKILL)
        agent.kill()
        agent.wait()
    assert agent.pid not in descendants(os.getpid())


LATE = """
    import subprocess
    from worker.backends.bridge.process import lifeline
    lifeline.KILL_TRIES_S = 0.0
    tool = subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"], start_new_session=True)
    try:
        lifeline.end_tools()
        tool.wait(10)
    finally:
        tool.kill()
    print(tool.returncode)
"""


def test_who_stood_still_for_the_time_of_killing_kills_all_the_same() -> None:
    command = [sys.executable, "-c", textwrap.dedent(LATE)]
    ran = subprocess.run(command, env=clean_environ(), capture_output=True, text=True, timeout=120)
    assert ran.stdout.strip() == str(-signal.SIGKILL), ran
