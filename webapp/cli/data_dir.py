"""The data directory: made private, locked by the one `portal up` that runs on it, with its key and running record."""

import fcntl
import json
import os
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from shared.errors import PlatformError

LOCK_FILE = "portal.lock"
SECRET_KEY_FILE = "secret_key"  # noqa: S105 (a file name)
RUNNING_FILE = "running.json"


class DataDirFault(PlatformError):
    """The data directory cannot be used; `message` says what to do."""

    code = "data_dir"


@dataclass(frozen=True)
class Running:
    """What other commands on this machine need of a running `portal up`. In a file of mode 0600."""

    pid: int
    address: str  # on this machine, whatever PORTAL_PUBLIC_URL says
    redis_url: str | None = None  # its own Redis; None when REDIS_URL was given
    redis_folder: str | None = None  # a private temporary folder of the socket, removed with the portal
    demo_url: str | None = None
    demo_key: str | None = field(default=None, repr=False)


def make_private(folder: Path) -> None:
    """Make the folder with mode 0700. One that others can read is tightened only if nothing else lives in it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.stat()
        if facts.st_uid != os.getuid():
            raise DataDirFault(f"{folder} belongs to another user: choose another one with --data-dir")
        if facts.st_mode & 0o077:
            ours = (folder / LOCK_FILE).exists() or not any(folder.iterdir())
            if not ours:
                raise DataDirFault(
                    f"{folder} can be read by others and holds other files: `chmod 700 {folder}`, "
                    "or choose an empty one with --data-dir"
                )
            folder.chmod(0o700)
    except OSError as error:
        raise DataDirFault(
            f"{folder} cannot be the data directory ({error.strerror}): choose another one with --data-dir"
        ) from error


class DataDirLock:
    """Held by the one `portal up` of a data directory; the kernel gives it back however that process ends."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / LOCK_FILE).open("a+")
        os.chmod(self._file.fileno(), 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            other = read_running(folder)
            who = f" (process {other.pid}, {other.address})" if other else ""
            raise DataDirFault(
                f"A portal already runs on {folder}{who}. Stop it first, or give this one its own with --data-dir"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def secret_key_file(folder: Path) -> Path:
    """The file (0600) with the key that signs cookies, made on the first call; a second process sees a whole one."""
    path = folder / SECRET_KEY_FILE
    if not path.exists():
        own = folder / f".{SECRET_KEY_FILE}.{os.getpid()}"
        _write_private(own, secrets.token_urlsafe(48))
        try:
            os.link(own, path)  # refuses to replace a key that another process made meanwhile
        except FileExistsError:
            pass
        finally:
            own.unlink()
    return path


def write_running(folder: Path, running: Running) -> None:
    own = folder / f".{RUNNING_FILE}.{os.getpid()}"
    _write_private(own, json.dumps(asdict(running)))
    own.replace(folder / RUNNING_FILE)


def read_running(folder: Path) -> Running | None:
    """The record that `portal up` left, also if it was killed since; None if there is none that can be read."""
    try:
        return Running(**json.loads((folder / RUNNING_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def remove_running(folder: Path) -> None:
    (folder / RUNNING_FILE).unlink(missing_ok=True)


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)
