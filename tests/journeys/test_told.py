"""Every change of a session is told by an event: after each step of a busy session, what the events told is what the
database holds. (Where it is not, pages get a snapshot half a minute later; that must stay the exception.)"""

from collections.abc import Iterator

import pytest

from shared.database import transaction
from shared.relay.connection import connect_url
from shared.relay.event_log import EventLog
from shared.relay.keys import Keys
from shared.run_state import RunState
from shared.settings import Settings
from shared.store.session_state import SessionState, states_of
from tests.rig.journey import Journey
from tests.rig.portal import wait_until
from tests.rig.redis_server import RedisServer
from tests.webapp.live_rig import Page, Reader
from webapp.live.follower import Sources
from webapp.live.hub import Hub
from webapp.live.states import differ

SOON_S = 25.0
"""Below the half minute after which a page that was told nothing is given a snapshot."""


class Counted(Page):
    """A page that only counts its snapshots."""

    def apply(self, items):  # type: ignore[no-untyped-def]
        self.snapshots += sum(1 for item in items if getattr(item, "replay", ()) is None)


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def journey(redis: RedisServer) -> Iterator[Journey]:
    with Journey(redis=redis) as made:
        yield made


def test_what_the_events_told_is_what_the_database_holds(journey: Journey, redis: RedisServer) -> None:
    client = connect_url(redis.url)
    hub = Hub(Settings(), client=client)
    session_id = journey.new_session()
    reader = Reader(Sources(journey.factory, EventLog(client, Keys()), hub), session_id, page=Counted())

    def stored() -> SessionState:
        with transaction(journey.factory, write=False) as db:
            return states_of(db, [session_id])[session_id]

    def agree(step: str) -> None:
        reader.check()
        try:
            wait_until(lambda: not differ(reader.follower.state, stored()), SOON_S, step)
        except AssertionError as error:
            raise AssertionError(f"after {step}: told {reader.follower.state}, stored {stored()}") from error

    tab = journey.open(session_id)
    agree("opening it")
    tab.wait_end(tab.say("Hello"))
    agree("the first turn, which gives the title")
    slow = tab.say("400 KB of text every 20 ms")
    agree("a turn that runs")
    waiting = [tab.say(f"Hello {n}", queue_id=f"q{n}") for n in range(3)]
    agree("three that wait")
    assert tab.ask(event="edit_queued_run", queue_id="q1", input="Hello again")["event"] == "ack"
    assert tab.ask(event="move_queued_run", queue_id="q2", position=1)["event"] == "ack"
    agree("an edit and a move")
    assert tab.ask(event="cancel_queued_run", queue_id="q0")["event"] == "ack"
    agree("a withdrawn turn")
    assert tab.ask(event="abort", run_id=slow)["event"] == "ack"
    agree("a stop")
    tab.wait_end(*waiting)
    agree("the end of the queue")
    with journey.worker_held():
        bad = tab.say("Play an error please")
        behind = tab.say("Hello behind it")
    tab.wait_end(bad)
    agree("a failed turn, which holds the queue")
    assert journey.run(bad).state == RunState.FAILED
    assert tab.ask(event="continue_queue")["event"] == "ack"
    agree("going on")
    tab.wait_end(behind)
    asks = tab.say("Ask me for an approval")
    pause = tab.wait_pause(asks)
    agree("an approval that is open")
    answer = tab.ask(event="approval.respond", approval_id=pause.approval_id, choice="once")
    assert answer["event"] == "ack"
    agree("an answered approval")
    tab.wait_end(asks)
    agree("its end")
    for change in ({"title": "Another name"}, {"status": "ARCHIVED"}, {"status": "ACTIVE"}):
        assert journey.portal.client().patch(f"/api/chat/sessions/{session_id}", json=change).status_code == 200
        agree(f"a change of {change}")
    assert reader.stop().snapshots == 1
    hub.close()
