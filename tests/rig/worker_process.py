"""Real Celery workers, each in a process group of its own, to be killed, paused and asked to stop."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from tests.rig.portal import clean_environ

WORKER_ARGUMENTS = ("--pool", "threads", "--without-gossip", "--without-mingle")  # as in the Procfile
SCRIPTED_APP = "tests.worker.scripted_app"
FAST = {
    "PORTAL_LEASE_S": "60",
    "PORTAL_LEASE_RENEW_S": "2",
    "PORTAL_LEASE_GIVE_UP_S": "45",
    "PORTAL_JANITOR_EVERY_S": "0.5",
    "PORTAL_JANITOR_YOUNG_S": "1",
    "PORTAL_DISPATCH_AGAIN_S": "1",
    "PORTAL_DATABASE_LOOK_S": "0.5",
    "PORTAL_ABORT_GRACE_S": "20",
    "PORTAL_ABORT_FORCE_S": "60",
    "PORTAL_SHUTDOWN_GRACE_S": "30",
}
"""What is done again and again in a real portal is done soon; the patience with what is late stays long, so that no
test depends on a machine that is never busy."""
SHORT_LEASES = {"PORTAL_LEASE_S": "5", "PORTAL_LEASE_RENEW_S": "1", "PORTAL_LEASE_GIVE_UP_S": "4"}
"""Besides, of workers that a test kills or stops: others notice it soon."""


class WorkerProcess:
    """`celery worker`, or `celery beat`, with the settings of `environ`. It is ready when the constructor returns.
    Close it."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        role: Literal["worker", "beat"] = "worker",
        concurrency: int = 8,
        app: str = SCRIPTED_APP,
        wait: bool = True,
    ) -> None:
        self._role = role
        self._folder = tempfile.TemporaryDirectory(prefix="portal-worker-", ignore_cleanup_errors=True)
        self._log_path = Path(self._folder.name) / "log"
        arguments = ["--quiet", "--app", app, role, *(WORKER_ARGUMENTS if role == "worker" else ())]
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "celery", *arguments],
                env=clean_environ(
                    {
                        "PORTAL_DATA_DIR": self._folder.name,
                        "PORTAL_WORKER_CONCURRENCY": str(concurrency),
                        **FAST,
                        **environ,
                    }
                ),
                cwd=self._folder.name, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        if wait:
            self.wait_ready()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_ready(self, timeout_s: float = 120.0) -> None:
        deadline = time.monotonic() + timeout_s
        while f'"{self._role}.ready"' not in self.log():
            assert self.process.poll() is None, f"the {self._role} ended:\n{self.log()}"
            assert time.monotonic() < deadline, f"the {self._role} is not ready:\n{self.log()}"
            time.sleep(0.05)

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def kill(self) -> None:
        """kill -9 of the process alone."""
        self.process.kill()
        self.process.wait()

    def kill_group(self) -> None:
        """kill -9 of everything that it started, too."""
        with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Ask it to stop, as a deploy does; does not wait."""
        self.process.terminate()

    def close(self) -> None:
        if self.process.poll() is None:
            self.resume()
            self.kill_group()
        self._folder.cleanup()
