"""Every `portal` command as a process of its own, on an empty data directory."""

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shared import clock
from shared.database import make_engine, make_session_factory, transaction
from shared.relay.connection import connect_url
from shared.relay.keys import Keys
from shared.relay.presence import Presence, ProfileFacts, SourceFacts, WorkerFacts
from shared.store import users
from tests.factories import a_queued_run, a_session
from tests.rig.portal import PASSWORD, clean_environ, run_portal
from tests.rig.ports import free_port
from tests.rig.redis_server import RedisServer, binary
from webapp.cli.main import COMMANDS, portal

Environ = dict[str, str]


@pytest.fixture
def environ(tmp_path: Path) -> Environ:
    tmp_path.chmod(0o700)
    return clean_environ({"PORTAL_DATA_DIR": str(tmp_path)})


@pytest.fixture
def migrated(environ: Environ, sqlite_template: Path) -> Environ:
    shutil.copyfile(sqlite_template, Path(environ["PORTAL_DATA_DIR"]) / "portal.db")
    return environ


def rows(environ: Environ, query: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(Path(environ["PORTAL_DATA_DIR"]) / "portal.db") as db:
        return db.execute(query).fetchall()


# ---- help


def test_help_lists_every_command_without_importing_one(environ: Environ) -> None:
    code = (
        "import sys; from webapp.cli.main import portal\n"
        "try: portal(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'flask', 'sqlalchemy', 'celery', 'redis', 'pydantic'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)


@pytest.mark.parametrize(
    "command",
    [
        *((name,) for name in COMMANDS),
        *((group, sub) for group in ("user", "token", "provider") for sub in ("add", "list", "test", "revoke", "reset")
          if (group, sub) in {("user", "add"), ("user", "list"), ("user", "reset"), ("token", "add"), ("token", "list"),
                              ("token", "revoke"), ("provider", "list"), ("provider", "test")}),
    ],
    ids=" ".join,
)  # fmt: skip
def test_every_command_has_help_with_an_example(command: tuple[str, ...]) -> None:
    done = CliRunner().invoke(portal, [*command, "--help"], prog_name="portal")
    assert done.exit_code == 0, done.output
    assert f"portal {' '.join(command)}" in done.output.split("Example", 1)[1]


# ---- settings


def test_each_settings_fault_is_one_line_and_nothing_is_made(environ: Environ) -> None:
    folder = Path(environ["PORTAL_DATA_DIR"]) / "new"
    faulty = environ | {
        "PORTAL_DATA_DIR": str(folder), "PORTAL_PORT": "many", "DATABASE_URL": "mysql://x",
        "PORTAL_APPROVAL_TIMEOUT_S": "-1",
    }  # fmt: skip
    done = run_portal("up", environ=faulty)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert sorted(line.split(":")[1].strip() for line in lines) == [
        "DATABASE_URL", "PORTAL_APPROVAL_TIMEOUT_S", "PORTAL_PORT",
    ]  # fmt: skip
    assert not folder.exists()


def test_auth_disabled_is_refused_on_a_public_host(environ: Environ) -> None:
    done = run_portal("up", "--host", "0.0.0.0", environ=environ | {"AUTH_DISABLED": "1"})
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("portal: AUTH_DISABLED=1 is refused on 0.0.0.0: it would let anybody in. Listen on")


def test_a_secret_in_the_settings_file_is_refused(environ: Environ) -> None:
    (Path(environ["PORTAL_DATA_DIR"]) / "portal.toml").write_text('redis_url = "redis://:canary@x"\nprot = 1\n')
    done = run_portal("user", "list", environ=environ)
    assert done.returncode == 2
    assert "canary" not in done.stderr + done.stdout
    assert len(done.stderr.splitlines()) == 2


# ---- the database


def test_migrate_says_what_it_did_and_check_changes_nothing(environ: Environ) -> None:
    assert run_portal("migrate", "--check", environ=environ).returncode == 1
    first = run_portal("migrate", environ=environ)
    assert "was brought to this version" in first.stdout
    again = run_portal("migrate", environ=environ)
    assert "is at this version" in again.stdout
    assert run_portal("migrate", "--check", environ=environ).returncode == 0


def test_a_database_that_is_not_there_is_one_line_without_its_password(environ: Environ) -> None:
    url = "postgresql://portal:canary-password@127.0.0.1:1/portal"
    for command in (("migrate",), ("user", "list"), ("doctor", "--no-gateway")):
        done = run_portal(*command, environ=environ | {"DATABASE_URL": url})
        assert done.returncode == 1
        assert "canary" not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def test_commands_want_the_tables_of_their_own_version(environ: Environ) -> None:
    done = run_portal("user", "list", environ=environ)
    assert done.returncode == 1
    assert "portal migrate" in done.stderr


# ---- users


def add_user(
    environ: Environ, login: str, *options: str, password: str = PASSWORD
) -> "subprocess.CompletedProcess[str]":
    return run_portal("user", "add", login, "--password-stdin", *options, environ=environ, text=password + "\n")


def test_a_user_is_added_with_a_hashed_password_and_an_audit_row(migrated: Environ) -> None:
    assert add_user(migrated, "Ada@Example.com", "--role", "administrator").returncode == 0
    [(login, role, hashed)] = rows(migrated, "SELECT login, role, password_hash FROM user")
    assert (login, role) == ("ada@example.com", "administrator")
    assert str(hashed).startswith("$argon2id$")
    assert rows(migrated, "SELECT action, user_name FROM audit_event") == [("user_created", "Ada@Example.com")]
    listed = run_portal("user", "list", environ=migrated).stdout
    assert "ada@example.com" in listed
    assert "administrator" in listed


@pytest.mark.parametrize("password", ["short", "password1234", "", "x" * 200])
def test_a_bad_password_is_refused_and_no_user_made(migrated: Environ, password: str) -> None:
    done = add_user(migrated, "ada@example.com", password=password)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert rows(migrated, "SELECT * FROM user") == []


def test_a_login_is_taken_whatever_its_case(migrated: Environ) -> None:
    add_user(migrated, "ada@example.com")
    done = add_user(migrated, "ADA@example.com")
    assert (done.returncode, "already" in done.stderr) == (1, True)


def test_the_only_administrator_cannot_be_shut_out(migrated: Environ) -> None:
    add_user(migrated, "ada@example.com", "--role", "administrator")
    refused = run_portal("user", "disable", "ada@example.com", environ=migrated)
    assert refused.returncode == 1
    add_user(migrated, "bob@example.com", "--role", "administrator")
    assert run_portal("user", "disable", "ada@example.com", environ=migrated).returncode == 0
    assert rows(migrated, "SELECT disabled FROM user WHERE login LIKE 'ada%'") == [(1,)]
    assert run_portal("user", "disable", "--undo", "ada@example.com", environ=migrated).returncode == 0


def test_who_is_shut_out_has_no_turn_that_goes_on(migrated: Environ) -> None:
    add_user(migrated, "ada@example.com")
    factory = make_session_factory(make_engine(f"sqlite:///{migrated['PORTAL_DATA_DIR']}/portal.db"))
    with transaction(factory) as db:
        ada = users.by_login(db, "ada@example.com")
        run = a_queued_run(db, a_session(db, owner=ada))
    done = run_portal("user", "disable", "ada@example.com", environ=migrated)
    assert done.stdout == "ada@example.com is shut out. Turns of theirs: 1 withdrawn, 0 being stopped.\n"
    assert rows(migrated, f"SELECT state FROM run WHERE id = '{run.id}'") == [("cancelled",)]


def test_a_reset_changes_the_hash_and_ends_sign_ins(migrated: Environ) -> None:
    add_user(migrated, "ada@example.com")
    [(before, generation)] = rows(migrated, "SELECT password_hash, generation FROM user")
    done = run_portal(
        "user", "reset", "ada@example.com", "--password-stdin", environ=migrated, text="another four words here\n"
    )
    assert done.returncode == 0
    [(after, raised)] = rows(migrated, "SELECT password_hash, generation FROM user")
    assert before != after
    assert raised == generation + 1  # type: ignore[operator]


# ---- tokens


def test_a_token_is_shown_once_and_only_its_hash_is_kept(migrated: Environ) -> None:
    add_user(migrated, "ada@example.com")
    made = run_portal("token", "add", "ada@example.com", "--name", "nightly", "--days", "3", environ=migrated)
    secret = made.stdout.strip()
    assert len(secret) == 43
    folder = Path(migrated["PORTAL_DATA_DIR"])
    assert not [path for path in folder.iterdir() if path.is_file() and secret.encode() in path.read_bytes()]
    listed = run_portal("token", "list", environ=migrated).stdout
    assert "nightly" in listed
    assert secret not in listed
    token_id = listed.split()[0]
    assert run_portal("token", "revoke", token_id, environ=migrated).returncode == 0
    assert run_portal("token", "list", environ=migrated).stdout == ""
    assert run_portal("token", "revoke", "no-such", environ=migrated).returncode == 1


# ---- doctor


def findings(environ: Environ, *options: str) -> tuple[int, dict[str, dict[str, str]]]:
    done = run_portal("doctor", "--json", *options, environ=environ)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, {each["part"]: each for each in json.loads(done.stdout)}


def test_doctor_on_an_empty_machine_says_what_to_do_and_makes_nothing(environ: Environ) -> None:
    folder = Path(environ["PORTAL_DATA_DIR"]) / "not-yet"
    code, found = findings(environ | {"PORTAL_DATA_DIR": str(folder)}, "--no-gateway")
    assert code == 1
    assert {part for part, each in found.items() if each["status"] == "fault"} == {"database", "redis"}
    assert all(each["remedy"] for each in found.values() if each["status"] != "ok")
    assert not folder.exists()


def test_doctor_tells_each_fault_of_the_settings(environ: Environ) -> None:
    done = run_portal("doctor", "--json", environ=environ | {"PORTAL_PORT": "x", "REDIS_URL": "http://x"})
    assert done.returncode == 1
    assert [each["detail"].split(":")[0] for each in json.loads(done.stdout)] == ["PORTAL_PORT", "REDIS_URL"]


def test_doctor_sees_that_nobody_works_and_that_the_gateway_is_gone(
    migrated: Environ, redis_server: RedisServer
) -> None:
    environ = migrated | {"REDIS_URL": redis_server.url, "HERMES_GATEWAY_URL": "http://127.0.0.1:1"}
    code, found = findings(environ)
    assert code == 1
    assert found["database"]["status"] == found["redis"]["status"] == "ok"
    assert found["workers"]["status"] == found["gateway"]["status"] == "fault"
    assert "HERMES_GATEWAY_URL" in found["gateway"]["remedy"]


NO_HERMES = "No Hermes was found on this machine. Install hermes-agent for the user that runs the worker."


@pytest.mark.parametrize(
    ("told", "more", "status", "detail", "remedy"),
    [
        ({}, {}, "warning", "w1: not looked for Hermes yet", "ask again"),
        ({"ok": False, "why": NO_HERMES}, {}, "warning", "w1: no Hermes is installed", "Install hermes-agent"),
        ({"ok": False, "why": NO_HERMES}, {"HERMES_GATEWAY_URL": "http://x"}, "ok", "chats go to the gateway", ""),
        (
            {"ok": False, "why": "HERMES_AGENT_ROOT is /x, but there is no run_agent.py. Install hermes-agent."},
            {},
            "fault",
            "w1: HERMES_AGENT_ROOT is /x, but there is no run_agent.py",
            "Install hermes-agent.",
        ),
        ({"ok": True}, {}, "ok", "w1: Hermes 0.19.0 is installed, 3 chats are warm", ""),
    ],
)
def test_doctor_tells_whether_the_workers_found_hermes(
    migrated: Environ,
    redis_server: RedisServer,
    told: dict[str, Any],
    more: Environ,
    status: str,
    detail: str,
    remedy: str,
) -> None:
    sources = [SourceFacts(source="cli", **told)] if told else []
    profiles = [ProfileFacts(profile=None, state="ready", version="0.19.0", sessions=3)]
    beat(redis_server, sources=sources, profiles=profiles)
    _, found = findings(migrated | more | {"REDIS_URL": redis_server.url}, "--no-gateway")
    assert (found["bridge"]["status"], found["bridge"]["remedy"][: len(remedy)]) == (status, remedy)
    assert detail in found["bridge"]["detail"]


def test_doctor_tells_of_each_profile_that_cannot_be_used_and_once_for_all_workers_of_a_machine(
    migrated: Environ, redis_server: RedisServer
) -> None:
    profiles = [
        ProfileFacts(profile=None, state="missing", why="Its home is not there."),
        ProfileFacts(profile="work", state="failed", why="exit code 3\x1b[31m"),
        ProfileFacts(profile="play", state="idle"),
    ]
    for worker_id in ("a", "b"):
        beat(redis_server, worker_id, sources=[SourceFacts(source="cli", ok=True)], profiles=profiles)
    done = run_portal("doctor", "--no-gateway", environ=migrated | {"REDIS_URL": redis_server.url})
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert [line for line in lines if " bridge " in line] == [
        "ok       bridge          w1: Hermes is installed, 0 chats are warm",
        "warning  bridge          w1: the default profile cannot be used: Its home is not there.",
        "FAULT    bridge          w1: the agent of profile work cannot start: exit code 3\\x1b[31m",
    ]
    assert any("hermes setup" in line for line in lines)


@pytest.mark.parametrize("is_found", [True, False])
def test_doctor_says_who_answers_where_no_gateway_is_configured(
    migrated: Environ, redis_server: RedisServer, is_found: bool
) -> None:
    beat(
        redis_server,
        sources=[SourceFacts(source="cli", ok=is_found, why="" if is_found else NO_HERMES)],
        profiles=[ProfileFacts(profile=None, state="idle")],
    )
    _, found = findings(migrated | {"REDIS_URL": redis_server.url})
    assert found["gateway"]["status"] == ("ok" if is_found else "warning")
    assert ("new chats go to the installed Hermes" in found["gateway"]["detail"]) is is_found


def test_doctor_looks_at_what_answers_also_without_redis(migrated: Environ) -> None:
    code, found = findings(migrated | {"REDIS_URL": "redis://127.0.0.1:1"})
    assert (code, found["redis"]["status"], found["gateway"]["status"]) == (1, "fault", "warning")
    assert "none is configured" in found["gateway"]["detail"]


def test_doctor_looks_at_the_data_directory_it_is_given(migrated: Environ, tmp_path: Path) -> None:
    given = migrated["PORTAL_DATA_DIR"]
    elsewhere = migrated | {"PORTAL_DATA_DIR": str(tmp_path / "elsewhere")}
    _, found = findings(elsewhere, "--no-gateway", "--data-dir", given)
    assert found["data directory"]["status"] == found["database"]["status"] == "ok"
    assert given in found["redis"]["detail"]
    _, found = findings(elsewhere, "--no-gateway")
    assert "PORTAL_DATA_DIR" in found["data directory"]["remedy"]


# ---- provider


def test_providers_are_the_gateway_and_the_installed_hermes_or_why_there_is_none(
    migrated: Environ, tmp_path: Path
) -> None:
    home = tmp_path / "hermes"
    hermes = {"HERMES_HOME": str(home), "HERMES_AGENT_BRIDGE_PYTHON": sys.executable}

    def listed(**more: str) -> dict[str, dict[str, Any]]:
        done = run_portal("provider", "list", "--json", environ=migrated | hermes | more)
        return {each["source"]: each for each in json.loads(done.stdout)}

    assert "home is not there" in listed()["cli"]["error"]
    home.mkdir()
    found = listed(HERMES_GATEWAY_URL="http://127.0.0.1:1")
    assert [(each["source"], each["ok"]) for each in found.values()] == [("api_server", True), ("cli", True)]
    assert found["cli"]["capabilities"]["approvals"]
    found = listed(HERMES_AGENT_BRIDGE_PYTHON=str(tmp_path / "no-python"))
    assert "HERMES_AGENT_BRIDGE_PYTHON" in found["cli"]["error"]
    assert "HERMES_GATEWAY_URL" in found["api_server"]["error"]
    shown = run_portal("provider", "list", environ=migrated | hermes).stdout.splitlines()
    assert "cannot be used here" in shown[0]
    assert "Hermes  can: " in shown[1]


def beat(redis: RedisServer, worker_id: str = "a", **told: Any) -> None:
    facts = WorkerFacts(worker_id=worker_id, host="w1", pid=1, started_at=clock.now(), **told)
    Presence(connect_url(redis.url), Keys(), ttl_s=3_600).beat_worker(facts)


def test_a_redis_that_evicts_is_refused_by_doctor_and_by_a_worker(migrated: Environ) -> None:
    server = RedisServer("--maxmemory-policy", "allkeys-lru")
    try:
        environ = migrated | {"REDIS_URL": server.url}
        _, found = findings(environ, "--no-gateway")
        assert found["redis"]["status"] == "fault"
        assert "noeviction" in found["redis"]["remedy"]
        worker = run_portal("worker", environ=environ)
        assert worker.returncode == 2
        assert worker.stderr.splitlines() == [
            "portal: Redis drops data when it is full (maxmemory-policy allkeys-lru): set `maxmemory-policy noeviction`"
        ]
    finally:
        server.close()


def test_a_redis_open_to_the_world_is_refused(migrated: Environ, tmp_path: Path) -> None:
    """S46."""
    server = RedisServer("--protected-mode", "no", "--bind", "0.0.0.0", "--port", str(port := free_port()))
    try:
        code, found = findings(migrated | {"REDIS_URL": f"redis://127.0.0.1:{port}"}, "--no-gateway")
        assert code == 1
        assert "without a password" in found["redis"]["detail"]
        server.client.config_set("requirepass", "a-long-password")
        _, found = findings(migrated | {"REDIS_URL": f"redis://:a-long-password@127.0.0.1:{port}"}, "--no-gateway")
        assert found["redis"]["status"] == "ok"
    finally:
        server.close()


# ---- single processes and Flower


@pytest.mark.parametrize("role", ["web", "worker", "beat"])
def test_a_process_without_redis_or_tables_says_so_and_does_not_start(environ: Environ, role: str) -> None:
    done = run_portal(role, environ=environ)
    assert done.returncode == 2
    assert "REDIS_URL" in done.stderr
    done = run_portal(role, environ=environ | {"REDIS_URL": "redis://127.0.0.1:1"})
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_a_process_wants_the_tables_of_its_version(environ: Environ, redis_server: RedisServer) -> None:
    done = run_portal("worker", environ=environ | {"REDIS_URL": redis_server.url})
    assert done.returncode == 2
    assert "portal migrate" in done.stderr


@pytest.mark.parametrize("login", ["", "ops", "ops:", "ops:short", ":a-long-password"])
def test_flower_does_not_start_without_a_login(environ: Environ, login: str) -> None:
    """S47."""
    done = run_portal("flower", environ=environ | {"FLOWER_BASIC_AUTH": login})
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_run_says_when_no_portal_runs_here(environ: Environ) -> None:
    done = run_portal("run", "Hello", environ=environ)
    assert done.returncode == 1
    assert "portal up" in done.stderr


def test_the_files_of_a_command_are_private(migrated: Environ) -> None:
    add_user(migrated, "ada@example.com")
    folder = Path(migrated["PORTAL_DATA_DIR"])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert os.path.exists(binary())
