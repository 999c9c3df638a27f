"""The Procfile: which processes a portal has, and how each is started. Read by `portal up` and by foreman or honcho."""

import os
import re
import shlex
import sys
from pathlib import Path

import webapp
from shared.errors import SettingsError

LINE = re.compile(r"^(?P<role>[A-Za-z0-9_-]+):\s*(?P<command>\S.*)$")


def find_procfile() -> Path:
    """Beside the packages in a checkout, else where an installed wheel puts it. Never the working directory's: that
    may be another project's. Raises SettingsError."""
    assert webapp.__file__ is not None
    checkout = Path(webapp.__file__).parent.parent
    for folder in (checkout, Path(sys.prefix) / "share" / "hermes-portal"):
        if (folder / "Procfile").is_file():
            return folder / "Procfile"
    raise SettingsError(f"There is no Procfile in {checkout}: install hermes-portal again")


def read_procfile(path: Path) -> dict[str, list[str]]:
    """role -> argument list. Raises SettingsError for a line that is not `role: command`."""
    commands: dict[str, list[str]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = LINE.match(line)
        if match is None:
            raise SettingsError(f"{path.name}, line {number}: expected `role: command`")
        commands[match["role"]] = shlex.split(match["command"])
    return commands


def command_of(role: str) -> list[str]:
    """The Procfile's command for one role. Raises SettingsError."""
    commands = read_procfile(find_procfile())
    if role not in commands:
        raise SettingsError(f"Procfile: there is no `{role}:` line")
    return commands[role]


def search_path() -> str:
    """A PATH on which this interpreter's own programs (gunicorn, celery) come first: no activation is needed."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
