"""Bridge children for tests: a home with a script for the stand-in, and the real Hermes with a scripted model."""

import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from shared import settings as portal_settings
from shared.settings import Settings
from tests.peers import bridge_child
from tests.rig.hermes import CONFIG, ScriptedModel, hermes_venv
from worker.backends import launcher
from worker.backends.bridge.backend import BridgeBackend
from worker.backends.bridge.manager import BridgeManager

PROGRAM = Path(bridge_child.__file__)


class ScriptedHome:
    """A Hermes home that says what the stand-in does, and where it writes down what it was asked."""

    def __init__(self, folder: Path, **script: Any) -> None:
        self.path = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.script(**script)

    def script(self, **script: Any) -> None:
        """`start`, `chat`, `turn`, as in tests/peers/bridge_child.py."""
        whole = self.path / "script.new"
        whole.write_text(json.dumps(script))
        whole.rename(self.path / "script.json")

    def facts(self) -> dict[str, Any]:
        """The arguments, the environment, the parent and the open files of the child that was started last."""
        return dict(json.loads((self.path / "facts.json").read_text()))

    def requests(self, action: str | None = None) -> list[dict[str, Any]]:
        path = self.path / "requests.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []  # the last may be half written
        found = [json.loads(line) for line in lines]
        return [each for each in found if action is None or each["action"] == action]

    def settings(self, **environ: str) -> Settings:
        """For workers whose bridge is the stand-in."""
        given = {
            "PORTAL_DATA_DIR": str(self.path.parent / "data"),
            "HERMES_HOME": str(self.path),
            "HERMES_AGENT_BRIDGE_PYTHON": sys.executable,
            "HERMES_AGENT_BRIDGE_STARTUP_TIMEOUT_MS": "60000",
            "PORTAL_ABORT_GRACE_S": "1",
        }
        return portal_settings.load(given | environ, cwd=self.path)

    def manager(self, settings: Settings | None = None, **given: Any) -> BridgeManager:
        return BridgeManager(settings or self.settings(), lambda: self.path, program=PROGRAM, **given)

    def backend(self, settings: Settings | None = None, **given: Any) -> BridgeBackend:
        return BridgeBackend(settings or self.settings(), lambda: self.path, program=PROGRAM, **given)


class HermesHome:
    """A home of the real hermes-agent with the scripted model behind it. Close it.

    It is also the user's home for agents, whoever starts them: shells of their tools would read the developer's
    .bashrc, and what that one starts would be killed with them."""

    def __init__(self, model: ScriptedModel) -> None:
        self.model = model
        self.path = Path(tempfile.mkdtemp(prefix="portal-bridge-home-"))
        self._python = self.path / "python"
        self._python.write_text(f'#!/bin/sh\nHOME="{self.path}" exec "{hermes_venv() / "bin" / "python"}" "$@"\n')
        self._python.chmod(0o700)
        self.configure()

    def configure(self, *, context: int = 131072, more: str = "") -> None:
        config = CONFIG.format(model=self.model.base_url, approval_limit_s=600).replace("131072", str(context))
        (self.path / "config.yaml").write_text(config + more, encoding="utf-8")

    @property
    def environ(self) -> dict[str, str]:
        """Settings of a worker that uses it."""
        return {"HERMES_HOME": str(self.path), "HERMES_AGENT_BRIDGE_PYTHON": str(self._python)}

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def other_launcher(folder: Path, **constants: float) -> Path:
    """A copy of the launcher with other times; its path."""
    source = Path(launcher.__file__).read_text()
    for name, value in constants.items():
        source, count = re.subn(rf"^{name} = .*$", f"{name} = {value}", source, flags=re.MULTILINE)
        assert count == 1, name
    path = folder / "launcher.py"
    path.write_text(source)
    return path


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true in {timeout_s:g} s"
        time.sleep(0.01)
    return value


def running(word: str) -> list[int]:
    """Processes with that word in their command line, but this one."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        is_dead = process.info["status"] == psutil.STATUS_ZOMBIE
        if not is_dead and process.pid != os.getpid() and word in " ".join(process.info["cmdline"] or ()):
            found.append(process.pid)
    return found
