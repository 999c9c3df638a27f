"""Heartbeats on a real Redis: who lives, what they drive, who watches; nothing stays for ever, nothing is believed."""

from collections.abc import Iterator

import pytest

from shared import clock
from shared.relay.connection import RelayDown, connect_url
from shared.relay.keys import Keys
from shared.relay.presence import Presence, Watcher, WorkerFacts
from tests.rig.redis_server import RedisServer

KEYS = Keys("t:")


def facts(worker_id: str, *runs: str) -> WorkerFacts:
    return WorkerFacts(
        worker_id=worker_id,
        host="h",
        pid=7,
        started_at=clock.now().replace(microsecond=0),
        concurrency=50,
        queues=["runs", f"runs.{worker_id}"],
        runs=list(runs),
    )


@pytest.fixture
def presence(redis_server: RedisServer) -> Presence:
    return Presence(connect_url(redis_server.url), KEYS)


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.close()


def test_a_heartbeat_tells_of_the_worker_and_its_runs(presence: Presence) -> None:
    assert presence.workers() == []
    a, b = facts("a", "r1", "r2"), facts("b")
    presence.beat_worker(b)
    presence.beat_worker(a)
    assert presence.workers() == [a, b]
    assert presence.takes_turns("a")
    assert not presence.takes_turns("c")
    presence.beat_worker(a.model_copy(update={"draining": True}))
    assert not presence.takes_turns("a")
    assert presence.run_is_alive("r1")
    assert not presence.run_is_alive("r3")


def test_a_worker_that_leaves_is_gone(presence: Presence) -> None:
    presence.beat_worker(facts("a"))
    presence.leave_worker("a")
    assert presence.workers() == []
    assert presence.dead_workers() == []


def test_a_worker_without_a_heartbeat_is_dead_until_it_is_forgotten(
    presence: Presence, redis_server: RedisServer
) -> None:
    presence.beat_worker(facts("a"))
    presence.beat_worker(facts("b"))
    redis_server.client.rpush(KEYS.mailbox("a"), b"{}")
    redis_server.client.pexpire(KEYS.worker("a"), 1)
    while redis_server.client.exists(KEYS.worker("a")):
        pass
    assert [worker.worker_id for worker in presence.workers()] == ["b"]
    assert presence.dead_workers() == ["a"]
    presence.forget_worker("a")
    assert presence.dead_workers() == []
    assert not redis_server.client.exists(KEYS.mailbox("a"))


def test_watchers_come_and_go(presence: Presence) -> None:
    ann, bob = Watcher(user_id="1", name="Ann"), Watcher(user_id="2", name="Bob")
    presence.watch("s", ann)
    presence.watch("s", bob)
    presence.watch("s", ann)
    assert sorted(presence.watchers("s"), key=lambda each: each.name) == [ann, bob]
    assert presence.watchers("t") == []
    presence.unwatch("s", ann)
    assert presence.watchers("s") == [bob]


def test_a_watcher_who_gave_no_sign_for_a_minute_is_gone(presence: Presence, redis_server: RedisServer) -> None:
    ann = Watcher(user_id="1", name="Ann")
    presence.watch("s", ann)
    redis_server.client.zincrby(KEYS.watchers("s"), -61, ann.model_dump_json())
    assert presence.watchers("s") == []


def test_every_key_expires(presence: Presence, redis_server: RedisServer) -> None:
    presence.beat_worker(facts("a", "r1"))
    presence.watch("s", Watcher(user_id="1", name="Ann"))
    keys = redis_server.client.keys("*")
    assert len(keys) == 4
    assert all(redis_server.client.ttl(key) > 0 for key in keys)


def test_planted_facts_are_not_believed(presence: Presence, redis_server: RedisServer) -> None:
    presence.beat_worker(facts("a"))
    for worker_id, raw in (("b", b"{"), ("c", b'{"worker_id": "c"}'), ("d", b"\xff")):
        redis_server.client.zadd(KEYS.workers(), {worker_id: 1})
        redis_server.client.set(KEYS.worker(worker_id), raw)
    assert [worker.worker_id for worker in presence.workers()] == ["a"]
    redis_server.client.zadd(KEYS.watchers("s"), {b"<script>": 9e12})
    assert presence.watchers("s") == []


def test_facts_of_a_newer_version_are_read(presence: Presence, redis_server: RedisServer) -> None:
    presence.beat_worker(facts("a"))
    raw = redis_server.client.get(KEYS.worker("a"))
    redis_server.client.set(KEYS.worker("a"), raw[:-1] + b',"colour":"blue"}')
    assert presence.workers() == [facts("a").model_copy(update={"started_at": presence.workers()[0].started_at})]


def test_a_dead_redis_is_said_so(own_redis: RedisServer) -> None:
    presence = Presence(connect_url(own_redis.url), KEYS)
    own_redis.kill()
    for ask in (presence.workers, presence.dead_workers):
        with pytest.raises(RelayDown):
            ask()
    with pytest.raises(RelayDown):
        presence.beat_worker(facts("a"))
    with pytest.raises(RelayDown):
        presence.run_is_alive("r")
