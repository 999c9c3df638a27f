"""One Redis listener for all pages of a process: nothing is missed after a confirmed subscription, whatever happens."""

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from shared.protocol.events import SessionUpdated, SessionUpdatedData, to_payload
from shared.relay.connection import RelayDown, connect_url
from shared.relay.event_log import EventLog
from shared.relay.keys import Keys
from shared.settings import Settings
from tests.rig.proxy import Proxy
from tests.rig.redis_server import RedisServer
from tests.webapp.live_rig import wait_for
from webapp.live.hub import Hub
from webapp.live.live_event import LiveEvent

KEYS = Keys("hub:")  # other tests' processes use the same Redis


class Ear:
    """A sink that notes what it hears."""

    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.calls = self.heals = self.losses = 0
        self.threads: set[str] = set()

    def put(self, events: Sequence[LiveEvent]) -> None:
        self.calls += 1
        self.threads.add(threading.current_thread().name)
        self.seqs += [event.seq for event in events]

    def heal(self) -> None:
        self.heals += 1

    def relay_lost(self) -> None:
        self.losses += 1


@pytest.fixture
def client(redis_server: RedisServer) -> Any:
    return connect_url(redis_server.url)


@pytest.fixture
def hub(client: Any) -> Iterator[Hub]:
    made = Hub(Settings(), client=client, keys=KEYS)
    yield made
    made.close()


def tell(client: Any, session_id: str, times: int = 1) -> None:
    payload = to_payload(SessionUpdated(session_id=session_id, data=SessionUpdatedData(title="t")))
    EventLog(client, KEYS).append(session_id, [payload] * times)


def test_what_is_published_after_subscribe_returns_is_heard(hub: Hub, client: Any) -> None:
    for n in range(200):
        ear = Ear()
        hub.subscribe(f"s{n}", ear)
        tell(client, f"s{n}")
        wait_for(lambda ear=ear: ear.seqs == [1])


def test_one_connection_and_one_thread_serve_all(hub: Hub, client: Any, redis_server: RedisServer) -> None:
    ears = [Ear() for _ in range(50)]
    for n, ear in enumerate(ears):
        hub.subscribe(f"s{n % 10}", ear)
    tell(client, "s3", times=4)
    wait_for(lambda: [ear.seqs for n, ear in enumerate(ears) if n % 10 == 3] == [[1, 2, 3, 4]] * 5)
    assert not any(ear.seqs for n, ear in enumerate(ears) if n % 10 != 3)
    assert redis_server.client.pubsub_numsub(KEYS.channel("s3")) == [(KEYS.channel("s3").encode(), 1)]
    assert hub.connections == 1
    assert ears[3].threads == {"live-hub"}


def test_the_last_to_leave_ends_the_subscription(hub: Hub, client: Any, redis_server: RedisServer) -> None:
    first, second = Ear(), Ear()
    hub.subscribe("s", first)
    hub.subscribe("s", second)
    hub.unsubscribe("s", first)
    tell(client, "s")
    wait_for(lambda: second.seqs == [1])
    assert first.seqs == []
    hub.unsubscribe("s", second)
    hub.unsubscribe("s", second)
    wait_for(lambda: redis_server.client.pubsub_channels("hub:*") == [])
    hub.subscribe("s", first)
    tell(client, "s")
    wait_for(lambda: first.seqs == [2])


def test_after_a_cut_everybody_is_told_to_look_and_hears_again(
    hub: Hub, client: Any, redis_server: RedisServer
) -> None:
    ears = [Ear() for _ in range(3)]
    for n, ear in enumerate(ears):
        hub.subscribe(f"s{n}", ear)
    redis_server.client.client_kill_filter(_type="pubsub")
    wait_for(lambda: all(ear.heals == 1 for ear in ears))
    assert all(ear.losses == 1 for ear in ears)
    tell(client, "s1")
    wait_for(lambda: ears[1].seqs == [1])


def test_subscribing_while_redis_is_away_promises_a_look_later() -> None:
    server = RedisServer()
    hub = Hub(Settings(), client=connect_url(server.url), keys=KEYS)
    try:
        server.kill()
        ear = Ear()
        started = time.monotonic()
        with pytest.raises(RelayDown):
            hub.subscribe("s", ear, timeout_s=600)  # it need not wait so long to know
        assert time.monotonic() - started < 60
        server.start()
        wait_for(lambda: ear.heals == 1)
        tell(connect_url(server.url), "s")
        wait_for(lambda: ear.seqs == [1])
    finally:
        hub.close()
        server.close()


def test_a_connection_that_falls_silent_is_made_anew(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall that forgot the connection sends no reset: only an unanswered ping tells."""
    for name, value in {"READ_TIMEOUT_S": 0.1, "PING_AFTER_S": 0.2, "SILENCE_S": 3.0}.items():
        monkeypatch.setattr(f"webapp.live.hub.{name}", value)
    proxy = Proxy(redis_server.socket)
    hub = Hub(Settings(), client=connect_url(proxy.redis_url), keys=KEYS)
    try:
        ear = Ear()
        hub.subscribe("s", ear)

        def stays() -> bool:
            made = hub.connections
            time.sleep(3.5)
            return hub.connections == made

        # Pings are answered: the connection stays. Where answers count for nothing none stays; where a thread stands
        # still for longer than the silence that is borne, one does not.
        assert any(stays() for _ in range(5))
        losses = ear.losses
        proxy.stalled = True
        wait_for(lambda: ear.losses > losses)
        heals = ear.heals
        proxy.stalled = False
        wait_for(lambda: ear.heals > heals)
    finally:
        hub.close()
        proxy.close()
