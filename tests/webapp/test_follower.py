"""A client's reading of a session: no hole, nothing doubled, whatever happens to the connection and the log."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from sqlalchemy.orm import Session, sessionmaker

from shared.database import make_engine, make_session_factory, migrate, transaction
from shared.protocol import events as e
from shared.relay.connection import connect_url
from shared.relay.event_log import Cursor, EventLog
from shared.relay.keys import Keys
from shared.run_state import RunState
from shared.settings import Settings
from shared.store import messages, runs
from tests.factories import a_session
from tests.rig.redis_server import RedisServer
from tests.webapp.live_rig import Page, Reader, Turn, wait_for
from webapp.live.connections import Connections
from webapp.live.follower import Sources, Wanted
from webapp.live.hub import Hub
from webapp.live.live_event import read_entry
from webapp.live.watch import Watch

WORDS = ["Ein ", "Wort ", "字 ", "👩‍👩‍👧 ", "und ", "noch ", "eins. "]


@pytest.fixture
def factory(tmp_path: Path) -> Iterator[sessionmaker[Session]]:
    url = f"sqlite:///{tmp_path / 'portal.db'}"
    migrate(url)
    engine = make_engine(url)
    yield make_session_factory(engine)
    engine.dispose()


@pytest.fixture
def client(redis_server: RedisServer) -> "redis.Redis":
    return connect_url(redis_server.url)


@pytest.fixture
def log(client: "redis.Redis") -> EventLog:
    return EventLog(client, Keys())


@pytest.fixture
def sources(factory: sessionmaker[Session], log: EventLog, client: "redis.Redis") -> Iterator[Sources]:
    hub = Hub(Settings(), client=client)
    yield Sources(factory, log, hub)
    hub.close()


@pytest.fixture
def session_id(factory: sessionmaker[Session]) -> str:
    with transaction(factory) as db:
        return a_session(db).id


def stored_text(factory: sessionmaker[Session], run_id: str) -> str:
    with transaction(factory, write=False) as db:
        answer = messages.answer_of(db, run_id)
        assert answer is not None
        return answer.content


def test_a_page_that_was_there_from_the_start_has_every_piece_once(sources: Sources, session_id: str) -> None:
    reader = Reader(sources, session_id)
    turn = Turn(sources.factory, sources.log, session_id)
    for n in range(200):
        turn.say(WORDS[n % len(WORDS)])
    turn.finish()
    wait_for(lambda: reader.error or turn.run_id in reader.page.ended)
    page = reader.stop()
    assert page.answer(turn.run_id) == turn.text == stored_text(sources.factory, turn.run_id)


def test_a_page_opened_after_the_log_was_lost_gets_what_was_saved_when_a_new_one_begins(
    sources: Sources, client: "redis.Redis", session_id: str
) -> None:
    """Redis came back empty in the moment between a piece of text and its save."""
    turn = Turn(sources.factory, sources.log, session_id)
    turn.say("saved, ")
    turn.save()
    turn.say("not yet")
    assert client.delete(*client.keys(f"*{session_id}*"))
    reader = Reader(sources, session_id)
    assert reader.page.answer(turn.run_id) == "saved, "
    turn.save()
    status = e.StatusUpdatedData(text="It goes on")
    turn.append(e.StatusUpdated(session_id=session_id, run_id=turn.run_id, fence=1, data=status))
    wait_for(lambda: reader.error or reader.page.snapshots == 2)
    assert reader.stop().answer(turn.run_id) == turn.text


def test_reconnecting_after_any_event_gives_the_same_page(sources: Sources, session_id: str) -> None:
    """F43, and oracle 1: the page at n, then the events after it, is the page at the end, for every n."""
    turn = Turn(sources.factory, sources.log, session_id)
    for n in range(40):
        turn.say(WORDS[n % len(WORDS)])
        if n % 7 == 0:
            turn.save()
    turn.finish()
    head = sources.log.head(session_id)
    entries = sources.log.read_after(session_id, Cursor(head.epoch, 0)) if head else None
    assert head is not None
    assert entries is not None
    events = [read_entry(session_id, entry) for entry in entries]
    for n in range(head.seq + 1):
        page = Page(at=Cursor(head.epoch, 0))
        page.apply(events[:n])
        reader = Reader(sources, session_id, wanted=Wanted(n, head.epoch), page=page)
        page = reader.stop()
        assert page.at == head
        assert page.answer(turn.run_id) == turn.text
        assert page.snapshots == 0
        assert len(page.seen) == head.seq


def test_a_snapshot_at_any_moment_of_a_turn_goes_on_to_the_same_page(sources: Sources, session_id: str) -> None:
    turn = Turn(sources.factory, sources.log, session_id)
    readers = []
    for n in range(60):
        turn.say(WORDS[n % len(WORDS)])
        if n % 13 == 5:
            turn.save()
        readers.append(Reader(sources, session_id))
    turn.finish()
    for reader in readers:
        wait_for(lambda reader=reader: reader.error or turn.run_id in reader.page.ended)
        page = reader.stop()
        assert page.answer(turn.run_id) == turn.text
        assert page.snapshots == 1


def test_a_second_turn_that_saved_nothing_yet_is_not_told_the_first_again(sources: Sources, session_id: str) -> None:
    first = Turn(sources.factory, sources.log, session_id)
    first.say("the first answer")
    first.finish()
    second = Turn(sources.factory, sources.log, session_id)
    second.say("the second")
    reader = Reader(sources, session_id)
    wait_for(lambda: reader.error or reader.page.answer(second.run_id) == "the second")
    page = reader.stop()
    assert page.answer(first.run_id) == "the first answer"


def test_subscribe_races_publish(sources: Sources, session_id: str) -> None:
    """F44: a stream that never pauses, and pages that come at any moment of it."""
    turn = Turn(sources.factory, sources.log, session_id)
    stopping = threading.Event()

    def stream() -> None:
        while not stopping.is_set():
            turn.say("word ")
            if turn.seq % 50 == 0:
                turn.save()

    worker = threading.Thread(target=stream)
    worker.start()
    try:
        for n in range(1_000):
            start = Wanted(max(0, turn.seq - 40), turn.epoch) if n % 2 else Wanted()
            reader = Reader(sources, session_id, wanted=start, page=Page(may_begin_anywhere=True))
            target = turn.seq
            wait_for(lambda reader=reader, target=target: reader.error or _reached(reader, target))
            reader.stop()
    finally:
        stopping.set()
        worker.join()


def _reached(reader: Reader, seq: int) -> bool:
    return reader.page.at is not None and reader.page.at.seq >= seq


def test_all_subscriptions_are_cut_again_and_again(
    sources: Sources, session_id: str, redis_server: RedisServer
) -> None:
    """F17."""
    readers = [Reader(sources, session_id) for _ in range(3)]
    turn = Turn(sources.factory, sources.log, session_id)
    channel = Keys().channel(session_id)
    for n in range(400):
        turn.say(f"{n} ")
        if n % 40 == 20:
            wait_for(
                lambda: redis_server.client.pubsub_numsub(channel) == [(channel.encode(), 1)], what="a subscription"
            )
            redis_server.client.client_kill_filter(_type="pubsub")
        time.sleep(0.002)
    turn.finish()
    for reader in readers:
        wait_for(lambda reader=reader: reader.error or turn.run_id in reader.page.ended)
        page = reader.stop()
        assert page.answer(turn.run_id) == turn.text
        assert page.snapshots == 1
    assert sources.hub.connections > 3


def test_history_trimmed_while_away_gives_a_snapshot_then_live(
    factory: sessionmaker[Session], client: "redis.Redis", session_id: str
) -> None:
    """F46."""
    log = EventLog(client, Keys(), max_events=50)
    hub = Hub(Settings(), client=client)
    sources = Sources(factory, log, hub)
    turn = Turn(factory, log, session_id)
    turn.say("before ")
    away_at = log.head(session_id)
    assert away_at is not None
    for n in range(80):
        turn.say(f"{n} ")
        if n % 10 == 9:
            turn.save()
    reader = Reader(sources, session_id, wanted=Wanted(away_at.seq, away_at.epoch))
    wait_for(lambda: reader.error or reader.page.answer(turn.run_id) == turn.text)
    turn.say("after")
    turn.finish()
    wait_for(lambda: reader.error or turn.run_id in reader.page.ended)
    page = reader.stop()
    assert page.snapshots == 1
    assert page.answer(turn.run_id) == turn.text
    hub.close()


@pytest.mark.parametrize(
    "wanted",
    [Wanted(2**60), Wanted(-1), Wanted(10**6), Wanted(1, "nobody"), Wanted(1, "a b\n}"), Wanted(None, "x")],
)
def test_a_forged_cursor_gives_a_snapshot(sources: Sources, session_id: str, wanted: Wanted) -> None:
    """F47."""
    turn = Turn(sources.factory, sources.log, session_id)
    turn.say("text")
    turn.save()
    reader = Reader(sources, session_id, wanted=wanted)
    wait_for(lambda: reader.error or reader.page.answer(turn.run_id) == "text")
    assert reader.stop().snapshots == 1


def test_the_cursor_of_another_session_shows_nothing_of_it(
    sources: Sources, factory: sessionmaker[Session], session_id: str
) -> None:
    """F47."""
    with transaction(factory) as db:
        other_id = a_session(db).id
    mine, other = Turn(factory, sources.log, session_id), Turn(factory, sources.log, other_id)
    mine.say("mine")
    other.say("a secret of the other")
    reader = Reader(sources, session_id, wanted=Wanted(0, other.epoch))
    wait_for(lambda: reader.error or reader.page.answer(mine.run_id) == "mine")
    assert reader.stop().answer(other.run_id) == ""


def test_a_lost_log_replaces_the_view_once_what_it_held_is_saved(sources: Sources, session_id: str) -> None:
    """C7: text that only the old log held is saved a moment after the new log began; no page may show a hole."""
    reader = Reader(sources, session_id)
    turn = Turn(sources.factory, sources.log, session_id)
    turn.say("kept ")
    turn.save()
    wait_for(lambda: reader.error or reader.page.answer(turn.run_id) == "kept ")
    turn.say("lost with the old log, ", unheard=True)
    turn.say("told by the new one", new_epoch=True)
    time.sleep(0.1)
    turn.save()
    wait_for(lambda: reader.error or reader.page.answer(turn.run_id) == turn.text)
    assert reader.stop().snapshots == 2


def test_an_event_that_is_not_ours_is_passed_over(sources: Sources, session_id: str) -> None:
    """S48, F53: its place in the log is kept, nothing of it is shown, what follows comes through."""
    reader = Reader(sources, session_id)
    turn = Turn(sources.factory, sources.log, session_id)
    turn.say("before ")
    hostile = [
        '{"event":"message.delta","session_id":"another","run_id":"r","data":{"part":0,"offset":0,"text":"<script>"}}',
        f'{{"event":"from.the.future","session_id":"{session_id}","data":{{"html":"<script>"}}}}',
        '{"event":"message.delta","data":"<script>"}',
        "{<script>}",
    ]
    sources.log.append(session_id, hostile)
    turn.say("after")
    turn.finish()
    wait_for(lambda: reader.error or turn.run_id in reader.page.ended)
    page = reader.stop()
    assert page.answer(turn.run_id) == "before after"
    assert len(page.seen) == turn.seq
    head = sources.log.head(session_id)
    assert head is not None
    entries = sources.log.read_after(session_id, Cursor(head.epoch, 0))
    assert entries is not None
    assert not [entry for entry in entries if "script" in read_entry(session_id, entry).text]


def test_a_published_event_that_is_not_in_the_log_is_not_shown(
    sources: Sources, session_id: str, client: "redis.Redis"
) -> None:
    reader = Reader(sources, session_id)
    turn = Turn(sources.factory, sources.log, session_id)
    turn.say("true ")
    wait_for(lambda: reader.error or reader.page.answer(turn.run_id) == "true ")
    forged = (
        f'{turn.epoch} {turn.seq + 40}\n{{"event":"message.delta","session_id":"{session_id}","run_id":"{turn.run_id}",'
        f'"data":{{"part":0,"offset":5,"text":"forged"}}}}'
    )
    client.publish(Keys().channel(session_id), forged)
    client.publish(Keys().channel(session_id), b"nonsense\xff")
    client.publish(Keys().channel(session_id), forged.replace(str(turn.epoch), "elsewhere", 1))
    turn.say("text")
    turn.finish()
    wait_for(lambda: reader.error or turn.run_id in reader.page.ended)
    assert reader.stop().answer(turn.run_id) == "true text"


def test_lost_publishes_are_read_from_the_log(sources: Sources, session_id: str, client: "redis.Redis") -> None:
    """F18, as the watch sees it: the log went on, nothing was heard."""
    reader = Reader(sources, session_id)
    turn = Turn(sources.factory, sources.log, session_id)
    turn.say("heard ")
    wait_for(lambda: reader.error or reader.page.answer(turn.run_id) == "heard ")
    turn.log = EventLog(client, DeafKeys())
    turn.say("unheard")
    watch = Watch(sources.factory, sources.log, sources.hub, Connections(limit=1, limit_per_user=0))
    assert reader.page.answer(turn.run_id) == "heard "
    watch.compare_heads()
    wait_for(lambda: reader.error or reader.page.answer(turn.run_id) == "heard unheard")
    assert reader.stop().snapshots == 1


class DeafKeys(Keys):
    """Publishes where nobody listens."""

    def channel(self, session_id: str) -> str:
        return "nowhere"


def test_a_jump_in_the_numbers_is_healed_at_once(sources: Sources, session_id: str, client: "redis.Redis") -> None:
    reader = Reader(sources, session_id)
    turn = Turn(sources.factory, sources.log, session_id)
    turn.say("heard ")
    log = turn.log
    turn.log = EventLog(client, DeafKeys())
    turn.say("unheard ")
    turn.log = log
    turn.say("heard again")
    wait_for(lambda: reader.error or reader.page.answer(turn.run_id) == turn.text)
    assert reader.stop().snapshots == 1


def test_a_commit_that_no_event_told_ends_in_a_snapshot(sources: Sources, session_id: str) -> None:
    reader = Reader(sources, session_id)
    turn = Turn(sources.factory, sources.log, session_id)
    turn.say("text")
    wait_for(lambda: reader.error or reader.page.answer(turn.run_id) == "text")
    watch = Watch(sources.factory, sources.log, sources.hub, Connections(limit=1, limit_per_user=0))
    assert not watch.compare_states()
    with transaction(sources.factory) as db:
        runs.finish(db, turn.run_id, RunState.RUNNING, RunState.COMPLETED, fence=1, content="text", transcript=None)
    assert watch.compare_states()
    watch.compare_suspects()
    wait_for(lambda: reader.error or turn.run_id in reader.page.ended)
    assert reader.stop().snapshots == 2
    assert not watch.compare_states()
