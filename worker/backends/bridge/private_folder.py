"""A folder of one worker alone, of a name that nobody knows before. That of a worker which was killed is removed by the
next one.

It is locked as long as it is used, which the kernel ends however the worker ends; the cleaners of temp directories
leave a locked one alone, too (tmpfiles.d(5)).
"""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nothing is locked, nor swept
    fcntl = None  # type: ignore[assignment]

PREFIX = "portal-bridge-"
SAMPLE = f"{PREFIX}12345678"  # as long as every name


class PrivateFolder:
    """`path` has mode 0700. Remove it."""

    def __init__(self, parent: Path) -> None:
        """Raises OSError."""
        _sweep(parent)
        self._lock: int | None = None
        while self._lock is None:  # another worker's sweep may have been quicker
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            self._lock = _lock(self.path)
            if fcntl is None:
                break

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _lock(folder: Path) -> int | None:
    """The open folder, locked until it is closed; None when another has it, or it is gone."""
    if fcntl is None:
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(folder)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def _sweep(parent: Path) -> None:
    """Remove the folders of workers that were killed."""
    if fcntl is None:
        return
    for folder in parent.glob(f"{PREFIX}????????"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            lock = _lock(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)
