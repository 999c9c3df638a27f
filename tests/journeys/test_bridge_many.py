"""Journeys of many `cli` sessions at once: two profiles that never mix, and turns that are stopped at any moment."""

import json
import random
import sqlite3
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from shared.run_state import RunState
from tests.rig.bridge import HermesHome, running
from tests.rig.bridge_journey import BridgeJourney
from tests.rig.hermes import ScriptedModel
from tests.rig.journey import END_S, Tab
from tests.rig.portal import wait_until
from tests.rig.recorder import RecorderPage

pytestmark = [pytest.mark.component("hermes"), pytest.mark.timeout(1800)]

PROFILES = ("north", "south")
SESSIONS = 10
"""Of each profile."""
SKILL = "---\nname: common\ndescription: The skill of {0}-canary.\n---\nThe body of {0}-canary.\n"
STOPS = 200
STOPPING = 10
"""Sessions in which turns are stopped."""
TOOL = "sleep 76543.2"


@pytest.fixture(scope="module")
def model(hermes_python: Path) -> Iterator[ScriptedModel]:
    """One that nobody else asks: what still goes on in it is of these tests."""
    model = ScriptedModel()
    yield model
    model.close()


@pytest.fixture
def bridge(model: ScriptedModel) -> Iterator[BridgeJourney]:
    with BridgeJourney(model, environ={"PORTAL_WORKER_CONCURRENCY": "30"}) as made:
        yield made


def furnish(home: HermesHome, name: str) -> None:
    """Give a home what only it may show: a soul, a skill, a model, an environment."""
    home.configure(more="")
    config = home.path / "config.yaml"
    config.write_text(config.read_text().replace("scripted-1", f"{name}-model"))
    (home.path / "SOUL.md").write_text(f"Your soul is that of {name}-canary.\n")
    skill = home.path / "skills" / "common"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(SKILL.format(name))


@dataclass
class Member:
    """One session of a profile."""

    profile: str
    session_id: str
    tab: Tab
    canary: str


def terminal(command: str) -> str:
    return f"[[tool:terminal:{json.dumps({'command': command})}]]"


def test_twenty_sessions_in_two_profiles_never_mix(bridge: BridgeJourney, tmp_path: Path) -> None:
    for name in PROFILES:
        furnish(bridge.add_profile(name), name)
    members = [
        Member(name, session_id, bridge.open(session_id), f"canary-{name}-{n}")
        for n in range(SESSIONS)
        for name in PROFILES
        for session_id in [bridge.new_session(profile=name)]
    ]
    allow_always(bridge, members[0], tmp_path)

    def live(member: Member) -> None:
        """Two turns; in the second something dangerous, which only one profile may do unasked."""
        look = terminal(f"echo {member.canary} > mine; echo home=$HERMES_HOME; pwd; ls")
        play(bridge, member, f'{look} [[tool:skill_view:{{"name":"common"}}]] [[then]] [[echo:model]]')
        target = tmp_path / member.canary
        target.mkdir()
        run_id = member.tab.say(bridge.wish(f"[[danger:{target}]] [[then]] [[say:{member.canary} is done]]"))
        if member.profile != PROFILES[0]:
            pause = member.tab.wait_pause(run_id)
            member.tab.ask(event="approval.respond", approval_id=pause.approval_id, choice="deny")
        member.tab.wait_end(run_id)
        assert member.tab.text(run_id).strip() == f"{member.canary} is done"
        assert target.exists() == (member.profile != PROFILES[0])
        assert len(member.tab.runs[run_id].pauses) == (member.profile != PROFILES[0])

    with ThreadPoolExecutor(len(members)) as pool:
        list(pool.map(live, members))
    for member in members:
        check_own(bridge, member, members)
        bridge.check(member.session_id, member.tab)
    for name in PROFILES:
        home = bridge.homes[name]
        assert "command_allowlist" not in (home.path / "config.yaml").read_text()
        with sqlite3.connect(home.path / "state.db") as db:
            kept = {row[0] for row in db.execute("select id from sessions")}
        assert kept == {member.session_id for member in members if member.profile == name}
    assert not (bridge.home.path / "state.db").exists(), "a session without a profile has its own agent's process"


def allow_always(bridge: BridgeJourney, member: Member, tmp_path: Path) -> None:
    target = tmp_path / "always"
    target.mkdir()
    run_id = member.tab.say(bridge.wish(f"[[danger:{target}]] [[then]] [[say:allowed]]"))
    pause = member.tab.wait_pause(run_id)
    told = member.tab.ask(event="approval.respond", approval_id=pause.approval_id, choice="always", reason="a test")
    assert told["event"] == "ack", told
    member.tab.wait_end(run_id)
    assert not target.exists()


def play(bridge: BridgeJourney, member: Member, text: str) -> str:
    run_id = member.tab.say(bridge.wish(text))
    member.tab.wait_end(run_id)
    assert bridge.run(run_id).state == RunState.COMPLETED, bridge.run(run_id).error
    return run_id


def check_own(bridge: BridgeJourney, member: Member, members: list[Member]) -> None:
    """Whatever the model was asked in a session is of its own profile, and of no other session."""
    strangers = [name for name in PROFILES if name != member.profile]
    strange = [f"{name}-canary" for name in strangers] + [each.canary + '"' for each in members if each is not member]
    strange += [str(bridge.homes[name].path) for name in strangers] + [str(bridge.home.path)]
    strange += [each.session_id for each in members if each is not member]
    own_home, workspace = bridge.homes[member.profile].path, bridge.workspace(member.session_id)
    for run in bridge.runs_of(member.session_id):
        for asked in bridge.asked_for(run.id):
            whole = json.dumps(asked.messages, ensure_ascii=False)
            assert not [whole[max(0, at - 80) : at + 80] for word in strange if (at := whole.find(word)) >= 0]
            assert f"{member.profile}-canary" in asked.system, "the soul and the skills of its home"
            assert asked.request["model"] == f"{member.profile}-model"
    look = next(run for run in bridge.runs_of(member.session_id) if "skill_view" in run.input)
    terminal_said, skill_said = (tool.result or "" for tool in member.tab.runs[look.id].tools)
    assert f"home={own_home}\\n" in terminal_said
    assert f"{workspace}\\nmine" in terminal_said
    assert f"The body of {member.profile}-canary." in skill_said
    assert [each.name for each in workspace.iterdir()] == ["mine"]
    assert (workspace / "mine").read_text() == f"{member.canary}\n"


WISHES = (
    "[[say:Before.]] [[stream:9000:10]]",
    "[[think:Let me see.]] [[thinkstream:9000:10]] [[say:x]]",
    f"[[say:Look.]] {terminal(TOOL)} [[then]] [[say:x]]",
    "[[hang:90]] [[say:x]]",
    "[[say:Before.]] [[danger]] [[then]] [[say:x]]",
    "[[clarify:Which?|a|b]] [[then]] [[say:x]]",
    f"[[todo]] {terminal('echo quick')} [[then]] [[todo]] [[then]] [[say:quick]]",
)
AT_ONCE = 0.3
"""Share of the turns that are stopped when they may not even have been taken by the worker."""


def test_two_hundred_stops_at_random_moments_lose_nothing_and_leave_nothing(bridge: BridgeJourney) -> None:
    bridge.add_profile("other")  # two processes of agents: after a stop an agent is made anew, one after the other
    sessions = [bridge.new_session(onFailure="continue", profile=(None, "other")[n % 2]) for n in range(STOPPING)]
    tabs = [bridge.open(session_id) for session_id in sessions]
    for tab, run_id in zip(tabs, [tab.say(bridge.wish("[[say:Hello]]")) for tab in tabs], strict=True):
        tab.wait_end(run_id)

    def stop_often(number: int) -> None:
        chance, tab = random.Random(number), tabs[number]
        for _ in range(STOPS // STOPPING):
            run_id = tab.say(bridge.wish(chance.choice(WISHES)))
            if chance.random() < AT_ONCE:
                time.sleep(chance.uniform(0, 0.1))
            else:
                tab.wait(lambda page, run_id=run_id: has_begun(page, run_id), timeout_s=END_S)
                time.sleep(chance.uniform(0, 0.4))
            reply = tab.ask(event="abort", run_id=run_id)
            assert reply["event"] == "ack", reply
            tab.wait_end(run_id)

    began = time.monotonic()
    with ThreadPoolExecutor(STOPPING) as pool:
        list(pool.map(stop_often, range(STOPPING)))
    took_s = time.monotonic() - began
    wait_until(lambda: [agent["busy"] for agent in bridge.agents()] == [0, 0], what="agents that do nothing")
    wait_until(lambda: model_stats(bridge)["active"] == 0, what="the end of every request to the model")
    wait_until(lambda: not running(TOOL), what="the end of every tool")
    last = [tab.say(bridge.wish("[[say:Still here.]]")) for tab in tabs]
    ends: Counter[str] = Counter()
    reached = 0
    for session_id, tab, run_id in zip(sessions, tabs, last, strict=True):
        tab.wait_end(run_id)
        assert tab.text(run_id) == "Still here."
        runs = bridge.runs_of(session_id)
        assert len(runs) == STOPS // STOPPING + 2, "no turn is lost"
        ends.update(run.state for run in runs[1:-1])
        reached += sum(bool(bridge.asked_for(run.id)) for run in runs[1:-1])
        check_history(bridge, run_id)
        assert not any(step.stage == "killed" for run in tab.runs.values() for step in run.abort)
        bridge.check(session_id, tab)
    print(f"{STOPS} stops in {took_s:.1f} s: {dict(ends)}, {reached} had reached the model")
    assert set(ends) <= {RunState.ABORTED, RunState.COMPLETED, RunState.CANCELLED}
    assert ends[RunState.ABORTED] > STOPS // 2
    assert reached > STOPS // 4


def has_begun(page: RecorderPage, run_id: str) -> bool:
    """The agent has said something of the turn, or the turn is over."""
    run = page.runs.get(run_id)
    return run_id in page.ended or (run is not None and bool(run.items or run.status))


def check_history(bridge: BridgeJourney, run_id: str) -> None:
    """The agent is told each turn that began before, once and in order, and none that did not."""
    run = bridge.run(run_id)
    begun = {each.input: each for each in bridge.runs_of(run.session_id) if each.begun_at is not None}
    told = bridge.asked_for(run_id)[0].user_texts
    assert len(told) == len(set(told))
    assert [wish for wish in begun if wish in told] == told
    missing = [wish for wish in begun if wish not in told]
    assert not [wish for wish in missing if bridge.asked_for(begun[wish].id)], "what reached the model is remembered"


def model_stats(bridge: BridgeJourney) -> dict[str, int]:
    with urllib.request.urlopen(bridge.model.base_url.removesuffix("/v1") + "/__stats", timeout=60) as reply:
        found: dict[str, int] = json.load(reply)
    return found
