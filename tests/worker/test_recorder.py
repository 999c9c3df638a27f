"""What a run brings is told and kept, whatever happens to Redis and to the database meanwhile."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, exc

from shared.errors import LeaseLost
from shared.relay.event_log import Cursor
from shared.run_state import RunState
from shared.store import pauses
from shared.store import runs as run_store
from shared.transcript import answer_text, fold
from shared.transcript_json import from_json
from tests.rig.redis_server import RedisServer
from tests.worker.conftest import Desk, a_desk
from worker.runs.claim import claim
from worker.runs.live_run import LiveRun
from worker.runs.recorder import SAVE_EVERY_S, Recorder
from worker.runs.start import begin_when_possible


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis that a test may kill."""
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture
def frail_desk(own_redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    yield from a_desk(f"sqlite:///{tmp_path / 'portal.db'}", own_redis.url, tmp_path, monkeypatch)


def a_recorder(desk: Desk) -> tuple[str, Recorder]:
    """Of a run that has begun, without a loop around it."""
    run_id = desk.submit(desk.session(), "x")
    claimed = claim(run_id, desk.context)
    assert claimed is not None
    live = LiveRun(run_id, claimed.run.session_id, claimed.fence)
    recorder = Recorder(desk.context, live)
    begin_when_possible(claimed, live, desk.context)
    return run_id, recorder


WORDS = {"text": "word# ", "until_enough": True, "every_s": 0.03}
END = {"text": "end."}
ALL_WORDS = "".join(f"word{n} " for n in range(20_000))


def is_whole(text: str) -> bool:
    """Whether it has as many WORDS as were said, without a hole and none twice, and the END."""
    return text.endswith(" end.") and ALL_WORDS.startswith(text.removesuffix("end."))


def saved_cursor(desk: Desk, run_id: str) -> Cursor:
    row = desk.row(run_id)
    return Cursor(row.flushed_epoch or "", row.flushed_seq)


def snapshot_text(desk: Desk, run_id: str) -> str:
    """What a page shows that comes now: the database, then the log from the cursor that was saved with it."""
    row = desk.row(run_id)
    transcript = from_json(desk.transcript(run_id))
    head = desk.context.log.head(row.session_id)
    if head is not None:
        seq = row.flushed_seq if row.flushed_epoch == head.epoch else 0
        for entry in desk.context.log.read_after(row.session_id, Cursor(head.epoch, seq)) or []:
            found = desk.event_of(entry, row.session_id)
            fold(transcript, found)
    return answer_text(transcript)


# ---- gathering


def test_a_piece_after_a_pause_goes_at_once_and_its_neighbours_together(sqlite_desk: Desk) -> None:
    run_id, recorder = a_recorder(sqlite_desk)
    soon = time.monotonic()
    recorder.text("message.delta", "first ", soon)
    assert sqlite_desk.seen_text(run_id) == "first "
    for word in ("a ", "b ", "c "):
        recorder.text("message.delta", word, soon)
    assert sqlite_desk.seen_text(run_id) == "first "
    assert soon < recorder.flush_at <= time.monotonic() + 0.05
    recorder.flush_text()  # does not wait for the relay
    sqlite_desk.wait(lambda: sqlite_desk.seen_text(run_id) == "first a b c ", what="the neighbours")
    deltas = [e for e in sqlite_desk.events(run_id) if e.event == "message.delta"]
    assert [e.data.text for e in deltas] == ["first ", "a b c "]


def test_no_more_than_2_kb_are_gathered_and_a_huge_piece_is_cut(sqlite_desk: Desk) -> None:
    run_id, recorder = a_recorder(sqlite_desk)
    soon = time.monotonic()
    recorder.text("message.delta", "first ", soon)
    for _ in range(30):
        recorder.text("message.delta", "x" * 100, soon)
    desk, gathered = sqlite_desk, 6 + 2_100
    assert desk.wait(lambda: (seen := len(desk.seen_text(run_id))) > 6 and seen, what="what is too much") == gathered
    recorder.text("message.delta", "é" * 50_000, time.monotonic())
    desk.wait(lambda: len(desk.seen_text(run_id)) > gathered, what="the huge piece")
    deltas = [e for e in desk.events(run_id) if e.event == "message.delta"]
    assert max(len(e.data.text) for e in deltas) == 16_384
    assert len(desk.seen_text(run_id)) == 6 + 3_000 + 50_000


def test_text_is_never_gathered_across_another_event(sqlite_desk: Desk) -> None:
    run_id = sqlite_desk.run([{"text": "a"}, {"text": "b"}, {"status": "busy"}, {"text": "c"}])
    told = [(e.event, getattr(e.data, "text", "")) for e in sqlite_desk.events(run_id)]
    before = "".join(text for name, text in told[: told.index(("status.updated", "busy"))] if name == "message.delta")
    assert before == "ab"


def test_text_is_saved_though_nothing_follows_it(desk: Desk) -> None:
    assert SAVE_EVERY_S == 1
    run_id = desk.submit(desk.session(), [{"text": "early "}, {"block": True}])
    desk.start(run_id)
    desk.wait(lambda: desk.turns(run_id), what="the turn")
    desk.wait(lambda: desk.answer(run_id).content == "early ", what="the text in the database")


def test_tools_are_saved_at_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.runs.recorder.SAVE_EVERY_S", 3600.0)  # nothing is saved because time has passed
    run_id = desk.submit(desk.session(), [{"text": "early "}, {"tool": "ls"}, {"block": True}])
    desk.start(run_id)
    desk.wait(lambda: "tool.completed" in desk.names(run_id), what="the tool told")
    desk.wait(lambda: saved_cursor(desk, run_id) == desk.context.log.head(desk.row(run_id).session_id), what="its save")
    assert [item["type"] for item in desk.transcript(run_id)["items"]] == ["text", "tool"]


# ---- Redis


def test_redis_may_die_in_mid_text(frail_desk: Desk, own_redis: RedisServer) -> None:
    """C7, C8: the run goes on without it, and who comes back gets everything once."""
    desk = frail_desk
    run_id = desk.submit(desk.session(), [WORDS, END])
    thread = desk.start(run_id)
    desk.wait(lambda: len(desk.seen_text(run_id)) > 100, what="some text")
    row = desk.row(run_id)
    epoch = desk.context.log.head(row.session_id).epoch
    own_redis.kill()
    lost_at = len(desk.answer(run_id).content)
    desk.wait(lambda: len(desk.answer(run_id).content) > lost_at + 100, what="text that is saved without Redis")
    own_redis.start()
    desk.wait(lambda: desk.context.log.head(row.session_id), what="a new log")
    assert desk.context.log.head(row.session_id).epoch != epoch
    for _ in range(10):  # a page that comes at any time sees no hole and nothing twice
        assert ALL_WORDS.startswith(snapshot_text(desk, run_id))
        time.sleep(0.03)
    desk.backend.enough.set()
    thread.join(60)
    assert desk.state(run_id) == "completed"
    assert is_whole(desk.answer(run_id).content)
    assert snapshot_text(desk, run_id) == desk.answer(run_id).content
    assert desk.names(run_id)[-1] == "run.completed"


def test_a_run_that_waits_begins_a_new_log_when_redis_came_back_empty(frail_desk: Desk, own_redis: RedisServer) -> None:
    """A page that was opened in between has the place of no log, and is told when there is one."""
    desk = frail_desk
    desk.start_threads()
    run_id = desk.submit(desk.session(), [{"text": "before"}, {"approval": "ls"}, {"text": " after"}])
    thread = desk.start(run_id)
    pause = desk.wait(lambda: desk.pause(run_id), what="the approval")
    session_id = desk.row(run_id).session_id
    desk.wait(lambda: "approval.requested" in desk.names(run_id), what="that it is told")
    epoch = desk.context.log.head(session_id).epoch
    own_redis.kill()
    own_redis.start()
    head = desk.wait(lambda: desk.context.log.head(session_id), what="a new log, though there is nothing to tell")
    assert head.epoch != epoch
    assert snapshot_text(desk, run_id) == "before"
    with desk.db() as db:
        pauses.answer(db, pause.id, user=None, choice="once")
    thread.join(60)
    assert desk.answer(run_id).content == "before[once] after"
    assert snapshot_text(desk, run_id) == "before[once] after"


def test_an_append_of_unknown_outcome_is_not_repeated(frail_desk: Desk, own_redis: RedisServer) -> None:
    """F19: Redis stalls for longer than a client waits."""
    desk = frail_desk
    hasty = desk.new_context("worker-b")  # we ourselves are not
    hasty.redis.connection_pool.connection_kwargs["socket_timeout"] = 0.5
    run_id = desk.submit(desk.session(), [WORDS, END])
    thread = desk.start(run_id, hasty)
    desk.wait(lambda: desk.turns(run_id), what="the turn")
    desk.wait(lambda: len(desk.answer(run_id).content) > 100, what="some text")
    own_redis.pause()
    desk.wait(lambda: hasty.log._doubtful, what="an append without an answer")
    own_redis.resume()
    desk.wait(lambda: not hasty.log._doubtful, what="one that is answered again")
    desk.backend.enough.set()
    thread.join(60)
    assert is_whole(desk.answer(run_id).content)
    assert snapshot_text(desk, run_id) == desk.answer(run_id).content


def test_redis_may_be_away_for_the_whole_run(frail_desk: Desk, own_redis: RedisServer) -> None:
    desk = frail_desk
    run_id = desk.submit(desk.session(), [{"text": "alone"}, {"tool": "ls"}])
    own_redis.kill()
    desk.start(run_id).join(60)
    assert (desk.state(run_id), desk.answer(run_id).content) == ("completed", "alone")
    session_id = desk.row(run_id).session_id
    assert desk.context.holes.all() == [session_id]
    own_redis.start()
    process = desk.start_threads()
    process.janitor.sweep()
    assert desk.context.holes.all() == []
    assert desk.context.log.head(session_id).seq == 1  # a new epoch: who follows takes a snapshot


def test_an_abort_and_an_answer_arrive_without_redis(frail_desk: Desk, own_redis: RedisServer) -> None:
    """F38, F42: both stand in the database, where the worker looks by itself."""
    desk = frail_desk
    desk.start_threads()
    answered = desk.submit(desk.session(), [{"approval": "ls"}, {"text": "done"}])
    aborted = desk.submit(desk.session(), [{"text": "a"}, {"block": True}])
    threads = [desk.start(answered), desk.start(aborted)]
    pause = desk.wait(lambda: desk.pause(answered), what="the approval")
    desk.wait(lambda: desk.turns(aborted), what="the other turn")
    own_redis.kill()
    with desk.db() as db:
        pauses.answer(db, pause.id, user=None, choice="once")
        run_store.request_abort(db, aborted, by_name="Ada")
    for thread in threads:
        thread.join(60)
    assert (desk.state(answered), desk.state(aborted)) == ("completed", "aborted")
    assert desk.backend.answers == [("0", "once")]
    own_redis.start()


def test_the_log_refuses_a_worker_that_has_lost_its_run(sqlite_desk: Desk) -> None:
    desk = sqlite_desk
    run_id, recorder = a_recorder(desk)
    recorder.text("message.delta", "mine ", time.monotonic())
    row = desk.row(run_id)
    desk.context.log.append(row.session_id, ['{"event":"x"}'], run_id=run_id, fence=row.fence + 1)
    recorder.text("message.delta", "not mine", time.monotonic() + 10)
    with pytest.raises(LeaseLost):
        recorder.tick(time.monotonic())
    assert desk.seen_text(run_id) == "mine "


def test_a_save_of_a_lost_run_is_refused(desk: Desk) -> None:
    run_id, recorder = a_recorder(desk)
    recorder.text("message.delta", "mine ", time.monotonic())
    with desk.db() as db:
        run_store.move(db, run_id, RunState.RUNNING, RunState.INTERRUPTED, fence=1, raise_fence=True)
    with pytest.raises(LeaseLost):
        recorder.save_now()


# ---- the database


class Outage:
    """The database refuses every statement while it lasts, as one that is gone does."""

    def __init__(self, desk: Desk, code: int = 14) -> None:
        self._engine = desk.context.engine
        self._code = code
        event.listen(self._engine, "before_cursor_execute", self._refuse)

    def _refuse(self, connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        import sqlite3

        error = sqlite3.OperationalError("the test says no")
        error.sqlite_errorcode = self._code  # type: ignore[attr-defined]
        raise exc.OperationalError(statement, parameters, error)

    def end(self) -> None:
        event.remove(self._engine, "before_cursor_execute", self._refuse)


def test_the_stream_goes_on_while_the_database_is_away(sqlite_desk: Desk) -> None:
    """C9."""
    desk = sqlite_desk
    run_id = desk.submit(desk.session(), [WORDS, END, {"tool": "ls"}])
    thread = desk.start(run_id)
    desk.wait(lambda: len(desk.seen_text(run_id)) > 50, what="some text")
    session_id = desk.row(run_id).session_id
    outage = Outage(desk)
    before = desk.context.log.head(session_id).seq
    desk.wait(lambda: desk.context.log.head(session_id).seq > before + 5, what="events without a database")
    time.sleep(1.5)
    outage.end()
    desk.backend.enough.set()
    thread.join(60)
    assert desk.state(run_id) == "completed"
    assert desk.answer(run_id).content == desk.seen_text(run_id)
    assert is_whole(desk.answer(run_id).content)


def test_a_database_that_is_away_too_long_stops_the_backend(sqlite_desk: Desk) -> None:
    """C10: the lease could not be renewed; the end is written when the database is back."""
    desk = sqlite_desk
    desk.context.settings = desk.settings.model_copy(update={"lease_renew_s": 0.5})
    desk.start_threads()
    run_id = desk.submit(desk.session(), [{"text": "a"}, {"block": True}])
    thread = desk.start(run_id)
    desk.wait(lambda: desk.turns(run_id), what="the turn")
    live = desk.context.live_runs.get(run_id)
    outage = Outage(desk)
    desk.context.settings = desk.settings.model_copy(update={"lease_give_up_s": 1.0})  # now, and not while it begins
    desk.wait(lambda: live.aborted, what="the stop of the backend")
    outage.end()
    thread.join(60)
    assert desk.state(run_id) == "interrupted"
    assert desk.row(run_id).reason == "worker_lost"


def test_a_full_disk_interrupts_the_run_after_a_while(sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """C18: `disk_full` once there is room to write it."""
    monkeypatch.setattr("worker.runs.drive.DISK_FULL_S", 1.0)
    desk = sqlite_desk
    run_id = desk.submit(desk.session(), [WORDS])
    thread = desk.start(run_id)
    desk.wait(lambda: desk.answer(run_id).content if desk.turns(run_id) else "", what="a first save")
    live = desk.context.live_runs.get(run_id)
    outage = Outage(desk, code=13)
    desk.wait(lambda: live.aborted, what="the end of the patience")
    outage.end()
    thread.join(60)
    assert (desk.state(run_id), desk.row(run_id).reason) == ("interrupted", "disk_full")


def test_a_long_answer_does_not_cost_more_towards_its_end(sqlite_desk: Desk) -> None:
    """DESIGN 11: 200 KB in 20,000 deltas, at most 1.5 times the cost of the first ones (twice, in a noisy test)."""
    _, recorder = a_recorder(sqlite_desk)
    recorder.text("message.delta", "warm up ", time.monotonic())

    def cost_of(deltas: int) -> float:
        begun = time.process_time()
        for _ in range(deltas):
            recorder.text("message.delta", "ten chars ", time.monotonic())
        recorder.flush_text()
        return time.process_time() - begun

    first = min(cost_of(1_000) for _ in range(4))
    for _ in range(12):
        cost_of(1_000)
    last = min(cost_of(1_000) for _ in range(4))
    assert last < 2 * first + 0.02
