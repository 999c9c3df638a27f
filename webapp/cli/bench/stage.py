"""What a bench is measured on: a whole portal and a demo gateway of its own, in a folder that is thrown away."""

import contextlib
import json
import os
import queue
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Self

import httpx
import psutil

from shared.errors import PlatformError

ROLES = {
    "--hermes-home": "bridge",
    "gunicorn": "web",
    " beat": "beat",
    "valkey-server": "redis",
    "redis-server": "redis",
    "celery": "worker",
}
"""What marks the command line of each process, tried in this order."""
START_LIMIT_S = 120.0
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")


class BenchError(PlatformError):
    """The bench could not be set up or a figure not be taken."""

    code = "bench_failed"


class Stage:
    """`address` of the portal, `start_s` from the command to its first page. Close it, or use it with `with`."""

    def __init__(self, database_url: str | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="portal-bench-"))
        self._processes: list[subprocess.Popen[str]] = []
        try:
            self._start(database_url)
        except BaseException:
            self.close()
            raise

    def _start_agent(self) -> dict[str, str]:
        """Start what answers; the settings by which the portal finds it."""
        key = secrets.token_hex(16)
        demo = self._spawn([sys.executable, "-m", "worker.backends.demo"], {"PORTAL_DEMO_KEY": key})
        self.gateway = str(json.loads(line_with(demo, re.compile(r"\{"), START_LIMIT_S))["url"])
        self._gateway_headers = {"Authorization": f"Bearer {key}"}
        return {"HERMES_GATEWAY_URL": self.gateway, "HERMES_GATEWAY_KEY": key}

    def _start(self, database_url: str | None) -> None:
        environment = {
            **self._start_agent(),
            "AUTH_DISABLED": "1",
            "PORTAL_DATA_DIR": str(self.folder),
            "DATABASE_URL": database_url or "",
            "REDIS_URL": "",
        }
        began = time.monotonic()
        self._portal = self._spawn([sys.executable, "-m", "webapp.cli.main", "up", "--port", "0"], environment)
        match = ADDRESS.search(line_with(self._portal, ADDRESS, START_LIMIT_S))
        assert match is not None
        self.address = match[0]
        self._wait_for("/chat", START_LIMIT_S)
        self.start_s = time.monotonic() - began
        self._wait_for("/readyz", START_LIMIT_S)

    def _spawn(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._processes.append(process)
        return process

    def _wait_for(self, path: str, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        with httpx.Client(base_url=self.address, trust_env=False, timeout=5) as client:
            while time.monotonic() < deadline:
                try:
                    if client.get(path).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                time.sleep(0.02)
        raise BenchError(f"{path} did not answer 200 within {limit_s:.0f} s")

    @property
    def redis_socket(self) -> str:
        """The path of the portal's own Redis socket."""
        for process in self.portal_processes():
            if "valkey-server" in process.name() or "redis-server" in process.name():
                for connection in process.net_connections("unix"):
                    if connection.laddr:
                        return str(connection.laddr)
        raise BenchError("the portal's own Redis was not found")

    def portal_processes(self) -> list[psutil.Process]:
        parent = psutil.Process(self._portal.pid)
        return [parent, *parent.children(recursive=True)]

    def cpu_s(self) -> float:
        """User and system seconds of all processes of the portal, Redis among them, the gateway not."""
        return sum(self.cpu_s_by_role().values())

    def cpu_s_by_role(self) -> dict[str, float]:
        """The same for web, worker, beat, redis and the supervisor."""
        spent: dict[str, float] = defaultdict(float)
        for process in self.portal_processes():
            try:
                times, command = process.cpu_times(), " ".join(process.cmdline())
            except psutil.NoSuchProcess:  # it has just ended
                continue
            role = next((role for mark, role in ROLES.items() if mark in command), "supervisor")
            spent[role] += times.user + times.system
        return spent

    def memory_mb(self) -> float:
        """Proportional set size (PSS) of all processes of the portal, in MB; shared pages are counted once."""
        return float(sum(process.memory_full_info().pss for process in self.portal_processes())) / 1e6

    def plays(self) -> list[dict[str, Any]]:
        """When the gateway was asked and told to stop, oldest first (`DemoGateway.times`)."""
        answer = httpx.get(f"{self.gateway}/v1/demo/plays", headers=self._gateway_headers, trust_env=False)
        return list(answer.json()["data"])

    def close(self) -> None:
        for process in reversed(self._processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in reversed(self._processes):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def line_with(process: subprocess.Popen[str], pattern: re.Pattern[str], limit_s: float) -> str:
    """The first line of output that matches; the output goes on being read, so that the process never blocks."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    is_found = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if not is_found.is_set():
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    deadline = time.monotonic() + limit_s
    heard: list[str] = []
    with contextlib.suppress(queue.Empty):
        while (line := lines.get(timeout=max(0.0, deadline - time.monotonic()))) is not None:
            if pattern.search(line):
                is_found.set()
                return line
            heard.append(line)
    raise BenchError("it did not start: " + " | ".join(line.strip() for line in heard[-5:]))
