"""A bridge child from its first line to its last: arguments, Hermes, an endpoint, and a clean end."""

import argparse
import contextlib
import faulthandler
import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO, NoReturn

from . import endpoint, lifeline, wire
from .hermes import Hermes, HomeUnusable, ModelSpec
from .pool import DEFAULT_IDLE_S, DEFAULT_MAX_AGENTS, SWEEP_S, AgentPool
from .server import Server

CANNOT_START = 3  # the exit code; why stands on stderr
SWITCH_S = 0.001  # with many streams, those that only pass a piece on wait less for those that compute
INTERRUPT_GRACE_S = 0.8  # for runs to say that they were stopped; the worker kills after 1.5 s

log = logging.getLogger("portal_bridge")


class Ending:
    """Awaited by the main thread; set by signals, and from any thread.

    The kernel may give a signal to any thread, and only the main one, which sleeps here, would run a handler of Python:
    so it is not the handler that wakes it, but the byte that Python writes in whatever thread the signal has come to.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT)
    ASKED = 0  # the byte of `set`; that of a signal is its number

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)

    def heed_signals(self) -> None:
        """From now on; in the main thread."""
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in self.SIGNALS:
            signal.signal(number, lambda *_: None)

    def set(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it has been told often enough
            os.write(self._write, bytes([self.ASKED]))

    def wait(self) -> None:
        while not {self.ASKED, *self.SIGNALS}.intersection(os.read(self._read, 4096)):
            pass  # a signal that somebody else has asked for


def main(arguments: list[str]) -> None:
    ready = _own_stdout()
    options = _parsed(arguments)
    secret = _taken_secret()
    _log_to_stderr()
    if not wire.MIN_SECRET_CHARS <= len(secret) <= wire.MAX_SECRET_CHARS:
        limits = f"{wire.MIN_SECRET_CHARS} to {wire.MAX_SECRET_CHARS}"
        _give_up(f"The first line of stdin must be the secret, of {limits} characters.")
    ending = Ending()
    lifeline.hold_on_to(options.parent_pid, ending.set)
    sys.setswitchinterval(SWITCH_S)
    hermes, listener = _prepared(options)  # a signal meanwhile just ends us
    ending.heed_signals()
    pool = AgentPool(
        hermes,
        max_agents=options.max_agents,
        idle_s=options.idle_s,
        kept_run_s=options.kept_run_s,
        sweep_s=options.sweep_s,
    )
    server = Server(
        listener, secret, pool, profile=options.profile, on_shutdown=ending.set, launcher=options.parent_pid
    )
    threading.Thread(target=server.serve, name="server", daemon=True).start()
    if options.spare:
        pool.prepare(ModelSpec())
        threading.Thread(target=hermes.warm_up, name="warm-up", daemon=True).start()
    told = wire.Ready(event="ready", endpoint=listener.address, pid=os.getpid(), protocol=wire.PROTOCOL)
    ready.write(json.dumps(told).encode() + b"\n")
    ready.flush()
    _hush()
    log.info("bridge.ready pid=%d hermes=%s", os.getpid(), hermes.version)
    ending.wait()
    _end(pool, server)


def _prepared(options: argparse.Namespace) -> tuple[Hermes, endpoint.Listener]:
    try:
        os.chdir(options.hermes_home)  # never the portal's own directory
        return Hermes(options.hermes_home, options.agent_root, options.profile), endpoint.listen(options.endpoint)
    except (HomeUnusable, endpoint.EndpointRefused, OSError) as error:
        _give_up(str(error))
    except BaseException as error:  # Hermes' own modules, whatever is wrong in them  # noqa: BLE001
        fault = f"{type(error).__name__}: {error}"
        _give_up(f"Hermes cannot be used from this interpreter ({sys.executable}): {fault}")


def _end(pool: AgentPool, server: Server) -> NoReturn:
    """Runs are stopped, tools killed; nothing waits for threads of Hermes that would not end."""
    pool.close()
    server.close()
    deadline = time.monotonic() + INTERRUPT_GRACE_S
    while (pool.counts()[1] or server.is_telling) and time.monotonic() < deadline:
        time.sleep(0.01)
    lifeline.end_tools()
    logging.shutdown()
    sys.stderr.flush()
    os._exit(0)


def _give_up(why: str) -> NoReturn:
    sys.stderr.write(f"bridge: {why}\n")
    sys.stderr.flush()
    lifeline.end_tools()
    os._exit(CANNOT_START)


def _own_stdout() -> IO[bytes]:
    """The real stdout, for the ready line alone. It stays open as long as we live, and no tool inherits it: its end
    means that we have ended. What is printed while we start goes to stderr."""
    ready = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return ready


def _hush() -> None:
    """From now on what is printed goes nowhere: agents print what people say, and stderr is kept by the worker."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process lives


def _taken_secret() -> str:
    """The first line of stdin: what stands in an environment or an argument, a tool of the agent could read in /proc.
    No more than the line is taken: the end of stdin has a meaning of its own (lifeline.py)."""
    line = b""
    with contextlib.suppress(OSError):
        while len(line) <= wire.MAX_SECRET_CHARS and (byte := os.read(0, 1)) not in (b"", b"\n"):
            line += byte
    return line.decode("utf-8", "replace")


def _log_to_stderr() -> None:
    """Names and ids, never contents. Hermes has log files of its own, in its home."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    faulthandler.enable(sys.stderr)


def _parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bridge", allow_abbrev=False)
    parser.add_argument("--endpoint", required=True, help="ipc:///path or tcp://127.0.0.1:port")
    parser.add_argument("--agent-root", help="a checkout of hermes-agent, where it is not installed; may be empty")
    parser.add_argument("--hermes-home", type=Path, required=True, help="the profile's home")
    parser.add_argument("--profile", help="its name, which `ping` tells")
    parser.add_argument("--parent-pid", type=int, help="whose end is ours; the process that started us")
    parser.add_argument("--no-spare", dest="spare", action="store_false", help="keep no agent ready for new sessions")
    parser.set_defaults(
        max_agents=int(_setting("HERMES_BRIDGE_MAX_AGENTS", DEFAULT_MAX_AGENTS)),
        idle_s=_setting("HERMES_BRIDGE_IDLE_MINUTES", DEFAULT_IDLE_S / 60) * 60,
        kept_run_s=_setting("PORTAL_BRIDGE_KEPT_RUN_S", wire.KEPT_RUN_S),
        sweep_s=_setting("PORTAL_BRIDGE_SWEEP_S", SWEEP_S),
    )
    options = parser.parse_args(arguments)
    options.hermes_home = options.hermes_home.expanduser().absolute()
    options.agent_root = Path(options.agent_root).expanduser().absolute() if options.agent_root else None
    return options


def _setting(name: str, default: float) -> float:
    """A positive number from the environment, which is then taken out of it: tools have no use for it."""
    try:
        value = float(os.environ.pop(name, "") or default)
    except ValueError:
        value = 0
    if value <= 0:
        _give_up(f"{name} must be a positive number.")
    return value
