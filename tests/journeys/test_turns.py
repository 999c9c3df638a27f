"""Journeys in which nothing breaks but connections: a person sends, looks, reloads, leaves and comes back."""

import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import websocket

from shared.protocol.events import EVENT
from shared.run_state import RunState
from shared.transcript import Transcript, answer_text, fold, from_json
from tests.rig.journey import END_S, Journey, Tab

LONG = "4 KB of text every 6 ms"
"""About 2.5 s of Markdown in 410 pieces."""


def test_the_first_answer_comes_while_it_is_made(journey: Journey) -> None:
    session_id = journey.new_session()
    tab = journey.open(session_id)
    frames: list[str] = []
    tab.hooks.append(lambda frame: frames.append(frame["event"]))
    endless = tab.say("400 KB of text every 6 ms")  # so that a moment in which nobody reads cannot hide its pieces
    half = tab.wait_text(endless, 20)
    tab.wait(lambda _: frames.count("message.delta") > 3)
    assert endless not in tab.ended
    assert tab.ask(event="abort", run_id=endless)["event"] == "ack"
    tab.wait_end(endless)
    assert tab.text(endless).startswith(half)
    run_id = tab.say("Hello, what can you do?")
    tab.wait_end(run_id)
    assert journey.run(run_id).state == RunState.COMPLETED
    assert tab.runs[run_id].usage is not None
    assert tab.misfits == 0
    journey.check(session_id, tab)


def test_a_second_turn_is_told_all_that_came_before(journey: Journey) -> None:
    session_id = journey.new_session()
    tab = journey.open(session_id)
    first = tab.say("My favourite word is heliotrope")
    tab.wait_end(first)
    second = tab.say("Which word?")
    tab.wait_end(second)
    assert "heliotrope" in tab.text(second)
    journey.check(session_id, tab)


def test_every_region_of_a_turn_reaches_the_page_and_the_store_alike(journey: Journey) -> None:
    """Each wish in a session of its own, all at once."""
    wishes = ("Use several tools at once", "Make a to-do list", "Think first", "A long answer with code", "An error")
    tabs = [journey.open(journey.new_session()) for _ in wishes]
    others = [journey.open(tab.session_id) for tab in tabs]
    said = [tab.say(wish) for tab, wish in zip(tabs, wishes, strict=True)]
    for tab, run_id in zip(tabs, said, strict=True):
        tab.wait_end(run_id)
        shown = tab.runs[run_id]
        assert all(tool.ok for tool in shown.tools)
        assert all(todo.status == "completed" for todo in shown.todos)
    assert [journey.run(run_id).state for run_id in said] == [*["completed"] * 4, "failed"]
    for tab, other in zip(tabs, others, strict=True):
        journey.check(tab.session_id, tab, other)


def test_a_page_reloaded_at_twenty_moments_of_one_turn_misses_and_doubles_nothing(journey: Journey) -> None:
    chance = random.Random(20)
    session_id = journey.new_session()
    tab = journey.open(session_id)
    run_id = tab.say("400 KB of text every 6 ms")
    tab.wait_text(run_id)
    reloaded: Tab | None = None
    for _ in range(20):
        time.sleep(chance.uniform(0, 0.2))
        known = tab.text(run_id)
        if reloaded is not None:
            journey.leave(reloaded)
        reloaded = journey.open(session_id)
        reloaded.wait_text(run_id, len(known))
        assert reloaded.text(run_id).startswith(known)
    assert reloaded is not None
    assert run_id not in reloaded.ended, "the turn was too short for twenty reloads"
    assert tab.ask(event="abort", run_id=run_id)["event"] == "ack"
    journey.check(session_id, tab, reloaded)


def test_three_tabs_show_one_session_and_each_may_send(journey: Journey) -> None:
    session_id = journey.new_session()
    tabs = [journey.open(session_id) for _ in range(3)]
    said = [tab.say(f"{LONG} ({n})") for n, tab in enumerate(tabs)]
    for tab in tabs:
        tab.wait_end(*said)
        assert tab.misfits == 0
    assert [run.id for run in journey.runs_of(session_id)] == said
    journey.check(session_id, *tabs)


def test_one_send_wins_when_three_tabs_send_the_same_key(journey: Journey) -> None:
    session_id = journey.new_session()
    tabs = [journey.open(session_id) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda tab: tab.say("Hello", queue_id="one-key"), tabs))
    assert len(set(answers)) == 1
    refused = tabs[0].ask(event="run", input="Another text", queue_id="one-key")
    assert refused["code"] == "queue_id_reused"
    tabs[0].wait_end(answers[0])
    assert len(journey.runs_of(session_id)) == 1
    journey.check(session_id, *tabs)


def test_a_socket_cut_five_times_in_one_turn_heals_each_time(journey: Journey) -> None:
    chance = random.Random(5)
    session_id = journey.new_session()
    tab, calm = journey.open(session_id), journey.open(session_id)
    run_id = tab.say("400 KB of text every 6 ms")
    tab.wait_text(run_id)
    for n in range(5):
        time.sleep(chance.uniform(0, 0.4))
        tab.cut()
        tab.wait_connected(n + 2)
    assert run_id not in tab.ended, "the turn was too short for five cuts"
    assert calm.ask(event="abort", run_id=run_id)["event"] == "ack"
    tab.wait_end(run_id)
    assert tab.connects == 6
    assert tab.misfits == 0
    assert tab.snapshots == 1, "a cut socket goes on from its cursor"
    journey.check(session_id, tab, calm)


def test_a_queue_of_five_runs_in_strict_order(journey: Journey) -> None:
    session_id = journey.new_session()
    tab, other = journey.open(session_id), journey.open(session_id)
    said = [tab.say("Ask me a question")]
    question = tab.wait_pause(said[0])
    said += [(tab if n % 2 else other).say(f"stream 10 every 10 ms, turn {n}") for n in range(5)]
    assert [item["run_id"] for item in journey.open(session_id).state["queue"]] == said[1:]
    answer = tab.ask(event="clarify.respond", clarify_id=question.clarify_id, answer="Go on")
    assert answer["event"] == "ack"
    tab.wait_end(*said)
    assert [run.id for run in journey.runs_of(session_id)] == said
    assert all(run.state == RunState.COMPLETED for run in journey.runs_of(session_id))
    journey.check(session_id, tab, other)


def test_turns_of_the_queue_are_edited_moved_and_withdrawn(journey: Journey) -> None:
    session_id = journey.new_session()
    tab, other = journey.open(session_id), journey.open(session_id)
    first = tab.say("stream 30000 every 20 ms")
    kept, withdrawn, last = (
        tab.say(f"stream 5 every 5 ms, {name}", queue_id=name) for name in ("kept", "gone", "last")
    )
    assert tab.ask(event="cancel_queued_run", queue_id="gone")["event"] == "ack"
    assert other.ask(event="cancel_queued_run", queue_id="gone")["event"] == "ack"  # again: harmless
    edited = tab.ask(event="edit_queued_run", queue_id="kept", input="stream 7 every 5 ms, changed")
    assert edited["event"] == "ack"
    journey.accepted[kept] = "stream 7 every 5 ms, changed"
    assert tab.ask(event="move_queued_run", queue_id="last", position=1)["event"] == "ack"
    assert [run.id for run in journey.runs_of(session_id) if run.state == RunState.QUEUED] == [last, kept]
    other.wait_end(withdrawn)
    assert tab.ask(event="abort", run_id=first)["event"] == "ack"
    tab.wait_end(first, last, kept)
    states = {run.id: run.state for run in journey.runs_of(session_id)}
    assert states == {
        first: RunState.ABORTED, last: RunState.COMPLETED, kept: RunState.COMPLETED, withdrawn: RunState.CANCELLED,
    }  # fmt: skip
    assert len(tab.text(kept).split()) == 7
    assert tab.ask(event="cancel_queued_run", queue_id="kept")["code"] == "not_queued"
    journey.check(session_id, tab, other)


def test_a_turn_sent_in_the_moment_the_answer_ends_follows_it(journey: Journey) -> None:
    """CASES 7: within milliseconds of the end, ten times."""
    session_id = journey.new_session()
    tab = journey.open(session_id)
    said = [tab.say("stream 3 every 1 ms, first")]
    for n in range(10):
        tab.wait_end(said[-1])
        said.append(tab.say(f"stream 3 every 1 ms, {n}"))
    tab.wait_end(said[-1])
    assert [run.id for run in journey.runs_of(session_id)] == said
    journey.check(session_id, tab)


def test_a_closed_browser_changes_nothing(journey: Journey) -> None:
    session_id = journey.new_session()
    tab = journey.open(session_id)
    said = [tab.say("4 KB of text every 4 ms, first"), tab.say("2 KB of text every 4 ms, second")]
    seen = tab.wait_text(said[0], 100)
    journey.leave(tab)
    journey.wait_state(said[1], RunState.COMPLETED)
    back = journey.open(session_id)
    assert back.text(said[0]).startswith(seen)
    assert back.ended >= set(said)
    journey.check(session_id, back)


def test_one_socket_switches_between_sessions_and_hears_only_what_it_shows(journey: Journey) -> None:
    first, second = journey.new_session(), journey.new_session()
    with TwoSessions(journey) as both:
        both.ask(event="resume", session_id=first)
        run_a = both.submit(first, "4 KB of text every 5 ms")
        both.hear_until(lambda: len(both.text(run_a)) > 200)
        cursor = both.leave(first)
        both.ask(event="resume", session_id=second)
        both.heard.clear()
        run_b = both.submit(second, "2 KB of text every 4 ms")
        both.hear_until(lambda: run_b in both.ended)
        assert both.heard == {second}
        both.ask(event="resume", session_id=first, last_seq=cursor[1], epoch=cursor[0])
        both.hear_until(lambda: run_a in both.ended)
        assert both.text(run_a) == journey.text(run_a)
        assert both.text(run_b) == journey.text(run_b)
    journey.check(first)
    journey.check(second)


class TwoSessions:
    """A program with one socket on several sessions: what it is told, folded by run."""

    def __init__(self, journey: Journey) -> None:
        self.journey = journey
        self.runs: dict[str, Transcript] = {}
        self.cursors: dict[str, tuple[str, int]] = {}
        self.heard: set[str] = set()
        self.ended: set[str] = set()
        self._ws = websocket.create_connection(journey.socket_url, timeout=END_S)
        self._answers: dict[str, dict[str, object]] = {}

    def __enter__(self) -> "TwoSessions":
        return self

    def __exit__(self, *_: object) -> None:
        self._ws.close()

    def text(self, run_id: str) -> str:
        return answer_text(self.runs[run_id]) if run_id in self.runs else ""

    def submit(self, session_id: str, text: str) -> str:
        run_id = str(self.ask(event="run", session_id=session_id, input=text)["run_id"])
        self.journey.accepted[run_id] = text
        return run_id

    def leave(self, session_id: str) -> tuple[str, int]:
        """Stop hearing it; the cursor to come back with."""
        assert self.ask(event="leave", session_id=session_id)["event"] == "ack"
        return self.cursors[session_id]

    def ask(self, **command: object) -> dict[str, object]:
        asked = f"c{len(self._answers)}"
        self._ws.send(json.dumps({"id": asked, **command}))
        self.hear_until(lambda: asked in self._answers)
        return self._answers[asked]

    def hear_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + END_S
        while not condition():
            assert time.monotonic() < deadline, "the socket did not tell it"
            self._hear()

    def _hear(self) -> None:
        frame = json.loads(self._ws.recv())
        if frame.get("id") is not None:
            self._answers[frame["id"]] = frame
        if frame["event"] == "resumed":
            self._resumed(frame)
        elif "seq" in frame:
            self._event(frame)

    def _resumed(self, frame: dict[str, object]) -> None:
        session_id = str(frame["session_id"])
        if frame["snapshot"]:
            self.cursors[session_id] = (str(frame["epoch"]), int(str(frame["seq"])))
            for message in frame["messages"]:  # type: ignore[attr-defined]
                if message["role"] == "ASSISTANT" and message["logs"]:
                    self.runs[message["runId"]] = from_json(message["logs"])
        for event in frame["events"]:  # type: ignore[attr-defined]
            self._event(event)

    def _event(self, frame: dict[str, object]) -> None:
        event = EVENT.validate_python(frame)
        self.heard.add(event.session_id)
        known = self.cursors.get(event.session_id)
        if known is not None and known[0] == frame["epoch"]:
            assert frame["seq"] == known[1] + 1
        self.cursors[event.session_id] = (str(frame["epoch"]), int(str(frame["seq"])))
        if event.run_id is not None:
            run = self.runs.setdefault(event.run_id, Transcript(run_id=event.run_id))
            fold(run, event)
            if run.end is not None:
                self.ended.add(event.run_id)
