"""Where bridge children listen: each start of one gets an endpoint that no other worker or profile of this machine has.

By default a socket in a private folder of this worker and profile, in the data directory, or below the temp directory
where the path would be too long. With HERMES_AGENT_BRIDGE_ENDPOINT that one, then the same with a suffix or the next
port. What is taken is marked by a lock on a file, which the kernel gives back however the worker ends.
"""

import contextlib
import os
import socket
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

from shared.errors import StartFailed
from shared.settings import Settings
from worker.backends.bridge.private_folder import SAMPLE, PrivateFolder
from worker.backends.bridge.process import wire

try:
    import fcntl
except ImportError:  # Windows: that a port is taken is found by trying it
    fcntl = None  # type: ignore[assignment]

LONGEST_SOCKET_PATH_BYTES = 100  # the kernel takes 107
LONGEST_NAME = "99999.sock"  # of a socket in the private folder
WINDOWS_ENDPOINT = "tcp://127.0.0.1:18765"
TRIES = 200


class FileLock:
    """A file that is open and locked. `take` raises OSError."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path) -> "FileLock | None":
        """None when another has it. No link is followed."""
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
            lock = cls(path, descriptor)
            try:
                if fcntl is not None:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return lock
            except BlockingIOError:
                lock.close()
                return None
            except FileNotFoundError:
                pass
            lock.close()  # its owner removed the file in between

    def remove(self) -> None:
        """Give it back, and the file with it."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        self.close()

    def close(self) -> None:
        os.close(self._descriptor)


@dataclass
class Endpoint:
    """One taken endpoint; `release` it when its child is gone."""

    address: str  # ipc:///path or tcp://host:port
    _lock: FileLock | None = field(default=None, repr=False)

    def release(self) -> None:
        place = wire.place_of(self.address)
        if isinstance(place, str):
            with contextlib.suppress(OSError):
                os.unlink(place)
        if self._lock is not None:
            self._lock.remove()
            self._lock = None


class Endpoints:
    """The endpoints of one profile in one worker process. Safe from any thread; makes nothing before the first is
    taken."""

    def __init__(self, settings: Settings) -> None:
        self._given = settings.bridge_endpoint or (WINDOWS_ENDPOINT if os.name == "nt" else None)
        self._parent = settings.data_dir / "bridge"
        self._lock = threading.Lock()
        self._folder: PrivateFolder | None = None
        self._count = 0

    def take(self) -> Endpoint:
        """Raises StartFailed when none can be had."""
        try:
            with self._lock:
                if self._given is not None:
                    return self._after(self._given)
                self._count += 1
                return Endpoint(f"ipc://{self._private_folder() / f'{self._count}.sock'}")
        except OSError as error:
            raise StartFailed(
                f"There is no place for the agent's socket ({error.strerror}: {error.filename})."
            ) from error

    def close(self) -> None:
        with self._lock:
            if self._folder is not None:
                self._folder.remove()
                self._folder = None

    def _private_folder(self) -> Path:
        if self._folder is None:
            parent = self._parent
            if len(os.fsencode(parent / SAMPLE / LONGEST_NAME)) > LONGEST_SOCKET_PATH_BYTES:
                parent = Path(tempfile.gettempdir())
            else:
                parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder = PrivateFolder(parent)
        return self._folder.path

    def _after(self, given: str) -> Endpoint:
        """The given endpoint, or the first free one after it."""
        place = wire.place_of(given)
        for number in range(TRIES):
            if isinstance(place, tuple):
                host, port = place[0], place[1] + number
                self._parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                lock = FileLock.take(self._parent / f"{port}.lock")
                if lock is not None and _is_free(host, port):
                    return Endpoint(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}", lock)
                if lock is not None:
                    lock.remove()
            else:
                path = f"{place}-{number + 1}" if number else str(place)
                lock = FileLock.take(Path(f"{path}.lock"))
                if lock is not None:
                    return Endpoint(f"ipc://{path}", lock)
        raise StartFailed(f"Nothing is free at {given} and after it.")


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        if os.name != "nt":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError):
            return False
    return True
