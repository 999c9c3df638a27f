"""The real hermes-agent gateway, with a scripted model behind it (hermes/SURFACES.md 0).

hermes-agent has a venv of its own: PORTAL_TEST_HERMES_VENV when given, else one in the user's cache
(`$XDG_CACHE_HOME/hermes-portal-tests`), built by pip the first time. The scripted model, scripted_model.py, is found in
`tools` of the folder that PORTAL_SHARED names, else of `shared` beside the checkout.
"""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.rig.ports import free_port
from tests.rig.require import missing

HERMES = "hermes-agent[acp]==0.19.0"
KEY = "0123456789abcdef0123456789abcdef"
START_S = 120.0
BUILD_S = 900.0
CONFIG = """\
model: {{default: scripted-1, provider: custom, base_url: "{model}", api_key: dummy-key, context_length: 131072}}
approvals: {{mode: manual, timeout: {approval_limit_s}}}
security: {{tirith_enabled: false, allow_lazy_installs: false}}
"""


def shared_folder() -> Path:
    """The folder with the recordings and the scripted model; it may not exist."""
    given = os.environ.get("PORTAL_SHARED")
    return Path(given) if given else Path(__file__).parents[3] / "shared"


def scripted_model() -> Path:
    """The scripted model's program; ends the test when it is not here."""
    program = shared_folder() / "tools" / "scripted_model.py"
    if not program.is_file():
        missing("hermes", "put tools/scripted_model.py into ../shared, or set PORTAL_SHARED to its folder")
    return program


def hermes_venv() -> Path:
    """The venv of hermes-agent, built if need be; ends the test when that cannot be done."""
    given = os.environ.get("PORTAL_TEST_HERMES_VENV")
    if given:
        if not (Path(given) / "bin" / "hermes").is_file():
            missing("hermes", f"PORTAL_TEST_HERMES_VENV={given} has no bin/hermes")
        return Path(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hermes-portal-tests"
    venv = cache / HERMES.rpartition("==")[2]
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one test run builds, the others wait
        if not (venv / "ready").exists():
            _build(venv)
    return venv


def _build(venv: Path) -> None:
    shutil.rmtree(venv, ignore_errors=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", venv], check=True, capture_output=True, timeout=BUILD_S)
        command = [venv / "bin" / "pip", "install", "--quiet", HERMES, "aiohttp"]
        subprocess.run(command, check=True, capture_output=True, timeout=BUILD_S)
    except (subprocess.SubprocessError, OSError) as error:
        said = getattr(error, "stderr", None) or b""
        tail = said.decode("utf-8", "replace")[-400:]
        missing(
            "hermes", f"pip install '{HERMES}' aiohttp in a venv, PORTAL_TEST_HERMES_VENV names it ({error} {tail})"
        )
    (venv / "ready").touch()


class ScriptedModel:
    """An OpenAI-compatible model that does what the markers in the last user message say."""

    def __init__(self) -> None:
        command = [sys.executable, str(scripted_model()), "--port", "0", "--ready"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self._process.stdout is not None
        self.base_url: str = json.loads(self._process.stdout.readline())["base_url"]

    def requests(self) -> list[dict[str, Any]]:
        """What it was asked so far, oldest first."""
        with urllib.request.urlopen(self.base_url.removesuffix("/v1") + "/__requests", timeout=60) as reply:
            found = json.load(reply)
        return list(found["requests"] if isinstance(found, dict) else found)

    def close(self) -> None:
        _end(self._process)


class HermesGateway:
    """`hermes gateway run` with the API server only, in a home of its own."""

    def __init__(self, *, approval_limit_s: int = 60) -> None:
        venv = hermes_venv()
        self.model = ScriptedModel()
        self.key = KEY
        self.home = Path(tempfile.mkdtemp(prefix="portal-hermes-"))
        self.url = f"http://127.0.0.1:{free_port()}"
        self.limit_approvals(approval_limit_s)
        self._log = (self.home / "output.log").open("wb")
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(self.home),
            "HERMES_HOME": str(self.home),
            "API_SERVER_ENABLED": "true",
            "API_SERVER_KEY": KEY,
            "API_SERVER_HOST": "127.0.0.1",
            "API_SERVER_PORT": self.url.rpartition(":")[2],
        }
        self._process = subprocess.Popen(
            [str(venv / "bin" / "hermes"), "gateway", "run"],
            env=environment,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        self._wait_until_ready()

    def limit_approvals(self, seconds: int) -> None:
        """How long it waits for an approval; read anew with each request."""
        config = CONFIG.format(model=self.model.base_url, approval_limit_s=seconds)
        new = self.home / "config.yaml.new"
        new.write_text(config, encoding="utf-8")
        new.replace(self.home / "config.yaml")  # at once: it may be reading

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError):  # urllib's errors are among them
                urllib.request.urlopen(self.url + "/health", timeout=30).close()
                return
            if time.monotonic() > deadline or self._process.poll() is not None:
                said = (self.home / "output.log").read_text("utf-8", "replace")[-2000:]
                self.close()
                raise RuntimeError(f"the hermes gateway did not start:\n{said}")
            time.sleep(0.1)

    def close(self) -> None:
        _end(self._process)
        self._log.close()
        self.model.close()
        shutil.rmtree(self.home, ignore_errors=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()
