"""What models say that is made to break the child: long, odd and endless texts, commands that nobody could read."""

import http.server
import json
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from tests.rig.bridge import wait_for
from tests.rig.bridge_child import BridgeChild, processes_with
from tests.rig.hermes import ScriptedModel
from worker.backends.bridge.process import outcome
from worker.backends.bridge.process.approvals import Approvals, RunApprovals
from worker.backends.bridge.process.pauses import Pauses
from worker.backends.bridge.process.run_log import RunLog
from worker.backends.bridge.process.think import ThinkSplitter, without_thoughts

FAR_S = 10.0  # of the processor: a tenth of a second when it grows as the text does, half a minute when as its square


def split(*pieces: str) -> tuple[str, str]:
    """Thinking and answer of a text that comes in these pieces."""
    thinking: list[str] = []
    splitter = ThinkSplitter(thinking.append)
    shown = "".join(splitter.feed(piece) for piece in pieces) + splitter.flush()
    return "".join(thinking), shown


def test_letters_that_grow_in_lower_case_do_not_move_the_end_of_thinking() -> None:
    text = "<think>\u0130\u0130\u0130 stanbul</think>answer"
    assert split(text) == split(*text) == ("\u0130\u0130\u0130 stanbul", "answer")


@pytest.mark.parametrize("line", ["x" * 40 + "\n", "\n", "<think>a</think>\n", "   <", "`code` and text\n"])
def test_a_long_text_that_comes_at_once_is_split_in_time(line: str) -> None:
    text = line * (2_000_000 // len(line))
    begun = time.thread_time()
    split(text)
    assert time.thread_time() - begun < FAR_S


def test_tags_that_are_opened_by_the_thousand_and_never_closed_take_no_longer() -> None:
    text = "a <think> b <reasoning> c" * 10_000
    begun = time.thread_time()
    assert outcome.missing_text("the end", text, text) == "\n\nthe end"
    assert time.thread_time() - begun < FAR_S


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("a<think>b</think>c", "ac"),
        ("a<THINK>b</Think>c<thought>d</thought>", "ac"),
        ("a<think>b</thinking>c", "a<think>b</thinking>c"),
        ("<think>a<thought>b</thought>", "<think>a"),
        ("<think>a<think>b</think>c</think>", "c</think>"),
        ("", ""),
    ],
)
def test_thoughts_are_cut_out_wherever_they_are(text: str, rest: str) -> None:
    assert without_thoughts(text) == rest


@pytest.mark.parametrize(
    ("patterns", "choices"),
    [
        (["delete in root path", "plugin_rule:删除"], ["once", "session", "always", "deny"]),
        (["delete in root path", "x" * 501], ["once", "deny"]),
        (["a\x00b"], ["once", "deny"]),
        (["a\ud83d"], ["once", "deny"]),
        (["a\u202eb"], ["once", "deny"]),
        (["mcp_elicitation"], ["once", "deny"]),
        ([], ["once", "deny"]),
    ],
)
def test_only_what_names_a_kind_of_command_is_allowed_for_longer(patterns: list[str], choices: list[str]) -> None:
    told = RunLog()
    pauses = Pauses(told)
    asking = RunApprovals(cast(Approvals, None), "a-session", (), pauses, on_session_grant=lambda _: None)
    data = {"command": "rm -rf /x", "pattern_keys": patterns, "allow_permanent": True}
    thread = threading.Thread(target=asking.ask, args=(data,), daemon=True)
    thread.start()
    wait_for(lambda: pauses.waits_for, "the question")
    pauses.withdraw()
    thread.join(60)
    assert told.output("a-run", 0, 0)["events"][0]["choices"] == choices


# ---- what is still tidied up when the session comes back

SLOW = """\
import os
import time

from tools.process_registry import process_registry


def register(ctx):
    kill_all = process_registry.kill_all

    def slow_kill_all(task_id=None):
        while True:
            time.sleep(1.5)  # as a container that takes its time
            if not os.path.exists(os.path.join(os.environ["HERMES_HOME"], "hold")):
                break
        killed = kill_all(task_id=task_id)
        with open(os.path.join(os.environ["HERMES_HOME"], "ended"), "a") as file:
            file.write(f"{task_id}\\n")
        return killed

    process_registry.kill_all = slow_kill_all
"""
ENDS_OF_ONE = 2  # by Hermes, and by us


def with_slow_ends(home: Path) -> None:
    folder = home / "plugins" / "slow-ends"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text("name: slow-ends\nversion: 1.0.0\ndescription: for tests\n")
    (folder / "__init__.py").write_text(SLOW)


@pytest.fixture(scope="module")
def slow(model: ScriptedModel) -> Iterator[BridgeChild]:
    """A child that takes its time to end what a session runs."""
    child = BridgeChild(model, config="plugins: {enabled: [slow-ends]}\n", prepare_home=with_slow_ends)
    yield child.start()
    child.close()


def test_the_end_of_a_dropped_session_never_reaches_into_its_next_turn(slow: BridgeChild) -> None:
    """The next turn of the queue begins in the moment in which the dropped one ends."""
    old, new = (f"4{secrets.randbelow(10**8):08d}" for _ in range(2))
    begin = slow.begin(terminal(f"sleep {old}", background=True) + " [[then]] [[clarify:Go on?]]", session_id="back")
    asked = begin.wait("clarify.requested")
    assert processes_with(old)
    assert slow.ask("destroy", session_id="back") == {"ok": True, "destroyed": 0, "deferred": 1}
    answer = {"run_id": begin.turn.run_id, "clarify_id": asked["clarify_id"], "answer": "yes"}
    assert slow.ask("clarify_respond", **answer)["ok"]
    begin.end()
    slow.play(terminal(f"sleep {new}", background=True), session_id="back")
    assert not processes_with(old)
    ended = slow.home / "ended"
    slow.wait_for(lambda: ended.exists() and ended.read_text().split().count("back") == ENDS_OF_ONE)
    assert processes_with(new)


def test_a_stop_does_not_wait_for_the_end_of_a_dropped_session(slow: BridgeChild) -> None:
    slow.play(terminal("true"), session_id="stopped")
    hold = slow.home / "hold"
    hold.touch()
    assert slow.ask("destroy", session_id="stopped")["destroyed"] == 1
    running = slow.begin(terminal("true"), session_id="stopped")
    slow.wait_for(
        lambda: any(held["session_id"] == "stopped" and held["model"] for held in slow.ask("list")["sessions"])
    )
    slow.ask("interrupt", run_id=running.turn.run_id)  # it has its agent, and waits
    assert running.end().last["event"] == "run.interrupted"
    assert not running.turn.of("tool.started")
    hold.unlink()


def terminal(command: str, **more: Any) -> str:
    return f"[[tool:terminal:{json.dumps({'command': command, **more})}]]"


# ---- a bad model


def test_what_a_model_calls_and_asks_is_shown_as_it_is_and_ends_no_turn(child: BridgeChild) -> None:
    name = "no\x00such\x1b[31m\u202e<b>"
    turn = child.play(f"[[tool:{name}:{{}}]] [[then]] [[say:done]]")
    assert (turn.one("tool.completed")["name"], turn.one("tool.completed")["ok"], turn.text) == (name, False, "done")
    for arguments in ("[1]", '"ls"', "5", "null", '{"command": ["ls"]}', '{"command": {"a": [[[]]]}}'):
        turn = child.play(f"[[tool:terminal:{arguments}]] [[then]] [[say:done]]")
        assert (turn.one("tool.completed")["ok"], turn.last["event"], turn.text) == (False, "run.completed", "done")


def test_a_hostile_command_is_asked_for_to_the_last_sign(child: BridgeChild, tmp_path: Path) -> None:
    command = f"rm -rf {tmp_path}/kept; echo '\x1b[2K\r\u202e\u2066 <script>alert(1)</script>'"
    running = child.begin(terminal(command) + " [[then]] [[say:over]]")
    asked = running.wait("approval.requested")
    assert asked["command"] == command
    answer = {"run_id": running.turn.run_id, "approval_id": asked["approval_id"], "choice": "deny"}
    assert child.ask("approval_respond", **answer)["ok"]
    assert running.end().text == "over"


@pytest.mark.parametrize("choices", [[["a"], {"b": 2}, None, 5], ["\x1b[31mred\x00", "\u202e<b>"], []])
def test_hostile_choices_are_texts_and_the_answer_comes_back(child: BridgeChild, choices: list[Any]) -> None:
    question = {"question": "Which\x1b[31m\u202e?", "choices": choices}
    running = child.begin(f"[[tool:clarify:{json.dumps(question)}]] [[then]] [[say:over]]")
    asked = running.wait("clarify.requested")
    assert asked["question"] == question["question"]
    assert all(isinstance(choice, str) for choice in asked["choices"])
    answer = {"run_id": running.turn.run_id, "clarify_id": asked["clarify_id"], "answer": "own\x00 \x1b[31mwords"}
    assert child.ask("clarify_respond", **answer)["ok"]
    turn = running.end()
    assert turn.text == "over"
    assert "words" in turn.one("tool.completed")["result"]


def test_a_stop_ends_every_tool_of_a_step_and_begins_none(child: BridgeChild) -> None:
    marks = [f"2{secrets.randbelow(10**8):08d}" for _ in range(3)]
    running = child.begin(" ".join(terminal(f"sleep {mark}") for mark in marks) + " [[then]] [[say:over]]")
    child.wait_for(lambda: any(processes_with(mark) for mark in marks))
    assert child.ask("interrupt", run_id=running.turn.run_id)["told"]
    turn = running.end()
    assert turn.last["event"] == "run.interrupted"
    assert len(turn.of("tool.started")) == len(turn.of("tool.completed"))
    child.wait_for(lambda: not any(processes_with(mark) for mark in marks))
    assert child.play("[[say:next]]").text == "next"
    assert not any(processes_with(mark) for mark in marks)


class Listener(http.server.BaseHTTPRequestHandler):
    """A server of models that lets nobody in, a moment later, and keeps with which key each model was asked for."""

    asked: ClassVar[set[tuple[str, str]]] = set()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.add((body["model"], self.headers["Authorization"]))
        time.sleep(0.2)
        self.send_error(401)

    def log_message(self, *_: Any) -> None: ...


def test_models_of_sessions_at_once_are_asked_for_each_with_its_own_key(child: BridgeChild) -> None:
    """CASES 162: one session changes its model while the other is in the middle of its turn."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/v1"
        for number in range(2):
            begun = [
                child.begin(
                    "hello",
                    session_id=f"own-{session}",
                    model={"name": f"{session}{number}", "base_url": address, "api_key": f"key-of-{session}{number}"},
                )
                for session in "ab"
            ]
            assert [each.end().last["code"] for each in begun] == ["auth_failed"] * 2
        server.shutdown()
    wanted = {(f"{session}{number}", f"Bearer key-of-{session}{number}") for session in "ab" for number in range(2)}
    assert Listener.asked == wanted


# ---- a full disk

NO_ROOM = (
    "import resource, os, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); os.execv(sys.argv[1], sys.argv[1:])"
)


@pytest.fixture
def full(model: ScriptedModel) -> Iterator[BridgeChild]:
    child = BridgeChild(model, command=lambda command: [sys.executable, "-c", NO_ROOM, *command])
    yield child.start()
    child.close()


def test_where_nothing_can_be_written_people_still_get_answers(full: BridgeChild) -> None:
    """No file of this child and its tools may grow: what is kept in files is kept in memory, or not at all."""
    text = "x" * 60_000
    assert full.play(f"[[say:{text}]]", session_id="full").text == text
    turn = full.play(
        terminal("yes | head -c 40000; echo y > f") + " [[then]] [[say:over]]", session_id="full", history=None
    )
    assert len(turn.result_of(turn.one("tool.started")["tool_id"])) > 40_000
    assert (turn.one("tool.completed")["ok"], turn.text) == (False, "over")
    assert full.play("[[echo:roles]]", session_id="full", history=None).text.count("user") == 3
