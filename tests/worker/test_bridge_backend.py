"""Turns of `cli` sessions with the real hermes-agent in a bridge child, driven as a worker drives them: what is stored,
what is told, what people decide, and what the session knows with its next turn."""

import os
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from shared import settings as portal_settings
from shared.store import approval_grants, catalogue, tool_outputs
from tests.rig.backend_turns import a_turn
from tests.rig.bridge import HermesHome, running, wait_for
from tests.rig.hermes import ScriptedModel
from tests.rig.portal import is_alive
from tests.rig.worker_process import FAST
from tests.worker.bridge_desk import BridgeDesk
from tests.worker.conftest import Desk
from worker.backends.base import HistoryMessage
from worker.backends.bridge import backend, manager, turn
from worker.backends.bridge.backend import BridgeBackend
from worker.runs import start

KEY = "MODEL_KEY_OF_THE_TEST"
GRACE_S = 30.0  # far above what an agent needs to stop, also on a busy machine


@pytest.fixture(scope="module")
def shared_home(hermes_model: ScriptedModel) -> Iterator[HermesHome]:
    home = HermesHome(hermes_model)
    yield home
    home.close()


class KeptBridge(BridgeBackend):
    """Not closed with the worker of a test."""

    def close(self) -> None:
        pass

    def end(self) -> None:
        super().close()


@pytest.fixture(scope="module")
def shared_bridge(shared_home: HermesHome, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeptBridge]:
    """One child for all tests of this file: to start one takes seconds."""
    folder = tmp_path_factory.mktemp("worker")
    environ = {
        "PORTAL_DATA_DIR": str(folder / "data"),
        **FAST,
        **shared_home.environ,
        "PORTAL_ABORT_GRACE_S": str(GRACE_S),
    }
    backend = KeptBridge(portal_settings.load(environ, cwd=folder), lambda: shared_home.path)
    assert backend.ping().error is None
    yield backend
    backend.end()
    wait_for(lambda: running(str(shared_home.path)) == [], "the end of all children")


@pytest.fixture
def bridge(shared_bridge: BridgeBackend, sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch) -> BridgeDesk:
    monkeypatch.setattr(manager, "FIRST_DELAY_S", 0.05)
    monkeypatch.setattr(backend, "LOOK_TIMEOUT_S", 60.0)
    monkeypatch.setattr(backend, "DROP_TIMEOUT_S", 60.0)
    monkeypatch.setattr(turn, "STORY_S", 60.0)
    sqlite_desk.context.settings = sqlite_desk.settings.model_copy(update={"abort_grace_s": GRACE_S})
    return BridgeDesk(sqlite_desk, shared_bridge, monkeypatch)


def roles(text: str) -> list[str]:
    """Of an answer to [[echo:roles]]."""
    return [
        role for role in text.replace("[", " ").replace("]", " ").replace('"', " ").replace(",", " ").split() if role
    ]


# ---- a turn


def test_a_turn_is_stored_and_told_with_all_that_the_agent_shows(bridge: BridgeDesk, shared_home: HermesHome) -> None:
    tool = '[[tool:terminal:{"command":"echo 世界; pwd; echo ~"}]]'
    session_id = bridge.session()
    run_id = bridge.run(
        f"[[think:Let me see.]] [[say:Look.]] {tool} [[then]] [[todo]] [[then]] [[say:Done.]]", session_id
    )
    assert bridge.ended(run_id) == ("completed", None)
    assert bridge.text(run_id) == "Look.\n\nDone."
    names = bridge.desk.names(run_id)
    wanted = ["run.started", "reasoning.delta", "message.delta", "tool.started", "tool.completed", "todo.updated"]
    assert list(dict.fromkeys(name for name in names if name in wanted)) == wanted
    assert names[-1] == "run.completed"
    assert "usage.updated" in names
    terminal, todo = bridge.tools(run_id)
    assert (terminal["name"], terminal["arguments"], terminal["ok"]) == (
        "terminal",
        {"command": "echo 世界; pwd; echo ~"},
        True,
    )
    assert f"workspaces/{session_id}" in terminal["result"], "tools work in the session's own folder"
    assert "世界" in terminal["result"]
    assert str(shared_home.path) in terminal["result"], "nothing of the developer's own home is read"
    assert (todo["name"], todo["ok"]) == ("todo", True)
    row = bridge.desk.row(run_id)
    assert row.usage["output_tokens"] > 0
    assert row.usage["context_used"] < row.usage["input_tokens"], "the last request's prompt, not the sum"
    assert row.backend_run_id == run_id


def test_status_is_plain_and_cleared(bridge: BridgeDesk) -> None:
    run_id = bridge.run("[[hang:0.3]] [[say:x]]")
    said = [event.data.text for event in bridge.desk.events(run_id) if event.event == "status.updated"]
    assert said
    assert all(text.isascii() for text in said), "no faces"
    assert bridge.desk.transcript(run_id).get("status", "") == ""


def test_a_long_result_is_kept_whole(bridge: BridgeDesk) -> None:
    run_id = bridge.run('[[tool:terminal:{"command":"seq 1 9000"}]] [[then]] [[say:Done.]]')
    (tool,) = bridge.tools(run_id)
    assert tool["truncated"]

    def stored() -> Any:
        with bridge.desk.look() as db:
            return tool_outputs.get(db, run_id, tool["tool_id"])

    assert tool_outputs.text_of(bridge.desk.wait(stored, what="the whole result")).count("\\n") > 5_000


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("[[error:401]]", "auth_failed", "401"),
        ("[[error:404]]", "model_not_found", "404"),
        ("[[empty]]", "empty_answer", ""),
    ],
)
def test_a_failed_model_fails_the_run_with_its_cause(bridge: BridgeDesk, text: str, code: str, said: str) -> None:
    session_id = bridge.session(on_failure="continue")
    run_id = bridge.run(text, session_id)
    assert bridge.ended(run_id) == ("failed", None)
    assert bridge.desk.row(run_id).error_code == code
    assert said in bridge.said(run_id)
    assert bridge.text(bridge.run("[[say:Fine.]]", session_id)) == "Fine.", "the next turn runs"


def test_two_turns_at_once_do_not_wait_for_each_other(bridge: BridgeDesk) -> None:
    bridge.desk.start_threads()  # its lease must be renewed on a slow machine
    slow = bridge.begin("[[stream:9000:20]]")
    bridge.desk.wait(lambda: bridge.desk.seen_text(slow), what="the slow one's text")
    assert bridge.text(bridge.run("[[say:Quick.]]")) == "Quick."
    assert bridge.desk.state(slow) == "running"
    bridge.abort(slow)
    assert bridge.ended(slow)[0] == "aborted"


# ---- what the session knows


def test_the_next_turn_is_warm_and_no_history_is_read_for_it(
    bridge: BridgeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = bridge.session()
    bridge.run("[[say:My name is Ada.]]", session_id)

    def unwanted(*_: Any, **__: Any) -> Any:
        raise AssertionError("the history was read")

    monkeypatch.setattr(start, "build_compressed_history", unwanted)
    run_id = bridge.run("[[echo:roles]]", session_id)
    assert bridge.ended(run_id) == ("completed", None)
    assert roles(bridge.text(run_id)) == ["system", "user", "assistant", "user"]


def test_a_session_that_was_dropped_is_told_its_history(bridge: BridgeDesk) -> None:
    session_id = bridge.session()
    bridge.run("[[say:My name is Ada.]]", session_id)
    assert bridge.backend.drop_session(session_id)
    assert not bridge.backend.drop_session(session_id)
    run_id = bridge.run("[[echo:roles]]", session_id)
    assert roles(bridge.text(run_id)) == ["system", "user", "assistant", "user"]


def test_a_turn_tried_again_is_not_remembered_twice(bridge: BridgeDesk) -> None:
    session_id = bridge.session(on_failure="continue")
    first = bridge.run("[[error:401]]", session_id)
    again = bridge.run("[[echo:roles]]", session_id, retry_of=first)
    assert roles(bridge.text(again)) == ["system", "user"]


def test_the_worker_that_holds_the_agent_gets_the_next_turn(bridge: BridgeDesk) -> None:
    desk = bridge.desk
    desk.start_threads()
    desk.wait(lambda: desk.context.presence.takes_turns("worker-a"), what="the worker's heartbeat")
    session_id = bridge.session()
    first = desk.submit(session_id, "[[say:One.]]")
    second = desk.submit(session_id, "[[say:Two.]]")
    desk.start(first).join(60)
    assert bridge.row_of(session_id).warm_worker == "worker-a"
    assert (second, "runs.worker-a") in desk.sent
    assert bridge.row_of(bridge.session()).warm_worker is None


def test_another_worker_answers_as_well(bridge: BridgeDesk) -> None:
    """The agent of the worker before is not there: what it knew is in the database."""
    session_id = bridge.session()
    bridge.run("[[say:My name is Ada.]]", session_id)
    bridge.backend.restart(at_once=True)  # as good as another worker's child
    run_id = bridge.run("[[echo:roles]]", session_id)
    assert roles(bridge.text(run_id)) == ["system", "user", "assistant", "user"]


def test_instructions_of_a_turn_are_the_turns_alone(bridge: BridgeDesk) -> None:
    session_id = bridge.session()
    told = bridge.run("[[echo:system]]", session_id, instructions="Speak like a canary-pirate.")
    assert "canary-pirate" in bridge.text(told)
    assert "canary-pirate" not in bridge.text(bridge.run("[[echo:system]]", session_id))


# ---- approvals


DANGER = "[[danger]] [[then]] [[say:After.]]"


def outcome_of(bridge: BridgeDesk, run_id: str) -> str:
    return str(bridge.tools(run_id)[0]["result"])


@pytest.mark.parametrize("choice", ["once", "session", "always", "deny"])
def test_an_approval_is_asked_with_its_exact_command_and_obeyed(bridge: BridgeDesk, choice: str) -> None:
    desk = bridge.desk
    desk.start_threads()
    run_id = bridge.begin(DANGER, bridge.session(profile=f"profile-{choice}"))
    pause = bridge.asked(run_id)
    assert desk.state(run_id) == "awaiting_approval"
    assert pause.request["command"].startswith("rm -rf /tmp/scripted-")
    assert pause.request["choices"] == ["once", "session", "always", "deny"]
    bridge.answer(pause, choice=choice, reason="a test")
    assert bridge.ended(run_id) == ("completed", None)
    assert ("BLOCKED" in outcome_of(bridge, run_id)) == (choice == "deny")
    resolved = next(event for event in desk.events(run_id) if event.event == "approval.resolved")
    assert (resolved.data.choice, resolved.data.reason) == (choice, "answered")
    with desk.look() as db:
        granted = approval_grants.patterns(db, f"profile-{choice}")
    assert granted == (("delete in root path",) if choice == "always" else ())


def test_no_answer_is_a_deny_that_says_so(bridge: BridgeDesk) -> None:
    """CASES 69: the model is not told that a person said no."""
    desk = bridge.desk
    desk.context.settings = desk.settings.model_copy(update={"approval_timeout_s": 1})
    expired = bridge.run(DANGER)
    resolved = next(event for event in desk.events(expired) if event.event == "approval.resolved")
    assert (resolved.data.choice, resolved.data.reason) == ("deny", "expired")
    desk.context.settings = desk.settings
    desk.start_threads()
    denied = bridge.begin(DANGER)
    bridge.answer(bridge.asked(denied), choice="deny")
    assert bridge.ended(denied) == ("completed", None)
    for run_id in (expired, denied):
        assert "BLOCKED" in outcome_of(bridge, run_id)
    assert outcome_of(bridge, expired) != outcome_of(bridge, denied)


def test_session_holds_for_that_session_and_once_for_nothing(bridge: BridgeDesk) -> None:
    bridge.desk.start_threads()
    for choice, asks_again in (("session", False), ("once", True)):
        session_id = bridge.session()
        run_id = bridge.begin(DANGER, session_id)
        bridge.answer(bridge.asked(run_id), choice=choice)
        assert bridge.ended(run_id)[0] == "completed"
        again = bridge.begin(DANGER, session_id)
        if asks_again:
            bridge.answer(bridge.asked(again), choice="deny")
        assert bridge.ended(again)[0] == "completed"
        assert ("approval.requested" in bridge.desk.names(again)) == asks_again
        other = bridge.begin(DANGER)
        bridge.answer(bridge.asked(other), choice="deny")
        assert bridge.ended(other)[0] == "completed"


def test_always_holds_in_its_profile_until_it_is_revoked(bridge: BridgeDesk, shared_home: HermesHome) -> None:
    desk = bridge.desk
    desk.start_threads()
    run_id = bridge.begin(DANGER, bridge.session(profile="mine"))
    bridge.answer(bridge.asked(run_id), choice="always", reason="a scratch machine")
    assert bridge.ended(run_id)[0] == "completed"
    free = bridge.run(DANGER, bridge.session(profile="mine"))
    assert "approval.requested" not in desk.names(free)
    assert "BLOCKED" not in outcome_of(bridge, free)
    other = bridge.begin(DANGER, bridge.session(profile="yours"))
    bridge.answer(bridge.asked(other), choice="deny")
    with desk.db() as db:
        (grant,) = approval_grants.in_force(db, "mine")
        assert (grant.granted_by, grant.reason) == (desk.user_id, "a scratch machine")
        approval_grants.revoke(db, grant.id, user=None)
    asked_again = bridge.begin(DANGER, bridge.session(profile="mine"))
    bridge.answer(bridge.asked(asked_again), choice="deny")
    assert bridge.ended(asked_again)[0] == "completed"
    assert "command_allowlist" not in (shared_home.path / "config.yaml").read_text(), "Hermes wrote it down itself"


# ---- questions


def test_a_question_waits_for_its_answer_in_own_words(bridge: BridgeDesk) -> None:
    bridge.desk.start_threads()
    run_id = bridge.begin("[[clarify:Which colour?|red|blue]]")
    pause = bridge.asked(run_id)
    assert bridge.desk.state(run_id) == "awaiting_clarification"
    assert (pause.request["question"], pause.request["choices"]) == ("Which colour?", ["red", "blue"])
    assert pause.expires_at_db is None
    bridge.answer(pause, answer="Rather 绿色")
    assert bridge.ended(run_id) == ("completed", None)
    assert "绿色" in outcome_of(bridge, run_id) or "\\u7eff" in outcome_of(bridge, run_id)


# ---- aborts


@pytest.mark.parametrize(
    ("text", "ready"),
    [
        ("[[stream:9000:10]]", "message.delta"),
        ('[[say:Before.]] [[tool:terminal:{"command":"sleep 60; touch mark"}]]', "tool.started"),
        ("[[hang:90]]", "status.updated"),
        (f"[[say:Before.]] {DANGER}", "approval.requested"),
        ("[[say:Before.]] [[clarify:Which?|a|b]]", "clarify.requested"),
    ],
    ids=["in a stream", "in a tool", "in a silent model", "in an approval", "in a question"],
)
def test_an_abort_stops_the_agent_and_keeps_what_came(bridge: BridgeDesk, text: str, ready: str) -> None:
    desk = bridge.desk
    desk.start_threads()
    session_id = bridge.session(on_failure="continue")
    run_id = bridge.begin(text, session_id)
    desk.wait(lambda: ready in desk.names(run_id), what=ready)
    pid = bridge.backend.describe()[0]["pid"]
    time.sleep(0.2)  # in the middle of it
    began = time.monotonic()
    bridge.abort(run_id)
    assert bridge.ended(run_id)[0] == "aborted"
    assert time.monotonic() - began < GRACE_S - 1, "it ended by itself, before it would have been killed"
    end = desk.events(run_id)[-1]
    assert (end.event, end.data.stage, end.data.note) == ("abort.completed", "acknowledged", None)
    kept = bridge.text(run_id)
    assert kept.startswith("Before." if "Before" in text else "0:" if "stream" in text else "")
    assert desk.pause(run_id) is None
    wait_for(lambda: not running("sleep 60; touch mark"), "the end of the tool")
    assert bridge.text(bridge.run("[[say:Next.]]", session_id)) == "Next."
    assert bridge.backend.describe()[0]["pid"] == pid, "the child and its other sessions live on"


# ---- models


def with_model(bridge: BridgeDesk, shared_home: HermesHome, **columns: Any) -> None:
    with bridge.desk.db() as db:
        catalogue.put_language_model(
            db, name="Big", model="maker/big-1", provider="custom", base_url=shared_home.model.base_url, **columns
        )


def test_a_listed_model_is_asked_with_its_address_and_its_key(
    bridge: BridgeDesk, shared_home: HermesHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, "canary-key-0123456789")
    with_model(bridge, shared_home, key_ref=KEY, context_window=65_536)
    run_id = bridge.run("[[echo:model]] ", bridge.session(model="Big"))
    assert "maker/big-1" in bridge.text(run_id)
    assert bridge.desk.answer(run_id).model == "maker/big-1"
    assert bridge.desk.row(run_id).usage["context_window"] == 65_536
    usual = bridge.run("[[echo:model]]")
    assert "scripted-1" in bridge.text(usual)
    everything = repr([bridge.desk.events(run_id), bridge.desk.transcript(run_id), bridge.desk.row(run_id).__dict__])
    assert "canary-key" not in everything


def test_the_default_of_the_list_answers_where_nobody_chose(bridge: BridgeDesk, shared_home: HermesHome) -> None:
    with_model(bridge, shared_home, is_default=True)
    assert "maker/big-1" in bridge.text(bridge.run("[[echo:model]]"))


def test_a_change_of_model_in_a_session_keeps_what_was_said(bridge: BridgeDesk, shared_home: HermesHome) -> None:
    with_model(bridge, shared_home)
    session_id = bridge.session()
    bridge.run("[[say:My name is Ada.]]", session_id)
    run_id = bridge.run("[[echo:roles]]", session_id, model="Big")
    assert roles(bridge.text(run_id)) == ["system", "user", "assistant", "user"]
    assert bridge.desk.answer(run_id).model == "maker/big-1"


@pytest.mark.parametrize(("name", "said"), [(KEY, f"set {KEY}"), ("HERMES_GATEWAY_KEY", "the portal's own")])
def test_a_key_that_is_not_there_or_not_theirs_is_said(
    bridge: BridgeDesk, shared_home: HermesHome, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.delenv(KEY, raising=False)
    monkeypatch.setenv("HERMES_GATEWAY_KEY", "the-portals-own-key")
    with_model(bridge, shared_home, key_ref=name)
    run_id = bridge.run("Hello", bridge.session(model="Big"))
    assert bridge.ended(run_id) == ("failed", "backend_refused")
    assert said in bridge.said(run_id)


def test_iterations_are_limited_by_the_turn(bridge: BridgeDesk) -> None:
    many = " [[then]] ".join(['[[tool:terminal:{"command":"true"}]]'] * 6)
    run_id = bridge.run(many, max_iterations=2)
    assert len(bridge.tools(run_id)) == 2
    assert bridge.desk.events(run_id)[-1].data.finish_reason == "max_iterations"


# ---- without a session


def test_one_answer_without_a_session_needs_no_tools_and_leaves_nothing(bridge: BridgeDesk) -> None:
    bridge.run("[[say:Hello.]]")
    before = bridge.backend.describe()[0]["sessions"]
    turn = a_turn("[[echo:tools]]", history=(HistoryMessage("user", "x"), HistoryMessage("assistant", "y")))
    result = bridge.backend.execute(turn)
    assert result.text in ("[]", "null")
    assert result.usage is not None
    assert result.usage.input_tokens < 5_000, "no tools, no memory, no skills"
    wait_for(lambda: bridge.backend.describe()[0]["sessions"] == before, "the end of the session")


def test_ping_tells_what_came(bridge: BridgeDesk) -> None:
    """The scripted model does not say PONG: that is what it is for."""
    found = bridge.backend.ping()
    assert (found.ok, found.error) == (False, None)
    assert "PONG" in found.got
    assert found.latency_ms > 0
    assert bridge.backend.version == "0.19.0"


# ---- it dies (C11)


def test_a_child_killed_in_the_middle_is_said_and_the_next_turn_knows_all(
    bridge: BridgeDesk, hermes_model: ScriptedModel
) -> None:
    session_id = bridge.session(on_failure="continue")
    bridge.run("[[say:My name is Ada.]]", session_id)
    mark = f"sleep 77{secrets.randbelow(10**8):08d}"
    run_id = bridge.begin(f'[[say:Wait.]] [[tool:terminal:{{"command":"{mark}"}}]]', session_id)
    bridge.desk.wait(lambda: "tool.started" in bridge.desk.names(run_id), what="the tool")
    wait_for(lambda: running(mark), "the tool's process")
    pid = bridge.backend.describe()[0]["pid"]
    temp = Path(psutil.Process(pid).environ()["TMPDIR"])
    assert list(temp.glob("hermes-*")), "what Hermes keeps of a shell"
    os.kill(pid, signal.SIGKILL)
    assert bridge.ended(run_id) == ("interrupted", "backend_lost")
    assert "killed by SIGKILL" in bridge.said(run_id)
    assert bridge.text(run_id) == "Wait."
    wait_for(lambda: not running(mark), "the end of the tool")
    assert not is_alive(pid)
    wait_for(lambda: not temp.exists(), "the end of what it left")
    assert bridge.row_of(session_id).warm_worker is None
    again = bridge.run("[[echo:roles]]", session_id)
    assert roles(bridge.text(again)) == ["system", "user", "assistant", "user", "assistant", "user"]
