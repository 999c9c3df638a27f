"""Which Python runs the bridge child: Hermes' own, looked for in the order of the source document (DESIGN 8).

1. HERMES_AGENT_BRIDGE_PYTHON, 2. `venv` or `.venv` of the agent root, 3. the interpreter of the installed `hermes`
command, 4. `uv run --project <agent root> python`, 5. `python3`, `python`. The first that is there is taken; of the
last only one that can import Hermes.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shared.errors import StartFailed
from shared.settings import Settings

HOW_TO_GET_IT = "Install hermes-agent for the user that runs the worker, or set HERMES_AGENT_ROOT or "
MAIN_MODULE = "run_agent"
VENVS = ("venv", ".venv")
PYTHON_OF_VENV = ("bin/python", "bin/python3", "Scripts/python.exe")
COMMAND_FOLDERS = (".local/bin", ".hermes/bin")  # below the user's home: seldom on the PATH of a service
HEAD_BYTES = 4_096
MAX_SHIMS = 3  # a `hermes` that calls another one
PROBE_TIMEOUT_S = 20.0
_CALLED = re.compile(r"""exec'?\s+["']?(/[^"'\s]+)["']?""")


@dataclass(frozen=True)
class Interpreter:
    """`command`: what the arguments of Python go behind. `agent_root`: the checkout, None when Hermes is a package of
    the interpreter. `found_by`: for operators."""

    command: tuple[str, ...]
    agent_root: Path | None
    found_by: str


def find_interpreter(settings: Settings, environ: Mapping[str, str] | None = None) -> Interpreter:
    """Raises StartFailed with what to do when there is none."""
    environ = os.environ if environ is None else environ
    root = find_agent_root(settings, environ)
    if settings.bridge_python is not None:
        given = _command(settings.bridge_python, environ)
        if given is None:
            raise _missing(f"HERMES_AGENT_BRIDGE_PYTHON names {settings.bridge_python}, which cannot be run.")
        return Interpreter((given,), root, "HERMES_AGENT_BRIDGE_PYTHON")
    if root is not None:
        python = _python_of(root)
        if python is not None:
            return Interpreter((str(python),), root, "the venv of the agent root")
    return _installed(root, environ) or _by_uv(settings, root, environ) or _of_the_path(root, environ)


def find_agent_root(settings: Settings, environ: Mapping[str, str]) -> Path | None:
    """HERMES_AGENT_ROOT, else the checkout that Hermes' installer leaves in its home. Raises StartFailed when
    the given one is none."""
    given = settings.hermes_agent_root
    if given is not None:
        if not _is_root(given):
            raise _missing(f"HERMES_AGENT_ROOT is {given}, but there is no {MAIN_MODULE}.py.")
        return given
    homes = (settings.hermes_home, Path(environ.get("HOME") or "/") / ".hermes")
    return next((home / "hermes-agent" for home in homes if _is_root(home / "hermes-agent")), None)


def _installed(root: Path | None, environ: Mapping[str, str]) -> Interpreter | None:
    """By the first line of the installed `hermes`, or of what that one calls."""
    found = _command("hermes", environ) or next(
        (str(path) for path in _usual_commands(environ) if os.access(path, os.X_OK)), None
    )
    for _ in range(MAX_SHIMS):
        called = None if found is None else _interpreter_of(Path(found).resolve(), environ)
        if called is None:
            return None
        if "python" in Path(called).name:
            venv = Path(called).parent.parent  # not resolved: the link is what makes it the venv's
            own_root = venv.parent if venv.name in VENVS and _is_root(venv.parent) else root
            return Interpreter((called,), own_root, "the installed hermes command")
        found = called
    return None


def _usual_commands(environ: Mapping[str, str]) -> list[Path]:
    home = environ.get("HOME")
    return [] if not home else [Path(home) / folder / "hermes" for folder in COMMAND_FOLDERS]


def _interpreter_of(script: Path, environ: Mapping[str, str]) -> str | None:
    """What runs the script: a Python, or the script that a shell script calls; None when that cannot be told."""
    try:
        with script.open("rb") as file:
            head = file.read(HEAD_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    first, _, rest = head.partition("\n")
    if not first.startswith("#!"):
        return None
    words = first[2:].split()
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
    if not words:
        return None
    if "python" in Path(words[0]).name:
        return _command(words[0], environ)
    called = _CALLED.search(rest)  # pip's way with a long path, and the installer's shim
    return None if called is None else _command(called[1], environ)


def _by_uv(settings: Settings, root: Path | None, environ: Mapping[str, str]) -> Interpreter | None:
    if root is None or not (root / "pyproject.toml").is_file():
        return None
    for name in (settings.bridge_uv, settings.uv, "uv"):
        uv = None if name is None else _command(name, environ)
        if uv is not None:
            return Interpreter((uv, "run", "--project", str(root), "python"), root, "uv")
    return None


def _of_the_path(root: Path | None, environ: Mapping[str, str]) -> Interpreter:
    for name in ("python3", "python"):
        python = _command(name, environ)
        if python is not None and (root is not None or _has_hermes(python)):
            return Interpreter((python,), root, f"{name} of the PATH")
    raise _missing("No Hermes was found on this machine.")


def _has_hermes(python: str) -> bool:
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({MAIN_MODULE!r}) is None)"
    try:
        asked = subprocess.run(
            [python, "-I", "-c", code], stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return asked.returncode == 0


def _command(name: str, environ: Mapping[str, str]) -> str | None:
    """The path of a program that can be run, by its own path or by the PATH."""
    return shutil.which(os.path.expanduser(name), path=environ.get("PATH", os.defpath))


def _is_root(folder: Path) -> bool:
    try:
        return (folder / f"{MAIN_MODULE}.py").is_file()
    except OSError:
        return False


def _python_of(root: Path) -> Path | None:
    pythons = (root / venv / python for venv in VENVS for python in PYTHON_OF_VENV)
    return next((python for python in pythons if os.access(python, os.X_OK)), None)


def _missing(what: str) -> StartFailed:
    return StartFailed(f"{what} {HOW_TO_GET_IT}HERMES_AGENT_BRIDGE_PYTHON.")
