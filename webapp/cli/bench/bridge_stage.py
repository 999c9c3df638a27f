"""A stage with the agent bridge: the real hermes-agent of a given interpreter, and a model that only streams."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from webapp.cli.bench import straight_agent, stub_model
from webapp.cli.bench.stage import START_LIMIT_S, BenchError, Stage, line_with

HOW_TO_GET = (
    "install it in a venv of its own (python -m venv hermes; hermes/bin/pip install hermes-agent) and give its python: "
    "--hermes-python hermes/bin/python, or HERMES_AGENT_BRIDGE_PYTHON"
)
NO_GATEWAY = "http://127.0.0.1:9"  # nobody listens there: the portal is to start no demo agent
CONFIG = """\
model: {{default: {model}, provider: custom, base_url: "{base_url}", api_key: no-key, context_length: {context}}}
approvals: {{mode: manual}}
security: {{tirith_enabled: false, allow_lazy_installs: false}}
"""
FLOOR_S = 300.0


class BridgeStage(Stage):
    """`python`: of a hermes-agent. Its home is made for the bench; nothing of yours is read."""

    def __init__(self, python: str | None, database_url: str | None = None) -> None:
        self._python = find_hermes(python)
        super().__init__(database_url)

    def _start_agent(self) -> dict[str, str]:
        model = self._spawn([sys.executable, "-m", stub_model.__name__], {})
        self.model = str(json.loads(line_with(model, re.compile(r"\{"), START_LIMIT_S))["base_url"])
        home = self.folder / "hermes"
        home.mkdir()
        config = CONFIG.format(model=stub_model.MODEL, base_url=self.model, context=stub_model.CONTEXT)
        (home / "config.yaml").write_text(config, encoding="utf-8")
        self._hermes_environ = {"HERMES_HOME": str(home), "HERMES_AGENT_BRIDGE_PYTHON": self._python}
        return {
            "HERMES_GATEWAY_URL": NO_GATEWAY,
            "HERMES_GATEWAY_KEY": "",
            "HERMES_AGENT_BRIDGE_ENDPOINT": "",
            **self._hermes_environ,
        }

    def asked(self, text: str) -> list[dict[str, Any]]:
        """What the model was asked with that text in it, oldest first (`stub_model`)."""
        answer = httpx.get(self.model.removesuffix("/v1") + "/asked", trust_env=False, timeout=10)
        return [each for each in answer.json()["asked"] if text in each["text"]]

    def straight(self, *, streams: int, deltas: int, every_ms: int, turns: int = 0) -> dict[str, Any]:
        """The same without a portal (`straight_agent`)."""
        asked = {
            "base_url": self.model,
            "model": stub_model.MODEL,
            "streams": streams,
            "deltas": deltas,
            "every_ms": every_ms,
            "turns": turns,
        }
        process = self._spawn([self._python, straight_agent.__file__, json.dumps(asked)], self._hermes_environ)
        try:
            said, _ = process.communicate(timeout=FLOOR_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise BenchError(f"the agent alone did not end within {FLOOR_S:.0f} s") from None
        lines = said.strip().splitlines()
        if process.returncode != 0 or not lines:
            raise BenchError("the agent alone failed: " + " | ".join(lines[-3:]))
        found: dict[str, Any] = json.loads(lines[-1])
        return found


def find_hermes(python: str | None) -> str:
    """The interpreter of a hermes-agent. Raises BenchError with what is missing and how to get it, in one line."""
    if not python:
        raise BenchError(f"no hermes-agent was given: {HOW_TO_GET}")
    if not Path(python).is_file():
        raise BenchError(f"{python} is not there: {HOW_TO_GET}")
    look = "import importlib.util as u, sys; sys.exit(u.find_spec('run_agent') is None)"
    try:
        found = subprocess.run([python, "-c", look], capture_output=True, timeout=30, check=False, cwd="/")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"{python} cannot be run ({type(error).__name__}): {HOW_TO_GET}") from error
    if found.returncode != 0:
        raise BenchError(f"{python} has no hermes-agent: {HOW_TO_GET}")
    return str(Path(python).absolute())
