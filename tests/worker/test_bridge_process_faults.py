"""A bridge child under bad input, strangers, and the deaths of itself and of who started it."""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rig.bridge import other_launcher
from tests.rig.bridge_child import END_S, PROGRAM, BridgeChild, Line, processes_with
from tests.rig.hermes import ScriptedModel
from tests.rig.portal import is_alive as process_is_alive
from worker.backends.bridge.process import approvals, wire

pytestmark = [pytest.mark.component("hermes"), pytest.mark.timeout(400)]

SOON_S = 60.0  # on a busy machine; a worker kills what is not gone after 1.5 s


@pytest.fixture
def start(model: ScriptedModel) -> Iterator[Callable[..., BridgeChild]]:
    """Makes children, which may still have to be started; ends them after the test."""
    children: list[BridgeChild] = []

    def start(**options: Any) -> BridgeChild:
        children.append(BridgeChild(model, **options))
        return children[-1]

    yield start
    for child in children:
        child.close()


def is_alive(child: BridgeChild) -> bool:
    return bool(child.ask("ping")["ok"]) and child.process.poll() is None


# ---- bad lines


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"not json\n", "bad_json"),
        (b"\n", "bad_json"),
        (b'{"action": "ping"\n', "bad_json"),
        (b'{"a": NaN}\n', "bad_json"),
        (b"\x00\x01\x02\n", "bad_json"),
        (b'{"a": "\xff"}\n', "bad_utf8"),
        (b"[1, 2]\n", "not_an_object"),
        (b"null\n", "not_an_object"),
        (b"[" * 100_000 + b"\n", "too_deep"),
        (b'{"a":' * 100_000 + b"\n", "too_deep"),
    ],
)
def test_a_broken_line_has_a_code_and_the_connection_goes_on(child: BridgeChild, line: bytes, code: str):
    connection = child.line()
    connection.send(line)
    answer = connection.read()
    assert (answer["ok"], answer["error"]["code"]) == (False, code)
    assert connection.ask("ping")["ok"]


@pytest.mark.parametrize("action", ["nothing", "", None, 5, ["chat"], "__init__", "command"])
def test_an_unknown_action_is_told(child: BridgeChild, action: Any):
    connection = child.line()
    assert connection.ask(action)["error"]["code"] == "unknown_action"
    assert connection.ask("ping")["ok"]


@pytest.mark.parametrize("size", [wire.MAX_LINE_BYTES + 1, 50_000_000])
def test_a_line_that_is_too_long_ends_its_connection_and_no_other(child: BridgeChild, size: int):
    child.wait_for_spare()  # which takes memory, too
    connection, other = child.line(), child.line()
    before = other.ask("ping")["rss_bytes"]
    sender = threading.Thread(target=send_all, args=(connection, b"x" * size + b"\n"))
    sender.start()
    answer = connection.read()
    assert answer["error"]["code"] == "line_too_long"
    assert connection.is_closed()
    sender.join(60)
    assert other.ask("ping")["rss_bytes"] - before < 64 * 1024 * 1024
    assert is_alive(child)


def send_all(connection: Line, data: bytes) -> None:
    with contextlib.suppress(OSError):  # closed in the middle, as it should
        connection.send(data)


def test_a_line_of_the_longest_size_is_taken(child: BridgeChild):
    request = child.chat_fields("")
    room = wire.MAX_LINE_BYTES - len(wire.encode({"action": "chat", "secret": child.secret, **request}))
    request["message"] = "[[say:taken]] " + "x" * (room - len("[[say:taken]] "))
    connection = child.line()
    assert connection.ask("chat", **request)["ok"]
    child.ask("interrupt", run_id=request["run_id"])  # no model takes so much


def test_half_a_line_is_no_request(child: BridgeChild):
    connection = child.line()
    connection.send(wire.encode({"action": "ping", "secret": child.secret})[:-1])
    connection.socket.shutdown(socket.SHUT_WR)
    assert connection.is_closed()
    assert is_alive(child)


def test_requests_may_come_together_and_in_pieces(child: BridgeChild):
    connection = child.line()
    line = wire.encode({"action": "ping", "secret": child.secret})
    connection.send(line * 3 + line[:10])
    assert [connection.read()["ok"] for _ in range(3)] == [True] * 3
    for byte in line[10:]:
        connection.send(bytes([byte]))
    assert connection.read()["ok"]


def test_a_wrong_field_is_named_and_nothing_begins(child: BridgeChild):
    request = child.chat_fields("[[say:x]]", history="none")
    assert child.ask("chat", **request)["error"] == {
        "code": "bad_request",
        "message": "history: must be a list of messages or null.",
    }
    assert child.ask("get_result", run_id=request["run_id"])["error"]["code"] == "run_not_found"
    for action, fields in (("stream", {"run_id": 5}), ("destroy", {}), ("steer", {"run_id": "x"}), ("chat", {})):
        assert child.ask(action, **fields)["error"]["code"] in ("bad_request", "run_not_found")


def test_many_connections_at_once_are_all_served(child: BridgeChild):
    lines = [child.line() for _ in range(100)]
    for line in lines:
        line.send(wire.encode({"action": "ping", "secret": child.secret}))
    assert all(line.read()["ok"] for line in lines)


def test_a_reader_that_takes_nothing_holds_up_nobody(child: BridgeChild):
    request = child.chat_fields("[[huge:12000]]")
    stuck = child.line()
    assert stuck.ask("chat", **request)["ok"]
    stuck.send(wire.encode({"action": "stream", "secret": child.secret, "run_id": request["run_id"]}))
    assert child.play("[[say:quick]]").text == "quick"
    whole = child.follow(request["run_id"]).end()
    assert len(whole.text) == 12000 * 1024
    assert is_alive(child)


# ---- strangers


def test_who_does_not_know_the_secret_is_shown_the_door(child: BridgeChild):
    for secret in ("", "wrong", child.secret[:-1], child.secret + "x", None, 5, [child.secret], "ü\ud800"):
        connection = Line(child.endpoint, child.secret)
        connection.send(json.dumps({"action": "destroy_all", "secret": secret}).encode() + b"\n")
        answer = connection.read()
        assert answer["error"]["code"] == "wrong_secret"
        assert child.secret not in json.dumps(answer)
        assert connection.is_closed()
        connection.close()
    connection = Line(child.endpoint, child.secret)
    connection.send(b'{"action": "ping"}\n')
    assert connection.read()["error"]["code"] == "wrong_secret"
    connection.close()


def test_the_secret_is_needed_on_every_request(child: BridgeChild):
    connection = child.line()
    assert connection.ask("ping")["ok"]
    connection.send(b'{"action": "ping"}\n')
    assert connection.read()["error"]["code"] == "wrong_secret"
    assert connection.is_closed()


def test_the_secret_is_not_handed_on_nor_written_down(child: BridgeChild):
    look = "cd /proc/$PPID && cat environ cmdline | tr '\\\\0' ' '; env; timeout 1 cat fd/0; echo looked"
    turn = child.play(f'[[tool:terminal:{{"command": "{look}"}}]]')
    output = json.loads(turn.one("tool.completed")["result"])["output"]
    assert "HERMES_HOME=" in output
    assert output.endswith("looked")
    assert child.secret not in json.dumps(turn.events)
    assert child.secret not in child.said()
    for path in child.home.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a temporary one that is gone
            assert not path.is_file() or child.secret.encode() not in path.read_bytes(), path


IS_ROOT = os.geteuid() == 0

if IS_ROOT:  # nobody else can be another user; test_bridge_process_parts.py has the rule without one

    def test_another_user_is_refused(start: Callable[..., BridgeChild]):
        child = start().start()
        place = child.endpoint.removeprefix("ipc://")
        os.chmod(child.folder, 0o755)  # as if the folder were open
        os.chmod(Path(place).parent, 0o755)
        os.chmod(place, 0o666)
        program = (
            "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
            "s.sendall(sys.stdin.buffer.read()); print(len(s.recv(100)))"
        )
        request = wire.encode({"action": "ping", "secret": child.secret})
        ran = subprocess.run([sys.executable, "-c", program, place], input=request, capture_output=True, timeout=END_S)
        assert ran.stdout.strip() in (b"0", b""), ran
        assert is_alive(child)


def test_what_cannot_be_shown_whole_is_not_run(child: BridgeChild, tmp_path: Path):
    """S18: nobody is asked to allow what he cannot see the end of."""
    target = tmp_path / "target"
    target.mkdir()
    code = f"#{'x' * approvals.MAX_COMMAND_CHARS}\\nimport shutil; shutil.rmtree('{target}')"
    running = child.begin(f'[[tool:execute_code:{{"code": "{code}"}}]] [[then]] [[say:over]]')
    turn = running.wait_until(lambda turn: bool(turn.of("approval.requested", "tool.completed")))
    assert not turn.of("approval.requested")
    assert "Failed to send" in turn.one("tool.completed")["result"]
    assert running.end().text == "over"
    assert target.exists()


# ---- starting


def test_a_port_of_this_machine_will_do_and_is_told(start: Callable[..., BridgeChild]):
    child = start(endpoint="tcp://127.0.0.1:0").start()
    assert child.endpoint.startswith("tcp://127.0.0.1:")
    assert not child.endpoint.endswith(":0")
    assert child.play("[[say:over tcp]]").text == "over tcp"


def test_stdout_carries_the_ready_line_alone(start: Callable[..., BridgeChild]):
    child = start().start()
    assert child.ready == {"event": "ready", "endpoint": child.endpoint, "pid": child.process.pid, "protocol": 1}
    child.play("[[error:401]] x")
    child.play('[[tool:terminal:{"command": "echo loud >&2; echo loud"}]] [[then]] [[say:done]]')
    running = child.begin("[[hang:30]]")
    running.wait("status")
    child.ask("interrupt", run_id=running.turn.run_id)
    running.end()
    assert child.stop() == 0
    assert child.process.stdout is not None
    assert child.process.stdout.read() == b""


def test_what_people_say_is_not_in_its_log(start: Callable[..., BridgeChild]):
    child = start().start()
    child.play("[[say:canary-answer]] canary-question", instructions="canary-instructions")
    child.play("[[error:401]] canary-failed")
    child.stop()
    assert "bridge.ready" in child.said()
    assert "canary" not in child.said()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"secret": "short"}, "The first line of stdin must be the secret"),
        ({"secret": "x" * 1001}, "The first line of stdin must be the secret"),
        ({"endpoint": "tcp://0.0.0.0:0"}, "endpoint"),
        ({"arguments": ("--hermes-home", "/nowhere/at/all")}, "/nowhere/at/all"),
        ({"environment": {"HERMES_BRIDGE_MAX_AGENTS": "none"}}, "HERMES_BRIDGE_MAX_AGENTS"),
        ({"command": lambda command: [sys.executable, *command[1:]]}, "Hermes cannot be used"),
    ],
)
def test_what_keeps_it_from_starting_stands_on_stderr(
    start: Callable[..., BridgeChild], options: dict[str, Any], reason: str
):
    child = start(**options)
    assert child.process.wait(END_S) not in (0, None)
    assert child.process.stdout is not None
    assert child.process.stdout.read() == b""
    assert reason in child.said()


if not IS_ROOT:  # who can write everywhere

    def test_a_home_that_cannot_be_written_is_told(start: Callable[..., BridgeChild]):
        child = start(prepare_home=lambda home: home.chmod(0o500))
        assert child.process.wait(END_S) not in (0, None)
        assert "Hermes home" in child.said()


def test_its_own_modules_are_on_no_path_where_hermes_looks(tmp_path: Path, hermes_python: Path):
    program = (
        f"import runpy, sys; sys.path[0] = {str(PROGRAM)!r};"
        f"runpy.run_path({str(PROGRAM / '__main__.py')!r}, run_name='loaded')['load']();"
        "import importlib.util as u; import portal_bridge.wire;"
        "print([u.find_spec(name) for name in ('wire', 'pool', 'callbacks')])"
    )
    command = [str(hermes_python), "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=END_S, cwd=tmp_path)
    assert ran.stdout == "[None, None, None]\n", ran


def test_no_module_of_its_home_stands_in_for_one_of_hermes(start: Callable[..., BridgeChild]):
    """Agents can write there. A worker that found no checkout gives an empty one."""

    def plant(home: Path) -> None:
        for name in ("run_agent.py", "hermes_state.py"):
            (home / name).write_text("raise SystemExit('planted')\n")

    child = start(arguments=("--agent-root", ""), prepare_home=plant)
    assert child.start().ask("ping")["ok"]


def test_a_stale_socket_of_a_killed_child_is_replaced(start: Callable[..., BridgeChild], tmp_path: Path):
    (tmp_path / "s").mkdir(mode=0o700)
    endpoint = f"ipc://{tmp_path / 's' / 'b.sock'}"
    first = start(endpoint=endpoint).start()
    second = start(endpoint=endpoint)
    assert second.process.wait(END_S) not in (0, None)
    assert "answers" in second.said()
    assert is_alive(first)
    first.process.kill()
    first.process.wait()
    assert (tmp_path / "s" / "b.sock").exists()
    assert is_alive(start(endpoint=endpoint).start())


# ---- ending


@pytest.fixture
def below_launcher(tmp_path: Path) -> Callable[[list[str]], list[str]]:
    """As the worker starts it: the launcher buries what a killed tool leaves, for which Hermes waits. This one kills
    nobody that does not end soon: what ends is seen to end by itself, however busy the machine is."""
    program = other_launcher(tmp_path, TERM_GRACE_S=3600.0)
    return lambda command: [sys.executable, "-I", "-S", str(program), str(os.getpid()), *command]


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "shutdown"])
def test_it_ends_soon_with_its_tools_and_says_that_runs_were_stopped(
    start: Callable[..., BridgeChild], below_launcher: Callable[[list[str]], list[str]], how: str
):
    child = start(command=below_launcher).start()
    mark = f"7{os.getpid():06d}{len(how)}"
    running = child.begin(f'[[tool:terminal:{{"command": "sleep {mark}"}}]]')
    running.wait("tool.started")
    child.wait_for(lambda: bool(processes_with(mark)))
    if how == "shutdown":
        assert child.ask("shutdown") == {"ok": True}
    else:
        child.process.send_signal(getattr(signal, how))
    assert child.process.wait(SOON_S) == 0
    assert not processes_with(mark)
    assert not Path(child.endpoint.removeprefix("ipc://")).exists()
    assert running.end().last["event"] == "run.interrupted"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_heeded_whichever_thread_the_kernel_gives_it_to(
    start: Callable[..., BridgeChild], number: signal.Signals
):
    child = start().start()
    child.wait_for_spare()  # whose making has threads that end
    threads = sorted(int(name) for name in os.listdir(f"/proc/{child.process.pid}/task"))
    other = next(thread for thread in threads if thread != child.process.pid)
    assert ctypes.CDLL(None).tgkill(child.process.pid, other, int(number)) == 0
    assert child.process.wait(SOON_S) == 0


def test_it_ends_soon_though_a_tool_does_not_heed_it(start: Callable[..., BridgeChild]):
    child = start().start()
    running = child.begin('[[tool:terminal:{"command": "trap \'\' TERM INT HUP; sleep 71234567"}]]')
    running.wait("tool.started")
    child.wait_for(lambda: bool(processes_with("71234567")))
    child.process.terminate()
    assert child.process.wait(SOON_S) == 0
    child.wait_for(lambda: not processes_with("71234567"))


PARENT = (
    "import os, subprocess, sys\n"
    "child = subprocess.Popen(sys.argv[1:] + ['--parent-pid', str(os.getpid())], start_new_session=True)\n"
    "sys.exit(child.wait())\n"
)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_does_not_outlive_who_started_it_nor_do_its_tools(start: Callable[..., BridgeChild], number: signal.Signals):
    child = start(command=lambda command: [sys.executable, "-c", PARENT, *command]).start()
    mark = f"6{os.getpid():06d}{number.value}"
    running = child.begin(f'[[tool:terminal:{{"command": "sleep {mark}"}}]]')
    running.wait("tool.started")
    child.wait_for(lambda: bool(processes_with(mark)))
    pid = child.ready["pid"]
    assert pid != child.process.pid
    child.process.send_signal(number)
    child.process.wait(END_S)
    child.wait_for(lambda: not process_is_alive(pid) and not processes_with(mark))
    child.wait_for(lambda: not processes_with(str(child.home)))


def test_it_does_not_begin_for_a_parent_that_is_gone(start: Callable[..., BridgeChild]):
    child = start(arguments=("--parent-pid", "1"))
    assert child.process.wait(END_S) is not None
    assert not processes_with(str(child.home))


def test_the_end_of_its_stdin_is_its_end(start: Callable[..., BridgeChild]):
    child = start().start()
    assert child.play('[[tool:terminal:{"command": "cat; echo read"}]]').last["event"] == "run.completed"
    assert child.process.stdin is not None
    child.process.stdin.close()
    assert child.process.wait(END_S) == 0


def test_runs_of_a_killed_child_just_break_off(start: Callable[..., BridgeChild]):
    child = start().start()
    running = child.begin("[[stream:9000:20]]")
    running.wait("stream.delta", 3)
    child.process.kill()
    turn = running.end()
    assert turn.last["event"] == "stream.delta"
    with pytest.raises(OSError, match=r"."):
        child.ask("ping")
