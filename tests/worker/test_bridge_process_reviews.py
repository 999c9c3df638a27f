"""Hermes' own reviews, which it makes after some turns in the background: they are of no run, so they may ask nobody,
and touch nothing of the session. Here each turn is followed by one, which does what the home's `review.json` says."""

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.rig.bridge_child import BridgeChild, processes_with
from tests.rig.hermes import ScriptedModel

pytestmark = [pytest.mark.component("hermes"), pytest.mark.timeout(400)]

PLUGIN = """
import json, os, pathlib, time
from agent import background_review
from hermes_cli import plugins

HOME = pathlib.Path(os.environ["HERMES_HOME"])
ORIGINAL = background_review._run_review_in_thread
VERDICT = plugins.resolve_pre_tool_block


def review(agent, messages, prompt):
    ORIGINAL(agent, messages, json.loads((HOME / "review.json").read_text()))


def before(tool_name=None, **kwargs):
    if tool_name == "skills_list":  # a tool that a review may use
        (HOME / "asking").touch()
        while not (HOME / "go").exists():
            time.sleep(0.02)
        return {"action": "approve", "message": "lists want a look"}


def verdict(tool_name, *args, **kwargs):
    said = VERDICT(tool_name, *args, **kwargs)
    with open(HOME / "verdicts", "a") as file:
        file.write(json.dumps([tool_name, said]) + "\\n")
    return said


def register(ctx):
    plugins.resolve_pre_tool_block = verdict
    background_review._run_review_in_thread = review
    ctx.register_hook("pre_tool_call", before)
"""
CONFIG = """\
plugins: {enabled: [portal-test]}
memory: {memory_enabled: true, user_profile_enabled: false, nudge_interval: 1}
"""


def with_plugin(home: Path) -> None:
    folder = home / "plugins" / "portal-test"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text("name: portal-test\nversion: 1.0.0\ndescription: reviews of tests\n")
    (folder / "__init__.py").write_text(PLUGIN)
    (home / "review.json").write_text('"Review the conversation above [[say:nothing to keep]]"')


@pytest.fixture
def child(model: ScriptedModel) -> Iterator[BridgeChild]:
    child = BridgeChild(model, config=CONFIG, prepare_home=with_plugin)
    yield child.start()
    child.close()


def tool(name: str, **arguments: str) -> str:
    return f"[[tool:{name}:{json.dumps(arguments)}]]"


def keep(words: str) -> str:
    return tool("memory", action="add", target="memory", content=words)


def review_shall(child: BridgeChild, wish: object) -> None:
    (child.home / "review.json").write_text(json.dumps(wish))


def wait_kept(child: BridgeChild, words: str) -> None:
    memory = child.home / "memories" / "MEMORY.md"
    child.wait_for(lambda: memory.is_file() and words in memory.read_text())


def wait_said(child: BridgeChild, words: str) -> None:
    child.wait_for(lambda: words in child.said())


def test_a_review_runs_no_command_asks_nothing_and_may_write_memory(child: BridgeChild, tmp_path: Path):
    targets = [tmp_path / name for name in ("one", "two")]
    for target in targets:
        target.mkdir()
    code = f"import shutil; shutil.rmtree('{targets[1]}')"
    review_shall(
        child,
        f"[[danger:{targets[0]}]] {tool('execute_code', code=code)} [[clarify:Who?|A|B]] "
        f"[[then]] {tool('write_file', path=str(tmp_path / 'three'), content='x')} {keep('a canary of the review')} "
        "[[then]] [[say:done]]",
    )
    turn = child.play("[[say:hello]]")
    assert turn.last["event"] == "run.completed"
    wait_kept(child, "a canary of the review")
    wait_said(child, "review.ended")
    assert [target.exists() for target in targets] == [True, True]
    assert not (tmp_path / "three").exists()
    assert turn.text == "hello"
    again = child.play("[[say:still here]]", session_id=turn.session_id, history=None, after=turn.run_id)
    assert [event["event"] for event in again.of("approval.requested", "clarify.requested", "tool.started")] == []


@pytest.mark.parametrize("allowed", [[], ["plugin_rule:skills_list"]], ids=["asked for", "allowed in the turn"])
def test_what_a_review_would_have_to_ask_is_refused_and_not_asked_in_the_turn_that_runs_meanwhile(
    child: BridgeChild, allowed: list[str]
):
    review_shall(child, f"{tool('skills_list')} [[then]] {keep('it went on')} [[then]] [[say:done]]")
    first = child.play("[[say:one]]")
    child.wait_for((child.home / "asking").exists)
    review_shall(child, "[[say:nothing to keep]]")
    running = child.begin(
        "[[clarify:Which?|A|B]] [[then]] [[say:two]]",
        session_id=first.session_id,
        history=None,
        after=first.run_id,
        allowed=allowed,
    )
    asked = running.wait("clarify.requested")
    (child.home / "go").touch()
    wait_kept(child, "it went on")
    answer = child.ask("clarify_respond", run_id=running.turn.run_id, clarify_id=asked["clarify_id"], answer="A")
    assert answer == {"ok": True}
    turn = running.end()
    assert turn.text.endswith("two")
    assert turn.of("approval.requested", "approval.resolved") == []
    verdicts = dict(json.loads(line) for line in (child.home / "verdicts").read_text().splitlines())
    assert verdicts["skills_list"], "it was not refused"
    assert verdicts["memory"] is None


def test_a_review_leaves_the_shell_and_the_processes_of_its_session_alone(child: BridgeChild):
    review_shall(child, f"{tool('skills_list')} [[then]] {keep('looked at it')} [[then]] [[say:done]]")
    begin = json.dumps({"command": "exec sleep 86399", "background": True})
    first = child.play(f"[[tool:terminal:{begin}]] [[then]] [[say:one]]")
    child.wait_for((child.home / "asking").exists)
    review_shall(child, "[[say:nothing to keep]]")
    export, look = tool("terminal", command="export MARK=kept"), tool("terminal", command="echo mark=$MARK")
    running = child.begin(
        f"{export} [[then]] [[clarify:Which?|A|B]] [[then]] {look} [[then]] [[say:two]]",
        session_id=first.session_id,
        history=None,
        after=first.run_id,
    )
    asked = running.wait("clarify.requested")
    (child.home / "go").touch()
    wait_said(child, "review.ended")
    child.ask("clarify_respond", run_id=running.turn.run_id, clarify_id=asked["clarify_id"], answer="A")
    turn = running.end()
    assert "mark=kept" in turn.of("tool.completed")[-1]["result"]
    below = {each.pid for each in psutil.Process(child.process.pid).children(recursive=True)}
    assert below & set(processes_with("86399"))


def test_a_review_that_fails_is_not_told_in_a_turn(child: BridgeChild):
    review_shall(child, ["no prompt"])
    turn = child.play("[[say:one]]")
    wait_said(child, "review.failed")
    review_shall(child, "[[say:nothing to keep]]")
    again = child.play("[[say:two]]", session_id=turn.session_id, history=None, after=turn.run_id)
    for each in (turn, again):
        assert each.last["event"] == "run.completed"
        assert not any("uxiliary" in json.dumps(event) for event in each.events)
