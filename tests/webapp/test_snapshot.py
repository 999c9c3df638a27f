"""`resumed` and what a page is drawn from: the last messages, the queue, open pauses, and the place to go on from."""

import json
from typing import Any

import pytest
from sqlalchemy.orm import Session, sessionmaker

from shared.database import make_engine, make_session_factory, migrate, transaction
from shared.errors import NotFound
from shared.models import ChatSession
from shared.queue_events import SHOWN_INPUT_CHARS
from shared.relay.connection import connect_url
from shared.relay.event_log import EventLog
from shared.relay.keys import Keys
from shared.run_state import RunState
from shared.store import pauses, runs
from shared.store.session_state import states_of
from tests.factories import a_queued_run, a_run, a_session
from tests.rig.redis_server import RedisServer
from tests.webapp.live_rig import Turn
from webapp.live import snapshot
from webapp.live.states import differ


@pytest.fixture
def factory(database_url: str) -> Any:
    migrate(database_url)
    engine = make_engine(database_url)
    yield make_session_factory(engine)
    engine.dispose()


@pytest.fixture
def log(redis_server: RedisServer) -> EventLog:
    return EventLog(connect_url(redis_server.url), Keys())


def test_only_the_last_fifty_messages_are_in_it(factory: sessionmaker[Session], log: EventLog) -> None:
    with transaction(factory) as db:
        session = a_session(db)
        for n in range(30):
            a_run(db, session, state=RunState.COMPLETED, text=f"question {n}", answer=f"answer {n}")
    view = snapshot.take(factory, log, session.id)
    assert len(view.messages) == 50
    assert view.has_older
    assert [view.messages[0].content, view.messages[-1].content] == ["question 5", "answer 29"]
    assert view.cursor is None
    assert view.active is None


def test_however_many_turns_wait_the_active_one_is_in_it(factory: sessionmaker[Session], log: EventLog) -> None:
    with transaction(factory) as db:
        session = a_session(db)
        a_run(db, session, state=RunState.COMPLETED, text="before", answer="done")
    turn = Turn(factory, log, session.id)
    turn.say("so far")
    turn.save()
    with transaction(factory) as db:
        waiting = [a_queued_run(db, db.get_one(ChatSession, session.id), text=f"later {n}").id for n in range(5)]
    view = snapshot.take(factory, log, session.id, limit=2)
    assert [(m.run_id, m.role) for m in view.messages] == [
        (turn.run_id, "USER"),
        (turn.run_id, "ASSISTANT"),
        *((run_id, "USER") for run_id in waiting),
    ]
    assert view.messages[1].content == "so far"
    assert view.has_older


def test_a_session_that_is_not_there(factory: sessionmaker[Session], log: EventLog) -> None:
    with pytest.raises(NotFound):
        snapshot.take(factory, log, "nobody")


def test_resumed_tells_everything_a_client_needs(factory: sessionmaker[Session], log: EventLog) -> None:
    with transaction(factory) as db:
        session = a_session(db)
    turn = Turn(factory, log, session.id)
    turn.say("so far")
    turn.save()
    with transaction(factory) as db:
        waiting = a_queued_run(db, db.get_one(ChatSession, session.id), text="and then " + "x" * 3_000)
        pause = pauses.open(
            db, run_id=turn.run_id, fence=1, session_id=session.id, kind="approval", tool="shell",
            request={"command": "rm -r build", "description": "d", "choices": ["once", "deny"]}, timeout_s=60,
        )  # fmt: skip
    told = json.loads(snapshot.resumed_text(snapshot.take(factory, log, session.id)))
    assert told["event"] == "resumed"
    assert told["session_id"] == session.id
    assert told["snapshot"]
    assert (told["isWorking"], told["isAborting"], told["queueLength"]) == (True, False, 1)
    assert (told["runId"], told["state"]) == (turn.run_id, "awaiting_approval")
    assert (told["seq"], told["epoch"]) == (turn.seq, turn.epoch)
    assert told["events"] == []
    answer = told["messages"][-2] if told["messages"][-1]["role"] == "USER" else told["messages"][-1]
    assert (answer["status"], answer["content"], answer["runId"]) == ("RUNNING", "so far", turn.run_id)
    assert answer["logs"]
    [item] = told["queue"]
    assert (item["queue_id"], item["run_id"], item["position"]) == (waiting.queue_id, waiting.id, 1)
    assert len(item["input"]) == SHOWN_INPUT_CHARS
    [open_pause] = told["pauses"]
    assert open_pause["approval_id"] == pause.id
    assert (open_pause["command"], open_pause["kind"]) == ("rm -r build", "shell")
    assert open_pause["deadline"].endswith("Z")


def test_the_place_is_where_the_saved_text_ends(factory: sessionmaker[Session], log: EventLog) -> None:
    with transaction(factory) as db:
        session_id = a_session(db).id
    turn = Turn(factory, log, session_id)
    first = turn.seq
    turn.say("never saved yet")
    view = snapshot.take(factory, log, session_id)
    assert view.cursor is not None
    assert view.cursor.seq == first - 1  # before the run's own first event
    turn.save()
    saved = turn.seq
    turn.say(" and more")
    view = snapshot.take(factory, log, session_id)
    assert view.cursor is not None
    assert view.cursor.seq == saved
    turn.finish()
    view = snapshot.take(factory, log, session_id)
    assert view.cursor is not None
    assert view.cursor.seq == turn.seq


def test_text_saved_under_another_epoch_is_followed_from_the_beginning_of_the_new_one(
    factory: sessionmaker[Session], log: EventLog
) -> None:
    with transaction(factory) as db:
        session_id = a_session(db).id
    turn = Turn(factory, log, session_id)
    turn.say("old ")
    turn.save()
    turn.say("new", new_epoch=True)
    view = snapshot.take(factory, log, session_id)
    assert view.cursor is not None
    assert (view.cursor.epoch, view.cursor.seq) == (turn.epoch, 0)


def test_without_redis_it_is_what_the_database_holds(factory: sessionmaker[Session]) -> None:
    with transaction(factory) as db:
        session_id = a_session(db).id
    gone = EventLog(connect_url("unix:///nowhere/redis.sock"), Keys())
    view = snapshot.take(factory, gone, session_id)
    assert not view.relay_up
    assert view.cursor is None


def test_the_pulse_changes_with_all_that_a_page_shows(factory: sessionmaker[Session], log: EventLog) -> None:
    with transaction(factory) as db:
        session_id = a_session(db).id
    turn = Turn(factory, log, session_id)
    seen = [snapshot.pulse(factory, session_id)]
    assert snapshot.pulse(factory, session_id) == seen[0]

    def changed() -> bool:
        seen.append(snapshot.pulse(factory, session_id))
        return seen[-1] not in seen[:-1]

    turn.say("some text", unheard=True)  # Redis is away: the cursor stays, what is saved grows
    turn.save()
    assert changed()
    with transaction(factory) as db:
        waiting = a_queued_run(db, db.get_one(ChatSession, session_id), text="and then")
    assert changed()
    with transaction(factory) as db:
        runs.edit_queued(db, session_id, waiting.queue_id, input="and after that", blocks=None)
    assert changed()
    turn.finish()
    assert changed()
    with pytest.raises(NotFound):
        snapshot.pulse(factory, "nobody")


def test_the_states_of_a_snapshot_are_those_of_the_database(factory: sessionmaker[Session], log: EventLog) -> None:
    with transaction(factory) as db:
        session = a_session(db)
        a_run(db, session, state=RunState.STARTING)
        a_queued_run(db, session)
    view = snapshot.take(factory, log, session.id)
    with transaction(factory, write=False) as db:
        stored = states_of(db, [session.id, "nobody"])
    assert stored == {session.id: view.state}
    assert not differ(view.state, stored[session.id])
    with transaction(factory) as db:
        runs.cancel_queued(db, next(iter(view.state.waiting)), by="somebody")
    with transaction(factory, write=False) as db:
        assert differ(view.state, states_of(db, [session.id])[session.id])
