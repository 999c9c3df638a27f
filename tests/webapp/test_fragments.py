"""Frames of the page socket: each event changes its regions and nothing else, once, and names its place in the log."""

import re
import statistics
import time
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, get_args

import pytest

from shared.database import transaction
from shared.models import ChatSession
from shared.protocol import events as e
from shared.relay.event_log import Cursor
from shared.run_state import RunState
from shared.store import messages, runs
from shared.transcript import Gap, to_json
from tests.factories import a_queued_run
from tests.rig.web import Web
from tests.webapp.page_rig import Story, event, text, tool, tool_done
from webapp.auth import Principal
from webapp.live import fragments, snapshot
from webapp.live.fragments import REGIONS, PageView
from webapp.live.live_event import LiveEvent
from webapp.render import Reader

HEAD = re.compile(r'^<i id="cursor" hidden data-kind="(\w+)" data-epoch="(\w*)" data-first="(\d+)" data-last="(\d+)"')


@dataclass
class Live:
    """A page's view of a story, and a hand that gives it events."""

    web: Web
    story: Story
    view: PageView
    seq: int = 0

    def tell(self, run_id: str | None, *steps: tuple[str, dict[str, Any]], fence: int | None = 1) -> str:
        events = []
        for name, data in steps:
            self.seq += 1
            made = event(self.story.session_id, run_id, name, data, fence=fence)
            events.append(LiveEvent("k3f9", self.seq, made, "", b""))
        return self.view.apply(events)

    def snapshot(self) -> str:
        return self.view.snapshot(snapshot.read(self.web.factory, self.story.session_id))


@pytest.fixture
def live(web: Web) -> Live:
    story = Story(web.factory, title="Live", owner=web.admin)
    assert web.admin is not None
    principal = Principal(web.admin.id, web.admin.name, web.admin.role, "cookie")
    return Live(web, story, PageView(web.context, principal, story.session_id, Reader()))


def changed(frame: str) -> set[str]:
    """The ids that the frame swaps or adds to, without the cursor."""
    outer = re.findall(r'<[a-z]+[^>]*? id="([^"]+)"[^>]*hx-swap-oob="(?:true|morph)"', frame)
    return set(outer) - {"cursor"} | set(re.findall(r'hx-swap-oob="before\w+:#([^"]+)"', frame))


def running(live: Live, *steps: tuple[str, dict[str, Any]]) -> str:
    """A run that goes on, known to the page by its start."""
    run = live.story.turn("go", *steps, state=RunState.RUNNING)
    live.tell(run.id, ("run.started", {"source": "api_server", "agent": "Hermes"}))
    return run.id


def test_every_event_has_its_regions() -> None:
    union = get_args(get_args(e.AnyEvent)[0])
    assert set(REGIONS) == set(union)


def test_each_frame_names_the_first_and_last_event_in_it_the_epoch_and_the_fence(live: Live) -> None:
    run_id = running(live)
    frame = live.tell(run_id, text(0, 0, "a"), text(0, 1, "b"), text(0, 2, "c"), fence=7)
    head = HEAD.match(frame)
    assert head is not None
    assert head.groups() == ("events", "k3f9", "2", "4")
    assert f'data-run="{run_id}" data-fence="7"' in frame.split(">")[0]


def test_an_event_that_is_not_ours_only_moves_the_place_on(live: Live) -> None:
    frame = live.view.apply([LiveEvent("k3f9", 8, None, "", b"")])
    head = HEAD.match(frame)
    assert head is not None
    assert head.groups() == ("events", "k3f9", "8", "8")
    assert changed(frame) == set()


def test_words_of_the_answer_touch_the_answer_only(live: Live) -> None:
    run_id = running(live)
    first = live.tell(run_id, text(0, 0, "Hello"))
    assert f"run-{run_id}-answer" in changed(first)
    second = live.tell(run_id, text(0, 5, " world"))
    assert changed(second) == {f"run-{run_id}-p0-open"}
    third = live.tell(run_id, text(0, 11, "\n\nNext"))
    assert changed(third) == {f"run-{run_id}-p0-open"}
    assert "<p>Hello world</p>" in third.split("-open")[0] + third


def test_a_call_changes_its_own_card_and_what_counts_it(live: Live) -> None:
    run_id = running(live)
    live.tell(run_id, tool("a", "read"), tool_done("a", "read"))
    frame = live.tell(run_id, tool("b", "shell", "ls"))
    names = {f"run-{run_id}-{name}" for name in ("g1", "status", "timeline")}
    assert changed(frame) == names
    assert f"run-{run_id}-g0" not in frame
    assert changed(live.tell(run_id, ("tool.progress", {"tool_id": "b", "text": "half"}))) == {f"run-{run_id}-g1"}


def test_a_start_and_what_follows_in_one_frame_is_one_whole_turn(live: Live) -> None:
    run = live.story.turn("go", state=RunState.RUNNING)
    frame = live.tell(run.id, ("run.started", {"source": "api_server"}), tool("a", "shell", "ls"), text(0, 0, "Hi"))
    assert frame.count(f'id="run-{run.id}-g0"') == 1
    assert f"run-{run.id}-g0" not in changed(frame)
    assert f"run-{run.id}" in changed(frame)


def test_a_run_that_began_and_ended_in_one_frame_is_shown_as_the_history_has_it(live: Live) -> None:
    run = live.story.turn("go", text(0, 0, "Answer"))
    done = ("run.completed", {"message_id": "m", "duration_ms": 5})
    frame = live.tell(run.id, ("run.started", {"source": "api_server"}), text(0, 0, "Answer"), done)
    assert frame.count("<p>Answer</p>") == 1
    assert 'class="fold"' in frame


def test_the_end_puts_the_stored_turn_in_place_and_leaves_the_text_that_stands(live: Live) -> None:
    words = "A paragraph.\n\n" * 50
    run_id = running(live)
    live.tell(run_id, text(0, 0, words + "Last"))
    finish(live, run_id, words + "Last")
    frame = live.tell(run_id, ("run.completed", {"message_id": "m", "duration_ms": 5}))
    assert frame.count("A paragraph.") == 0
    assert "<p>Last</p>" in frame
    regions = {f"run-{run_id}-{name}" for name in ("rail", "by", "process", "aside", "approvals", "end")}
    assert regions <= changed(frame)
    assert "Turn 1: Done." in frame
    later = live.tell(run_id, text(0, 0, "late"), tool("x", "late"))
    assert changed(later) == set()


def finish(live: Live, run_id: str, words: str) -> None:
    """What its worker commits before it tells the end."""
    with transaction(live.web.factory) as db:
        transcript = live.view._live[run_id].transcript
        runs.finish(
            db, run_id, RunState.RUNNING, RunState.COMPLETED, fence=1, content=words, transcript=to_json(transcript)
        )


def test_text_that_the_page_does_not_have_is_put_right_at_the_end(live: Live) -> None:
    run_id = running(live)
    live.tell(run_id, text(0, 0, "Half"))
    finish(live, run_id, "Half")
    with transaction(live.web.factory) as db:
        answer = messages.answer_of(db, run_id)
        assert answer is not None
        saved = deepcopy(messages.transcript_of(answer) or {})
        saved["items"][0]["text"] = "Half and whole"
        messages.put_transcript(answer, saved)
    frame = live.tell(run_id, ("run.completed", {"message_id": "m", "duration_ms": 5}))
    assert "Half and whole" in frame
    assert f"run-{run_id}-answer" in changed(frame)


def test_a_hole_in_the_text_asks_for_a_snapshot(live: Live) -> None:
    run_id = running(live)
    live.tell(run_id, text(0, 0, "Hello"))
    with pytest.raises(Gap):
        live.tell(run_id, text(0, 9, "later"))


def test_text_told_twice_is_shown_once(live: Live) -> None:
    run_id = running(live)
    live.tell(run_id, text(0, 0, "Hello "))
    frame = live.tell(run_id, text(0, 0, "Hello "), text(0, 6, "world"))
    assert frame.count("Hello world") == 1
    assert changed(live.tell(run_id, text(0, 0, "Hello "))) == set()


def test_an_old_worker_is_not_heard(live: Live) -> None:
    run_id = running(live)
    live.tell(run_id, text(0, 0, "new"), fence=5)
    frame = live.tell(run_id, text(0, 3, "old"), ("status.updated", {"text": "old"}), fence=4)
    assert "old" not in frame.partition("</i>")[2]


def test_a_queued_turn_stands_in_the_queue_until_it_starts(live: Live) -> None:
    running(live)
    waiting = live.story.queued("waits here")[0]
    queued = {"queue_id": waiting.queue_id, "position": 1, "queue_length": 1, "message_id": "m", "input": "waits"}
    frame = live.tell(waiting.id, ("run.queued", queued), fence=None)
    assert {"queue", "composer-state"} <= changed(frame)
    assert f'id="run-{waiting.id}"' not in frame
    assert "waits here" in frame


def test_a_first_turn_shows_at_once_while_it_waits_for_a_worker(live: Live) -> None:
    run = live.story.queued("starts at once")[0]
    queued = {"queue_id": run.queue_id, "position": 0, "queue_length": 1, "message_id": "m", "input": "starts"}
    frame = live.tell(run.id, ("run.queued", queued), fence=None)
    assert f'data-queue-id="{run.queue_id}"' in frame
    assert f"run-{run.id}" in changed(frame)
    assert "Waits to start" in frame


def test_a_turn_that_no_worker_takes_says_why_it_waits_until_it_starts(live: Live) -> None:
    """C17."""
    run = live.story.queued("hello?")[0]
    queued = {"queue_id": run.queue_id, "position": 0, "queue_length": 1, "message_id": "m", "input": "hello?"}
    live.tell(run.id, ("run.queued", queued), fence=None)
    assert "no worker is there" in live.tell(run.id, ("status.updated", {"text": "No worker is there."}), fence=None)
    started = live.tell(run.id, ("run.started", {"source": "api_server", "agent": "Hermes"}))
    assert "no worker" not in started.casefold()


def test_a_withdrawn_turn_leaves_and_its_question_says_so(live: Live) -> None:
    run = live.story.queued("never mind")[0]
    queued = {"queue_id": run.queue_id, "position": 0, "queue_length": 1, "message_id": "m", "input": "never"}
    live.tell(run.id, ("run.queued", queued), fence=None)
    with transaction(live.web.factory) as db:
        runs.cancel_queued(db, run.id, by="Admin")
    frame = live.tell(run.id, ("run.cancelled", {"queue_id": run.queue_id, "by": "Admin"}), fence=None)
    assert f'<article id="run-{run.id}" hx-swap-oob="delete">' in frame
    assert "Cancelled" in frame


def test_a_decision_replaces_the_box_by_a_line(live: Live) -> None:
    asked = {"approval_id": "ap9", "kind": "shell", "command": "ls", "choices": ["once", "deny"]}
    run_id = running(live)
    frame = live.tell(run_id, ("approval.requested", asked))
    assert 'id="approval-ap9"' in frame
    assert "Turn 1 waits for a decision." in frame
    decided = {"approval_id": "ap9", "choice": "once", "by": "Ada", "reason": "answered"}
    done = live.tell(run_id, ("approval.resolved", decided))
    assert "Allowed once by Ada" in done
    assert 'class="ask"' not in done


def test_a_snapshot_and_the_frames_after_it_show_what_a_later_snapshot_shows(live: Live) -> None:
    live.story.turn("first", text(0, 0, "done before"))
    run = live.story.turn("go", text(0, 0, "thought", "reasoning"), text(1, 0, "Text so"), state=RunState.RUNNING)
    whole = live.snapshot()
    assert HEAD.match(whole)
    assert "done before" in whole
    assert "Text so" in whole
    frame = live.tell(run.id, text(1, 7, " far"))
    assert changed(frame) == {f"run-{run.id}-p1-open"}
    assert "Text so far" in frame


def test_a_page_that_missed_events_gets_the_turns_they_touched(live: Live) -> None:
    old = live.story.turn("old", text(0, 0, "old answer"))
    touched = live.story.turn("touched", text(0, 0, "ended meanwhile"))
    active = live.story.turn("active", text(0, 0, "goes on"), state=RunState.RUNNING)
    done = event(live.story.session_id, touched.id, "run.completed", {"message_id": "m", "duration_ms": 1})
    frame = live.view.resume(Cursor("k3f9", 41), [LiveEvent("k3f9", 42, done, "", b"")])
    head = HEAD.match(frame)
    assert head is not None
    assert head.groups() == ("resume", "k3f9", "42", "42")
    assert f"run-{touched.id}" in changed(frame)
    assert f"run-{active.id}" in changed(frame)
    assert old.id not in frame
    live.seq = 42
    assert changed(live.tell(active.id, text(0, 7, " still"))) == {f"run-{active.id}-p0-open"}


def test_a_run_that_ended_while_the_view_was_read_is_shown_ended_once(live: Live) -> None:
    run = live.story.turn("go", text(0, 0, "Hi"), state=RunState.RUNNING)
    view = snapshot.read(live.web.factory, live.story.session_id)
    done = event(live.story.session_id, run.id, "run.completed", {"message_id": "m", "duration_ms": 1}, fence=1)
    appended = live.web.context.log.append(live.story.session_id, [e.to_payload(done)])
    with transaction(live.web.factory) as db:
        runs.finish(db, run.id, RunState.RUNNING, RunState.COMPLETED, fence=1, content=None, transcript=None)
    frame = live.view.snapshot(replace(view, cursor=Cursor(appended.epoch, 0)))
    assert frame.count("<p>Hi</p>") == 1
    assert "-open" not in frame
    live.seq = appended.last_seq - 1
    assert "-open" not in live.tell(run.id, ("run.completed", {"message_id": "m", "duration_ms": 1}))


def test_the_box_of_a_turn_that_is_tried_again_says_so_at_once(live: Live) -> None:
    failed = live.story.turn("go", text(0, 0, "Hi"), state=RunState.FAILED)
    assert "Retried" not in live.snapshot()
    with transaction(live.web.factory) as db:
        again = a_queued_run(db, db.get_one(ChatSession, live.story.session_id), text="go", retry_of=failed.id)
    queued = {"queue_id": again.queue_id, "position": 0, "queue_length": 1, "message_id": "m", "input": "go"}
    frame = live.tell(again.id, ("run.queued", {**queued, "retry_of": failed.id}), fence=None)
    assert f"run-{failed.id}-end" in changed(frame)
    assert f"Retried by {again.user_name} as turn {again.position}" in frame


def test_the_answers_to_forms_are_fragments_with_their_id() -> None:
    taken = fragments.ack('q"1', queue_id="q-1", position=0, nothing=None)
    assert taken == '<i id="ack" hidden hx-swap-oob="true" data-id="q&#34;1" data-queue-id="q-1" data-position="0"></i>'
    refused = fragments.notice(Reader(), "Too <b>long</b>.", command_id="c1")
    assert 'hx-swap-oob="beforeend:#notices"' in refused
    assert 'data-for="c1"' in refused
    assert "Too &lt;b&gt;long&lt;/b&gt;." in refused


def test_frames_speak_the_readers_language(web: Web) -> None:
    story = Story(web.factory, title="中文", owner=web.admin)
    assert web.admin is not None
    principal = Principal(web.admin.id, web.admin.name, web.admin.role, "cookie")
    view = PageView(web.context, principal, story.session_id, Reader("zh_Hans", root="/portal"))
    run = story.turn("开始", text(0, 0, "好"), state=RunState.FAILED, end={"message": "坏了"})
    frame = view.snapshot(snapshot.read(web.factory, story.session_id))
    assert "失败" in frame
    assert f'action="/portal/chat/{story.session_id}/retry"' in frame
    assert run.id in frame


def test_the_cost_of_a_frame_does_not_grow_with_the_turn(live: Live) -> None:
    run_id = running(live)
    paragraph = "Some words with **bold** and `code` in them, over and over. " * 3 + "\n\n"
    words = (paragraph * (200_000 // len(paragraph) + 1))[:200_000]
    first: list[float] = []
    last: list[float] = []
    for at in range(0, len(words), 100):
        started = time.thread_time()
        frame = live.tell(run_id, text(0, at, words[at : at + 100]))
        took = time.thread_time() - started
        assert len(frame) < 8_000
        if 2_000 <= at < 42_000:
            first.append(took)
        elif at >= 160_000:
            last.append(took)
    # Each frame would cost more: the quicker ones too, which show least of what else the machine does.
    assert any(of(last) <= 1.5 * of(first) + 1e-4 for of in (statistics.median, _quick))


def _quick(times: list[float]) -> float:
    return statistics.quantiles(times, n=10)[0]
