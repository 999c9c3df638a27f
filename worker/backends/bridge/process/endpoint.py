"""Where the process listens: a Unix socket in a private directory, or a port of this machine (RELIABILITY S39)."""

import contextlib
import errno
import os
import socket
import stat
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from . import wire

LONGEST_SOCKET_PATH_BYTES = 107  # of the kernel's 108 with the ending zero
LOOPBACK = ("127.0.0.1", "::1", "localhost")
BACKLOG = 256
PROBE_S = 2.0


class EndpointRefused(Exception):
    """It would not be private, or another process answers there."""


@dataclass
class Listener:
    """`address` has the port that was really given. Close it when the process ends."""

    socket: socket.socket
    address: str
    _path: Path | None = None

    def close(self) -> None:
        self.socket.close()
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()


def listen(endpoint: str) -> Listener:
    """`ipc:///path` or `tcp://127.0.0.1:port` (port 0: any free one). Raises EndpointRefused, OSError."""
    place = wire.place_of(endpoint)
    if isinstance(place, str):
        return _listen_at(Path(place))
    if place is None or place[0] not in LOOPBACK:
        raise EndpointRefused("The endpoint must be ipc:///absolute/path or tcp://127.0.0.1:port.")
    return _listen_on(*place)


def is_own_user(connection: socket.socket) -> bool:
    """Whether the other end of a connection is a process of our user. True where that cannot be asked."""
    peer = _peer(connection)
    return peer is None or peer[1] == os.geteuid()


def is_from_below(connection: socket.socket, launcher: int | None) -> bool:
    """Whether the other end is this process, or one below it or below its launcher: a tool of an agent, also one that
    has left its parent (the launcher gets it). Whoever is not known to be another counts as one. False where that
    cannot be asked."""
    peer = _peer(connection)
    if peer is None or not sys.platform.startswith("linux"):
        return False
    own = {os.getpid()} if launcher is None else {os.getpid(), launcher}
    pid: int | None = peer[0]
    if pid != launcher:
        while pid is not None and pid > 1:
            if pid in own:
                return True
            pid = _parent_of(pid)
    return pid is None or pid == 0  # ended meanwhile, or of another container


def _peer(connection: socket.socket) -> tuple[int, int] | None:
    """Pid and user of the other end."""
    if not hasattr(socket, "SO_PEERCRED") or connection.family != socket.AF_UNIX:
        return None
    size = struct.calcsize("3i")
    pid, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, user


def _parent_of(pid: int) -> int | None:
    try:
        stat_line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return int(stat_line.rpartition(b")")[2].split()[1])


def _listen_on(host: str, port: int) -> Listener:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name != "nt":  # there it would let two listen on one port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    shown = f"[{host}]" if ":" in host else host
    return Listener(listening, f"tcp://{shown}:{listening.getsockname()[1]}")


def _listen_at(path: Path) -> Listener:
    if not hasattr(socket, "AF_UNIX"):
        raise EndpointRefused("There are no Unix sockets here: use tcp://127.0.0.1:port.")
    if len(os.fsencode(path)) > LONGEST_SOCKET_PATH_BYTES:
        raise EndpointRefused(f"The socket's path is longer than {LONGEST_SOCKET_PATH_BYTES} bytes: {path}")
    _make_private(path.parent)
    _clear(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listening.bind(str(path))
        os.chmod(path, 0o600)
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    finally:
        os.umask(mask)
    return Listener(listening, f"ipc://{path}", path)


def _make_private(folder: Path) -> None:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise EndpointRefused(f"{folder} is no directory.")
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise EndpointRefused(f"{folder} must belong to this user alone (chmod 700).")


def _clear(path: Path) -> None:
    """Take away the file of a process that was killed; nothing else."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        raise EndpointRefused(f"{path} is there already, and is no socket of this user.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_S)
        try:
            probe.connect(str(path))
        except OSError as error:
            if error.errno not in (errno.ECONNREFUSED, errno.ENOENT):
                raise EndpointRefused(f"{path} is there already ({error.strerror}).") from error
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            return
    raise EndpointRefused(f"Another process answers at {path}.")
