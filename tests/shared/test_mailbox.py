"""A worker's mailbox on a real Redis: notes arrive fast and in order, and the listener outlives whatever Redis does."""

import json
import threading
import time
from collections.abc import Iterator

import pytest

from shared.relay.connection import RelayDown, connect_url
from shared.relay.keys import Keys
from shared.relay.mailbox import Mailbox, Note, post
from tests.rig.redis_server import RedisServer

KEYS = Keys("t:")


class Listener:
    """A worker that listens; `got` is what it heard, with the monotonic time."""

    def __init__(self, url: str, worker_id: str = "w1", timeout_s: float = 5.0) -> None:
        self.got: list[tuple[Note, float]] = []
        self._stop = threading.Event()
        self._heard = threading.Condition()
        self._mailbox = Mailbox(connect_url(url, timeout_s=timeout_s), KEYS, worker_id)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        for note in self._mailbox.listen(self._stop):
            with self._heard:
                self.got.append((note, time.monotonic()))
                self._heard.notify_all()

    def wait_for(self, count: int, timeout_s: float = 60.0) -> list[Note]:
        with self._heard:
            self._heard.wait_for(lambda: len(self.got) >= count, timeout_s)
            return [note for note, _ in self.got]

    def close(self) -> float:
        """Stop; gives the seconds it took."""
        began = time.monotonic()
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        return time.monotonic() - began


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.close()


def abort(number: int) -> Note:
    return Note(run_id=f"r{number}", kind="abort", fence=number)


def test_notes_arrive_in_order_and_only_at_their_worker(redis_server: RedisServer) -> None:
    mine, other = Listener(redis_server.url, "w1"), Listener(redis_server.url, "w2")
    client = connect_url(redis_server.url)
    sent = [abort(n) for n in range(20)] + [Note(run_id="r", kind="answer", fence=2, pause_id="p")]
    for note in sent:
        post(client, KEYS, "w1", note)
    assert mine.wait_for(21) == sent
    mine.close()
    other.close()
    assert other.got == []


def test_a_note_arrives_within_milliseconds(redis_server: RedisServer) -> None:
    listener, client, delays = Listener(redis_server.url), connect_url(redis_server.url), []
    for n in range(30):
        began = time.monotonic()
        post(client, KEYS, "w1", abort(n))
        listener.wait_for(n + 1)
        delays.append(listener.got[n][1] - began)
    listener.close()
    assert min(delays) < 0.05
    assert sorted(delays)[15] < 0.2, "a machine that is busy with other things is slow, but nobody polls"


def test_a_note_that_was_left_while_nobody_listened_is_found(redis_server: RedisServer) -> None:
    post(connect_url(redis_server.url), KEYS, "w1", abort(1))
    assert 0 < redis_server.client.ttl(KEYS.mailbox("w1")) <= 3600
    listener = Listener(redis_server.url)
    assert listener.wait_for(1) == [abort(1)]
    listener.close()


def test_notes_of_another_form_are_skipped(redis_server: RedisServer) -> None:
    good = {"run_id": "r", "kind": "abort", "fence": 1, "of_a_newer_version": True}
    for raw in (b"", b"{", b'{"run_id": "r"}', b'{"run_id": "r", "kind": "format", "fence": 1}', b"\xff", b"[1]"):
        redis_server.client.rpush(KEYS.mailbox("w1"), raw)
    redis_server.client.rpush(KEYS.mailbox("w1"), json.dumps(good))
    listener = Listener(redis_server.url)
    assert listener.wait_for(1) == [Note(run_id="r", kind="abort", fence=1)]
    listener.close()


def test_the_listener_ends_when_it_is_told_to(redis_server: RedisServer) -> None:
    assert Listener(redis_server.url).close() < 30


def test_the_listener_outlives_a_redis_that_is_killed_and_restarted(own_redis: RedisServer) -> None:
    listener, client = Listener(own_redis.url), connect_url(own_redis.url)
    post(client, KEYS, "w1", abort(1))
    listener.wait_for(1)
    for n in (2, 3):
        own_redis.kill()
        with pytest.raises(RelayDown):
            post(client, KEYS, "w1", abort(0))
        own_redis.start()
        post(client, KEYS, "w1", abort(n))
        assert listener.wait_for(n)[-1] == abort(n)
    listener.close()


def test_the_listener_outlives_connections_that_are_cut_while_idle(own_redis: RedisServer) -> None:
    listener, client = Listener(own_redis.url), connect_url(own_redis.url)
    for n in range(1, 6):
        own_redis.client.client_kill_filter(_type="normal", skipme=True)
        time.sleep(0.05)
        post(client, KEYS, "w1", abort(n))
        assert len(listener.wait_for(n)) == n
    listener.close()


def test_the_listener_outlives_a_frozen_redis(own_redis: RedisServer) -> None:
    listener, client = Listener(own_redis.url, timeout_s=1.5), connect_url(own_redis.url)
    own_redis.pause()
    time.sleep(2.0)
    own_redis.resume()
    post(client, KEYS, "w1", abort(1))
    assert listener.wait_for(1) == [abort(1)]
    listener.close()


def test_the_loss_and_the_return_are_logged_once_each(own_redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    listener = Listener(own_redis.url)
    own_redis.kill()
    time.sleep(1.0)  # several tries fail
    own_redis.start()
    post(connect_url(own_redis.url), KEYS, "w1", abort(1))
    listener.wait_for(1)
    listener.close()
    said = [record.getMessage() for record in caplog.records if record.name.endswith("mailbox")]
    assert len([line for line in said if "mailbox.lost" in line]) == 1
    assert len([line for line in said if "mailbox.back" in line]) == 1
