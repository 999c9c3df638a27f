"""`portal up`: the processes of one machine, started in order, kept running, stopped in order with Redis last.

Start: own Redis, demo gateway and migration side by side; then web and worker; beat once the first page answers.
Stop: beat and worker first, while the pages still show how the last turns end; then web, demo, Redis.
One asyncio loop in the main thread, which alone starts children (see launch.py).
"""

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from urllib.parse import urlsplit

from shared.errors import PlatformError
from shared.settings import LOOPBACK_HOSTS, Settings
from webapp.cli import data_dir, embedded_redis, procfile
from webapp.cli.children import Keeper, Spec, how_it_ended, run_once
from webapp.cli.configured import redis_was_given
from webapp.cli.console import Console
from webapp.cli.listener import address_of, http_address
from webapp.cli.prepare import SETUP_TOKEN_MINUTES, Prepared, read_prepared

LISTEN_FD = "PORTAL_LISTEN_FD"  # read by webapp/gunicorn_conf.py
CELERY_ROOT_WARNING = "ignore:You're running the worker with superuser privileges"  # said once, in one line, instead
START_TIMEOUT_S = 60.0
PREPARE_TIMEOUT_S = 600.0  # a migration of a large database
FIRST_PAGE_AGAIN_S = 0.2
FIRST_PAGE_PATIENCE_S = 15.0
COUNT_EVERY_S = 3.0
COUNT_LIMIT_S = 30.0  # it is a Python of its own, which a busy machine starts slowly
WORKER_EXTRA_S = 15.0  # after its grace a worker still closes its runs as interrupted
WEB_GRACE_S = 12.0  # gunicorn's own graceful_timeout is 10
SHORT_GRACE_S = 5.0
REDIS_GRACE_S = 15.0


class CannotStart(PlatformError):
    """A part without which the portal cannot run did not start; `message` says what to do."""

    code = "cannot_start"


class Supervisor:
    """`listener` is open already. `run()` returns the exit code when all children are gone."""

    def __init__(self, settings: Settings, listener: socket.socket, console: Console) -> None:
        self._settings = settings
        self._listener = listener
        self._console = console
        self._keepers: dict[str, Keeper] = {}
        self._redis: embedded_redis.RedisPlace | None = None
        self._environ = dict(os.environ)
        self._began = time.monotonic()
        self._stop = asyncio.Event()
        self._at_once = asyncio.Event()
        self._local_address = http_address(*address_of(listener))
        self._address = settings.public_url or self._local_address

    async def run(self) -> int:
        self._listen_to_signals()
        start = asyncio.create_task(self._start())
        stop = asyncio.create_task(self._stop.wait())
        exit_code = 0
        try:
            await asyncio.wait({start, stop}, return_when=asyncio.FIRST_COMPLETED)
            if start.done() and (fault := start.exception()) is not None:
                if not isinstance(fault, PlatformError):
                    raise fault
                self._console.say("start.failed", fault.message, level="error")
                exit_code = 1
            else:
                await stop
        finally:
            for task in (start, stop):
                task.cancel()
            await asyncio.gather(start, stop, return_exceptions=True)
            await self._stop_all()
        return exit_code

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # `nohup portal up` goes on
                loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        if not self._stop.is_set():
            self._stop.set()
        elif number == signal.SIGINT:
            self._console.say("stop.at_once", "Ending everything now.")
            self._at_once.set()

    # -- start

    async def _start(self) -> None:
        folder = self._settings.data_dir
        self._console.say(
            "start",
            f"Hermes Portal {version('hermes-portal')}, data in {folder}",
            data_dir=str(folder),
            pid=os.getpid(),
        )
        self._set_environ()
        commands = procfile.read_procfile(procfile.find_procfile())
        prepare = asyncio.create_task(self._prepare())
        steps = (asyncio.create_task(self._start_redis()), asyncio.create_task(self._start_demo()), prepare)
        try:
            await asyncio.gather(*steps)
        finally:  # when one has failed the others still hold processes: they end before the loop does
            for step in steps:
                step.cancel()
            await asyncio.gather(*steps, return_exceptions=True)
        prepared = prepare.result()
        self._write_record()
        for role in ("web", "worker"):
            self._keep(role, commands.pop(role), listener=self._listener if role == "web" else None)
        await self._first_page()
        self._say_where()
        for role, command in commands.items():  # what the first page does not need
            self._keep(role, command)
        await self._offer_setup(prepared)

    def _set_environ(self) -> None:
        """What the children are told: by environment only, never by argument (S41)."""
        host, port = self._settings.host, self._listener.getsockname()[1]
        self._environ |= {
            "PORTAL_DATA_DIR": str(self._settings.data_dir),
            "PORTAL_HOST": host,
            "PORTAL_PORT": str(port),
            "PATH": procfile.search_path(),
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": CELERY_ROOT_WARNING,
        }
        if self._settings.secret_key is None:
            self._environ["PORTAL_SECRET_KEY_FILE"] = str(data_dir.secret_key_file(self._settings.data_dir))

    async def _start_redis(self) -> None:
        if redis_was_given():
            return
        program = embedded_redis.find_server()
        if program is None:
            raise CannotStart(embedded_redis.NO_SERVER)
        before = data_dir.read_running(self._settings.data_dir)
        if before is not None and before.redis_folder is not None:  # left behind by a portal that was killed
            shutil.rmtree(before.redis_folder, ignore_errors=True)
        self._redis = place = embedded_redis.make_place(self._settings.data_dir)
        self._keep("redis", embedded_redis.server_command(program, place), quiet=True)
        if not await embedded_redis.wait_until_it_answers(place.socket, START_TIMEOUT_S):
            raise CannotStart(f"The Redis server {program} does not answer. Set REDIS_URL to use another one")
        self._environ["REDIS_URL"] = place.url

    async def _start_demo(self) -> None:
        """Without a gateway: the demo gateway, on a free port that it keeps when it is started again."""
        if self._settings.hermes_gateway_url is not None:
            return
        self._environ["PORTAL_DEMO_KEY"] = secrets.token_urlsafe(32)
        command = [sys.executable, "-m", "worker.backends.demo", "--key-env", "PORTAL_DEMO_KEY", "--port"]
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        keeper = self._keep("demo", [*command, "0"], on_line=lambda raw: _take_url(raw, ready))
        try:
            url = await asyncio.wait_for(ready, START_TIMEOUT_S)
        except TimeoutError:
            raise CannotStart(
                "The built-in demo gateway does not start. Set HERMES_GATEWAY_URL to do without"
            ) from None
        keeper.spec = replace(keeper.spec, argv=[*command, str(urlsplit(url).port)])
        self._environ["PORTAL_DEMO_URL"] = url

    async def _prepare(self) -> Prepared:
        """Migrate, and make a one-time token if there is no administrator: in a process of its own, whose 60 MB of
        database code then go away again."""
        code, lines = await run_once(self._python("webapp.cli.prepare"), PREPARE_TIMEOUT_S)
        try:
            prepared = read_prepared(lines[-1] if lines else "")
        except ValueError:
            for line in lines:
                self._console.child_line("prepare", line.encode())
            raise CannotStart(f"The database could not be made ready ({how_it_ended(code)})") from None
        if prepared.error is not None:
            raise CannotStart(prepared.error)
        return prepared

    def _keep(
        self,
        role: str,
        command: list[str],
        *,
        listener: socket.socket | None = None,
        quiet: bool = False,
        on_line: Callable[[bytes], bool] | None = None,
    ) -> Keeper:
        environ = dict(self._environ)
        if listener is not None:
            environ[LISTEN_FD] = str(listener.fileno())
        fds = () if listener is None else (listener.fileno(),)
        self._keepers[role] = keeper = Keeper(Spec(role, command, environ, fds, quiet), self._console, on_line)
        return keeper

    def _python(self, module: str, *arguments: str) -> Spec:
        return Spec(module, [sys.executable, "-m", module, *arguments], dict(self._environ))

    def _write_record(self) -> None:
        place = self._redis
        folder = None if place is None or place.private_folder is None else str(place.private_folder)
        running = data_dir.Running(
            pid=os.getpid(),
            address=self._local_address,
            redis_url=None if place is None else place.url,
            redis_folder=folder,
            demo_url=self._environ.get("PORTAL_DEMO_URL"),
            demo_key=self._environ.get("PORTAL_DEMO_KEY"),
        )
        data_dir.write_running(self._settings.data_dir, running)

    # -- what it says

    async def _first_page(self) -> None:
        """Until the web process answers. The connection waits in the listening socket, so it is not polled for."""
        while True:
            try:
                if await asyncio.wait_for(self._is_healthy(), FIRST_PAGE_PATIENCE_S):
                    return
            except (OSError, TimeoutError):
                pass  # the web process died with the request; it is being started again
            await asyncio.sleep(FIRST_PAGE_AGAIN_S)

    async def _is_healthy(self) -> bool:
        host, port = address_of(self._listener)
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(f"GET /healthz HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
            return b" 200 " in await reader.readline()
        finally:
            writer.close()

    def _say_where(self) -> None:
        settings, took_s = self._settings, round(time.monotonic() - self._began, 1)
        if "demo" in self._keepers:
            self._console.say(
                "demo",
                "No gateway is configured (HERMES_GATEWAY_URL). New chats go to an installed Hermes where the worker "
                "finds one, else to the demo agent, which also answers chats by API. `portal doctor` says which.",
            )
        if os.geteuid() == 0:
            self._console.say("root", "Running as root: better give the portal a user of its own.", level="warning")
        if settings.auth_disabled:
            self._console.say("auth.disabled", "AUTH_DISABLED=1: whoever reaches this address is administrator.")
        if settings.host not in LOOPBACK_HOSTS and not settings.public_url and not settings.allow_http:
            self._console.say(
                "http.public",
                f"On {settings.host} without TLS: sign-in from other machines is refused. Put a TLS proxy in front and "
                "set PORTAL_PUBLIC_URL, or set PORTAL_ALLOW_HTTP=1.",
                level="warning",
            )
        self._console.say(
            "ready", f"\n  Open {self._address}  (Ctrl-C stops it)\n", address=self._address, took_s=took_s
        )

    async def _offer_setup(self, prepared: Prepared) -> None:
        """Print the one-time link; a new one when it is over and there still is no administrator (S1)."""
        while prepared.setup_token is not None:
            link = f"{self._address}/setup?token={prepared.setup_token}"
            self._console.say(
                "setup.link",
                f"  First start: make the administrator at\n  {link}\n"
                f"  (works once, within {SETUP_TOKEN_MINUTES} minutes)\n",
                link=link,
            )
            await asyncio.sleep(SETUP_TOKEN_MINUTES * 60)
            prepared = await self._prepare()

    # -- stop

    async def _stop_all(self) -> None:
        self._console.say("stop", "Stopping.")
        worker = self._keepers.get("worker")
        say = asyncio.create_task(self._say_what_it_waits_for(worker.pid if worker else None))
        await self._stop_these({"worker": self._settings.shutdown_grace_s + WORKER_EXTRA_S, "beat": SHORT_GRACE_S})
        say.cancel()
        await asyncio.gather(say, return_exceptions=True)
        others = {role: SHORT_GRACE_S for role in self._keepers if role != "redis"}
        await self._stop_these(others | {"web": WEB_GRACE_S})
        await self._stop_these({"redis": REDIS_GRACE_S}, at_once=asyncio.Event())
        if self._redis is not None:
            self._redis.remove_private_folder()
        data_dir.remove_running(self._settings.data_dir)
        self._console.say("stopped", "Stopped.")

    async def _stop_these(self, grace_s: dict[str, float], at_once: asyncio.Event | None = None) -> None:
        """Stop the roles side by side. Those that had to be killed are told."""
        roles = [role for role in grace_s if role in self._keepers]
        keepers = [self._keepers.pop(role) for role in roles]
        clean = await asyncio.gather(
            *(keeper.stop(grace_s[role], at_once or self._at_once) for role, keeper in zip(roles, keepers, strict=True))
        )
        for role, went_by_itself in zip(roles, clean, strict=True):
            if not went_by_itself:
                self._console.say("child.killed", f"{role} was killed.", level="warning", role=role)

    async def _say_what_it_waits_for(self, worker_pid: int | None) -> None:
        said: int | None = None
        while worker_pid is not None:
            code, lines = await run_once(self._python("webapp.cli.turn_count", str(worker_pid)), COUNT_LIMIT_S)
            count = int(lines[-1]) if code == 0 and lines and lines[-1].isdigit() else 0
            if count and count != said:
                turns = "1 turn" if count == 1 else f"{count} turns"
                text = (
                    f"Waiting for {turns} to end, {self._settings.shutdown_grace_s:g} s at most; Ctrl-C ends them now."
                )
                self._console.say("stop.waiting", text, turns=count)
            said = count
            await asyncio.sleep(COUNT_EVERY_S)


def _take_url(raw: bytes, ready: "asyncio.Future[str]") -> bool:
    """True for the demo gateway's ready line (worker/backends/demo)."""
    try:
        line = json.loads(raw)
    except ValueError:
        return False
    if not isinstance(line, dict) or line.get("event") != "ready":
        return False
    if not ready.done():
        ready.set_result(str(line["url"]))
    return True
