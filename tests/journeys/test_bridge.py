"""Journeys of `cli` sessions: web, Celery worker, bridge child and the real hermes-agent, at the socket and in a page.

Each scene of the recordings in hermes/traces/bridge that a person can see is played through the whole portal: what the
socket tells, what is stored, and what the model was asked and sent, which must agree.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shared.database import transaction
from shared.run_state import RunState
from shared.store import approval_grants
from shared.transcript import Transcript
from tests.rig.bridge import running
from tests.rig.bridge_journey import BridgeJourney, Heard
from tests.rig.browser_journey import Person, browser_at
from tests.rig.chromium import Chromium
from tests.rig.hermes import ScriptedModel
from tests.rig.journey import Tab
from tests.rig.portal import wait_until

pytestmark = pytest.mark.component("hermes")

SHORT_S = 4
"""How long the approvals of background runs wait here."""
BESIDE = frozenset({"run.queued", "queue.updated", "run.dequeued", "status.updated", "usage.updated"})
"""Events that come at any time."""
SKILL = "---\nname: demo-skill\ndescription: Shows how a skill is read.\n---\nThe body of the demo skill.\n"


@pytest.fixture(scope="module")
def shared_bridge(hermes_model: ScriptedModel) -> Iterator[BridgeJourney]:
    with BridgeJourney(hermes_model, environ={"PORTAL_BACKGROUND_APPROVAL_TIMEOUT_S": str(SHORT_S)}) as made:
        folder = made.home.path / "skills" / "demo-skill"
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(SKILL)
        yield made


@pytest.fixture
def bridge(shared_bridge: BridgeJourney) -> Iterator[BridgeJourney]:
    """The shared portal, with the pages of the last test closed."""
    yield shared_bridge
    for tab in list(shared_bridge.tabs):
        tab.abandon()
    shared_bridge.tabs.clear()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    made = Chromium()
    yield made
    made.close()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A folder that a turn may try to remove."""
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


class Scene:
    """A session with one page on it, and what that page heard."""

    def __init__(self, bridge: BridgeJourney, **given: Any) -> None:
        self.bridge = bridge
        self.session_id = bridge.new_session(**given)
        self.tab: Tab = bridge.open(self.session_id)
        self.heard = Heard(self.tab)

    def begin(self, wish: str, **given: Any) -> str:
        return self.tab.say(self.bridge.wish(wish), **given)

    def play(self, wish: str, **given: Any) -> str:
        """One turn to its end."""
        run_id = self.begin(wish, **given)
        self.tab.wait_end(run_id)
        return run_id

    def names(self, run_id: str) -> list[str]:
        """What was told of a run, without what may come at any time."""
        names = [frame["event"] for frame in self.heard.of(run_id) if frame["event"] not in BESIDE]
        return [name for n, name in enumerate(names) if n == 0 or names[n - 1] != name]

    def shown(self, run_id: str) -> Transcript:
        return self.tab.runs[run_id]

    def answer(self, run_id: str, choice: str, **more: Any) -> None:
        """Decide on the approval that is open."""
        pause = self.tab.wait_pause(run_id)
        reply = self.tab.ask(event="approval.respond", approval_id=pause.approval_id, choice=choice, **more)
        assert reply["event"] == "ack", reply

    def abort(self, run_id: str) -> None:
        reply = self.tab.ask(event="abort", run_id=run_id)
        assert reply["event"] == "ack", reply

    def check(self, **said: str) -> None:
        self.bridge.check(self.session_id, self.tab, said=said)


# ---- what a turn shows


BEGINS, ENDS, TEXT, THOUGHT = "run.started", "run.completed", "message.delta", "reasoning.delta"
BEGUN, DONE = "tool.started", "tool.completed"


def terminal(command: str) -> str:
    return f"[[tool:terminal:{json.dumps({'command': command})}]]"


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


def thoughts_of(shown: Transcript) -> str:
    return "".join(part.text for part in shown.thinking)


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
    assert [
        str(bridge.workspace(each.session_id)) in result for each, result in zip((scene, other), shown, strict=True)
    ]
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
        scene.answer(run_id, choice)
        scene.tab.wait(lambda page: not page.runs[run_id].open_pauses)
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


# ---- failures


FAILURES = {
    "401": ("[[error:401]]", "auth_failed", False),
    "429": ("[[error:429]]", "rate_limited", True),
    "500": ("[[say:Before.]] [[tool:todo:{}]] [[then]] [[error:500]]", "model_error", True),
    "a model that says nothing": ("[[empty]]", "empty_answer", True),
}


def test_a_model_that_fails_ends_the_turn_with_its_cause_and_the_next_turn_runs(bridge: BridgeJourney) -> None:
    """All at once: Hermes tries some of them for 8 s."""
    scenes = {name: Scene(bridge, onFailure="continue") for name in FAILURES}
    runs = {name: scenes[name].begin(wish) for name, (wish, _, _) in FAILURES.items()}
    for name, (_, code, retryable) in FAILURES.items():
        scene, run_id = scenes[name], runs[name]
        scene.tab.wait_end(run_id)
        run = bridge.run(run_id)
        assert (run.state, run.error_code) == (RunState.FAILED, code)
        end = scene.shown(run_id).end
        assert end is not None
        assert (end.retryable, end.message) == (retryable, run.error)
        assert scene.names(run_id)[-1] == "run.failed"
        fine = scene.play("[[say:Fine.]]")
        assert scene.tab.text(fine) == "Fine."
        scene.check()
    retried = [data["text"] for data in scenes["500"].heard.data(runs["500"], "status.updated")]
    assert any("retry" in text.lower() for text in retried), "what it waits for is shown while it waits"
    again = bridge.retry(runs["401"])
    scenes["401"].tab.wait_end(again)
    assert bridge.run(again).state == RunState.FAILED
    scenes["401"].check()


def test_what_the_agent_overcomes_itself_is_no_failure(bridge: BridgeJourney) -> None:
    scenes = [Scene(bridge) for _ in range(3)]
    wishes = (
        "[[error:500:1]] [[say:recovered]]",
        "[[say:partial ]] [[drop:1]] [[say:rest]]",
        f"{terminal('echo 1')} [[then]] {terminal('echo 2')} [[then]] {terminal('echo 3')} [[then]] [[say:done]]",
    )
    given: list[dict[str, Any]] = [{}, {}, {"max_iterations": 2}]
    runs = [scene.begin(wish, **more) for scene, wish, more in zip(scenes, wishes, given, strict=True)]
    for scene, run_id in zip(scenes, runs, strict=True):
        scene.tab.wait_end(run_id)
        assert bridge.run(run_id).state == RunState.COMPLETED
    assert scenes[0].tab.text(runs[0]) == "recovered"
    partial, rest = (each.text for each in bridge.asked_for(runs[1]))
    assert len(scenes[2].shown(runs[2]).tools) == 2
    for scene, said in zip(scenes, ({}, {runs[1]: partial + rest}, {}), strict=True):
        scene.check(**said)
    assert scenes[2].shown(runs[2]).end.finish_reason == "max_iterations"  # type: ignore[union-attr]


# ---- interrupts


def wait_for_model(scene: Scene, run_id: str) -> None:
    wait_until(lambda: scene.bridge.asked_for(run_id), what="the request to the model")


def wait_for_retry(scene: Scene, run_id: str) -> None:
    told = scene.heard
    scene.tab.wait(lambda page: any("etry" in data["text"] for data in told.data(run_id, "status.updated")))


STOPS: dict[str, tuple[str, Callable[[Scene, str], Any]]] = {
    "in a stream": ("[[say:Before.]] [[stream:9000:10]]", lambda scene, run_id: scene.tab.wait_text(run_id, 100)),
    "in its thoughts": (
        "[[thinkstream:9000:10]] [[say:x]]",
        lambda scene, run_id: scene.tab.wait(lambda page: run_id in page.runs and thoughts_of(page.runs[run_id])),
    ),
    "in a tool": (
        f"[[say:Before.]] {terminal('sleep 87654.5')}",
        lambda scene, run_id: wait_until(lambda: running("sleep 87654.5"), what="the tool"),
    ),
    "in a silent model": ("[[hang:90]] [[say:x]]", wait_for_model),
    "while it waits to try again": ("[[error:500]]", wait_for_retry),
    "in an approval": ("[[say:Before.]] [[danger]]", lambda scene, run_id: scene.tab.wait_pause(run_id)),
    "in a question": ("[[say:Before.]] [[clarify:Which?|a|b]]", lambda scene, run_id: scene.tab.wait_pause(run_id)),
}


@pytest.mark.parametrize("where", STOPS)
def test_stop_is_heard_wherever_the_agent_is(bridge: BridgeJourney, where: str) -> None:
    wish, ready = STOPS[where]
    scene = Scene(bridge)
    run_id, queued = scene.begin(wish), scene.begin("[[say:Next.]]")
    ready(scene, run_id)
    seen, began = scene.tab.text(run_id), time.monotonic()
    scene.abort(run_id)
    scene.tab.wait_end(run_id)
    took_s = time.monotonic() - began
    shown = scene.shown(run_id)
    assert bridge.run(run_id).state == RunState.ABORTED
    assert [step.stage for step in shown.abort][:3] == ["requested", "seen", "acknowledged"]
    assert "killed" not in [step.stage for step in shown.abort]
    assert took_s < 18, "it did not stop by itself"
    assert scene.tab.text(run_id).startswith(seen)
    assert seen.startswith("Before.") or "Before." not in wish
    assert not shown.open_pauses
    assert not any(tool.is_open for tool in shown.tools)
    wait_until(lambda: not running("sleep 87654.5"), what="the end of the tool")
    scene.tab.wait_end(queued)
    assert scene.tab.text(queued) == "Next."
    scene.check()


def test_a_turn_that_was_stopped_never_reaches_into_the_next(bridge: BridgeJourney) -> None:
    """The model answers the stopped request while the next turn streams; its request may not even be ended by then."""
    scenes = [Scene(bridge) for _ in range(6)]
    for number, scene in enumerate(scenes):
        stopped = scene.begin("[[hang:5]] [[say:too late]]")
        wait_for_model(scene, stopped)
        time.sleep(0.1 * number)
        scene.abort(stopped)
        scene.begin("[[stream:300:25]]")
    for scene in scenes:
        stopped, streamed = (run.id for run in bridge.runs_of(scene.session_id))
        scene.tab.wait_end(stopped, streamed)
        assert scene.tab.text(stopped) == ""
        assert len(bridge.asked_for(streamed)) == 1, "nothing cut it off"
        assert len(scene.tab.text(streamed).split()) == 300
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
                f"{danger(target)} [[then]] [[hang:4]] [[say:All **done**.]]"
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
        page.click(f'{ASKED.format(run_id)} button[value="once"]')
        wait_until(lambda: not target.exists(), what="the command")
        page.wait_for_function(HAS_STATUS, arg=f"run-{run_id}-status")
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


def test_a_page_reloaded_in_mid_stream_and_stopped_shows_all_that_came(
    chromium: Chromium, bridge: BridgeJourney
) -> None:
    session_id = bridge.new_session()
    with browser_at(chromium, bridge, session_id) as person:
        run_id = person.say(bridge.wish("[[stream:9000:10]]"))
        for n in range(1, 6):
            person.wait_text(run_id, n * 300)
            person.reload()
        seen = person.wait_text(run_id, 1800)
        assert not person.has_ended(run_id)
        person.page.fill("#text", "a draft")
        person.page.click("#composer-state .btn--stop")
        person.wait_end(run_id)
        assert bridge.run(run_id).state == RunState.ABORTED
        assert person.text(run_id).split()[: len(seen.split())] == seen.split()
        assert person.page.input_value("#text") == "a draft"
        bridge.check(session_id)
        person.check()


def test_a_tool_that_is_stopped_and_a_model_that_failed_say_so_on_the_page(
    chromium: Chromium, bridge: BridgeJourney
) -> None:
    session_id = bridge.new_session(onFailure="continue")
    with browser_at(chromium, bridge, session_id) as person:
        stopped = person.say(bridge.wish(terminal("sleep 87654.5")))
        person.page.wait_for_selector(f"#run-{stopped} .tool")
        person.page.click("#composer-state .btn--stop")
        person.wait_end(stopped)
        failed = person.say(bridge.wish("[[error:401]]"))
        person.wait_end(failed)
        assert "401" in (person.page.locator(f"#run-{failed}-end").text_content() or "")
        fine = person.say(bridge.wish("[[say:Fine.]]"))
        person.wait_end(fine)
        wait_until(lambda: not running("sleep 87654.5"), what="the end of the tool")
        bridge.check(session_id)
        person.check()
