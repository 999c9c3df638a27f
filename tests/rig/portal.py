"""A whole portal: `portal up` as a process, with a data directory of its own and a free port."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Self

import httpx
import psutil

PORTAL = [sys.executable, "-m", "webapp.cli.main"]
ROOT = Path(__file__).parent.parent.parent
START_S = 120.0
STOP_S = 100.0
OUR_VARIABLES = ("PORTAL_", "HERMES_", "AUTH_DISABLED", "DATABASE_URL", "REDIS_URL", "FLOWER_")
ADMINISTRATOR = "ada@example.com"
PASSWORD = "four unrelated words then"
ROLES = {"gunicorn": "web", "beat": "beat", "worker.backends.demo": "demo", "unixsocket:": "redis", "worker": "worker"}
"""What marks the command line of each child of `portal up`, tried in this order."""


def clean_environ(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of the test run without any setting of the portal, plus `extra`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OUR_VARIABLES)}
    return {**kept, "PYTHONPATH": str(ROOT), **(extra or {})}


def run_portal(*arguments: str, environ: Mapping[str, str], text: str = "") -> subprocess.CompletedProcess[str]:
    """One `portal` command to its end, `text` on its standard input."""
    return subprocess.run(
        [*PORTAL, *arguments], env=dict(environ), input=text, capture_output=True, text=True, check=False,
        timeout=START_S, cwd="/",
    )  # fmt: skip


def is_alive(pid: int) -> bool:
    """False for a process that is gone, or dead and only waits for its parent to notice."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(
    condition: Callable[[], Any], timeout_s: float = 60.0, what: str | Callable[[], str] = "the condition"
) -> Any:
    """The first true value of `condition()`; fails the test after `timeout_s`, saying `what` it waited for."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not in {timeout_s:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.05)
    return value


class Portal:
    """`address`, `setup_link` (None under AUTH_DISABLED, or when there is an administrator) and the processes.

    It starts at once and is ready when the constructor returns, unless `wait=False`. Close it.
    """

    def __init__(
        self,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        data_dir: Path | None = None,
        wait: bool = True,
    ) -> None:
        self._own_folder = None if data_dir else Path(tempfile.mkdtemp(prefix="portal-"))
        self.data_dir = data_dir or self._own_folder
        assert self.data_dir is not None
        no_hermes = {"HERMES_HOME": str(self.data_dir / "no-hermes")}  # whatever is installed on this machine
        self.environ = clean_environ({"PORTAL_DATA_DIR": str(self.data_dir), **no_hermes, **(environ or {})})
        self.events: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self._arguments = arguments if "--port" in arguments else (*arguments, "--port", "0")
        self._start()
        if wait:
            try:
                self.wait_ready()
            except BaseException:
                self.close()
                raise

    def _start(self) -> None:
        self.process = subprocess.Popen(
            [*PORTAL, "up", "--log", "json", *self._arguments],
            env=self.environ, cwd="/", text=True, bufsize=1,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.append(line)
            try:
                event = json.loads(line)
            except ValueError:
                continue
            self.events.append(event)

    # ---- what it said

    def said(self, event: str) -> list[dict[str, Any]]:
        """The supervisor's own lines of that name, so far."""
        return [each for each in self.events if each.get("process") == "up" and each.get("event") == event]

    def wait_said(self, event: str, timeout_s: float = START_S, *, count: int = 1) -> dict[str, Any]:
        def heard() -> dict[str, Any] | None:
            found = self.said(event)
            if len(found) < count and self.process.poll() is not None:
                self._reader.join(STOP_S)  # it may be a line behind
                assert len(self.said(event)) >= count, f"it ended without {event}:\n{self.output()}"
            return found[count - 1] if len(found) >= count else None

        found: dict[str, Any] = wait_until(heard, timeout_s, lambda: f"{event}, in\n{self.output()}")
        return found

    def wait_ready(self) -> None:
        """Until the first page and a worker answer."""
        self.wait_said("ready")
        wait_until(lambda: self.get("/readyz").status_code == 200, START_S, "readiness")

    def output(self) -> str:
        return "".join(self.lines[-40:])

    @property
    def address(self) -> str:
        return str(self.wait_said("ready")["address"])

    @property
    def setup_link(self) -> str | None:
        links = self.said("setup.link")
        return str(links[-1]["link"]) if links else None

    # ---- its processes

    def children(self) -> dict[str, psutil.Process]:
        """role -> the child of the supervisor."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            try:
                command = " ".join(child.cmdline())
            except psutil.NoSuchProcess:
                continue
            role = next((role for mark, role in ROLES.items() if mark in command), None)
            if role is not None:
                found[role] = child
        return found

    def pid(self, role: str) -> int:
        """Waits until that child is there."""
        child: psutil.Process = wait_until(lambda: self.children().get(role), what=f"a {role} process")
        return child.pid

    def all_pids(self) -> list[int]:
        """The supervisor and everything below it."""
        top = psutil.Process(self.process.pid)
        return [top.pid, *(each.pid for each in top.children(recursive=True))]

    def all_arguments(self) -> list[str]:
        """The command line of each of them."""
        found = []
        for pid in self.all_pids():
            with contextlib.suppress(psutil.NoSuchProcess):  # some look for something and end
                found.append(" ".join(psutil.Process(pid).cmdline()))
        return found

    def kill(self, role: str) -> int:
        """kill -9 of one child; its process id."""
        pid = self.pid(role)
        os.kill(pid, signal.SIGKILL)
        return pid

    # ---- its end

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop and wait for it; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(STOP_S)

    def start_again(self) -> None:
        """After a stop: the same data directory, a new process."""
        assert self.process.poll() is not None
        self._reader.join(STOP_S)
        self.events.clear()
        self._start()
        self.wait_ready()

    def close(self) -> None:
        """End everything at once and remove what it kept."""
        pids = self.all_pids() if self.process.poll() is None else []
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        wait_until(lambda: not any(is_alive(pid) for pid in pids), what="the end of all processes")
        if self._own_folder is not None:
            shutil.rmtree(self._own_folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- as a browser

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.address + path, trust_env=False, timeout=60)

    def client(self) -> httpx.Client:
        """A browser without a sign-in: keeps cookies, sends the Origin."""
        return httpx.Client(base_url=self.address, headers={"Origin": self.address}, trust_env=False, timeout=60)

    def sign_in_first_administrator(self) -> httpx.Client:
        """Uses the one-time link as a person would; the client is signed in."""
        link = wait_until(lambda: self.setup_link, START_S, "a set-up link")
        client = self.client()
        answer = submit_form(
            client, link, {"login": ADMINISTRATOR, "name": "Ada", "password": PASSWORD, "password_again": PASSWORD}
        )
        assert answer.status_code in (200, 302, 303), answer.text[:2000]
        return client


def submit_form(client: httpx.Client, path: str, values: Mapping[str, str]) -> httpx.Response:
    """Open a page, fill its form's fields with those of `values` it has, and send it as a browser would."""
    page = client.get(path, follow_redirects=True)
    assert page.status_code == 200, f"{path}: {page.status_code} {page.text[:500]}"
    form = _Form()
    form.feed(page.text)
    fields = {name: values.get(name, value) for name, value in form.fields.items()}
    action = form.action or str(page.url)
    return client.post(action, data=fields, headers={"Referer": str(page.url)}, follow_redirects=False)


class _Form(HTMLParser):
    """The first form of a page that posts: its action, and its fields with what stands in them."""

    def __init__(self) -> None:
        super().__init__()
        self.action = ""
        self.fields: dict[str, str] = {}
        self._state = "before"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "form" and self._state == "before" and values.get("method", "get").lower() == "post":
            self._state, self.action = "inside", values.get("action", "")
        elif tag in ("input", "textarea", "select") and self._state == "inside" and values.get("name"):
            self.fields[values["name"]] = values.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "form" and self._state == "inside":
            self._state = "after"
