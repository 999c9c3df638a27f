"""Journeys of `cli` sessions: web, Celery worker, bridge child and the real hermes-agent, at the socket and in a page.

Each scene of the recordings in hermes/traces/bridge that a person can see is played through the whole portal: what the
socket tells, what is stored, and what the model was asked and sent, which must agree.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shared.database import transaction
from shared.run_state import RunState
from shared.store import approval_grants
from shared.transcript import Transcript
from tests.rig.bridge_journey import BridgeJourney
from tests.rig.bridge_scene import Scene, terminal, thoughts_of
from tests.rig.browser_journey import Person, browser_at
from tests.rig.chromium import Chromium
from tests.rig.portal import wait_until

pytestmark = pytest.mark.component("hermes")


# ---- what a turn shows


BEGINS, ENDS, TEXT, THOUGHT = "run.started", "run.completed", "message.delta", "reasoning.delta"
BEGUN, DONE = "tool.started", "tool.completed"


def read(path: str) -> str:
    return f"[[tool:read_file:{json.dumps({'path': path})}]]"


@dataclass(frozen=True)
class Shown:
    """What is expected of a turn. `text` None: what the model sent, as it is."""

    wish: str
    names: tuple[str, ...]
    check: Callable[[Transcript], Any] = lambda transcript: True
    text: str | None = None


def tools_of(shown: Transcript) -> list[tuple[str, bool | None]]:
    return [(tool.name, tool.ok) for tool in shown.tools]


def todos_of(shown: Transcript) -> list[tuple[str, str]]:
    return [(todo.text, todo.status) for todo in shown.todos]


TURNS = {
    "text": Shown("[[say:Hello from the bridge.]]", (BEGINS, TEXT, ENDS)),
    "unicode": Shown("[[say:世界 🌍 👩‍👩‍👧 é]]", (BEGINS, TEXT, ENDS), text="世界 🌍 👩‍👩‍👧 é"),
    "reasoning": Shown(
        "[[think:First I think about it. Then I decide.]] [[say:The answer is 42.]]",
        (BEGINS, THOUGHT, TEXT, ENDS),
        lambda shown: thoughts_of(shown) == "First I think about it. Then I decide.",
    ),
    "thinktag": Shown(
        "[[thinktag:inner thoughts]] [[say:visible answer]]",
        (BEGINS, THOUGHT, TEXT, ENDS),
        lambda shown: thoughts_of(shown) == "inner thoughts",
        text="visible answer",
    ),
    "tool": Shown(
        f"[[say:Let me look.]] {terminal('echo bridge')} [[then]] [[say:That was it.]]",
        (BEGINS, TEXT, BEGUN, DONE, TEXT, ENDS),
        lambda shown: "bridge" in shown.tools[0].result and shown.tools[0].arguments == {"command": "echo bridge"},
    ),
    "one after the other": Shown(
        f"{terminal('echo one')} {terminal('echo two')} [[then]] [[say:Both.]]",
        (BEGINS, BEGUN, DONE, BEGUN, DONE, TEXT, ENDS),
        lambda shown: len({tool.group for tool in shown.tools}) == 2,
    ),
    "at the same time": Shown(
        f"{read('/etc/hostname')} {read('/etc/hosts')} {read('/nonexistent-a')} [[then]] [[say:All three.]]",
        (BEGINS, BEGUN, DONE, TEXT, ENDS),
        lambda shown: len({tool.group for tool in shown.tools}) == 1 and shown.tools[2].ok is False,
    ),
    "two steps": Shown(
        f"[[think:plan]] [[say:Step one.]] {terminal('echo one')} [[then]] "
        f"[[say:Step two.]] {terminal('echo two')} [[then]] [[say:All done.]]",
        (BEGINS, THOUGHT, TEXT, BEGUN, DONE, TEXT, BEGUN, DONE, TEXT, ENDS),
        lambda shown: [part.text.strip() for part in shown.answer_parts] == ["Step one.", "Step two.", "All done."],
    ),
    "todo": Shown(
        "[[todo]] [[then]] "
        '[[todo:{"todos":[{"id":"2","content":"analyse","status":"completed"}],"merge":true}]] [[then]] [[say:ok]]',
        (BEGINS, BEGUN, DONE, "todo.updated", BEGUN, DONE, "todo.updated", TEXT, ENDS),
        lambda shown: (
            todos_of(shown) == [("collect data", "completed"), ("analyse", "completed"), ("report", "pending")]
        ),
    ),
    "unknown tool": Shown(
        "[[tool:no_such_tool:{}]] [[then]] [[say:gave up]]",
        (BEGINS, BEGUN, DONE, TEXT, ENDS),
        lambda shown: tools_of(shown) == [("no_such_tool", False)],
    ),
    "skill": Shown(
        '[[tool:skills_list:{}]] [[tool:skill_view:{"name":"demo-skill"}]] [[then]] [[say:read]]',
        (BEGINS, BEGUN, DONE, TEXT, ENDS),
        lambda shown: "The body of the demo skill." in shown.tools[1].result,
    ),
    "subagent": Shown(
        '[[tool:delegate_task:{"goal":"[[think:hm]] [[say:child says hi]]"}]] [[then]] [[say:It said hi.]]',
        (BEGINS, BEGUN, "tool.progress", DONE, TEXT, ENDS),
        lambda shown: "child says hi" in shown.tools[0].result and not shown.tools[0].progress,
    ),
}


@pytest.mark.parametrize("name", TURNS)
def test_what_the_agent_shows_reaches_the_page_and_the_store(bridge: BridgeJourney, name: str) -> None:
    wanted = TURNS[name]
    scene = Scene(bridge)
    run_id = scene.play(wanted.wish)
    assert bridge.run(run_id).state == RunState.COMPLETED
    assert scene.names(run_id) == list(wanted.names)
    shown = scene.shown(run_id)
    assert wanted.check(shown), shown
    assert shown.status == ""
    assert shown.usage is not None
    assert shown.usage.input_tokens > 0
    assert all(text.isascii() for text in (data["text"] for data in scene.heard.data(run_id, "status.updated")))
    scene.check(**({run_id: wanted.text} if wanted.text is not None else {}))


def test_the_next_turn_knows_the_one_before(bridge: BridgeJourney) -> None:
    scene = Scene(bridge)
    scene.play("[[say:one]]")
    second = scene.play("[[echo:roles]]")
    assert json.loads(scene.tab.text(second)) == ["system", "user", "assistant", "user"]
    third = scene.play("[[think:hm]] [[say:three]]")
    assert (
        bridge.asked_for(third)[0].user_texts[:-1]
        == [bridge.run(run.id).input for run in bridge.runs_of(scene.session_id)][:2]
    )
    scene.check()


def test_tools_work_in_the_folder_of_their_session(bridge: BridgeJourney) -> None:
    scene, other = Scene(bridge), Scene(bridge)
    scene.play(f"{terminal('echo mine > here')} [[then]] [[say:written]]")
    looks = [each.play(f"{terminal('pwd; ls')} [[then]] [[say:looked]]") for each in (scene, other)]
    shown = [each.shown(run_id).tools[0].result or "" for each, run_id in zip((scene, other), looks, strict=True)]
    for each, result in zip((scene, other), shown, strict=True):
        assert str(bridge.workspace(each.session_id)) in result
    assert ["here" in result for result in shown] == [True, False]
    assert (bridge.workspace(scene.session_id) / "here").read_text() == "mine\n"


# ---- approvals


def danger(folder: Path) -> str:
    return f"[[danger:{folder}]]"


def decisions_of(scene: Scene, run_id: str) -> list[tuple[Any, ...]]:
    return [(pause.command, pause.choice, pause.reason, pause.by) for pause in scene.shown(run_id).pauses]


ADMIN = "Local administrator"


@pytest.mark.parametrize("choice", ["once", "deny"])
def test_an_approval_is_asked_with_its_command_and_obeyed(bridge: BridgeJourney, target: Path, choice: str) -> None:
    scene = Scene(bridge)
    run_id = scene.begin(f"[[say:Away with it.]] {danger(target)} [[then]] [[say:After.]]")
    pause = scene.tab.wait_pause(run_id)
    assert (pause.command, pause.choices) == (f"rm -rf {target}", ["once", "session", "always", "deny"])
    assert pause.deadline is not None
    assert bridge.run(run_id).state == RunState.AWAITING_APPROVAL
    assert target.exists()
    scene.answer(run_id, choice)
    scene.tab.wait_end(run_id)
    assert target.exists() == (choice == "deny")
    assert scene.names(run_id) == [BEGINS, TEXT, BEGUN, "approval.requested", "approval.resolved", DONE, TEXT, ENDS]
    assert decisions_of(scene, run_id) == [(f"rm -rf {target}", choice, "answered", ADMIN)]
    assert tools_of(scene.shown(run_id)) == [("terminal", choice == "once")]
    scene.check()


@pytest.mark.parametrize(("choice", "asked"), [("once", 2), ("session", 1)])
def test_session_lets_its_own_session_go_on_and_once_nothing(
    bridge: BridgeJourney, target: Path, choice: str, asked: int
) -> None:
    second = target / "second"
    second.mkdir()
    scene, other = Scene(bridge), Scene(bridge)
    run_id = scene.begin(f"{danger(second)} [[then]] {danger(target)} [[then]] [[say:Both.]]")
    for _ in range(asked):
        one = scene.tab.wait_pause(run_id).approval_id
        scene.answer(run_id, choice)  # the next one may be open at once
        scene.tab.wait(lambda page, one=one: one not in [each.approval_id for each in page.runs[run_id].open_pauses])
    scene.tab.wait_end(run_id)
    assert len(scene.shown(run_id).pauses) == asked
    assert not target.exists()
    strange = other.begin(f"{danger(target)} [[then]] [[say:Not here.]]")
    other.answer(strange, "deny")
    other.tab.wait_end(strange)
    scene.check()
    other.check()


def test_always_lets_every_session_of_the_profile_go_on_until_it_is_taken_back(
    bridge: BridgeJourney, target: Path
) -> None:
    scene, other = Scene(bridge), Scene(bridge)
    run_id = scene.begin(f"{danger(target)} [[then]] [[say:Gone.]]")
    pause = scene.tab.wait_pause(run_id)
    refused = scene.tab.ask(event="approval.respond", approval_id=pause.approval_id, choice="always")
    assert refused["event"] == "error", "always needs a reason"
    scene.answer(run_id, "always", reason="our own scratch folder")
    scene.tab.wait_end(run_id)
    free = other.play(f"{danger(target)} [[then]] [[say:Unasked.]]")
    assert other.shown(free).pauses == []
    assert tools_of(other.shown(free)) == [("terminal", True)]
    with transaction(bridge.factory) as db:
        (grant,) = approval_grants.in_force(db, None)
        assert grant.reason == "our own scratch folder"
        approval_grants.revoke(db, grant.id, user=None)
    again = other.begin(f"{danger(target)} [[then]] [[say:Asked again.]]")
    other.answer(again, "deny")
    other.tab.wait_end(again)
    assert "command_allowlist" not in (bridge.home.path / "config.yaml").read_text()
    scene.check()
    other.check()


def test_silence_is_a_no_that_nobody_said(bridge: BridgeJourney, target: Path) -> None:
    """The model is told something else than after a person's no."""
    silent, denied = Scene(bridge), Scene(bridge)
    runs = [
        silent.begin(f"{danger(target)} [[then]] [[say:Nothing.]]", background=True),
        denied.begin(f"{danger(target)} [[then]] [[say:Nothing.]]"),
    ]
    denied.answer(runs[1], "deny")
    results = []
    for scene, run_id in zip((silent, denied), runs, strict=True):
        scene.tab.wait_end(run_id)
        assert tools_of(scene.shown(run_id)) == [("terminal", False)]
        results.append(
            next(each for each in bridge.asked_for(run_id)[-1].messages if each["role"] == "tool")["content"]
        )
        scene.check()
    assert [decisions_of(scene, run_id)[0][1:] for scene, run_id in zip((silent, denied), runs, strict=True)] == [
        ("deny", "expired", None), ("deny", "answered", ADMIN),
    ]  # fmt: skip
    assert results[0] != results[1]
    assert target.exists()


# ---- questions


@pytest.mark.parametrize(
    ("wish", "offered", "answer"),
    [
        ("[[clarify:Which colour?|red|blue|green]]", ["red", "blue", "green"], "blue"),
        ("[[clarify:Which colour?|red|blue|green]]", ["red", "blue", "green"], "neither, 绿色 <b>please</b>"),
        ("[[clarify:What is your name?]]", [], "Ada"),
    ],
    ids=["a choice", "own words", "an open question"],
)
def test_a_question_is_answered(bridge: BridgeJourney, wish: str, offered: list[str], answer: str) -> None:
    scene = Scene(bridge)
    run_id = scene.begin(f"{wish} [[then]] [[say:Thank you.]]")
    pause = scene.tab.wait_pause(run_id)
    assert (pause.choices, pause.deadline) == (offered, None)
    assert bridge.run(run_id).state == RunState.AWAITING_CLARIFICATION
    assert scene.tab.ask(event="clarify.respond", clarify_id=pause.clarify_id, answer=answer)["event"] == "ack"
    scene.tab.wait_end(run_id)
    assert scene.names(run_id) == [BEGINS, BEGUN, "clarify.requested", "clarify.resolved", DONE, TEXT, ENDS]
    told = bridge.asked_for(run_id)[-1].messages[-1]
    assert answer in json.loads(told["content"])["user_response"]
    scene.check()


# ---- compression


def test_a_long_conversation_is_compressed_and_says_so(bridge: BridgeJourney) -> None:
    home = bridge.add_profile("small")
    home.configure(context=65536, more="compression: {protect_first_n: 1, protect_last_n: 2}\n")
    scene = Scene(bridge, profile="small")
    filler = "lorem ipsum dolor sit amet " * 2400
    runs = []
    while not any(scene.heard.data(run_id, "compression.completed") for run_id in runs):
        assert len(runs) < 7, "seven turns of 64 kB were not compressed"
        runs.append(scene.play(f"[[say:answer {len(runs)}]] {filler}"))
    (begun,), (done,) = (scene.heard.data(runs[-1], f"compression.{name}") for name in ("started", "completed"))
    assert done["before_tokens"] == begun["before_tokens"] > done["after_tokens"] > 0
    assert done["changed"]
    assert scene.tab.text(runs[-1]) == f"answer {len(runs) - 1}"
    scene.play("[[echo:roles]]")
    scene.check()


# ---- in a browser


ASKED = "#run-{0} .ask"
ARTICLE = """id => {
    const turn = document.getElementById(id).cloneNode(true);
    turn.querySelectorAll('time, .acts, .rail').forEach(each => each.remove());
    return turn.textContent.replace(/\\s+/g, ' ').trim();
}"""

HAS_STATUS = "id => document.getElementById(id)?.querySelector('.region-head')?.textContent.trim()"


def article(person: Person, run_id: str) -> str:
    """All that the page shows of a turn that has ended, what is folded opened."""
    process = person.page.locator(f"#run-{run_id}-process details").first
    process.evaluate("details => { details.open = true }")
    person.page.wait_for_selector(f"#run-{run_id}-regions .tools", state="attached")
    return str(person.page.evaluate(ARTICLE, f"run-{run_id}"))


def test_all_five_regions_are_shown_and_history_looks_like_live(
    chromium: Chromium, bridge: BridgeJourney, target: Path
) -> None:
    session_id = bridge.new_session()
    with browser_at(chromium, bridge, session_id) as person:
        page = person.page
        run_id = person.say(
            bridge.wish(
                f"[[think:First I look around.]] [[say:Look.]] [[todo]] {terminal('echo found it')} [[then]] "
                f"{danger(target)} [[then]] [[say:All **done**.]]"
            ),
            by="click",
        )
        page.wait_for_selector(ASKED.format(run_id))
        assert page.locator(f"#run-{run_id}-thought").text_content() == "First I look around."
        assert [each.strip() for each in page.locator(f"#run-{run_id}-tools .name").all_text_contents()] == [
            "todo", "terminal", "terminal",
        ]  # fmt: skip
        assert "found it" in (page.locator(f"#run-{run_id}-tools").text_content() or "")
        assert page.locator(f"#run-{run_id}-todos li").all_text_contents() != []
        states = page.locator(f"#run-{run_id}-todos li").evaluate_all("all => all.map(li => li.dataset.state)")
        assert len(states) == len(set(states)) == 3
        assert (page.locator(f"{ASKED.format(run_id)} code").text_content() or "").strip() == f"rm -rf {target}"
        assert person.text(run_id).strip() == "Look."
        page.wait_for_function(HAS_STATUS, arg=f"run-{run_id}-status")  # no longer than it waits
        page.click(f'{ASKED.format(run_id)} button[value="once"]')
        wait_until(lambda: not target.exists(), what="the command")
        person.wait_end(run_id)
        assert page.locator(f"#run-{run_id}-answer strong").text_content() == "done"
        live = article(person, run_id)
        bridge.check(session_id)
        person.check()
        person.reload()
        person.wait_live()
        assert article(person, run_id) == live
        person.check()
    for part in ("First I look around.", "found it", "analyse", f"rm -rf {target}"):
        assert part in live


def test_a_question_is_answered_in_own_words_on_the_page(chromium: Chromium, bridge: BridgeJourney) -> None:
    session_id = bridge.new_session()
    with browser_at(chromium, bridge, session_id) as person:
        run_id = person.say(bridge.wish("[[clarify:Which colour?|red|blue]] [[then]] [[say:As you like.]]"))
        form = person.page.locator(f"#run-{run_id} form.answering")
        form.wait_for()
        assert form.locator(".choices label").all_text_contents() == ["red", "blue"]
        person.reload()
        person.wait_live()
        form.locator('[name="answer"]').fill("neither, <b>green</b>")
        form.locator("button").click()
        person.wait_end(run_id)
        told = bridge.asked_for(run_id)[-1].messages[-1]["content"]
        assert json.loads(told)["user_response"].endswith("neither, <b>green</b>")
        bridge.check(session_id)
        person.check()
