"""Approvals and questions of the real agent: nothing dangerous runs unasked, and what is answered is what happens."""

import json
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rig.bridge_child import BridgeChild, Running, Turn
from tests.rig.hermes import ScriptedModel

pytestmark = [pytest.mark.component("hermes"), pytest.mark.timeout(400)]

PLUGIN = '''
import threading


def register(ctx):
    def bare_thread(args, **kwargs):
        """A tool that runs a command in a thread of its own, without any context."""
        from tools.approval import check_dangerous_command, request_tool_approval
        from tools.terminal_tool import terminal_tool

        def work():
            found.append(terminal_tool(command=args["command"], task_id="bare"))
            found.append(str(check_dangerous_command(args["command"], "local")["approved"]))
            found.append(str(request_tool_approval("x", "y")["approved"]))

        found = []
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return " ".join(found)

    def guarded(args, **kwargs):
        return "did it"

    for name, handler in (("bare_thread", bare_thread), ("guarded", guarded)):
        ctx.register_tool(
            name=name,
            toolset="portal-test",
            schema={"name": name, "description": name, "parameters": {"type": "object", "properties": {}}},
            handler=handler,
        )

    def before(tool_name=None, **kwargs):
        if tool_name == "guarded":
            return {"action": "approve", "message": "guarded tools want a look"}

    ctx.register_hook("pre_tool_call", before)
'''


def with_plugin(home: Path) -> None:
    folder = home / "plugins" / "portal-test"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text("name: portal-test\nversion: 1.0.0\ndescription: tools for tests\n")
    (folder / "__init__.py").write_text(PLUGIN)
    (home / ".env").write_text("HERMES_YOLO_MODE=1\nHERMES_INTERACTIVE=1\nHERMES_CRON_SESSION=1\n")


@pytest.fixture(scope="module")
def child(model: ScriptedModel) -> Iterator[BridgeChild]:
    """Its home's `.env` would have Hermes ask nobody, and its `approvals.timeout` is 1 s: neither counts here."""
    child = BridgeChild(
        model,
        config="plugins: {enabled: [portal-test]}\ncommand_allowlist: ['chmod 777 /nowhere*']\n",
        prepare_home=with_plugin,
        environment={"HERMES_YOLO_MODE": "1"},
    )
    yield child.start()
    child.close()


class Target:
    """A folder that a dangerous command would remove."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / secrets.token_hex(4)
        self.path.mkdir()

    @property
    def danger(self) -> str:
        return f"[[danger:{self.path}]]"

    @property
    def is_there(self) -> bool:
        return self.path.exists()


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path)


@pytest.fixture
def others(tmp_path: Path) -> list[Target]:
    return [Target(tmp_path) for _ in range(3)]


def respond(child: BridgeChild, running: Running, asked: dict[str, Any], choice: str, **more: Any) -> dict[str, Any]:
    return child.ask(
        "approval_respond", run_id=running.turn.run_id, approval_id=asked["approval_id"], choice=choice, **more
    )


def decide(child: BridgeChild, running: Running, choice: str, count: int = 1) -> dict[str, Any]:
    asked = running.wait("approval.requested", count)
    answer = respond(child, running, asked, choice)
    assert answer == {"ok": True}
    return asked


def outputs(turn: Turn) -> list[dict[str, Any]]:
    return [json.loads(event["result"]) for event in turn.of("tool.completed")]


# ---- the four choices


def test_once_runs_that_command_and_asks_again(child: BridgeChild, target: Target, others: list[Target]):
    running = child.begin(f"{target.danger} [[then]] {others[0].danger} [[then]] [[say:over]]")
    asked = decide(child, running, "once")
    assert asked["command"] == f"rm -rf {target.path}"
    assert asked["description"] == "delete in root path"
    assert asked["pattern_keys"] == ["delete in root path"]
    assert asked["allow_permanent"]
    assert asked["choices"] == ["once", "session", "always", "deny"]
    again = running.wait("approval.requested", 2)
    assert again["approval_id"] != asked["approval_id"]
    assert not target.is_there
    assert others[0].is_there
    respond(child, running, again, "deny")
    turn = running.end()
    assert turn.last["event"] == "run.completed"
    assert others[0].is_there
    assert [(event["choice"], event["reason"]) for event in turn.of("approval.resolved")] == [
        ("once", "answered"),
        ("deny", "answered"),
    ]


def test_a_no_is_called_a_no_and_the_run_goes_on(child: BridgeChild, target: Target):
    running = child.begin(f"{target.danger} [[then]] [[say:went on]]")
    decide(child, running, "deny")
    turn = running.end()
    assert target.is_there
    (output,) = outputs(turn)
    assert "denied by user" in output["error"]
    assert not turn.one("tool.completed")["ok"]
    assert turn.text.endswith("went on")


def test_silence_is_not_called_a_no(child: BridgeChild, target: Target):
    running = child.begin(f"{target.danger} [[then]] [[say:went on]]")
    asked = running.wait("approval.requested")
    assert respond(child, running, asked, "once", reason="expired") == {"ok": True}  # whatever the choice
    turn = running.end()
    assert target.is_there
    (output,) = outputs(turn)
    assert "timed out without user response" in output["error"]
    resolved = turn.one("approval.resolved")
    assert (resolved["choice"], resolved["reason"]) == ("deny", "expired")


def test_the_child_has_no_clock_of_its_own(child: BridgeChild, target: Target):
    running = child.begin(target.danger)
    asked = running.wait("approval.requested")
    with pytest.raises(AssertionError):  # Hermes' limit here is 1 s
        running.wait("approval.resolved", timeout_s=3)
    respond(child, running, asked, "once")
    running.end()
    assert not target.is_there


def test_for_the_session_holds_in_it_and_in_no_other(child: BridgeChild, target: Target, others: list[Target]):
    session = {"session_id": "20260102_030405_grants"}
    running = child.begin(f"{target.danger} [[then]] {others[0].danger}", **session)
    decide(child, running, "session")
    first = running.end()
    assert not target.is_there
    assert not others[0].is_there
    assert len(first.of("approval.requested")) == 1
    second = child.play(others[1].danger, history=None, after=first.run_id, **session)
    assert not others[1].is_there
    assert not second.of("approval.requested")
    elsewhere = child.begin(others[2].danger)
    decide(child, elsewhere, "deny")
    elsewhere.end()
    assert others[2].is_there


@pytest.mark.parametrize("is_warm", [True, False], ids=["warm", "told its history"])
def test_what_was_allowed_for_the_session_ends_when_the_portal_says_so(
    child: BridgeChild, target: Target, others: list[Target], is_warm: bool
):
    running = child.begin(target.danger, grant_epoch=4)
    decide(child, running, "session")
    first = running.end()

    def again(after: Turn, wish: str, grant_epoch: int) -> Running:
        stands = {"history": None, "after": after.run_id} if is_warm else {"history": []}
        return child.begin(wish, session_id=first.session_id, grant_epoch=grant_epoch, **stands)

    second = again(first, others[0].danger, 4).end()
    assert second.of("approval.requested") == []
    assert not others[0].is_there
    third = again(second, others[1].danger, 5)
    decide(child, third, "deny")
    third.end()
    assert others[1].is_there
    fourth = again(third.turn, others[2].danger, 4)
    decide(child, fourth, "deny")
    fourth.end()
    assert others[2].is_there


def test_always_holds_for_the_run_and_is_written_nowhere(child: BridgeChild, target: Target, others: list[Target]):
    before = (child.home / "config.yaml").read_text()
    session = {"session_id": "20260102_030405_always"}
    running = child.begin(f"{target.danger} [[then]] {others[0].danger}", **session)
    decide(child, running, "always")
    first = running.end()
    assert not others[0].is_there
    assert len(first.of("approval.requested")) == 1
    assert (child.home / "config.yaml").read_text() == before
    # The portal keeps it, and sends it: without that it is asked for again, in the same session too.
    running = child.begin(others[1].danger, history=None, after=first.run_id, **session)
    decide(child, running, "deny")
    running.end()
    assert others[1].is_there


def test_what_the_portal_allows_is_not_asked_for_in_that_run_alone(
    child: BridgeChild, target: Target, others: list[Target]
):
    allowed = child.play(target.danger, allowed=["delete in root path"])
    assert not target.is_there
    assert not allowed.of("approval.requested")
    waiting = child.begin(others[0].danger, allowed=["something else"])
    waiting.wait("approval.requested")
    at_once = child.play(others[1].danger, allowed=["delete in root path"])
    assert not at_once.of("approval.requested")
    decide(child, waiting, "deny")
    waiting.end()
    assert others[0].is_there


def test_what_the_home_lists_is_allowed_until_it_is_taken_out(child: BridgeChild):
    command = '[[tool:terminal:{"command": "chmod 777 /nowhere-at-all"}]]'
    assert not child.play(command).of("approval.requested")
    child.change_config("chmod 777 /nowhere*", "something else")
    try:
        running = child.begin(command)
        decide(child, running, "deny")
        running.end()
    finally:
        child.change_config("something else", "chmod 777 /nowhere*")


# ---- in every thread


def test_parallel_tools_and_scripts_ask_each_for_itself(child: BridgeChild, target: Target, others: list[Target]):
    running = child.begin(f"{target.danger} {others[0].danger} [[then]] [[say:both]]")
    first = running.wait("approval.requested", 1)
    respond(child, running, first, "once")
    second = running.wait("approval.requested", 2)
    assert {first["command"], second["command"]} == {f"rm -rf {target.path}", f"rm -rf {others[0].path}"}
    respond(child, running, second, "deny")
    running.end()
    removed = {f"rm -rf {each.path}" for each in (target, others[0]) if not each.is_there}
    assert removed == {first["command"]}


def test_two_that_wait_at_once_get_each_their_own_answer(child: BridgeChild, target: Target, others: list[Target]):
    goals = [f'{{"goal": "[[danger:{each.path}]] [[then]] [[say:done]]"}}' for each in (target, others[0])]
    running = child.begin(f'[[tool:delegate_task:{{"tasks": [{", ".join(goals)}]}}]] [[then]] [[say:both]]')
    running.wait("approval.requested", 2)
    asked = {event["command"]: event for event in running.turn.of("approval.requested")}
    respond(child, running, asked[f"rm -rf {others[0].path}"], "once")
    respond(child, running, asked[f"rm -rf {target.path}"], "deny")
    assert running.end().last["event"] == "run.completed"
    assert target.is_there
    assert not others[0].is_there


def test_a_subagent_asks_in_the_turn_of_its_parent(child: BridgeChild, target: Target):
    goal = f"[[danger:{target.path}]] [[then]] [[say:done]]"
    running = child.begin(f'[[tool:delegate_task:{{"goal": "{goal}"}}]] [[then]] [[say:over]]')
    asked = running.wait("approval.requested")
    assert asked["command"] == f"rm -rf {target.path}"
    assert target.is_there
    respond(child, running, asked, "once")
    running.end()
    assert not target.is_there


def test_what_a_subagent_may_for_the_session_its_parent_may_too(
    child: BridgeChild, target: Target, others: list[Target]
):
    goal = f"[[danger:{target.path}]] [[then]] [[danger:{others[0].path}]] [[then]] [[say:done]]"
    running = child.begin(f'[[tool:delegate_task:{{"goal": "{goal}"}}]] [[then]] {others[1].danger}')
    decide(child, running, "session")
    turn = running.end()
    assert len(turn.of("approval.requested")) == 1
    assert not any(each.is_there for each in (target, others[0], others[1]))
    again = child.play(others[2].danger, history=None, after=turn.run_id, session_id=turn.session_id)
    assert not again.of("approval.requested")
    assert not others[2].is_there


def test_a_script_is_asked_for_as_a_whole(child: BridgeChild, target: Target):
    code = f"import shutil; shutil.rmtree('{target.path}'); print('gone')"
    running = child.begin(f'[[tool:execute_code:{{"code": "{code}"}}]] [[then]] [[say:over]]')
    asked = running.wait("approval.requested")
    assert code in asked["command"]
    assert target.is_there
    respond(child, running, asked, "deny")
    running.end()
    assert target.is_there


def test_a_plugin_that_wants_a_look_gets_one(child: BridgeChild):
    running = child.begin("[[tool:guarded:{}]] [[then]] [[say:over]]")
    asked = running.wait("approval.requested")
    assert "guarded tools want a look" in asked["description"]
    respond(child, running, asked, "once")
    turn = running.end()
    assert turn.one("tool.completed")["result"] == "did it"


def test_a_thread_without_any_context_runs_nothing_dangerous(child: BridgeChild, target: Target):
    turn = child.play(f'[[tool:bare_thread:{{"command": "rm -rf {target.path}"}}]] [[then]] [[say:over]]')
    assert target.is_there
    result = turn.one("tool.completed")["result"]
    assert "pending_approval" in result
    assert result.endswith("False False")


def test_twenty_sessions_ask_at_once_and_each_gets_its_own_answer(child: BridgeChild, tmp_path: Path):
    targets = [Target(tmp_path) for _ in range(20)]
    running = [
        child.begin(target.danger, session_id=f"20260102_030405_many{i:02d}") for i, target in enumerate(targets)
    ]
    asked = [run.wait("approval.requested") for run in running]
    for target, event in zip(targets, asked, strict=True):
        assert event["command"] == f"rm -rf {target.path}"
    threads = [
        threading.Thread(target=respond, args=(child, run, event, "once" if place % 2 else "deny"))
        for place, (run, event) in enumerate(zip(running, asked, strict=True))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for run in running:
        assert run.end().last["event"] == "run.completed"
    assert [target.is_there for target in targets] == [place % 2 == 0 for place in range(20)]


# ---- wrong answers


def test_answers_that_come_late_twice_or_to_the_wrong_run_change_nothing(child: BridgeChild, target: Target):
    running = child.begin(target.danger)
    asked = running.wait("approval.requested")
    other = child.play("[[say:x]]")

    def code(**fields: Any) -> str:
        given = {"run_id": running.turn.run_id, "approval_id": asked["approval_id"], "choice": "once"} | fields
        answer = child.ask("approval_respond", **given)
        return "" if answer["ok"] else str(answer["error"]["code"])

    assert code(approval_id="nobody") == "not_pending"
    assert code(run_id=other.run_id) == "not_pending"
    assert code(run_id="nobody") == "run_not_found"
    assert code(choice="yes") == "bad_request"
    assert code(reason="because") == "bad_request"
    assert (
        child.ask("clarify_respond", run_id=running.turn.run_id, clarify_id=asked["approval_id"], answer="x")["error"][
            "code"
        ]
        == "not_pending"
    )
    assert target.is_there
    assert code(choice="deny") == ""
    assert code() == "not_pending"
    running.end()
    assert target.is_there
    assert code() == "not_pending"


# ---- questions


def clarify(child: BridgeChild, running: Running, answer: str | None) -> dict[str, Any]:
    asked = running.wait("clarify.requested")
    said = child.ask("clarify_respond", run_id=running.turn.run_id, clarify_id=asked["clarify_id"], answer=answer)
    assert said == {"ok": True}
    return asked


def test_a_question_with_choices_gets_the_chosen_one(child: BridgeChild):
    running = child.begin("[[clarify:Which colour?|red|blue|green|grey]]")
    child.wait_for(lambda: any(held["waits_for"] == "clarify" for held in child.ask("list")["sessions"]))
    asked = clarify(child, running, "blue")
    assert asked["question"] == "Which colour?"
    assert asked["choices"] == ["red", "blue", "green", "grey"]
    turn = running.end()
    assert outputs(turn)[0]["user_response"] == "blue"
    assert turn.one("clarify.resolved")["reason"] == "answered"


def test_a_question_takes_own_words_in_any_script(child: BridgeChild):
    running = child.begin("[[clarify:What is your name?]]")
    asked = clarify(child, running, "Ada 世界 🌍")
    assert asked["choices"] == []
    assert outputs(running.end())[0]["user_response"] == "Ada 世界 🌍"


def test_a_question_that_nobody_answers_says_so_to_the_agent(child: BridgeChild):
    running = child.begin("[[clarify:Which?|a|b]] [[then]] [[say:went on]]")
    clarify(child, running, None)
    turn = running.end()
    assert "Nobody answered" in outputs(turn)[0]["user_response"]
    assert turn.one("clarify.resolved")["reason"] == "expired"
    assert turn.text.endswith("went on")
