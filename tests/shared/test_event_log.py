"""The relay's event log on a real Redis: order, epochs, fences, what may be replayed, and what Redis' faults leave."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.errors import LeaseLost
from shared.protocol.events import MessageDelta, StatusUpdated, StatusUpdatedData, TextPiece, to_payload
from shared.relay.connection import AppendUnknown, RelayDown, celery_url, client_url, connect_url
from shared.relay.event_log import Cursor, Entry, EventLog, event_of, frame, parse_message
from shared.relay.keys import Keys
from tests.rig.redis_server import RedisServer

KEYS = Keys("t:")
RUN = "0123456789abcdef0123456789abcdef"


def payloads(count: int, *, start: int = 0, size: int = 0) -> list[str]:
    return [json.dumps({"event": "x", "n": n, "pad": "x" * size}) for n in range(start, start + count)]


def numbers(entries: list[Entry] | None) -> list[int]:
    assert entries is not None
    return [json.loads(entry.payload)["n"] for entry in entries]


@pytest.fixture
def log(redis_server: RedisServer) -> EventLog:
    return EventLog(connect_url(redis_server.url), KEYS)


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A server that the test may kill, freeze and fill."""
    server = RedisServer()
    yield server
    server.close()


# ---- order


def test_a_batch_gets_consecutive_numbers_and_is_read_back_in_order(log: EventLog) -> None:
    first = log.append("s", payloads(1))
    second = log.append("s", payloads(3, start=1))
    assert (first.first_seq, first.last_seq, first.epoch_changed) == (1, 1, True)
    assert (second.first_seq, second.last_seq, second.epoch_changed) == (2, 4, False)
    assert first.epoch == second.epoch
    assert log.head("s") == Cursor(first.epoch, 4)
    entries = log.read_after("s", Cursor(first.epoch, 1))
    assert numbers(entries) == [1, 2, 3]
    assert [entry.seq for entry in entries or []] == [2, 3, 4]
    assert numbers(log.read_after("s", Cursor(first.epoch, 0))) == [0, 1, 2, 3]
    assert log.read_after("s", Cursor(first.epoch, 4)) == []


def test_sessions_do_not_mix(log: EventLog) -> None:
    a, b = log.append("a", payloads(2)), log.append("b", payloads(1, start=7))
    assert a.epoch != b.epoch
    assert numbers(log.read_after("a", Cursor(a.epoch, 0))) == [0, 1]
    assert numbers(log.read_after("b", Cursor(b.epoch, 0))) == [7]
    assert log.heads(["a", "none", "b"]) == {"a": Cursor(a.epoch, 2), "none": None, "b": Cursor(b.epoch, 1)}
    assert log.heads([]) == {}


def test_threads_that_append_at_once_leave_whole_batches_and_no_hole(log: EventLog) -> None:
    def write(writer: int) -> None:
        for batch in range(25):
            log.append("s", [json.dumps({"n": writer * 1000 + batch * 4 + n}) for n in range(4)])

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    head = log.head("s")
    assert head is not None
    found = numbers(log.read_after("s", Cursor(head.epoch, 0)))
    assert head.seq == len(found) == len(set(found)) == 600
    assert all(found[at : at + 4] == list(range(found[at], found[at] + 4)) for at in range(0, 600, 4))
    for writer in range(6):
        mine = [n for n in found if n // 1000 == writer]
        assert mine == sorted(mine)


def test_every_batch_is_published_with_its_cursor(log: EventLog, redis_server: RedisServer) -> None:
    pubsub = redis_server.client.pubsub(ignore_subscribe_messages=True)
    pubsub.subscribe(KEYS.channel("s"))
    pubsub.get_message(timeout=60)
    log.append("s", payloads(2))
    log.append("s", ['{"event": "x",\r\n "n": 2}'])  # line ends in JSON are only space
    got: list[Entry] = []
    deadline = time.monotonic() + 60
    while len(got) < 3 and time.monotonic() < deadline:
        message = pubsub.get_message(timeout=1)
        if message is not None:
            got += parse_message(message["data"])
    pubsub.close()
    head = log.head("s")
    assert head is not None
    assert got == log.read_after("s", Cursor(head.epoch, 0))
    assert numbers(got) == [0, 1, 2]


@pytest.mark.parametrize(
    "message", [b"", b"\n", b"e 1", b"e\n{}", b"e x\n{}", b"e -1\n{}", b'a"b 1\n{}', b"\xff\xfe 1\n{}", b"e 1\n"]
)
def test_a_message_of_another_form_gives_no_entries(message: bytes) -> None:
    assert parse_message(message) == []


@pytest.mark.parametrize("wrong", ["", "[]", '"text"', '{"a": 1', "x{}"])
def test_only_json_objects_are_appended(log: EventLog, wrong: str) -> None:
    with pytest.raises(ValueError, match="JSON object"):
        log.append("s", [wrong])
    assert log.head("s") is None


def test_an_empty_batch_is_a_fault_of_the_caller(log: EventLog) -> None:
    with pytest.raises(ValueError, match="nothing"):
        log.append("s", [])


def test_a_frame_is_the_event_with_its_cursor_and_text_is_exact(log: EventLog) -> None:
    text = 'quote " back \\ line\nend\u2028 你好😀 \x1b[0m'
    event = MessageDelta(session_id="s", run_id=RUN, fence=3, data=TextPiece(part=1, offset=0, text=text))
    done = log.append("s", [to_payload(event)])
    (entry,) = log.read_after("s", Cursor(done.epoch, 0)) or []
    heard = json.loads(frame(entry))
    assert (heard["seq"], heard["epoch"], heard["event"]) == (1, done.epoch, "message.delta")
    assert heard["data"] == {"part": 1, "offset": 0, "text": text}
    again = event_of(entry, "s")
    assert isinstance(again, MessageDelta)
    assert again.data == event.data


def test_both_keys_expire_together_and_the_prefix_is_kept(log: EventLog, redis_server: RedisServer) -> None:
    log.append("s", payloads(1))
    client = redis_server.client
    assert sorted(client.keys("*")) == [b"t:{s}:h", b"t:{s}:s"]
    ages = [client.pttl(key) for key in ("t:{s}:h", "t:{s}:s")]
    assert all(86_000_000 < age <= 86_400_000 for age in ages)


# ---- epochs


def test_a_new_epoch_can_be_asked_for(log: EventLog) -> None:
    old = log.append("s", payloads(3))
    new = log.append("s", payloads(1, start=9), new_epoch=True)
    assert new.epoch != old.epoch
    assert (new.first_seq, new.last_seq, new.epoch_changed) == (1, 1, True)
    assert log.read_after("s", Cursor(old.epoch, 3)) is None
    assert numbers(log.read_after("s", Cursor(new.epoch, 0))) == [9]


def test_f14_redis_killed_without_persistence_begins_a_new_epoch(own_redis: RedisServer) -> None:
    log = EventLog(connect_url(own_redis.url), KEYS)
    old = log.append("s", payloads(5))
    own_redis.kill()
    for ask in (lambda: log.append("s", payloads(1)), lambda: log.head("s"), lambda: log.heads(["s"])):
        with pytest.raises(RelayDown) as caught:
            ask()
        assert not isinstance(caught.value, AppendUnknown)  # it was surely not appended
    own_redis.start()
    assert log.head("s") is None
    assert log.read_after("s", Cursor(old.epoch, 5)) is None
    new = log.append("s", payloads(1, start=5))
    assert new.epoch != old.epoch
    assert (new.first_seq, new.epoch_changed) == (1, True)


def test_f15_a_redis_rolled_back_to_an_old_file_never_passes_for_the_old_log(own_redis: RedisServer) -> None:
    log = EventLog(connect_url(own_redis.url), KEYS)
    old = log.append("s", payloads(3), run_id=RUN, fence=4)
    own_redis.client.save()
    log.append("s", payloads(3, start=3), run_id=RUN, fence=4)
    own_redis.kill()
    own_redis.start()
    assert (
        own_redis.client.hget(KEYS.log_hash("s"), "e") == old.epoch.encode()
    )  # the old log is there, of another server
    assert log.head("s") is None
    for seq in range(7):
        assert log.read_after("s", Cursor(old.epoch, seq)) is None
    new = log.append("s", payloads(1, start=6), run_id=RUN, fence=4)
    assert new.epoch != old.epoch
    assert new.epoch_changed
    assert numbers(log.read_after("s", Cursor(new.epoch, 0))) == [6]
    with pytest.raises(LeaseLost):
        log.append("s", payloads(1), run_id=RUN, fence=3)  # what the file knew of fences still counts


def test_a_restart_that_kept_everything_is_a_new_epoch_too() -> None:
    server = RedisServer(appendonly=True)
    try:
        log = EventLog(connect_url(server.url), KEYS)
        old = log.append("s", payloads(2))
        server.client.shutdown(nosave=True)
        assert server.process is not None
        server.process.wait()
        server.start()
        assert log.head("s") is None
        assert log.append("s", payloads(1)).epoch != old.epoch
    finally:
        server.close()


def test_a_stream_that_is_not_what_we_wrote_begins_a_new_epoch(log: EventLog, redis_server: RedisServer) -> None:
    old = log.append("s", payloads(2))
    redis_server.client.xadd(KEYS.log_stream("s"), {"p": "{}"}, id="9-0")
    assert log.read_after("s", Cursor(old.epoch, 1)) is None
    new = log.append("s", payloads(2, start=2))
    assert new.epoch != old.epoch
    assert (new.first_seq, new.last_seq) == (1, 2)
    assert numbers(log.read_after("s", Cursor(new.epoch, 0))) == [2, 3]


# ---- fences


def test_a_stale_fence_is_refused_and_leaves_nothing(log: EventLog) -> None:
    done = log.append("s", payloads(1), run_id=RUN, fence=5)
    with pytest.raises(LeaseLost):
        log.append("s", payloads(3), run_id=RUN, fence=4)
    assert log.head("s") == Cursor(done.epoch, 1)
    assert log.append("s", payloads(1), run_id=RUN, fence=5).last_seq == 2
    assert log.append("s", payloads(1), run_id=RUN, fence=6).last_seq == 3
    with pytest.raises(LeaseLost):
        log.append("s", payloads(1), run_id=RUN, fence=5)


def test_what_the_web_process_says_needs_no_fence_and_changes_none(log: EventLog) -> None:
    log.append("s", payloads(1), run_id=RUN, fence=5)
    log.append("s", payloads(1), run_id=RUN)
    log.append("s", payloads(1))
    with pytest.raises(LeaseLost):
        log.append("s", payloads(1), run_id=RUN, fence=4)
    assert log.append("s", payloads(1), run_id="another", fence=1).last_seq == 4


def test_a_new_epoch_keeps_the_fences(log: EventLog) -> None:
    log.append("s", payloads(1), run_id=RUN, fence=7)
    log.append("s", payloads(1), new_epoch=True)
    with pytest.raises(LeaseLost):
        log.append("s", payloads(1), run_id=RUN, fence=6)
    with pytest.raises(LeaseLost):
        log.append("s", payloads(1), run_id=RUN, fence=6, new_epoch=True)


def test_fences_of_long_ended_runs_do_not_pile_up(redis_server: RedisServer) -> None:
    log = EventLog(connect_url(redis_server.url), KEYS, ttl_s=100)
    log.append("s", payloads(1), run_id="young", fence=3)
    long_ago = int(redis_server.client.time()[0]) - 101
    redis_server.client.hset(KEYS.log_hash("s"), mapping={f"f:old{n}": f"1 {long_ago}" for n in range(400)})
    log.append("s", payloads(1), run_id="next", fence=1)
    assert redis_server.client.hlen(KEYS.log_hash("s")) == 5  # e, q, r and two fences
    with pytest.raises(LeaseLost):
        log.append("s", payloads(1), run_id="young", fence=2)


# ---- snapshot instead of replay


def test_a_cursor_that_cannot_be_replayed_means_snapshot(log: EventLog) -> None:
    done = log.append("s", payloads(10))
    other = log.append("t", payloads(10))
    assert log.read_after("s", None) is None
    assert log.read_after("none", Cursor(done.epoch, 0)) is None
    for forged in (
        Cursor(other.epoch, 3),
        Cursor("", 3),
        Cursor("x" * 5000, 3),
        Cursor('"}', 3),
        Cursor("\ud800", 3),
        Cursor(done.epoch, 11),
        Cursor(done.epoch, -1),
        Cursor(done.epoch, 2**53),
        Cursor(done.epoch, 2**53 - 1),
        Cursor(done.epoch, 10**30),
    ):
        assert log.read_after("s", forged) is None, forged


@pytest.mark.parametrize(
    ("text", "cursor"),
    [
        ("412-k3f9", Cursor("k3f9", 412)),
        ("0-a", Cursor("a", 0)),
        *(
            (wrong, None)
            for wrong in ("", "412", "-1-a", "412-", "a-412", "٣-a", "1-a\n", " 1-a", "1" * 17 + "-a", "1-a b")
        ),
    ],
)
def test_the_id_of_a_server_sent_event_is_read_strictly(text: str, cursor: Cursor | None) -> None:
    assert Cursor.parse(text) == cursor
    if cursor is not None:
        assert str(cursor) == text


def test_f46_a_trimmed_log_is_replayed_only_as_far_as_it_is_whole(redis_server: RedisServer) -> None:
    log = EventLog(connect_url(redis_server.url), KEYS, max_events=50)
    epoch = log.append("s", payloads(30)).epoch
    log.append("s", payloads(90, start=30))
    assert redis_server.client.xlen(KEYS.log_stream("s")) == 50
    assert numbers(log.read_after("s", Cursor(epoch, 70))) == list(range(70, 120))
    for lost in (0, 1, 69):
        assert log.read_after("s", Cursor(epoch, lost)) is None
    assert log.append("s", payloads(1)).last_seq == 121


def test_far_behind_means_snapshot_by_number_and_by_size(log: EventLog) -> None:
    epoch = log.append("s", payloads(2001)).epoch
    assert len(log.read_after("s", Cursor(epoch, 1)) or []) == 2000
    assert log.read_after("s", Cursor(epoch, 0)) is None
    assert len(log.read_after("s", Cursor(epoch, 0), limit=5000) or []) == 2001
    big = log.append("b", payloads(11, size=100_000)).epoch
    assert log.read_after("b", Cursor(big, 0)) is None
    assert len(log.read_after("b", Cursor(big, 1)) or []) == 10
    assert len(log.read_after("b", Cursor(big, 0), max_bytes=2 << 20) or []) == 11


def test_a_log_with_a_hole_is_not_replayed(log: EventLog, redis_server: RedisServer) -> None:
    epoch = log.append("s", payloads(5)).epoch
    redis_server.client.xdel(KEYS.log_stream("s"), "3-0")
    assert log.read_after("s", Cursor(epoch, 0)) is None
    assert log.read_after("s", Cursor(epoch, 2)) is None
    assert numbers(log.read_after("s", Cursor(epoch, 3))) == [3, 4]
    redis_server.client.delete(KEYS.log_stream("s"))
    assert log.read_after("s", Cursor(epoch, 3)) is None


def test_planted_events_are_not_ours(log: EventLog) -> None:
    mine = StatusUpdated(session_id="s", run_id=RUN, data=StatusUpdatedData(text="ok"))
    foreign = mine.model_copy(update={"session_id": "t"})
    epoch = log.append("s", [to_payload(mine), to_payload(foreign), '{"event":"<script>"}', "{not json}"]).epoch
    entries = log.read_after("s", Cursor(epoch, 0)) or []
    assert [event_of(entry, "s") is not None for entry in entries] == [True, False, False, False]


def test_the_cursor_of_a_frame_cannot_be_overruled_by_its_payload(log: EventLog) -> None:
    epoch = log.append("s", ['{"event":"x","seq":99,"epoch":"planted"}']).epoch
    (entry,) = log.read_after("s", Cursor(epoch, 0)) or []
    heard = json.loads(frame(entry))
    assert (heard["seq"], heard["epoch"]) == (1, epoch)


def test_a_planted_epoch_is_no_cursor(log: EventLog, redis_server: RedisServer) -> None:
    log.append("s", payloads(1))
    redis_server.client.hset(KEYS.log_hash("s"), "e", '"}<script>')
    assert log.head("s") is None


# ---- Redis fails


def test_an_append_without_an_answer_is_unknown_and_never_repeated(own_redis: RedisServer) -> None:
    log = EventLog(connect_url(own_redis.url, timeout_s=3), KEYS)
    old = log.append("s", payloads(1))
    own_redis.pause()
    with pytest.raises(AppendUnknown):
        log.append("s", payloads(1, start=1))
    own_redis.resume()
    head = log.head("s")  # asked after the frozen append, so it has been run or dropped by now
    assert head is not None
    assert head.seq in (1, 2)
    new = log.append("s", payloads(1, start=2))
    assert new.epoch_changed  # by itself: everybody takes a snapshot
    assert new.epoch != old.epoch
    assert numbers(log.read_after("s", Cursor(new.epoch, 0))) == [2]
    assert not log.append("s", payloads(1, start=3)).epoch_changed


def test_a_connection_cut_after_sending_is_unknown_whether_it_was_kept_or_not(own_redis: RedisServer) -> None:
    proxy = CuttingProxy(own_redis.socket, own_redis.folder / "proxy.sock")
    log, direct = EventLog(connect_url(proxy.url), KEYS), EventLog(connect_url(own_redis.url), KEYS)
    try:
        first = log.append("s", payloads(1))
        for what, was_kept in (("answer", True), ("request", False)):
            proxy.cut = what
            with pytest.raises(AppendUnknown):
                log.append("s", payloads(1, start=1))
            proxy.cut = None
            before = Cursor(first.epoch, first.last_seq)
            assert direct.head("s") == (Cursor(first.epoch, first.last_seq + 1) if was_kept else before)
            first = log.append("s", payloads(1, start=5))
            assert first.epoch_changed
            assert numbers(direct.read_after("s", Cursor(first.epoch, 0))) == [5]
    finally:
        proxy.close()


def test_a_connection_that_died_while_idle_costs_nothing(own_redis: RedisServer) -> None:
    log = EventLog(connect_url(own_redis.url), KEYS)
    log.append("s", payloads(1))
    for n in range(1, 6):
        own_redis.client.client_kill_filter(_type="normal", skipme=True)
        assert log.append("s", payloads(1, start=n)).last_seq == n + 1
    head = log.head("s")
    assert head is not None
    assert numbers(log.read_after("s", Cursor(head.epoch, 0))) == list(range(6))


def test_a_script_cache_that_was_emptied_costs_one_more_question(log: EventLog, redis_server: RedisServer) -> None:
    epoch = log.append("s", payloads(1)).epoch
    redis_server.client.script_flush()
    assert log.append("s", payloads(2, start=1)).last_seq == 3
    redis_server.client.script_flush()
    assert numbers(log.read_after("s", Cursor(epoch, 0))) == [0, 1, 2]
    redis_server.client.script_flush()
    assert log.head("s") == Cursor(epoch, 3)


def test_a_full_redis_refuses_and_the_log_is_as_it_was(own_redis: RedisServer) -> None:
    log = EventLog(connect_url(own_redis.url), KEYS)
    done = log.append("s", payloads(3))
    own_redis.client.config_set("maxmemory", 1)
    with pytest.raises(RelayDown) as caught:
        log.append("s", payloads(2))
    assert not isinstance(caught.value, AppendUnknown)
    own_redis.client.config_set("maxmemory", 0)
    assert log.head("s") == Cursor(done.epoch, 3)
    assert log.append("s", payloads(1, start=3)).last_seq == 4


def test_a_redis_that_refuses_for_want_of_rights_is_down_not_unknown(own_redis: RedisServer) -> None:
    own_redis.client.acl_setuser(
        "portal", enabled=True, reset=True, passwords=["+pw"], keys=["t:*"], channels=["*"], commands=["+@all", "-info"]
    )
    log = EventLog(connect_url(f"{own_redis.url}?username=portal&password=pw"), KEYS)
    with pytest.raises(RelayDown) as caught:
        log.append("s", payloads(1))
    assert not isinstance(caught.value, AppendUnknown)


def test_the_rights_that_the_guide_names_are_enough(own_redis: RedisServer) -> None:
    """S46."""
    own_redis.client.acl_setuser(
        "portal",
        enabled=True,
        reset=True,
        passwords=["+pw"],
        keys=["t:*"],
        channels=["*"],
        commands=["+@all", "-@dangerous", "+info"],
    )
    log = EventLog(connect_url(f"{own_redis.url}?username=portal&password=pw"), KEYS)
    epoch = log.append("s", payloads(2), run_id=RUN, fence=1).epoch
    assert numbers(log.read_after("s", Cursor(epoch, 0))) == [0, 1]


# ---- a reader that must miss nothing (F17, F18)


def test_f17_a_reader_whose_subscription_is_cut_again_and_again_gets_everything_once(own_redis: RedisServer) -> None:
    log = EventLog(connect_url(own_redis.url), KEYS)
    epoch = log.append("s", payloads(1)).epoch
    reader = Reader(own_redis.url, Cursor(epoch, 0))
    reader.start()
    for n in range(1, 301):
        log.append("s", payloads(1, start=n))
        if n % 30 == 0:
            own_redis.client.client_kill_filter(_type="pubsub")
        time.sleep(0.002)
    assert reader.wait_for(301)
    assert reader.seen == [(epoch, seq) for seq in range(1, 302)]


def test_f18_lost_publishes_are_filled_from_the_log(own_redis: RedisServer) -> None:
    log = EventLog(connect_url(own_redis.url), KEYS)
    epoch = log.append("s", payloads(1)).epoch
    reader = Reader(own_redis.url, Cursor(epoch, 0), lose=lambda number: number % 3 != 0)
    reader.start()
    for n in range(1, 101):
        log.append("s", payloads(1, start=n))
    assert reader.wait_for(101)
    assert reader.seen == [(epoch, seq) for seq in range(1, 102)]


def test_addresses_of_redis_in_both_spellings() -> None:
    assert client_url("redis+socket:///run/r.sock") == "unix:///run/r.sock"
    assert celery_url("unix:///run/r.sock") == "redis+socket:///run/r.sock"
    assert client_url("redis://h/0") == celery_url("redis://h/0") == "redis://h/0"


class Reader(threading.Thread):
    """Reads a session as RELIABILITY 3 says: subscribe, confirmed, replay, drop what it has, look at the head."""

    def __init__(self, url: str, cursor: Cursor, lose: object = None) -> None:
        super().__init__(daemon=True)
        self.client = connect_url(url)
        self.log = EventLog(self.client, KEYS)
        self.cursor = cursor
        self.lose = lose
        self.seen: list[tuple[str, int]] = []
        self.stop = threading.Event()
        self.done = 0

    def run(self) -> None:
        number = 0
        while not self.stop.is_set():
            pubsub = self.client.pubsub()
            try:
                pubsub.subscribe(KEYS.channel("s"))
                while (message := pubsub.get_message(timeout=0.2)) is None or message["type"] != "subscribe":
                    pass
                self.fill()
                while not self.stop.is_set():
                    message = pubsub.get_message(timeout=0.1)
                    if message is None:
                        self.fill()
                        continue
                    number += 1
                    if callable(self.lose) and self.lose(number):
                        continue
                    for entry in parse_message(message["data"]):
                        if entry.seq == self.cursor.seq + 1:
                            self.take(entry)
                        elif entry.seq > self.cursor.seq:
                            self.fill()
            except Exception:  # noqa: BLE001 - the connection was cut: that is the test
                continue
            finally:
                pubsub.close()

    def fill(self) -> None:
        for entry in self.log.read_after("s", self.cursor) or []:
            self.take(entry)

    def take(self, entry: Entry) -> None:
        self.cursor = Cursor(entry.epoch, entry.seq)
        self.seen.append((entry.epoch, entry.seq))

    def wait_for(self, count: int) -> bool:
        deadline = time.monotonic() + 60
        while len(self.seen) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        self.stop.set()
        self.join(60)
        return len(self.seen) == count


class CuttingProxy:
    """Stands before a Redis on a Unix socket. `cut`: None, or close the connection instead of passing on the next
    "request" or the "answer" to it."""

    def __init__(self, target: Path, path: Path) -> None:
        self.url = f"unix://{path}"
        self.cut: str | None = None
        self._target = target
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(str(self._target))
            threading.Thread(target=self._serve, args=(near, far), daemon=True).start()

    def _serve(self, near: socket.socket, far: socket.socket) -> None:
        with near, far:
            while request := near.recv(1 << 20):
                if self.cut == "request":
                    return
                far.sendall(request)
                answer = far.recv(1 << 20)
                if self.cut == "answer":
                    return
                near.sendall(answer)

    def close(self) -> None:
        self._server.close()
