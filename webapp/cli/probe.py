"""Asks an agent for its PONG in a process of its own: the web side knows no backend, so `python -m worker.probe` does.

That process prints one JSON object a backend; its shape is the contract between the two sides.
"""

import subprocess
import sys

from pydantic import BaseModel, ConfigDict, ValidationError

from shared.errors import PlatformError

PROBE_TIMEOUT_S = 150.0  # the first agent of a Hermes process takes up to two minutes


class ProbeFailed(PlatformError):
    """The probe itself did not work."""

    code = "probe_failed"


class Probe(BaseModel):
    """What the probe found. `answer`: what came instead of PONG; `error`: a sentence for people."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    source: str
    name: str
    ok: bool
    version: str = ""
    latency_ms: float | None = None
    answer: str = ""
    error: str = ""
    capabilities: dict[str, bool | float | None] = {}


def probe(source: str, *, ask: bool = True) -> Probe:
    """Ping one backend; `ask=False` only tells what it is and can. Raises ProbeFailed, NotFound by its text."""
    command = [sys.executable, "-m", "worker.probe", source, *([] if ask else ["--no-ping"])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ProbeFailed(f"{source} gave no answer in {PROBE_TIMEOUT_S:.0f} s") from None
    lines = done.stdout.strip().splitlines()
    try:
        return Probe.model_validate_json(lines[-1] if lines else "")
    except ValidationError:
        why = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ProbeFailed(f"The probe of {source} did not work: {why}") from None
