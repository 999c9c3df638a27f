"""The bridge child of a profile: started when needed and kept, ended with all that is below it, and what is said when
it cannot start. The child is a stand-in: Hermes cannot be made to fail in these ways."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared import settings as portal_settings
from shared.errors import BackendUnavailable, SettingsError, StartFailed, Unavailable
from tests.rig.bridge import ScriptedHome, other_launcher, running, wait_for
from tests.rig.portal import clean_environ, is_alive
from tests.rig.ports import free_port
from worker.backends import offered
from worker.backends.bridge import child as bridge_child
from worker.backends.bridge import endpoints as bridge_endpoints
from worker.backends.bridge import manager as bridge_manager
from worker.backends.bridge.child import Child
from worker.backends.bridge.endpoints import Endpoints
from worker.backends.bridge.environment import child_environment
from worker.backends.bridge.manager import BridgeManager
from worker.backends.bridge.process import wire

SECOND_TRY = 0.05


@pytest.fixture
def home(tmp_path: Path) -> ScriptedHome:
    return ScriptedHome(tmp_path / "home")


@pytest.fixture
def managed(home: ScriptedHome) -> Iterator[Callable[..., BridgeManager]]:
    """Makes managers of the home's child; all are closed after the test, and nothing of them is left."""
    made: list[BridgeManager] = []

    def make(**environ: str) -> BridgeManager:
        made.append(home.manager(home.settings(**environ)))
        return made[-1]

    yield make
    for manager in made:
        manager.close()
    wait_for(lambda: running(str(home.path)) == [], "the end of all children")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delays of a fraction of a second."""
    monkeypatch.setattr(bridge_manager, "FIRST_DELAY_S", SECOND_TRY)
    monkeypatch.setattr(bridge_manager, "LONGEST_DELAY_S", 4 * SECOND_TRY)


def taken(manager: BridgeManager, run_id: str = "run") -> Child:
    child = manager.take(run_id)
    assert child.client.request("ping")["ok"] is True
    return child


# ---- a start


def test_it_is_started_when_first_needed_and_kept(managed: Callable[..., BridgeManager], home: ScriptedHome) -> None:
    manager = managed()
    assert manager.children() == []
    child = taken(manager, "run-1")
    assert taken(manager, "run-2") is child
    assert (manager.starts, child.runs) == (1, 2)
    facts = home.facts()
    assert facts["argv"] == [
        *("--endpoint", child.spec.endpoint),
        *("--agent-root", ""),
        *("--hermes-home", str(home.path)),
        *("--parent-pid", str(facts["parent"])),
    ]
    assert Path(facts["folder"]) == home.settings().data_dir / "workspaces"


def test_many_who_need_it_at_once_get_the_same(managed: Callable[..., BridgeManager]) -> None:
    manager = managed()
    found: list[Child] = []
    threads = [threading.Thread(target=lambda n=n: found.append(manager.take(f"run-{n}"))) for n in range(12)]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(found), len(set(found)), manager.starts) == (12, 1, 1)


def test_it_leads_a_group_of_its_own_and_holds_no_file_of_the_worker(
    managed: Callable[..., BridgeManager], home: ScriptedHome, tmp_path: Path
) -> None:
    with (tmp_path / "a file of the worker").open("w") as held:
        os.set_inheritable(held.fileno(), True)
        child = taken(managed())
    assert child.pid is not None
    assert os.getpgid(child.pid) not in (os.getpgid(0), child.pid)
    assert os.getsid(child.pid) == os.getpgid(child.pid) == home.facts()["parent"]
    files = home.facts()["files"]
    assert [each.partition(":")[0] for each in files] == ["pipe", "pipe", "pipe"]


def test_the_socket_is_the_owners_alone(managed: Callable[..., BridgeManager]) -> None:
    child = taken(managed())
    path = Path(child.spec.endpoint.removeprefix("ipc://"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert len(os.fsencode(path)) < 100


def test_the_environment_is_clean(home: ScriptedHome) -> None:
    """S40, S41: what is the portal's, and the keys that turns bring, stay here; what Hermes' own configuration may
    need goes along."""
    ours = {name: f"canary-{name}" for name in portal_settings.SECRETS}
    ours |= {f"{name}_FILE": f"canary-{name}-file" for name in portal_settings.SECRETS}
    ours |= {"PORTAL_DEMO_KEY": "canary-demo", "CELERY_BROKER_URL": "canary-celery", "PYTHONPATH": "canary-path"}
    ours |= {"TEAM_MODEL_KEY": "canary-model", "VIRTUAL_ENV": "/canary-venv", "FLASK_DEBUG": "canary"}
    theirs = {"OPENROUTER_API_KEY": "for-hermes", "HTTPS_PROXY": "http://proxy", "LANG": "C.UTF-8", "HOME": "/h"}
    path = os.pathsep.join(("/canary-venv/bin", "/usr/bin"))
    settings = home.settings(
        HERMES_AGENT_BRIDGE_PLATFORM="portal", HERMES_BRIDGE_MAX_TURNS="7", HERMES_BRIDGE_PROVIDER="x"
    )
    made = child_environment(settings, home.path, ["TEAM_MODEL_KEY"], ours | theirs | {"PATH": path})
    assert "canary" not in json.dumps(made)
    assert {name: made[name] for name in theirs} == theirs
    assert made["PATH"] == "/usr/bin"
    assert made["HERMES_HOME"] == str(home.path)
    assert (made["HERMES_AGENT_BRIDGE_PLATFORM"], made["HERMES_BRIDGE_MAX_TURNS"]) == ("portal", "7")
    assert (made["HERMES_BRIDGE_PROVIDER"], made["HERMES_BRIDGE_MAX_AGENTS"]) == ("x", "100")


def test_no_secret_is_in_the_arguments_or_in_the_environment_of_any_process(
    managed: Callable[..., BridgeManager], home: ScriptedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://canary:canary@nowhere/x")
    monkeypatch.setenv("PORTAL_SECRET_KEY", "canary")
    child = taken(managed())
    for pid in (child.pid, home.facts()["parent"]):
        given = Path(f"/proc/{pid}/environ").read_text() + Path(f"/proc/{pid}/cmdline").read_text()
        assert "HERMES_HOME=" in given
        assert "canary" not in given
        assert child.spec.secret not in given
    assert child.spec.secret not in json.dumps(home.facts())
    assert child.spec.secret not in repr(child.spec)


def test_each_has_a_temp_directory_of_its_own_that_goes_with_it(
    managed: Callable[..., BridgeManager], home: ScriptedHome
) -> None:
    manager = managed()
    old = taken(manager, "run-1")
    first = Path(home.facts()["environ"]["TMPDIR"])
    (first / "folder").mkdir()
    (first / "folder" / "what it left").touch()
    assert (stat.S_IMODE(first.stat().st_mode), stat.S_IMODE(first.parent.stat().st_mode)) == (0o700, 0o700)
    assert len(os.fsencode(first)) < 50, "Hermes makes sockets there"
    manager.restart()
    taken(manager, "run-2")
    second = Path(home.facts()["environ"]["TMPDIR"])
    assert second != first
    old.leave("run-1")
    wait_for(lambda: not first.exists(), "the end of the first")
    assert second.exists()
    manager.close()
    assert not first.parent.exists()


# ---- what it says on its stdout


def test_garbage_before_the_ready_line_is_skipped(managed: Callable[..., BridgeManager], home: ScriptedHome) -> None:
    home.script(
        start=[
            {"stdout": "Welcome to Hermes!\n\n"},
            {"stdout": '{"event": "other"}\n[1, 2]\n{"event": "ready"\n'},
            {"stdout": "x" * 300_000},
            {"stdout": "\n" + "[" * 5_000 + "\n" + '{"a":' * 5_000 + "\n"},
        ]
    )
    assert taken(managed()).ready.is_set()


def test_ready_twice_is_ready_once(managed: Callable[..., BridgeManager], home: ScriptedHome) -> None:
    home.script(start=[{"ready": {}}, {"ready": {}}, {"stdout": "and something else\n"}])
    manager = managed()
    child = taken(manager, "run-1")
    assert taken(manager, "run-2") is child


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"endpoint": "tcp://127.0.0.1:9"}, "somewhere else"),
        ({"endpoint": None}, "somewhere else"),
        ({"protocol": wire.PROTOCOL + 1}, "version"),
        ({"protocol": "new"}, "version"),
    ],
)
def test_a_ready_line_that_does_not_fit_is_refused(
    managed: Callable[..., BridgeManager], home: ScriptedHome, changed: dict[str, Any], said: str
) -> None:
    home.script(start=[{"ready": changed}, {"hang": True}])
    with pytest.raises(StartFailed, match=said):
        managed().take("run")


# ---- it cannot start


def test_one_that_exits_at_once_says_why(managed: Callable[..., BridgeManager], home: ScriptedHome) -> None:
    """F31. With the end of its stderr, without secrets."""
    said = "x" * 10_000 + "\nModuleNotFoundError: No module named 'run_agent'\napi_key=sk-aaaabbbbccccddddeeee1111\n"
    home.script(start=[{"stderr": said}, {"exit": 3}])
    manager = managed()
    with pytest.raises(StartFailed) as caught:
        manager.take("run")
    message = caught.value.message
    assert "exit code 3" in message
    assert "No module named 'run_agent'" in message
    assert "sk-aaaa" not in message + caught.value.detail
    assert len(message) < 1_000
    assert (caught.value.code, manager.failure) == ("start_failed", message)


def test_one_that_is_never_ready_is_ended_and_said(
    managed: Callable[..., BridgeManager], home: ScriptedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_manager, "FIRST_DELAY_S", 300.0)  # who hears late that it failed starts no other
    home.script(start=[{"stay": True}, {"stderr": "still importing\n"}, {"hang": True}])
    manager = managed()

    def lose_patience() -> None:
        """As soon as it has said something, the time to get ready is over."""
        wait_for(lambda: [child for child in manager.children() if "importing" in child.tail()], "what it says")
        for child in manager.children():
            object.__setattr__(child.spec, "startup_timeout_s", 0.5)

    impatient = threading.Thread(target=lose_patience)
    impatient.start()
    with pytest.raises(StartFailed, match=r"not ready after 0\.5 s.*still importing"):
        manager.take("run")
    impatient.join(60)
    wait_for(lambda: running(str(home.path)) == [], "the end of the child")


def test_an_interpreter_that_is_none_is_said(home: ScriptedHome, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/nowhere/at/all\n")
    broken.chmod(0o755)
    manager = home.manager(home.settings(HERMES_AGENT_BRIDGE_PYTHON=str(broken)))
    with pytest.raises(StartFailed, match=f"{broken} cannot be run"):
        manager.take("run")
    manager.close()


def test_a_home_that_is_not_there_is_said(home: ScriptedHome, tmp_path: Path) -> None:
    where = tmp_path / "elsewhere"
    manager = BridgeManager(home.settings(), lambda: where, profile="work")
    with pytest.raises(StartFailed, match="'work' is not there") as caught:
        manager.take("run")
    assert str(where) not in caught.value.message, "members do not see where it is"
    assert f"'work', {where}, is not there" in (manager.failure or ""), "operators do"
    where.write_text("a file, no folder")
    with pytest.raises(StartFailed, match="is not there"):
        manager.take("run")
    manager.close()


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder that its owner can read and nobody can write, not even root."""
    folder = tmp_path / "sealed"
    folder.mkdir()
    folder.chmod(0o500)
    if os.geteuid() != 0:
        yield folder
        return
    try:
        sealed = subprocess.run(["chattr", "+i", folder], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        sealed = False
    if not sealed:  # a file system without that: the kernel's own has folders of the kind
        yield Path("/sys/kernel")
        return
    yield folder
    subprocess.run(["chattr", "-i", folder], check=True)


def test_a_home_that_cannot_be_written_is_said(home: ScriptedHome, read_only: Path) -> None:
    manager = BridgeManager(home.settings(), lambda: read_only, profile="work")
    with pytest.raises(StartFailed, match=r"'work' cannot be written by the worker \(\w+.*\)") as caught:
        manager.take("run")
    assert str(read_only) not in caught.value.message
    assert str(read_only) in (manager.failure or "")
    assert manager.starts == 0
    assert offered.home_fault(read_only) is not None
    assert "cannot be written" in (offered.home_fault(read_only) or "")
    manager.close()


def test_a_home_that_can_be_used_is_left_as_it_was(home: ScriptedHome, managed: Callable[..., BridgeManager]) -> None:
    before = sorted(each.name for each in home.path.iterdir())
    assert offered.home_fault(home.path) is None
    assert sorted(each.name for each in home.path.iterdir()) == before


def test_what_a_child_said_of_its_home_is_for_operators(
    managed: Callable[..., BridgeManager], home: ScriptedHome
) -> None:
    home.script(start=[{"stderr": f"broken: {home.path}/plugins/x.py, line 3\n"}, {"exit": 3}])
    manager = managed()
    with pytest.raises(StartFailed) as caught:
        manager.take("run")
    assert "broken: $HERMES_HOME/plugins/x.py, line 3" in caught.value.message
    assert f"broken: {home.path}/plugins/x.py" in (manager.failure or "")


@pytest.mark.parametrize("where", ["/", "/usr", "/usr/bin/../"])
def test_a_folder_of_the_system_is_no_home(home: ScriptedHome, where: str) -> None:
    """Hermes makes its home private (0700), whatever it is."""
    before = os.stat(where).st_mode
    manager = home.manager()
    manager._find_home = lambda: Path(where)
    with pytest.raises(StartFailed, match="folder of the system"):
        manager.take("run")
    assert os.stat(where).st_mode == before
    assert manager.children() == []


def test_after_a_failed_start_turns_fail_at_once_until_it_is_tried_again(
    managed: Callable[..., BridgeManager], home: ScriptedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_manager, "FIRST_DELAY_S", 300.0)  # no machine is that slow
    monkeypatch.setattr(bridge_manager, "LONGEST_DELAY_S", 1_200.0)
    home.script(start=[{"exit": 1}])
    manager = managed()
    starts = []
    for delay_s in (300, 600, 1_200, 1_200):
        with pytest.raises(StartFailed):
            manager.take("run")
        with pytest.raises(StartFailed, match="exit code 1") as caught:
            manager.take("run")  # within the delay: no other process
        starts.append(manager.starts)
        assert caught.value.retry_after_s is not None
        assert delay_s / 2 < caught.value.retry_after_s <= delay_s, "the delay grows, but not for ever"
        manager._start_at = time.monotonic()  # the end of the delay
    assert starts == [1, 2, 3, 4]
    home.script()
    assert taken(manager).ready.is_set()
    assert manager.failure is None


def test_a_turn_that_is_to_stop_does_not_wait_for_the_start(
    managed: Callable[..., BridgeManager], home: ScriptedHome
) -> None:
    home.script(start=[{"hang": True}])
    manager = managed()
    stopped = threading.Event()

    def stop() -> None:
        wait_for(manager.children, "the start")
        stopped.set()
        manager.wake()

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(BackendUnavailable, match="stopped"):
        manager.take("run", stopped.is_set)
    stopper.join(60)
    (child,) = manager.children()
    assert not child.gone.is_set(), "its start goes on"


def test_a_start_waits_for_the_database_and_keeps_nothing_of_the_tries_before(
    home: ScriptedHome, tmp_path: Path
) -> None:
    """C9: a turn that begins while the database is away for a moment begins when it is back."""
    away = 3
    asked = []

    def find_key_names() -> tuple[str, ...]:
        asked.append(True)
        if len(asked) <= away:
            raise Unavailable("The database is away.")
        return ()

    wanted = f"ipc://{tmp_path / 's' / 'bridge.sock'}"
    (tmp_path / "s").mkdir(mode=0o700)
    manager = home.manager(home.settings(HERMES_AGENT_BRIDGE_ENDPOINT=wanted), find_key_names=find_key_names)
    try:
        assert taken(manager).spec.endpoint == wanted, "what was taken for a start that came to nothing is free again"
        assert (len(asked), manager.starts) == (away + 1, 1)
    finally:
        manager.close()


def test_who_asks_how_it_does_never_waits_for_what_a_start_reads(home: ScriptedHome) -> None:
    may_go = threading.Event()
    is_asked = threading.Event()

    def find_key_names() -> tuple[str, ...]:
        is_asked.set()
        may_go.wait(120)
        return ()

    manager = home.manager(find_key_names=find_key_names)
    found: list[Any] = []
    turn = threading.Thread(target=lambda: found.append(manager.take("run")))
    turn.start()
    assert is_asked.wait(60)
    looks = threading.Thread(target=lambda: found.append((manager.children(), manager.current(), manager.restart())))
    looks.start()
    looks.join(60)
    assert found == [([], None, 0)]
    may_go.set()
    turn.join(60)
    assert found[1].runs == 1
    assert manager.starts == 1
    manager.close()


def test_turns_that_wait_while_the_home_changes_all_get_the_child_of_the_new_one(
    home: ScriptedHome, tmp_path: Path
) -> None:
    home.script(start=[{"hang": True}])
    where = [home.path]
    manager = BridgeManager(home.settings(), lambda: where[0], program=home.manager()._program)
    found: list[Child] = []
    turns = [threading.Thread(target=lambda n=n: found.append(manager.take(f"run-{n}"))) for n in range(2)]  # type: ignore[misc]
    turns[0].start()
    wait_for(manager.children, "the first start")
    where[0] = ScriptedHome(tmp_path / "other", start=[{"sleep": 1.5}]).path
    turns[1].start()
    for turn in turns:
        turn.join(60)
    manager.close()
    assert (len(found), len(set(found)), manager.starts) == (2, 1, 2)


def test_a_slow_look_at_where_the_home_is_does_not_end_the_child_of_a_later_one(
    home: ScriptedHome, tmp_path: Path
) -> None:
    """The turn that read the old place before the profile was changed, and got to its child after."""
    home.script()
    later = ScriptedHome(tmp_path / "later").path
    has_read, may_go = threading.Event(), threading.Event()

    def find_home() -> Path:
        if threading.current_thread() is slow and not has_read.is_set():
            has_read.set()
            may_go.wait(60)
            return home.path
        return later

    manager = BridgeManager(home.settings(), find_home, program=home.manager()._program)
    found: list[Child] = []
    slow = threading.Thread(target=lambda: found.append(manager.take("run-slow")))
    slow.start()
    assert has_read.wait(60)
    child = taken(manager)
    may_go.set()
    slow.join(60)
    manager.close()
    assert (found, manager.starts) == ([child], 1)


# ---- it dies, or is to end


def test_one_that_died_is_started_again_by_itself(
    managed: Callable[..., BridgeManager], home: ScriptedHome, quick: None
) -> None:
    manager = managed()
    first = taken(manager)
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    assert first.gone.wait(60)
    assert first.story() == "ended (killed by SIGKILL)"
    second = wait_for(manager.current, "the next child")
    assert (second is not first, manager.starts) == (True, 2)
    assert second.spec.endpoint != first.spec.endpoint
    assert second.spec.secret != first.spec.secret


def test_the_delay_grows_while_children_die_young_and_begins_anew_after_a_long_life(
    managed: Callable[..., BridgeManager], monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    manager = managed()
    delays = []

    def die() -> None:
        child = taken(manager)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.gone.wait(60)
        wait_for(lambda: manager.current() not in (None, child), "the next child")

    for _ in range(4):
        delays.append(manager._delay_s)
        die()
    assert delays == [SECOND_TRY, 2 * SECOND_TRY, 4 * SECOND_TRY, 4 * SECOND_TRY]
    monkeypatch.setattr(bridge_manager, "STEADY_S", 0.0)
    die()
    assert manager._delay_s == 2 * SECOND_TRY


@pytest.fixture
def word(tmp_path: Path) -> str:
    """What marks the processes of this test."""
    return f"portal-tool-of-{tmp_path.name}-{os.getpid()}"


@pytest.fixture
def no_second_step(home: ScriptedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launchers that are told to end wait for ever before they kill, and the worker before it kills a launcher: what
    ends all the same was ended by the first step."""
    path = other_launcher(home.path, TERM_GRACE_S=3600.0)
    monkeypatch.setattr(bridge_child.launcher, "__file__", str(path))
    monkeypatch.setattr(bridge_child, "STOP_GRACE_S", 3600.0)
    monkeypatch.setattr(bridge_child, "KILL_GRACE_S", 3600.0)


@pytest.fixture
def with_tool(managed: Callable[..., BridgeManager], home: ScriptedHome, word: str) -> Child:
    """A child below which a tool runs, in a session of its own, that is deaf to SIGTERM."""
    home.script(start=[{"tool": f"trap '' TERM; while :; do sleep 0.1; done # {word}"}])
    child = taken(managed())
    wait_for(lambda: running(word), "the tool")
    return child


def test_stop_is_sigterm_then_the_end_of_all_below_it(no_second_step: None, with_tool: Child, word: str) -> None:
    with_tool.stop("a test")
    assert with_tool.gone.wait(60), "it goes by itself"
    wait_for(lambda: running(word) == [], "the end of the tool")
    assert with_tool.story() == "was stopped: a test"


def test_one_that_is_deaf_to_sigterm_is_killed_after_its_time(
    managed: Callable[..., BridgeManager], home: ScriptedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_child, "STOP_GRACE_S", 3600.0)  # it is the launcher that does it
    home.script(start=[{"stay": True}])
    child = taken(managed())
    began = time.monotonic()
    child.stop("a test")
    assert child.gone.wait(60)
    assert time.monotonic() - began > 1.4


def test_kill_ends_all_below_it_at_once(no_second_step: None, with_tool: Child, word: str) -> None:
    with_tool.kill("a test")
    assert with_tool.gone.wait(60)
    wait_for(lambda: running(word) == [], "the end of the tool")


def test_what_dies_takes_its_tools_along(with_tool: Child, word: str) -> None:
    assert with_tool.pid is not None
    os.kill(with_tool.pid, signal.SIGKILL)
    assert with_tool.gone.wait(60)
    wait_for(lambda: running(word) == [], "the end of the tool")


@pytest.fixture
def no_time_left(home: ScriptedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launchers that stand still in the moment in which they begin to kill, until their time for it is over."""
    monkeypatch.setattr(bridge_child.launcher, "__file__", str(other_launcher(home.path, KILL_TRIES_S=0.0)))
    monkeypatch.setattr(bridge_child, "KILL_GRACE_S", 3600.0)  # it is the launcher that does it


def test_one_that_begins_late_to_kill_kills_all_the_same(no_time_left: None, with_tool: Child, word: str) -> None:
    with_tool.kill("a test")
    assert with_tool.gone.wait(60)
    wait_for(lambda: running(word) == [], "the end of the tool")


def test_even_without_its_launcher_nothing_is_left(with_tool: Child, word: str) -> None:
    """Somebody stops the launcher: it can do nothing more."""
    assert with_tool._process is not None
    os.kill(with_tool._process.pid, signal.SIGSTOP)
    with_tool.kill("a test")
    assert with_tool.gone.wait(60)
    wait_for(lambda: running(word) == [], "the end of the tool")


WORKER = """
    import sys, time
    from pathlib import Path
    from tests.rig.bridge import ScriptedHome
    home = ScriptedHome.__new__(ScriptedHome)
    home.path = Path(sys.argv[1])
    child = home.manager().take("run")
    print(child.pid, flush=True)
    time.sleep(300)
"""


@pytest.fixture
def temp_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The temp directory of this test alone: workers of other tests would sweep what a killed one leaves."""
    with tempfile.TemporaryDirectory(prefix="p-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_nothing_outlives_its_worker(home: ScriptedHome, word: str, how: int, temp_folder: Path) -> None:
    """F8, C6: kill -9 of the worker; and one that is silent for long, whose launcher is told a shorter time here."""
    home.script(start=[{"tool": f"while :; do sleep 0.1; done # {word}"}])
    program = textwrap.dedent(WORKER)
    if how == signal.SIGSTOP:
        silent = "import worker.backends.launcher as launcher, worker.backends.bridge.child as child\n"
        silent += f"launcher.__file__ = {str(other_launcher(home.path, SILENCE_S=5.0))!r}\nchild.BEAT_S = 0.2\n"
        program = silent + program
    worker = subprocess.Popen(
        [sys.executable, "-c", program, str(home.path)],
        stdout=subprocess.PIPE,
        env=clean_environ({"TMPDIR": str(temp_folder)}),
        start_new_session=True,
    )
    try:
        assert worker.stdout is not None
        pid = int(worker.stdout.readline())
        wait_for(lambda: running(word), "the tool")
        assert is_alive(pid)
        os.kill(worker.pid, how)
        wait_for(lambda: not is_alive(pid) and running(word) == [], "the end of the child and its tool")
    finally:
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
        assert worker.stdout is not None
        worker.stdout.close()
    wait_for(lambda: running(str(home.path)) == [], "the end of the launcher")
    temp = Path(home.facts()["environ"]["TMPDIR"])
    assert temp.exists()
    assert temp.is_relative_to(temp_folder)
    home.script()
    with contextlib.closing(home.manager()) as next_worker:
        taken(next_worker)
        assert not temp.parent.exists()


# ---- it is replaced


def test_a_replaced_child_goes_on_with_its_runs_and_takes_no_new_ones(managed: Callable[..., BridgeManager]) -> None:
    manager = managed()
    old = taken(manager, "run-1")
    assert manager.restart() == 1
    new = taken(manager, "run-2")
    assert new is not old
    assert not old.gone.is_set()
    assert old.client.request("ping")["ok"]
    assert not old.join("run-3")
    old.leave("run-1")
    assert old.gone.wait(60)
    assert manager.current() is new


def test_a_restart_at_once_ends_what_runs(managed: Callable[..., BridgeManager]) -> None:
    manager = managed()
    old = taken(manager, "run-1")
    assert manager.restart(at_once=True) == 1
    assert old.gone.wait(60)
    assert "by an operator" in old.story()
    assert taken(manager, "run-2") is not old


def test_a_profile_whose_home_changed_gets_another_child(home: ScriptedHome, tmp_path: Path) -> None:
    where = [home.path]
    manager = BridgeManager(home.settings(), lambda: where[0], program=home.manager()._program)
    old = taken(manager, "run-1")
    where[0] = ScriptedHome(tmp_path / "other").path
    new = taken(manager, "run-2")
    assert (new is old, old.gone.is_set()) == (False, False)
    assert json.loads((where[0] / "facts.json").read_text())["environ"]["HERMES_HOME"] == str(where[0])
    manager.close()
    assert old.gone.is_set()
    assert new.gone.is_set()


def test_close_waits_for_the_end_and_leaves_nothing(managed: Callable[..., BridgeManager]) -> None:
    manager = managed()
    child = taken(manager)
    manager.close()
    assert child.gone.is_set()
    assert not Path(child.spec.endpoint.removeprefix("ipc://")).parent.exists()
    with pytest.raises(BackendUnavailable, match="being stopped"):
        manager.take("run")


# ---- where it listens


def test_two_workers_and_two_profiles_never_share_an_endpoint(managed: Callable[..., BridgeManager]) -> None:
    children = [taken(managed()) for _ in range(2)]
    assert len({child.spec.endpoint for child in children}) == 2


def test_a_configured_socket_is_taken_and_further_ones_have_a_suffix(
    managed: Callable[..., BridgeManager], tmp_path: Path
) -> None:
    given = f"ipc://{tmp_path}/b.sock"
    managers = [managed(HERMES_AGENT_BRIDGE_ENDPOINT=given) for _ in range(2)]
    assert [taken(manager).spec.endpoint for manager in managers] == [given, f"{given}-2"]
    managers[0].close()
    again = managed(HERMES_AGENT_BRIDGE_ENDPOINT=given)
    assert taken(again).spec.endpoint == given, "what is given back can be taken again"


def test_a_configured_port_is_taken_and_further_ones_come_after_it(managed: Callable[..., BridgeManager]) -> None:
    port = free_port()  # nor does the kernel give those after it to anybody before the children listen there
    with socket.create_server(("127.0.0.1", port)):
        ports = []
        for _ in range(2):
            child = taken(managed(HERMES_AGENT_BRIDGE_ENDPOINT=f"tcp://127.0.0.1:{port}"))
            assert child.spec.endpoint.startswith("tcp://127.0.0.1:")
            ports.append(int(child.spec.endpoint.rpartition(":")[2]))
    assert port < ports[0] < ports[1] < port + 50, "the first is another's, and so is the second then"


def test_a_long_data_directory_gets_a_socket_elsewhere(home: ScriptedHome, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    endpoints = Endpoints(home.settings(PORTAL_DATA_DIR=str(deep)))
    path = Path(endpoints.take().address.removeprefix("ipc://"))
    assert len(os.fsencode(path)) < 100
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    endpoints.close()
    assert not path.parent.exists()


def test_the_folder_of_a_killed_worker_is_swept_and_no_other(
    home: ScriptedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_endpoints, "LONGEST_SOCKET_PATH_BYTES", 1_000)
    parent = home.settings().data_dir / "bridge"
    living = Endpoints(home.settings())
    living.take()
    dead = parent / "portal-bridge-deadbeef"
    dead.mkdir()
    (dead / "1.sock").touch()
    (parent / "portal-bridge-linklink").symlink_to(home.path)
    mine = Endpoints(home.settings())
    mine.take()
    folders = sorted(parent.iterdir())
    assert dead not in folders
    assert len(folders) == 3
    assert home.path.is_dir()
    for each in (living, mine):
        each.close()


@pytest.mark.parametrize(
    "endpoint",
    [
        "ipc://relative",
        "ipc:x",
        "tcp://0.0.0.0:1",
        "tcp://10.0.0.1:1",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:x",
        "http://x",
    ],
)
def test_an_endpoint_that_others_could_reach_is_no_setting(endpoint: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="HERMES_AGENT_BRIDGE_ENDPOINT"):
        portal_settings.load({"HERMES_AGENT_BRIDGE_ENDPOINT": endpoint}, cwd=tmp_path)
