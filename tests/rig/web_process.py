"""The real web process: gunicorn with `webapp.wsgi` on a free port of 127.0.0.1, against a database and a Redis."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import psutil

from tests.rig.ports import free_port

REPOSITORY = Path(__file__).resolve().parents[2]


class WebProcess:
    """Started when made; `close` ends it. With `auth_disabled` everybody is the local administrator."""

    def __init__(
        self,
        *,
        database_url: str,
        redis_url: str,
        data_dir: Path,
        auth_disabled: bool = True,
        environ: Mapping[str, str] | None = None,
        app: str = "webapp.wsgi:app",
        port: int | None = None,
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.socket_url = f"ws://127.0.0.1:{self.port}/chat-run"
        self.log_path = Path(tempfile.mkdtemp(prefix="portal-web-")) / "web.log"
        self._app = app
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PORTAL_", "HERMES_"))},
            "DATABASE_URL": database_url,
            "REDIS_URL": redis_url,
            "PORTAL_DATA_DIR": str(data_dir),
            "PORTAL_PORT": str(self.port),
            "PORTAL_MAX_SOCKETS_PER_USER": "0",
            "AUTH_DISABLED": "1" if auth_disabled else "0",
            "PYTHONUNBUFFERED": "1",
            **(environ or {}),
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it and wait until it answers."""
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gunicorn", "-c", "python:webapp.gunicorn_conf", self._app],
                cwd=REPOSITORY, env=self._environ, stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while not self._answers():
            assert self.process.poll() is None, f"gunicorn ended:\n{self.log()}"
            assert time.monotonic() < deadline, f"gunicorn does not answer:\n{self.log()}"
            time.sleep(0.05)

    def stop(self, *, timeout_s: float = 60) -> float:
        """SIGTERM, as a deploy does; gives the seconds it took."""
        started = time.monotonic()
        self._signal(signal.SIGTERM)
        assert self.process is not None
        self.process.wait(timeout_s)
        return time.monotonic() - started

    def kill(self) -> None:
        """kill -9 of master and worker."""
        assert self.process is not None
        family = [self.process.pid, *(child.pid for child in self.workers())]
        for pid in family:
            with contextlib.suppress(ProcessLookupError):  # one that dies by itself, or with its master
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def workers(self) -> list[psutil.Process]:
        assert self.process is not None
        return psutil.Process(self.process.pid).children()

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def _signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=10) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
