"""Turns: submitted once, told in order, stopped, withdrawn, held, tried again (RELIABILITY 2, F1 to F3, F36, F38)."""

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.orm import Session

from shared import errors, task_names
from shared.database import transaction
from shared.models import AuditEvent, ChatMessage, ChatSession, Run, User
from shared.protocol import commands
from shared.queue_events import SHOWN_INPUT_CHARS
from shared.relay.connection import SOCKET_TIMEOUT_S
from shared.relay.event_log import EventLog
from shared.relay.presence import Presence, WorkerFacts
from shared.run_state import FINAL, RunState
from shared.store import chat_sessions, messages, runs, users
from tests.factories import a_queued_run, a_run, a_session
from tests.rig.redis_server import RedisServer
from tests.rig.web import Web, WebMaker
from tests.webapp.told import events, names, notes, task_ids, tasks
from webapp import relay_breaker, throttle
from webapp.actions import runs as actions
from webapp.auth import Principal


def principal(user: User | None) -> Principal:
    assert user is not None
    return Principal(user.id, user.name, user.role, "cookie", address="192.0.2.1")


class Mine:
    """A session of a member."""

    def __init__(self, web: Web, **columns: Any) -> None:
        self.web = web
        self.user = web.user("mara")
        self.me = principal(self.user)
        with transaction(web.factory) as db:
            self.id = a_session(db, owner=users.get(db, self.user.id), **columns).id

    def submit(self, text: Any = "Hello", **fields: Any) -> actions.Submitted:
        return actions.submit(self.web.context, self.me, commands.Run(session_id=self.id, input=text, **fields))

    def run(self, run_id: str) -> Run:
        with transaction(self.web.factory, write=False) as db:
            return runs.get(db, run_id)

    def put(self, state: RunState, **columns: Any) -> Run:
        with transaction(self.web.factory) as db:
            return a_run(db, chat_sessions.get(db, self.id), state=state, worker_id="w1", **columns)


@pytest.fixture
def mine(web: Web) -> Mine:
    return Mine(web)


# ---- submitting


def test_who_was_shut_out_meanwhile_submits_nothing(mine: Mine) -> None:
    with transaction(mine.web.factory) as db:
        users.get(db, mine.user.id).disabled = True
    with pytest.raises(errors.Forbidden):
        mine.submit()
    assert tasks(mine.web) == []


def test_a_turn_is_committed_then_told_then_sent(mine: Mine) -> None:
    done = mine.submit("What is new?", model="small", instructions="Be brief")
    run = mine.run(done.run_id)
    assert (run.state, run.input, run.model, run.instructions, run.source) == (
        "queued", "What is new?", "small", "Be brief", "api_server",
    )  # fmt: skip
    queued, updated = events(mine.web, mine.id)
    assert queued.event == "run.queued"
    assert queued.fence is None
    assert (queued.data.position, queued.data.queue_length, queued.data.held) == (0, 1, False)
    assert (queued.data.message_id, queued.data.input, queued.data.by) == (done.message_id, "What is new?", "Mara")
    assert (updated.event, updated.data.title) == ("session.updated", "What is new?")
    [task] = tasks(mine.web)
    assert task == {
        "id": done.run_id,
        "task": task_names.RUN_TURN,
        "args": [done.run_id],
        "labels": {"session": mine.id, "user": "Mara", "backend": "api_server"},
    }
    assert run.dispatched_at_db is not None
    assert run.dispatches == 1


def test_a_long_turn_is_stored_whole_and_told_in_its_shown_part(mine: Mine) -> None:
    done = mine.submit("x" * 100_000)
    assert len(mine.run(done.run_id).input) == 100_000
    assert len(events(mine.web, mine.id)[0].data.input) == SHOWN_INPUT_CHARS


def test_turns_behind_a_running_one_wait_and_say_their_place(mine: Mine) -> None:
    mine.put(RunState.RUNNING)
    first, second = mine.submit("one"), mine.submit("two")
    assert (first.position, second.position) == (1, 2)
    assert second.queue_length == 2
    assert task_ids(mine.web) == [], "a task for a turn that cannot start"


def test_a_turn_whose_predecessor_just_ended_is_sent(mine: Mine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run before ends between our commit and our look: whoever is later sends the task."""
    before = mine.put(RunState.RUNNING)
    append = EventLog.append

    def end_meanwhile(log: EventLog, *given: Any, **more: Any) -> Any:
        with transaction(mine.web.factory) as db:
            runs.finish(
                db, before.id, RunState.RUNNING, RunState.COMPLETED, fence=before.fence, content="x", transcript=None
            )
        monkeypatch.undo()
        return append(log, *given, **more)

    monkeypatch.setattr(EventLog, "append", end_meanwhile)
    done = mine.submit("next")
    assert done.position == 1
    assert task_ids(mine.web) == [done.run_id]


def test_the_same_key_gives_the_same_run(mine: Mine) -> None:
    first = mine.submit("Hello", queue_id="k1")
    again = mine.submit("Hello", queue_id="k1")
    assert (first.created, again.created) == (True, False)
    assert (again.run_id, again.message_id, again.position) == (first.run_id, first.message_id, 0)
    assert names(mine.web, mine.id).count("run.queued") == 1
    assert task_ids(mine.web) == [first.run_id]


def test_the_same_key_with_another_text_is_a_conflict(mine: Mine) -> None:
    first = mine.submit("Hello", queue_id="k1")
    for other in ({"text": "Other"}, {"model": "big"}, {"instructions": "x"}, {"background": True}):
        with pytest.raises(errors.Conflict) as refused:
            mine.submit(**{"text": "Hello", **other}, queue_id="k1")
        assert refused.value.code == "queue_id_reused"
    assert mine.run(first.run_id).input == "Hello"


def test_fifty_equal_submits_at_once_make_one_run(web_on_each: Web) -> None:
    """F2: a double click, a retry storm."""
    mine = Mine(web_on_each)
    with ThreadPoolExecutor(50) as pool:
        done = list(pool.map(lambda _: mine.submit("Hello", queue_id="k1"), range(50)))
    assert len({(d.run_id, d.message_id, d.position) for d in done}) == 1
    assert sum(d.created for d in done) == 1
    with transaction(web_on_each.factory, write=False) as db:
        assert db.query(Run).count() == db.query(ChatMessage).count() == 1
    assert names(web_on_each, mine.id).count("run.queued") == 1


def test_different_turns_at_once_get_different_places(web_on_each: Web) -> None:
    mine = Mine(web_on_each)
    mine.put(RunState.RUNNING)
    with ThreadPoolExecutor(16) as pool:
        done = list(pool.map(lambda n: mine.submit(f"turn {n}"), range(30)))
    assert sorted(d.position for d in done) == list(range(1, 31))


def test_a_full_queue_says_so(make_web: WebMaker) -> None:
    mine = Mine(make_web(PORTAL_MAX_QUEUE_PER_SESSION="3"))
    mine.put(RunState.RUNNING)
    for _ in range(3):
        mine.submit()
    with pytest.raises(errors.QueueFull):
        mine.submit()
    with transaction(mine.web.factory, write=False) as db:
        assert len(runs.queue(db, mine.id)) == 3


def test_submits_are_limited_per_user(make_web: WebMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """S36."""
    now = time.time()
    clock = SimpleNamespace(time=lambda: now, monotonic=time.monotonic)  # no minute ends meanwhile
    monkeypatch.setattr(throttle, "time", clock)
    mine = Mine(make_web(PORTAL_SUBMITS_PER_MINUTE="5"))
    for _ in range(5):
        mine.submit()
    with pytest.raises(errors.TooManyRequests) as refused:
        mine.submit()
    assert 1 <= refused.value.retry_after_s <= 60


def test_a_held_queue_takes_turns_and_says_that_it_is_held(mine: Mine) -> None:
    hold(mine)
    done = mine.submit("later")
    assert (done.held, done.position) == ("failed", 2)
    assert events(mine.web, mine.id)[0].data.held is True
    assert task_ids(mine.web) == []


def test_an_archived_session_takes_no_turn(mine: Mine) -> None:
    with transaction(mine.web.factory) as db:
        chat_sessions.set_archived(db, mine.id, archived=True)
    with pytest.raises(errors.Conflict) as refused:
        mine.submit()
    assert refused.value.code == "session_archived"


def test_the_source_is_the_turns_then_the_sessions(web: Web) -> None:
    mine = Mine(web, source="cli")
    assert mine.run(mine.submit().run_id).source == "cli"
    assert mine.run(mine.submit(source="acp:claude").run_id).source == "acp:claude"


def test_a_title_that_a_person_gave_stays(mine: Mine) -> None:
    with transaction(mine.web.factory) as db:
        chat_sessions.rename(db, mine.id, "Mine")
    mine.submit("Something else")
    assert names(mine.web, mine.id) == ["run.queued"]


def test_content_blocks_are_kept_and_their_text_is_shown(mine: Mine) -> None:
    image = "data:image/png;base64,iVBORw0KGgo="
    done = mine.submit([{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": image}])
    run = mine.run(done.run_id)
    assert run.input == "Look:"
    assert run.blocks == [{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {"url": image}}]
    assert mine.run(mine.submit([{"type": "text", "text": "Only text"}]).run_id).blocks is None


# ---- without Redis, without the database


@pytest.fixture
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a machine takes for a refusal, Redis is asked again at once."""
    monkeypatch.setattr(relay_breaker, "SLOW_S", 600.0)


@pytest.mark.usefixtures("no_rest")
def test_without_redis_a_turn_is_accepted_and_sent_later(make_web: WebMaker) -> None:
    """C8: the page hears of it by a snapshot, the janitor sends the task."""
    server = RedisServer()
    mine = Mine(make_web(redis_url=server.url))
    try:
        first = mine.submit("before")
        server.kill()
        done = mine.submit("while it is down")
        assert done.created
        run = mine.run(done.run_id)
        assert (run.state, run.dispatched_at_db) == ("queued", None)
        aborted = actions.abort(mine.web.context, mine.me, mine.id, done.run_id)
        assert aborted.state == "cancelled"
        server.start()
        mine.submit("after")
        assert names(mine.web, mine.id) == ["run.queued"]
        actions.continue_queue(mine.web.context, mine.me, mine.id)
        assert task_ids(mine.web) == [first.run_id]
    finally:
        server.close()


@pytest.mark.usefixtures("no_rest")
def test_a_lost_event_makes_the_next_one_begin_a_new_epoch(make_web: WebMaker) -> None:
    """So that pages which missed it take a snapshot (RELIABILITY 3), also when Redis kept its data."""
    server = RedisServer("--appendonly", "yes")
    mine = Mine(make_web(redis_url=server.url))
    try:
        mine.submit("one")
        before = mine.web.context.log.head(mine.id)
        server.client.config_set("maxmemory", "1")
        server.client.config_set("maxmemory-policy", "noeviction")
        mine.submit("two")
        server.client.config_set("maxmemory", "0")
        mine.submit("three")
        after = mine.web.context.log.head(mine.id)
        assert before is not None
        assert after is not None
        assert before.epoch != after.epoch
    finally:
        server.close()


def test_a_locked_database_answers_503_and_nothing_is_lost(web: Web) -> None:
    """F25: another writer holds SQLite for longer than we wait."""
    program = web.program(web.admin)
    session_id = program.new_session()
    other = web.context.engine.raw_connection()
    other.execute("BEGIN EXCLUSIVE")
    try:
        answer = program.submit(session_id, key="k1")
        assert answer.status_code == 503
        assert int(answer.headers["Retry-After"]) >= 1
        assert answer.json["code"] == "unavailable"
    finally:
        other.execute("ROLLBACK")
        other.close()
    assert program.submit(session_id, key="k1").status_code == 202


# ---- stopping


@pytest.mark.parametrize("state", [RunState.STARTING, RunState.RUNNING, RunState.AWAITING_APPROVAL])
def test_an_active_run_is_asked_to_stop(mine: Mine, state: RunState) -> None:
    run = mine.put(state)
    done = actions.abort(mine.web.context, mine.me, mine.id)
    assert (done.run_id, done.state) == (run.id, "aborting")
    [event] = events(mine.web, mine.id)
    assert (event.event, event.run_id, event.data.by, event.data.stage) == (
        "abort.started",
        run.id,
        "Mara",
        "requested",
    )
    assert notes(mine.web, "w1") == [{"run_id": run.id, "kind": "abort", "fence": run.fence, "pause_id": None}]
    with transaction(mine.web.factory, write=False) as db:
        row = db.query(AuditEvent).one()
    assert (row.action, row.run_id, row.user_name, row.address) == ("run_aborted", run.id, "Mara", "192.0.2.1")


def test_stopping_twice_tells_once_and_nudges_again(mine: Mine) -> None:
    mine.put(RunState.RUNNING)
    for _ in range(3):
        assert actions.abort(mine.web.context, mine.me, mine.id).state == "aborting"
    assert names(mine.web, mine.id) == ["abort.started"]
    assert len(notes(mine.web, "w1")) == 3


def test_a_waiting_run_that_is_stopped_is_cancelled(mine: Mine) -> None:
    mine.put(RunState.RUNNING)
    waiting = mine.submit("later", queue_id="k2")
    done = actions.abort(mine.web.context, mine.me, mine.id, waiting.run_id)
    assert done.state == "cancelled"
    assert names(mine.web, mine.id)[-3:] == ["run.dequeued", "run.cancelled", "queue.updated"]
    with transaction(mine.web.factory, write=False) as db:
        question = messages.question_of(db, waiting.run_id)
        assert question is not None
        assert question.status == "CANCELLED"


@pytest.mark.parametrize("state", sorted(FINAL))
def test_an_ended_run_stays_as_it_ended(mine: Mine, state: RunState) -> None:
    run = mine.put(state)
    assert actions.abort(mine.web.context, mine.me, mine.id, run.id).state == state
    assert names(mine.web, mine.id) == []
    with transaction(mine.web.factory, write=False) as db:
        assert db.query(AuditEvent).count() == 0


def test_with_nothing_running_there_is_nothing_to_stop(mine: Mine) -> None:
    with pytest.raises(errors.Conflict) as refused:
        actions.abort(mine.web.context, mine.me, mine.id)
    assert refused.value.code == "nothing_runs"


def test_a_run_of_another_session_cannot_be_stopped_through_this_one(mine: Mine) -> None:
    with transaction(mine.web.factory) as db:
        other = a_session(db, owner=users.get(db, mine.user.id))
        run = a_run(db, other)
    with pytest.raises(errors.NotFound):
        actions.abort(mine.web.context, mine.me, mine.id, run.id)
    assert mine.run(run.id).state == RunState.RUNNING


# ---- the queue


def test_a_waiting_turn_is_withdrawn_once(mine: Mine) -> None:
    mine.put(RunState.RUNNING)
    mine.submit("one", queue_id="k1")
    mine.submit("two", queue_id="k2")
    changed = actions.cancel_queued(mine.web.context, mine.me, mine.id, "k1")
    assert changed.queue_length == 1
    told = events(mine.web, mine.id)[-3:]
    assert [event.event for event in told] == ["run.dequeued", "run.cancelled", "queue.updated"]
    assert [item.queue_id for item in told[2].data.queue] == ["k2"]
    assert told[1].data.by == "Mara"
    count = len(events(mine.web, mine.id))
    actions.cancel_queued(mine.web.context, mine.me, mine.id, "k1")
    assert len(events(mine.web, mine.id)) == count


def test_a_turn_that_has_started_cannot_be_withdrawn(mine: Mine) -> None:
    run = mine.put(RunState.RUNNING)
    with pytest.raises(errors.Conflict) as refused:
        actions.cancel_queued(mine.web.context, mine.me, mine.id, run.queue_id)
    assert refused.value.code == "not_queued"
    with pytest.raises(errors.NotFound):
        actions.cancel_queued(mine.web.context, mine.me, mine.id, "nobody")


def test_withdrawing_the_next_turn_wakes_the_one_behind(mine: Mine) -> None:
    mine.submit("one", queue_id="k1")
    second = mine.submit("two", queue_id="k2")
    actions.cancel_queued(mine.web.context, mine.me, mine.id, "k1")
    assert task_ids(mine.web)[-1] == second.run_id


def test_a_waiting_turn_is_changed_and_moved(mine: Mine) -> None:
    mine.put(RunState.RUNNING)
    for n in (1, 2, 3):
        mine.submit(f"turn {n}", queue_id=f"k{n}")
    actions.edit_queued(mine.web.context, mine.me, mine.id, "k2", "turn two\x00")
    actions.move_queued(mine.web.context, mine.me, mine.id, "k3", 1)
    queue = events(mine.web, mine.id)[-1].data.queue
    assert [(item.queue_id, item.position, item.input) for item in queue] == [
        ("k3", 1, "turn 3"),
        ("k1", 2, "turn 1"),
        ("k2", 3, "turn two\ufffd"),
    ]
    for bad in ("", " ", "x" * (513 * 1024)):
        with pytest.raises(errors.InvalidCommand):
            actions.edit_queued(mine.web.context, mine.me, mine.id, "k2", bad)


def test_going_on_releases_the_queue_and_wakes_its_head(mine: Mine) -> None:
    waiting = hold(mine)
    changed = actions.continue_queue(mine.web.context, mine.me, mine.id)
    assert (changed.queue_length, changed.held) == (1, None)
    assert events(mine.web, mine.id)[-1].data.held is None
    assert task_ids(mine.web) == [waiting.id]
    actions.continue_queue(mine.web.context, mine.me, mine.id)
    assert names(mine.web, mine.id) == ["queue.updated"]


def hold(mine: Mine, *, on_failure: str = "hold") -> Run:
    """A run has failed and one waits behind it."""
    with transaction(mine.web.factory) as db:
        session = chat_sessions.get(db, mine.id)
        session.on_failure = on_failure
        failed = a_run(db, session, state=RunState.RUNNING, text="fails")
        waiting = a_queued_run(db, session, text="waits")
        finish(db, failed, RunState.FAILED)
        return waiting


def finish(db: Session, run: Run, target: RunState) -> None:
    runs.finish(
        db,
        run.id,
        RunState(run.state),
        target,
        fence=run.fence,
        content="",
        transcript=None,
        error_code="backend_error",
    )


# ---- trying again


def test_an_ended_turn_is_tried_again_as_a_new_run(mine: Mine) -> None:
    run = mine.put(RunState.FAILED, text="Do it", model="small", instructions="Be brief")
    done = actions.retry(mine.web.context, mine.me, run.id)
    again = mine.run(done.run_id)
    assert (again.retry_of, again.input, again.model, again.instructions) == (run.id, "Do it", "small", "Be brief")
    assert mine.run(run.id).state == "failed"
    assert task_ids(mine.web) == [again.id]


def test_pressing_retry_twice_is_one_retry(web_on_each: Web) -> None:
    mine = Mine(web_on_each)
    run = mine.put(RunState.INTERRUPTED)
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda _: actions.retry(mine.web.context, mine.me, run.id), range(8)))
    assert len({d.run_id for d in done}) == 1


def test_a_retry_that_failed_too_can_be_made_anew_from_the_same_turn(mine: Mine) -> None:
    run = mine.put(RunState.FAILED)
    first = actions.retry(mine.web.context, mine.me, run.id)
    with transaction(mine.web.factory) as db:
        assert runs.claim(db, first.run_id, worker_id="w1", lease_s=90) is not None
        claimed = runs.get(db, first.run_id)
        runs.begin(db, claimed.id, fence=claimed.fence)
        finish(db, runs.get(db, claimed.id), RunState.FAILED)
    second = actions.retry(mine.web.context, mine.me, run.id)
    assert second.created
    assert second.run_id != first.run_id


def test_a_turn_that_goes_on_cannot_be_tried_again(mine: Mine) -> None:
    run = mine.put(RunState.RUNNING)
    with pytest.raises(errors.Conflict) as refused:
        actions.retry(mine.web.context, mine.me, run.id)
    assert refused.value.code == "not_ended"


def test_a_retry_of_what_holds_the_queue_goes_first_and_the_queue_goes_on(mine: Mine) -> None:
    waiting = hold(mine)
    with transaction(mine.web.factory, write=False) as db:
        failed_id = db.query(ChatSession).one().held_by_run_id
    assert failed_id is not None
    done = actions.retry(mine.web.context, mine.me, failed_id)
    assert (done.position, done.held) == (0, None)
    with transaction(mine.web.factory, write=False) as db:
        assert [run.id for run in runs.queue(db, mine.id)] == [done.run_id, waiting.id]
        assert chat_sessions.get(db, mine.id).held_reason is None
    assert names(mine.web, mine.id) == ["run.queued", "queue.updated"]
    assert task_ids(mine.web) == [done.run_id]


# ---- which worker


def test_the_next_turn_of_a_warm_agent_goes_to_its_worker_while_it_lives(web: Web) -> None:
    mine = Mine(web, source="acp:claude", warm_worker="w7")
    first = mine.submit("one")
    assert task_ids(web) == [first.run_id], "its worker gives no sign of life"
    presence = Presence(web.context.redis, web.context.keys)
    presence.beat_worker(WorkerFacts(worker_id="w7", host="h", pid=1, started_at="2026-01-02T03:04:05Z"))
    with transaction(web.factory) as db:
        runs.cancel_queued(db, first.run_id, by=None)
    second = mine.submit("two")
    assert task_ids(web, "runs.w7") == [second.run_id]


def test_the_gateway_keeps_no_warm_agent(web: Web) -> None:
    mine = Mine(web, warm_worker="w7")
    Presence(web.context.redis, web.context.keys).beat_worker(
        WorkerFacts(worker_id="w7", host="h", pid=1, started_at="2026-01-02T03:04:05Z")
    )
    done = mine.submit("one")
    assert task_ids(web) == [done.run_id]


def test_a_turn_that_was_sent_is_not_sent_again_by_each_one_behind_it(mine: Mine) -> None:
    """Each dispatch lengthens the janitor's patience."""
    first = mine.submit("one")
    for n in range(3):
        mine.submit(f"more {n}")
    assert task_ids(mine.web) == [first.run_id]
    assert mine.run(first.run_id).dispatches == 1


def test_a_frozen_redis_slows_one_request_and_not_all(make_web: WebMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """F19: what can go on without Redis does."""
    monkeypatch.setattr(relay_breaker, "REST_S", 600.0)  # no machine is so slow that it asks again meanwhile
    server = RedisServer()
    mine = Mine(make_web(redis_url=server.url))
    try:
        mine.submit("before")
        server.pause()
        found_out = [mine.submit("the one that finds out"), mine.submit("and another one")]

        def took_s(first: actions.Submitted) -> float:
            begun = time.monotonic()
            later = [mine.submit("more"), mine.submit("and more")]
            actions.abort(mine.web.context, mine.me, mine.id, first.run_id)
            assert all(done.created for done in later)
            return time.monotonic() - begun

        # Asked in vain it would take as long each time; a machine that stands still does so once.
        assert any(took_s(first) < SOCKET_TIMEOUT_S - 0.5 for first in found_out)
    finally:
        server.close()


def test_once_it_is_committed_a_turn_is_accepted(
    mine: Mine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The database goes away between the commit and the look at the queue: the client must not send it again."""
    mine.put(RunState.RUNNING)
    append = EventLog.append

    def lock_meanwhile(log: EventLog, *given: Any, **more: Any) -> Any:
        mine.web.context.engine.dispose()
        mine.web.context.engine.pool._creator = _unreachable  # type: ignore[attr-defined]
        return append(log, *given, **more)

    monkeypatch.setattr(EventLog, "append", lock_meanwhile)
    assert mine.submit("Hello").created
    assert "head.not_woken" in caplog.text


def _unreachable(*_: Any) -> Any:
    raise sqlite3.OperationalError("unable to open database file")


def test_without_redis_a_running_turn_is_still_asked_to_stop(make_web: WebMaker) -> None:
    """F38: the request stands in the database, where the worker looks."""
    server = RedisServer()
    mine = Mine(make_web(redis_url=server.url))
    try:
        run = mine.put(RunState.RUNNING)
        server.kill()
        assert actions.abort(mine.web.context, mine.me, mine.id).state == "aborting"
        stored = mine.run(run.id)
        assert (stored.state, stored.abort_by) == ("aborting", "Mara")
        assert stored.abort_requested_at_db is not None
    finally:
        server.close()
