"""Which agents a bridge child holds: how they are made, kept, taken back and dropped; and that they never mix."""

import json
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rig.bridge import wait_for
from tests.rig.bridge_child import BridgeChild, processes_with
from tests.rig.hermes import ScriptedModel

pytestmark = [pytest.mark.component("hermes"), pytest.mark.timeout(400)]


@pytest.fixture
def start(model: ScriptedModel) -> Iterator[Callable[..., BridgeChild]]:
    """Starts children; ends them after the test."""
    children: list[BridgeChild] = []

    def start(**options: Any) -> BridgeChild:
        child = BridgeChild(model, **options)
        children.append(child)
        return child.start()

    yield start
    for child in children:
        child.close()


def held(child: BridgeChild) -> dict[str, dict[str, Any]]:
    return {session["session_id"]: session for session in child.ask("list")["sessions"]}


# ---- made


def test_a_spare_agent_is_made_at_once_and_anew_when_it_was_taken(child: BridgeChild):
    child.wait_for_spare()
    turn = child.play("[[say:adopted]]", session_id="20260102_030405_spare0")
    assert turn.text == "adopted"
    child.wait_for_spare()
    assert child.ask("prepare", model=None) == {"ok": True, "ready": True}


def test_a_taken_spare_is_the_agent_of_its_session(child: BridgeChild):
    child.wait_for_spare()
    session = "20260102_030405_spare1"
    child.play('[[tool:terminal:{"command": "echo $HERMES_SESSION_ID"}]]', session_id=session)
    with sqlite3.connect(child.home / "state.db") as db:
        sessions = {row[0] for row in db.execute("select id from sessions")}
        said = db.execute("select role from messages where session_id = ? order by id", (session,)).fetchall()
    assert session in sessions
    assert not any(name.startswith("spare") for name in sessions)
    assert [role for (role,) in said] == ["user", "assistant", "tool", "assistant"]


def test_a_spare_of_another_configuration_is_not_taken(start: Callable[..., BridgeChild]):
    child = start()
    child.wait_for_spare()
    child.change_config("default: scripted-1", "default: scripted-2")
    turn = child.play("[[echo:model]]")
    assert json.loads(turn.last["text"]) == "scripted-2"


def test_a_configuration_of_any_keys_makes_agents(start: Callable[..., BridgeChild]):
    """YAML takes `1`, `no` and dates for what they are; beside names they cannot be put in order."""
    child = start(config="terminal: {portal: {1: a, no: b, 2026-01-01: c, name: d}}\n")
    child.wait_for_spare()
    first = child.play("[[say:one]]")
    assert first.text == "one"
    assert child.play("[[say:two]]", history=None, session_id=first.session_id, after=first.run_id).text == "two"


def test_many_first_turns_at_once_are_served_one_after_another_and_running_streams_go_on(child: BridgeChild):
    streaming = child.begin("[[stream:150:20]]")
    streaming.wait("stream.delta")
    turns = [child.begin(f"[[say:answer {number}]]") for number in range(10)]
    for number, turn in enumerate(turns):
        assert turn.end().text == f"answer {number}"
    assert len(streaming.end().text.split()) == 150


def test_a_model_that_cannot_be_had_fails_the_turn_and_not_the_child(start: Callable[..., BridgeChild]):
    def without_model(home: Path) -> None:
        (home / "config.yaml").write_text("model: {default: x, provider: no-such-provider}\n")

    child = start(prepare_home=without_model)
    turn = child.play("[[say:x]]")
    assert turn.last["event"] == "run.failed"
    assert turn.last["code"] == "agent_not_made"
    assert "no-such-provider" in turn.last["message"]
    assert held(child) == {}
    assert child.ask("ping")["ok"]


def test_the_settings_of_the_source_document_count(start: Callable[..., BridgeChild]):
    child = start(environment={"HERMES_BRIDGE_MAX_TURNS": "2"})
    steps = "".join(f'[[tool:terminal:{{"command": "echo {step}"}}]] [[then]] ' for step in range(3)) + "[[say:all]]"
    assert child.play(steps).last["finish_reason"] == "max_iterations"
    assert child.play(steps, max_iterations=5).text.endswith("all")
    with sqlite3.connect(child.home / "state.db") as db:
        assert set(db.execute("select source from sessions")) == {("cli",)}
    other = start(environment={"HERMES_BRIDGE_PROVIDER": "no-such-provider"})
    assert "no-such-provider" in other.play("[[say:x]]").last["message"]


# ---- dropped


def test_an_agent_that_was_idle_for_too_long_is_dropped_and_one_at_work_is_not(start: Callable[..., BridgeChild]):
    child = start(environment={"HERMES_BRIDGE_IDLE_MINUTES": "0.01", "PORTAL_BRIDGE_SWEEP_S": "0.1"})
    working = child.begin("[[stream:9000:20]]", session_id="working")
    idle = child.play("[[say:x]]", session_id="idle")
    child.wait_for(lambda: "idle" not in held(child))
    assert held(child)["working"]["run_id"] == working.turn.run_id
    answer = child.ask("chat", **child.chat_fields("x", history=None, after=idle.run_id, session_id="idle"))
    assert answer["error"]["code"] == "session_not_found"
    child.ask("interrupt", run_id=working.turn.run_id)
    assert working.end().last["event"] == "run.interrupted"
    child.wait_for(lambda: held(child) == {})
    again = child.play("[[echo:roles]]", session_id="idle", history=[{"role": "user", "content": "q"}])
    assert again.last["event"] == "run.completed"


def test_the_least_recently_used_idle_agent_makes_room(start: Callable[..., BridgeChild]):
    child = start(environment={"HERMES_BRIDGE_MAX_AGENTS": "2"})
    first = child.play("[[say:a]]", session_id="a")
    child.play("[[say:b]]", session_id="b")
    child.play("[[say:a]]", session_id="a", history=None, after=first.run_id)
    child.play("[[say:c]]", session_id="c")
    assert set(held(child)) == {"a", "c"}
    assert child.ask("list")["max_agents"] == 2


def test_when_all_are_at_work_a_new_session_is_refused(start: Callable[..., BridgeChild]):
    child = start(environment={"HERMES_BRIDGE_MAX_AGENTS": "2"})
    working = [child.begin("[[stream:9000:20]]", session_id=name) for name in ("a", "b")]
    answer = child.ask("chat", **child.chat_fields("x", session_id="c"))
    assert answer["error"]["code"] == "full"
    for running in working:
        child.ask("interrupt", run_id=running.turn.run_id)
        running.end()
    assert child.play("[[say:c]]", session_id="c").text == "c"


def test_destroy_drops_the_idle_at_once_and_the_busy_when_it_is_done(child: BridgeChild):
    idle = child.play("[[say:x]]", session_id="idle")
    working = child.begin("[[clarify:Which?|a|b]] [[then]] [[stream:200:4]]", session_id="working")
    asked = working.wait("clarify.requested")
    assert child.ask("destroy", session_id="idle") == {"ok": True, "destroyed": 1, "deferred": 0}
    assert child.ask("destroy", session_id="idle") == {"ok": True, "destroyed": 0, "deferred": 0}
    assert child.ask("destroy", session_id="working") == {"ok": True, "destroyed": 0, "deferred": 1}
    answer = {"run_id": working.turn.run_id, "clarify_id": asked["clarify_id"], "answer": "a"}
    assert child.ask("clarify_respond", **answer)["ok"]
    assert len(working.end().text.split()) == 200
    assert not {"idle", "working"} & set(held(child))
    answer = child.ask("chat", **child.chat_fields("x", history=None, after=idle.run_id, session_id="idle"))
    assert answer["error"]["code"] == "session_not_found"
    child.play("[[say:x]]")
    assert child.ask("destroy_all")["destroyed"] >= 1
    assert held(child) == {}


def test_background_processes_end_with_a_destroyed_session_and_not_with_an_idle_one(
    start: Callable[..., BridgeChild],
):
    child = start(environment={"HERMES_BRIDGE_IDLE_MINUTES": "0.08", "PORTAL_BRIDGE_SWEEP_S": "0.1"})
    marks = [f"5{secrets.randbelow(10**8):08d}" for _ in range(2)]
    for name, mark in zip(("kept", "destroyed"), marks, strict=True):
        child.play(f'[[tool:terminal:{{"command": "sleep {mark}", "background": true}}]]', session_id=name)
        assert processes_with(mark)
    assert child.ask("destroy", session_id="destroyed")["destroyed"] == 1
    child.wait_for(lambda: not processes_with(marks[1]))
    child.wait_for(lambda: held(child) == {})
    assert processes_with(marks[0])
    child.stop()
    wait_for(lambda: not processes_with(marks[0]), "the end of the other")


def test_what_a_finished_run_said_is_forgotten_after_a_while(start: Callable[..., BridgeChild]):
    child = start(environment={"PORTAL_BRIDGE_KEPT_RUN_S": "0.5", "PORTAL_BRIDGE_SWEEP_S": "0.1"})
    turn = child.play("[[say:x]]")
    child.wait_for(lambda: not child.ask("get_result", run_id=turn.run_id)["ok"])
    assert child.ask("stream", run_id=turn.run_id)["error"]["code"] == "run_not_found"
    again = child.ask("chat", **child.chat_fields("x", run_id=turn.run_id))
    assert again["error"]["code"] == "run_exists"


# ---- never mixed


def test_each_session_works_in_its_directory_and_has_a_shell_of_its_own(child: BridgeChild, tmp_path: Path):
    command = '[[tool:terminal:{"command": "export CANARY=%s; pwd > where; mkdir -p sub; cd sub"}]]'
    look = '[[tool:terminal:{"command": "echo [$CANARY]; pwd"}]]'
    first = child.play(command % "one", session_id="one", workspace=str(tmp_path / "one"))
    second = child.play(look, session_id="two", workspace=str(tmp_path / "two"))
    assert (tmp_path / "one" / "where").read_text().strip() == str(tmp_path / "one")
    assert (tmp_path / "one").stat().st_mode & 0o077 == 0
    output = json.loads(second.one("tool.completed")["result"])["output"]
    assert output.splitlines() == ["[]", str(tmp_path / "two")]
    again = child.play(look, session_id="one", workspace=str(tmp_path / "one"), history=None, after=first.run_id)
    output = json.loads(again.one("tool.completed")["result"])["output"]
    assert output.splitlines()[-1] == str(tmp_path / "one" / "sub")


def test_files_are_written_where_the_session_works(child: BridgeChild, tmp_path: Path):
    write = '[[tool:write_file:{"path": "note.txt", "content": "canary"}]] [[then]] [[say:ok]]'
    turn = child.play(write, workspace=str(tmp_path / "ws"))
    assert turn.one("tool.completed")["ok"], turn.one("tool.completed")
    assert (tmp_path / "ws" / "note.txt").read_text().strip() == "canary"


def test_the_projects_own_file_of_the_workspace_is_read_and_no_other(child: BridgeChild, tmp_path: Path):
    for name in ("canary-ada", "canary-bob"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "AGENTS.md").write_text(f"{name}-project-rules")
        (tmp_path / name / "sub" / "AGENTS.md").write_text(f"{name}-sub-rules")
        (tmp_path / name / "sub" / "a.txt").write_text("x")
    for name, other in (("canary-ada", "canary-bob"), ("canary-bob", "canary-ada")):
        workspace = str(tmp_path / name)
        turn = child.play('[[tool:read_file:{"path": "sub/a.txt"}]] [[then]] [[echo:system]]', workspace=workspace)
        assert f"{name}-project-rules" in turn.text
        assert other not in turn.text
        last = child.ask("get_history", session_id=turn.session_id)["messages"]
        told = next(message["content"] for message in last if message["role"] == "tool")
        assert f"{name}-sub-rules" in told
        assert other not in told


def test_a_subagent_works_where_its_parent_does_with_a_shell_of_its_own(child: BridgeChild, tmp_path: Path):
    goal = '[[tool:terminal:{\\"command\\": \\"pwd > from-child; export CANARY=leak\\"}]] [[then]] [[say:done]]'
    child.play(f'[[tool:delegate_task:{{"goal": "{goal}"}}]]', workspace=str(tmp_path / "ws"))
    assert (tmp_path / "ws" / "from-child").read_text().strip() == str(tmp_path / "ws")
    other = child.play('[[tool:delegate_task:{"goal": "[[tool:terminal:{\\"command\\": \\"echo [$CANARY]\\"}]]"}]]')
    assert "[]" in other.one("tool.completed")["result"]
    assert "leak" not in other.one("tool.completed")["result"]


def test_twenty_sessions_at_once_keep_to_themselves(child: BridgeChild, tmp_path: Path):
    def talk(number: int, failures: list[str]) -> None:
        name = f"canary-{number:02d}"
        session = {"session_id": f"20260102_030405_mix{number:03d}", "workspace": str(tmp_path / name)}
        first = child.play(
            f'[[think:{name}-thought]] [[say:{name}-said]] [[tool:terminal:{{"command": "echo {name}-ran; pwd"}}]]',
            instructions=f"{name}-instruction",
            **session,
        )
        more = session | {"instructions": f"{name}-again", "history": None, "after": first.run_id}
        second = child.play("[[echo:system]]", **more)
        everything = json.dumps([first.events, second.events, first.reasoning, first.text, second.text])
        own = [f"{name}-thought", f"{name}-said", f"{name}-ran", f"{name}-again", str(tmp_path / name)]
        failures += [f"{name} misses {text}" for text in own if text not in everything]
        others = [f"canary-{other:02d}" for other in range(20) if other != number]
        failures += [f"{name} has {other}" for other in others if other in everything]
        if f"{name}-instruction" in second.text:
            failures.append(f"{name} keeps old instructions")

    failures: list[str] = []
    threads = [threading.Thread(target=talk, args=(number, failures)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    assert failures == []


def test_two_homes_never_mix(start: Callable[..., BridgeChild]):
    def home_of(name: str) -> Callable[[Path], None]:
        def prepare(home: Path) -> None:
            (home / "SOUL.md").write_text(f"You are {name}-soul.")
            skill = home / "skills" / f"{name}-skill"
            skill.mkdir(parents=True)
            (skill / "SKILL.md").write_text(
                f"---\nname: {name}-skill\ndescription: {name}-described\n---\n{name}-body\n"
            )

        return prepare

    children = {name: start(prepare_home=home_of(name), arguments=("--profile", name)) for name in ("ada", "bob")}
    for name, child in children.items():
        other = "bob" if name == "ada" else "ada"
        system = child.play("[[echo:system]]").text
        assert f"{name}-soul" in system
        assert f"{name}-described" in system
        assert other not in system
        ran = child.play('[[tool:terminal:{"command": "echo $HERMES_HOME; env | grep -c PORTAL_"}]]')
        output = json.loads(ran.one("tool.completed")["result"])["output"].splitlines()
        assert output == [str(child.home), "0"]
        assert child.ask("ping")["profile"] == name
        assert (child.home / "state.db").exists()


# ---- compression


def test_compression_by_the_agent_is_shown(start: Callable[..., BridgeChild]):
    child = start(config="compression: {protect_first_n: 1, protect_last_n: 2}\n")
    child.change_config("context_length: 131072", "context_length: 65536")
    filler = "lorem ipsum dolor sit amet " * 2400
    last = None
    shown: list[dict[str, Any]] = []
    for number in range(7):
        history = [] if last is None else None
        turn = child.play(f"[[say:answer {number}]] {filler}", session_id="long", history=history, after=last)
        assert turn.last["event"] == "run.completed"
        last = turn.run_id
        shown += turn.of("compression.started", "compression.completed")
        if len(shown) >= 2:
            break
    assert [event["event"] for event in shown[:2]] == ["compression.started", "compression.completed"]
    assert shown[0]["before_tokens"] == shown[1]["before_tokens"] >= 64_000
    assert 0 < shown[1]["after_tokens"] < shown[1]["before_tokens"]
