"""Who may talk to a child: the worker that started it, and no tool of its agents, even if one had found the secret."""

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.bridge_child import BridgeChild
from tests.rig.hermes import ScriptedModel
from worker.backends import launcher
from worker.backends.bridge.process import endpoint

pytestmark = [pytest.mark.component("hermes"), pytest.mark.timeout(400)]

TALK = """\
import json, os, pathlib, socket, sys, time
if sys.argv[2] == "detached":  # leave the parent, the group and its session
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(0, 3)
    time.sleep(0.5)
folder = pathlib.Path(sys.argv[1])
told = json.loads((folder / "told.json").read_text())
line = socket.socket(socket.AF_UNIX)
line.settimeout(60)
try:
    line.connect(told["path"])
    line.sendall(json.dumps({"action": "ping", "secret": told["secret"]}).encode() + b"\\n")
    answer = line.makefile("rb").readline().decode()
except OSError as error:
    answer = f"{type(error).__name__}"
(folder / sys.argv[2]).write_text(f"heard: {answer}")
"""


@pytest.fixture(scope="module")
def child(model: ScriptedModel) -> Iterator[BridgeChild]:
    """Below a launcher, as a worker starts it."""

    def below_launcher(command: list[str]) -> list[str]:
        ours = [sys.executable, "-I", "-S", launcher.__file__, str(os.getpid())]
        return [*ours, *command, "--parent-pid", launcher.PLACEHOLDER]

    child = BridgeChild(model, command=below_launcher)
    yield child.start()
    child.close()


def told(child: BridgeChild, folder: Path) -> Path:
    """All that a tool would need to know, and the program that would use it."""
    path = child.endpoint.removeprefix("ipc://")
    (folder / "told.json").write_text(json.dumps({"path": path, "secret": child.secret}))
    talk = folder / "talk.py"
    talk.write_text(TALK)
    return talk


def heard(folder: Path, name: str) -> str:
    deadline = time.monotonic() + 120
    while not (folder / name).is_file() or not (folder / name).read_text():
        assert time.monotonic() < deadline, "it did not try"
        time.sleep(0.05)
    return (folder / name).read_text()


def test_who_started_it_is_heard(child: BridgeChild):
    assert child.ask("ping")["ok"]


@pytest.mark.parametrize("how", ["direct", "detached"])
def test_a_tool_that_knows_all_is_not(child: BridgeChild, tmp_path: Path, how: str):
    talk = told(child, tmp_path)
    command = f"{sys.executable} {talk} {tmp_path} {how}"
    wish = f"[[tool:terminal:{json.dumps({'command': command})}]] [[then]] [[say:tried]]"
    running = child.begin(wish)
    deadline = time.monotonic() + 120
    while not (tmp_path / how).exists() and time.monotonic() < deadline:
        for asked in running.turn.of("approval.requested"):
            child.ask("approval_respond", run_id=running.turn.run_id, approval_id=asked["approval_id"], choice="once")
        time.sleep(0.05)
    answer = heard(tmp_path, how)
    assert "hermes_version" not in answer
    assert answer.strip() in ("heard:", "heard: ConnectionResetError", "heard: BrokenPipeError")
    assert "connection.from_below" in child.said()
    running.end()


def test_the_process_itself_counts_as_below_and_one_that_has_ended_too():
    here, there = socket.socketpair(socket.AF_UNIX)
    with here, there:
        assert endpoint.is_from_below(here, None), "both ends are ours"
        assert endpoint._parent_of(os.getpid()) == os.getppid()
        assert endpoint._parent_of(2**22 + 1) is None
