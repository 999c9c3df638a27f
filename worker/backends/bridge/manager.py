"""The bridge child of one profile: started when it is first needed and then kept, started again when it dies.

A child that dies is started again after a delay that grows while children do not live long. One that could not start
is tried again when it is next needed, and not before its delay is over: until then its turns fail at once and say why.
A child that is to be replaced goes on with the runs it has, and takes no new ones. Each has a temp directory of its
own, which goes with it: agents that are killed leave files behind, with what people said and what shells know.
"""

import itertools
import math
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from shared import logs
from shared.errors import BackendUnavailable, PlatformError, StartFailed, Unavailable
from shared.settings import Settings
from worker.backends.bridge import process
from worker.backends.bridge.child import Child, Spec
from worker.backends.bridge.endpoints import Endpoint, Endpoints
from worker.backends.bridge.environment import child_environment
from worker.backends.bridge.interpreter import find_interpreter
from worker.backends.bridge.private_folder import PrivateFolder
from worker.backends.bridge.process.home import NotWritable, try_home, without_home
from worker.backends.launcher import PLACEHOLDER

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
STEADY_S = 60.0  # a child that lived this long is as good as one that never died
CLOSE_GRACE_S = 6.0
LOOK_S = 0.5

log = logs.get(__name__)


@dataclass(frozen=True)
class Places:
    """What a child has, and gives back when it is gone."""

    home: Path
    endpoint: Endpoint
    temp: Path

    def release(self) -> None:
        self.endpoint.release()
        shutil.rmtree(self.temp, ignore_errors=True)


@dataclass(frozen=True)
class _Look:
    """Where the home was when it was asked for: looks end in another order than they begin."""

    number: int
    home: Path


class BridgeManager:
    """Safe from any thread. `find_home` is asked at each turn, so that a changed profile is noticed; it raises a
    BackendError, or Unavailable. `find_key_names`: the variables that hold keys of models, kept from the child.
    `on_ready` is called with each child that became ready, from its thread, and returns at once."""

    def __init__(
        self,
        settings: Settings,
        find_home: Callable[[], Path],
        *,
        profile: str | None = None,
        find_key_names: Callable[[], Iterable[str]] = tuple,
        on_ready: Callable[[Child], None] = lambda child: None,
        program: Path = Path(process.__file__).parent,
    ) -> None:
        self.profile = profile
        self._label = profile or "default"
        self._settings = settings
        self._endpoints = Endpoints(settings)
        self._find_home = find_home
        self._find_key_names = find_key_names
        self._on_ready = on_ready
        self._program = program
        self._changed = threading.Condition()
        self._current: Child | None = None
        self._children: dict[Child, Places] = {}  # of those that live, also the retired
        self._temp: PrivateFolder | None = None
        self._failure: StartFailed | None = None  # of the last start, until the next one
        self._delay_s = FIRST_DELAY_S
        self._start_at = 0.0  # monotonic: not before
        self._again: threading.Timer | None = None
        self._starts = 0
        self._numbers = itertools.count()
        self._looked = 0  # the number of the look that the current child is of
        self._is_starting = False
        self._closed = False

    def take(self, run_id: str, is_stopped: Callable[[], bool] = lambda: False) -> Child:
        """The child, ready, with the run counted in it: `leave` it. Starts one when there is none, and waits for it,
        and for a database that is away; no longer than until `is_stopped` (then `wake` it). Raises BackendUnavailable
        with what people can do."""
        while not is_stopped():
            try:
                child = self._taken(run_id)
            except Unavailable:
                with self._changed:
                    self._check_open()
                    self._changed.wait(LOOK_S)
                continue
            if child is not None:
                return child
        raise BackendUnavailable("The turn was stopped while the agent was being started.")

    def wake(self) -> None:
        """Have who waits in `take` look again."""
        with self._changed:
            self._changed.notify_all()

    def children(self) -> list[Child]:
        with self._changed:
            return list(self._children)

    def current(self) -> Child | None:
        """The child that takes turns now, if it is ready."""
        with self._changed:
            child = self._current
        return child if child is not None and child.ready.is_set() and not child.gone.is_set() else None

    @property
    def starts(self) -> int:
        return self._starts

    @property
    def failure(self) -> str | None:
        """Why the last start failed, until another one is tried: for operators, who may know where the home is."""
        failure = self._failure
        return None if failure is None else failure.detail or failure.message

    def restart(self, *, at_once: bool = False) -> int:
        """Have a new child take the turns from now on. The old one ends with its runs, or `at_once`, and with it what
        runs there; gives how many runs it has."""
        with self._changed:
            old, self._current = self._current, None
            self._failure, self._delay_s, self._start_at = None, FIRST_DELAY_S, 0.0
            if old is None:
                return 0
            runs = old.runs
            if at_once:
                old.kill("it was started again by an operator")
            else:
                old.retire()
        threading.Thread(target=self._start_quietly, name=f"bridge-start-{self._label}", daemon=True).start()
        return runs

    def close(self) -> None:
        """The process ends: end all children, and wait until they are gone."""
        with self._changed:
            self._closed = True
            if self._again is not None:
                self._again.cancel()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._is_starting, CLOSE_GRACE_S)
            children = list(self._children)
        for child in children:
            child.stop("the worker ends")
        give_up_at = time.monotonic() + CLOSE_GRACE_S
        for child in children:
            child.join_thread(max(0.0, give_up_at - time.monotonic()))
        self._endpoints.close()
        if self._temp is not None:
            self._temp.remove()

    # ---- one to take

    def _taken(self, run_id: str) -> Child | None:
        """None after a moment, or after the beginning of a start. Raises BackendUnavailable, Unavailable."""
        look = self._look()
        with self._changed:
            child = self._usable(look)
            if child is not None and child.join(run_id):
                return child
            if not self._may_start():
                self._changed.wait(LOOK_S)
                return None
            self._is_starting = True
        self._start(look)
        return None

    def _look(self) -> "_Look":
        """Raises BackendRefused, Unavailable."""
        number = next(self._numbers)
        return _Look(number, self._find_home())

    def _usable(self, look: "_Look") -> Child | None:
        """Under the lock: the current child if it is ready and of that home. Raises BackendUnavailable when none will
        come soon."""
        self._check_open()
        child = self._current
        if child is not None and self._children[child].home != look.home:
            if look.number < self._looked:
                return None  # it was slow: the child is of a later look
            log.info("bridge.home_changed", bridge=self._label)
            child.retire()
            child = self._current = None
        if child is not None:
            return child if child.ready.is_set() else None
        left_s = self._start_at - time.monotonic()
        if left_s > 0 and self._failure is not None:
            raise _again_in(self._failure, left_s)
        return None

    def _check_open(self) -> None:
        if self._closed:
            raise BackendUnavailable("This worker is being stopped.")

    # ---- a start

    def _may_start(self) -> bool:
        """Under the lock. One that lived is started again by itself, when its delay is over."""
        is_free = self._current is None and not self._is_starting and not self._closed
        return is_free and time.monotonic() >= self._start_at

    def _start(self, look: "_Look") -> None:
        """By who has set `_is_starting`, and without the lock: files and the database are read, and a Python may be
        asked, which others shall not wait for. Raises StartFailed, Unavailable."""
        try:
            spec, places = self._prepared(look.home)
        except BaseException as error:
            with self._changed:
                self._is_starting = False
                if isinstance(error, StartFailed):
                    self._failed(error)
                self._changed.notify_all()
            raise
        with self._changed:
            self._is_starting = False
            self._changed.notify_all()
            if not self._closed:
                self._failure = None
                self._starts += 1
                self._looked = look.number
                child = Child(spec, self._on_change)
                self._current, self._children[child] = child, places
                child.start()
                return
        places.release()

    def _prepared(self, home: Path) -> tuple[Spec, Places]:
        """What a child is started with. Raises StartFailed, Unavailable."""
        _check_home(home, self.profile)
        interpreter = find_interpreter(self._settings)
        environ = child_environment(self._settings, home, self._find_key_names())
        folder = self._settings.data_dir / "workspaces"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            temp = self._temp_folder()
        except OSError as error:
            raise StartFailed(f"{error.filename} cannot be made ({error.strerror}).") from error
        endpoint = self._endpoints.take()
        spec = Spec(
            label=self._label,
            command=(
                *interpreter.command,
                str(self._program),
                *("--endpoint", endpoint.address),
                *("--agent-root", str(interpreter.agent_root or "")),
                *("--hermes-home", str(home)),
                *(("--profile", self.profile) if self.profile else ()),
                *("--parent-pid", PLACEHOLDER),
            ),
            environ=environ | {"TMPDIR": str(temp)},
            folder=folder,
            endpoint=endpoint.address,
            secret=secrets.token_hex(32),
            startup_timeout_s=self._settings.bridge_startup_timeout_ms / 1000,
            response_timeout_s=self._settings.bridge_timeout_ms / 1000,
        )
        return spec, Places(home, endpoint, temp)

    def _temp_folder(self) -> Path:
        """Below the temp directory: in the data directory the paths of Hermes' own sockets could become too long.
        Raises OSError."""
        if self._temp is None:
            self._temp = PrivateFolder(Path(tempfile.gettempdir()))
        path = self._temp.path / str(self._starts)
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def _failed(self, failure: StartFailed) -> None:
        self._failure = failure
        self._start_at = time.monotonic() + self._delay_s
        self._delay_s = min(self._delay_s * 2, LONGEST_DELAY_S)

    # ---- from other threads

    def _on_change(self, child: Child) -> None:
        if not child.gone.is_set():
            with self._changed:
                self._changed.notify_all()
            self._on_ready(child)
            return
        with self._changed:
            places = self._children.pop(child)
            if self._current is child:
                self._current = None
                self._after_death(child, places.home)
            self._changed.notify_all()
        places.release()

    def _after_death(self, child: Child, home: Path) -> None:
        if self._closed:
            return
        if child.ready_at is None:
            told = child.fault()
            self._failed(StartFailed(without_home(told, home), detail=told))
            return
        if time.monotonic() - child.ready_at >= STEADY_S:
            self._delay_s = FIRST_DELAY_S
        self._start_at = time.monotonic() + self._delay_s
        self._again = threading.Timer(self._delay_s, self._start_again)
        self._again.daemon = True
        self._again.start()
        log.warning("bridge.starts_again", bridge=child.spec.label, in_s=self._delay_s)
        self._delay_s = min(self._delay_s * 2, LONGEST_DELAY_S)

    def _start_again(self) -> None:
        with self._changed:
            if self._failure is None:
                self._start_at = 0.0
        self._start_quietly()

    def _start_quietly(self) -> None:
        """Nobody waits for it: what is wrong shows when somebody does."""
        try:
            look = self._look()
            with self._changed:
                if not self._may_start():
                    return
                self._is_starting = True
            self._start(look)
        except PlatformError as error:
            log.warning("bridge.not_started", bridge=self._label, code=error.code)


def _check_home(home: Path, profile: str | None) -> None:
    """Raises StartFailed, whose message does not say where the home is."""
    how = "give its right path" if profile else "run `hermes setup` as the user of the worker, or set HERMES_HOME"
    try:
        if len(home.resolve().parts) < 3:
            raise _bad_home(home, profile, "is a folder of the system: Hermes would lock others out of it.")
        try_home(home)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _bad_home(home, profile, f"is not there: {how}.") from error
    except NotWritable as error:
        raise _bad_home(home, profile, f"cannot be written by the worker ({error.strerror}).") from error
    except OSError as error:
        raise _bad_home(home, profile, f"cannot be read by the worker ({error.strerror}).") from error


def _bad_home(home: Path, profile: str | None, what: str) -> StartFailed:
    whose = f"The home of the profile {profile!r}" if profile else "Hermes' home"
    return StartFailed(f"{whose} {what}", detail=f"{whose}, {home}, {what}")


def _again_in(failure: StartFailed, left_s: float) -> StartFailed:
    return StartFailed(
        failure.message, code=failure.code, retry_after_s=max(1, math.ceil(left_s)), detail=failure.detail
    )
