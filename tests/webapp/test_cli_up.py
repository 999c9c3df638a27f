"""`portal up` as people run it: the whole of it, as processes, on a data directory of its own."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.rig.portal import PASSWORD, PORTAL, Portal, is_alive, run_portal, submit_form, wait_until
from tests.rig.redis_server import RedisServer

CHILDREN = ("redis", "demo", "web", "worker", "beat")
CANARY = "canary-7f3a9c51e2"


@pytest.fixture(scope="module")
def portal() -> Iterator[Portal]:
    """One portal without sign-in for the tests that leave it as they found it."""
    with Portal(environ={"AUTH_DISABLED": "1"}) as made:
        yield made


def new_session(portal: Portal) -> str:
    with portal.client() as client:
        answer = client.post("/api/chat/sessions", json={})
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["sessionId"])


def submit(portal: Portal, session_id: str, text: str) -> str:
    with portal.client() as client:
        answer = client.post(f"/api/chat/sessions/{session_id}/runs", json={"message": text})
        assert answer.status_code in (200, 201, 202), answer.text
        return str(answer.json()["runId"])


def state(portal: Portal, run_id: str) -> str:
    with portal.client() as client:
        return str(client.get(f"/api/chat/runs/{run_id}/state").json()["state"])


# ---- the first start


def test_the_first_link_works_once_and_a_new_start_makes_the_old_one_worthless() -> None:
    person = {"login": "ada@example.com", "name": "Ada", "password": PASSWORD}
    with Portal() as portal:
        portal.wait_said("setup.link")
        first = portal.setup_link
        assert first is not None
        assert first.startswith(portal.address + "/")
        with portal.client() as stranger:
            assert stranger.get("/api/chat/sessions").json()["code"] == "set_up_first"
            assert "/setup" in stranger.get("/chat").headers["Location"]
            wrong = submit_form(stranger, "/setup?token=" + "A" * 43, person)
            assert wrong.status_code == 403

        assert portal.stop() == 0
        portal.start_again()
        portal.wait_said("setup.link")
        second = portal.setup_link
        assert second is not None
        assert second.split("token=")[1] != first.split("token=")[1]
        with portal.client() as late:
            old = submit_form(late, "/setup?token=" + first.split("token=")[1], person)
            assert old.status_code == 403

        with portal.client() as browser:
            assert submit_form(browser, second, person).status_code == 303
            assert browser.get("/api/chat/sessions").status_code == 200
        with portal.client() as again:
            assert "/login" in again.get(second).headers["Location"]
            assert again.get("/api/chat/sessions").status_code == 401

        assert portal.stop() == 0
        portal.start_again()
        assert portal.setup_link is None
        with portal.client() as browser:
            signed_in = submit_form(browser, "/login", {"login": "ada@example.com", "password": PASSWORD})
            assert signed_in.status_code == 303
            assert browser.get("/api/chat/sessions").status_code == 200


# ---- one that runs


def test_everything_runs_below_it_and_nothing_listens_but_the_web_process_and_the_demo(portal: Portal) -> None:
    wait_until(lambda: set(portal.children()) == set(CHILDREN), what="all children")
    listening = set()
    for role, child in portal.children().items():
        for each in (child, *child.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):  # the worker looks for agents
                if any(connection.status == psutil.CONN_LISTEN for connection in each.net_connections("inet")):
                    listening.add(role)
    assert listening == {"web", "demo"}


def test_a_second_one_on_the_same_data_directory_says_who_is_there(portal: Portal) -> None:
    done = run_portal("up", "--port", "0", environ=portal.environ)
    assert done.returncode == 1
    assert str(portal.process.pid) in done.stderr
    assert "--data-dir" in done.stderr
    assert portal.get("/readyz").status_code == 200


def test_a_taken_port_says_what_to_do(portal: Portal, tmp_path: Path) -> None:
    port = portal.address.rsplit(":", 1)[1]
    done = run_portal("up", "--port", port, environ=portal.environ | {"PORTAL_DATA_DIR": str(tmp_path / "other")})
    assert done.returncode == 1
    assert f"--port {int(port) + 1}" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_turn_from_the_shell_is_answered_on_stdout(portal: Portal) -> None:
    done = run_portal("run", "Hello", environ=portal.environ)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) > 20
    events = run_portal("run", "--json", environ=portal.environ, text="Hello").stdout.splitlines()
    names = [json.loads(line)["event"] for line in events]
    assert names[-1] == "run.completed"
    assert names.count("run.completed") == 1


def test_a_turn_in_the_shell_goes_on_over_a_killed_web_process(portal: Portal) -> None:
    shell = subprocess.Popen(
        [*PORTAL, "run", "--json", "long answer"], env=portal.environ, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert shell.stdout is not None
    events = []
    for line in shell.stdout:
        events.append(json.loads(line))
        if len(events) == 20:
            portal.kill("web")
    assert shell.wait(120) == 0, shell.stderr.read() if shell.stderr else ""
    with portal.client() as client:
        messages = client.get(f"/api/chat/sessions/{events[0]['session_id']}").json()["messages"]
    resumed = [event for event in events if event["event"] == "resumed"]
    if resumed:  # the run had ended before a web process was back: one snapshot of it, then its end
        assert [event["event"] for event in events[-2:]] == ["resumed", "run.completed"]
        assert resumed[-1]["messages"][-1]["content"] == messages[-1]["content"]
        return
    seqs = [event["seq"] for event in events]
    assert seqs == sorted(set(seqs)), "each event once, in order"
    parts: dict[int, str] = {}
    for data in (event["data"] for event in events if event["event"] == "message.delta"):
        assert data["offset"] == len(parts.get(data["part"], "")), "no gap and no double"
        parts[data["part"]] = parts.get(data["part"], "") + data["text"]
    assert "".join(parts.values()) == messages[-1]["content"]
    assert len(messages[-1]["content"]) > 500


def hear_ctrl_c() -> None:
    """A shell gives its background jobs an ignored SIGINT, and all they start inherit it: so does a test run there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_in_the_shell_stops_the_turn(portal: Portal) -> None:
    shell = subprocess.Popen(
        [*PORTAL, "run", "slow"], env=portal.environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=hear_ctrl_c,
    )  # fmt: skip
    assert shell.stdout is not None
    assert shell.stdout.read(10)
    shell.send_signal(signal.SIGINT)
    _, aside = shell.communicate(timeout=120)
    assert shell.returncode == 3
    assert "stopped" in aside
    session_id = aside.split("session ")[1].split()[0]
    with portal.client() as client:
        messages = client.get(f"/api/chat/sessions/{session_id}").json()["messages"]
    assert messages[-1]["status"] == "STOPPED"
    assert run_portal("token", "list", environ=portal.environ).stdout == ""  # the token of one turn ended with it


def test_doctor_finds_nothing_wrong_and_sees_a_second_worker(portal: Portal) -> None:
    second = subprocess.Popen(
        [*PORTAL, "worker", "--concurrency", "2"],
        env=portal.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:

        def examined() -> list[dict[str, str]]:
            done = run_portal("doctor", "--json", environ=portal.environ)
            found: list[dict[str, str]] = json.loads(done.stdout)
            told.append(done.stdout)
            is_well = done.returncode == 0  # not while a page takes longer than its patience
            return found if is_well and sum(each["part"] == "workers" for each in found) == 2 else []

        told: list[str] = []
        found = wait_until(examined, 180, lambda: f"two workers and no fault in {told[-1]}")
        hints = {each["part"] for each in found if each["status"] != "ok"}
        assert "gateway" in hints, "the hint to name a real one"
        assert hints <= {"gateway", "bridge"}, "Hermes may be installed here or not"
    finally:
        second.terminate()
        assert second.wait(120) == 0


def test_files_are_its_owners_alone(portal: Portal) -> None:
    assert portal.data_dir is not None
    names = [os.path.join(folder, name) for folder, *more in os.walk(portal.data_dir) for name in (*more[0], *more[1])]
    open_to_others = []
    for path in (portal.data_dir, *names):
        with contextlib.suppress(FileNotFoundError):  # some are there for a moment only
            if stat.S_IMODE(os.lstat(path).st_mode) & 0o077:
                open_to_others.append(path)
    assert len(names) > 5
    assert open_to_others == []


@pytest.mark.parametrize("role", CHILDREN)
def test_a_killed_child_is_started_again_and_said_so(portal: Portal, role: str) -> None:
    killed = portal.kill(role)
    wait_until(lambda: [said for said in portal.said("child.died") if said["pid"] == killed], what="a word of it")
    [said] = [said for said in portal.said("child.died") if said["pid"] == killed]
    assert (said["role"], said["how"]) == (role, "killed by SIGKILL")
    wait_until(lambda: portal.pid(role) != killed, what=f"a new {role}")
    wait_until(lambda: portal.get("/readyz").json()["missing"] == [], 180, "readiness")
    run_id = submit(portal, new_session(portal), "Hello")
    wait_until(lambda: state(portal, run_id) == "completed", 180, "an answer")  # its task may have to be sent again


# ---- its end


def test_a_killed_supervisor_leaves_no_process_and_no_loss() -> None:
    with Portal(environ={"AUTH_DISABLED": "1"}) as portal:
        session_id = new_session(portal)
        wait_until(lambda: len(portal.all_pids()) >= 7, what="all children and the one of gunicorn")
        pids = portal.all_pids()
        os.kill(portal.process.pid, signal.SIGKILL)
        portal.process.wait()
        wait_until(lambda: not any(is_alive(pid) for pid in pids), what="the end of all processes")

        portal.start_again()
        with portal.client() as client:
            assert client.get(f"/api/chat/sessions/{session_id}").status_code == 200


def test_sigterm_ends_everything_in_order_and_keeps_the_data() -> None:
    with Portal(environ={"AUTH_DISABLED": "1"}) as portal:
        session_id = new_session(portal)
        wait_until(lambda: set(portal.children()) == set(CHILDREN), what="all children")
        children = portal.children()
        pids = portal.all_pids()
        outlived: set[tuple[str, str]] = set()  # (who had ended, who was alive after that)

        def watch() -> None:
            ended: set[str] = set()
            while len(ended) < len(children):
                ended = {role for role, child in children.items() if not is_alive(child.pid)}
                alive = {role for role, child in children.items() if is_alive(child.pid)}
                outlived.update((role, other) for role in ended for other in alive)
                time.sleep(0.005)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        assert portal.stop() == 0
        watcher.join(60)
        # What was seen so is so, however seldom the watcher came to look.
        assert not [pair for pair in outlived if pair[0] == "redis"]
        assert ("web", "worker") not in outlived
        wait_until(lambda: not any(is_alive(pid) for pid in pids), what="the end of all processes")
        assert portal.data_dir is not None
        assert not (portal.data_dir / "running.json").exists()

        portal.start_again()
        with portal.client() as client:
            assert client.get(f"/api/chat/sessions/{session_id}").status_code == 200


def test_it_says_how_many_turns_it_waits_for_and_a_second_ctrl_c_ends_them_at_once() -> None:
    with Portal(environ={"AUTH_DISABLED": "1"}) as portal:
        run_id = submit(portal, new_session(portal), "ask me a question")  # nobody answers: it waits until it is ended
        wait_until(lambda: state(portal, run_id) == "awaiting_clarification", what="a turn that goes on")
        pids = portal.all_pids()
        portal.process.send_signal(signal.SIGINT)
        waiting = portal.wait_said("stop.waiting")
        assert waiting["turns"] == 1
        assert portal.get(f"/api/chat/runs/{run_id}/state").status_code == 200, "the pages are still there"
        began = time.monotonic()
        portal.process.send_signal(signal.SIGINT)
        assert portal.process.wait(120) == 0
        assert time.monotonic() - began < 50, "it waits for 60 s where nobody is in a hurry"
        wait_until(lambda: not any(is_alive(pid) for pid in pids), what="the end of all processes")


# ---- secrets and places


def test_no_secret_stands_in_an_argument_or_in_the_output() -> None:
    environ = {
        "HERMES_GATEWAY_URL": "http://127.0.0.1:1",
        "HERMES_GATEWAY_KEY": CANARY + "-gateway",
        "PORTAL_SECRET_KEY": CANARY + "-secret-key-of-forty-characters",
        "PORTAL_METRICS_TOKEN": CANARY + "-metrics",
    }
    with Portal(environ=environ) as portal:
        wait_until(lambda: set(portal.children()) == set(CHILDREN) - {"demo"}, what="all children")
        arguments = portal.all_arguments()
        portal.wait_said("setup.link")
        token = str(portal.setup_link).split("token=")[1]
        portal.kill("web")
        portal.wait_said("child.died")
        assert portal.stop() == 0
        assert not [line for line in arguments if CANARY in line or token in line]
        assert CANARY not in "".join(portal.lines)
        assert sum(token in line for line in portal.lines) == 1


def test_a_data_directory_with_a_long_path_gets_its_socket_elsewhere(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 50) / ("e" * 50)
    with Portal(data_dir=deep, environ={"AUTH_DISABLED": "1"}) as portal:
        record = json.loads((deep / "running.json").read_text())
        folder = Path(record["redis_folder"])
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert not (deep / "redis.sock").exists()
        assert (deep / "redis").is_dir()
        assert portal.stop() == 0
        assert not folder.exists()


def test_a_given_redis_is_used_and_left_alone_and_links_bear_the_public_address(redis_server: RedisServer) -> None:
    environ = {"REDIS_URL": redis_server.url, "PORTAL_PUBLIC_URL": "https://portal.example/team"}
    with Portal(environ=environ, wait=False) as portal:
        link = portal.wait_said("setup.link")["link"]
        assert link.startswith("https://portal.example/team/setup?token=")
        wait_until(lambda: set(portal.children()) == set(CHILDREN) - {"redis"}, what="all children")
        assert portal.data_dir is not None
        record = json.loads((portal.data_dir / "running.json").read_text())
        assert record["address"].startswith("http://127.0.0.1:")
        assert portal.stop() == 0
    assert redis_server.client.ping()


def test_a_given_redis_that_is_not_fit_is_refused() -> None:
    server = RedisServer("--maxmemory-policy", "allkeys-lru")
    try:
        with Portal(environ={"REDIS_URL": server.url}, wait=False) as portal:
            assert portal.process.wait(120) == 1
            fault = portal.wait_said("start.failed")
            assert "noeviction" in fault["text"]
    finally:
        server.close()


def test_a_database_that_does_not_answer_is_said_and_nothing_is_left_running() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"postgresql://portal:{CANARY}@127.0.0.1:{silent.getsockname()[1]}/portal"
        with Portal(environ={"DATABASE_URL": url}, wait=False) as portal:
            assert portal.process.wait(120) == 1
            portal.wait_said("start.failed")
            assert "database" in portal.said("start.failed")[0]["text"].lower()
            assert CANARY not in "".join(portal.lines)
