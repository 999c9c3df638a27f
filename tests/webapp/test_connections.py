"""How many sockets there may be, how they are kept alive, and how all of them are told to end."""

import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from simple_websocket import Server

from shared.errors import TooManyRequests, Unavailable
from tests.webapp.live_rig import wait_for
from webapp.auth import Principal
from webapp.live.connections import GOING_AWAY, POLICY, Connection, Connections
from webapp.live.json_view import JsonView
from webapp.live.safe_socket import SafeSock
from webapp.live.socket import _NoEvent, _NoThread
from webapp.live.socket_handler import SocketHandler

ANNE = Principal("anne", "Anne", "member", "cookie", sign_in_hash="a")
BERT = Principal("bert", "Bert", "member", "cookie", sign_in_hash="b")
PING, PONG = b"\x89\x00", b"\x8a\x80\0\0\0\0"


def test_each_user_has_so_many_sockets_and_streams_do_not_count() -> None:
    connections = Connections(limit=100, limit_per_user=2)
    first = connections.admit(ANNE, is_socket=True)
    connections.admit(ANNE, is_socket=True)
    connections.admit(ANNE, is_socket=False)
    with pytest.raises(TooManyRequests):
        connections.admit(ANNE, is_socket=True)
    connections.admit(BERT, is_socket=True)
    connections.release(first)
    connections.release(first)
    connections.admit(ANNE, is_socket=True)
    with pytest.raises(TooManyRequests):
        connections.admit(ANNE, is_socket=True)


def test_the_limit_counts_sockets_and_streams_together() -> None:
    connections = Connections(limit=2, limit_per_user=0)
    connections.admit(ANNE, is_socket=True)
    stream = connections.admit(BERT, is_socket=False)
    with pytest.raises(Unavailable) as refused:
        connections.admit(BERT, is_socket=True)
    assert refused.value.code == "too_many_sockets"
    assert refused.value.retry_after_s
    connections.release(stream)
    connections.admit(BERT, is_socket=True)


def test_closing_ends_all_and_admits_nobody() -> None:
    connections = Connections(limit=10, limit_per_user=0)
    open_ones = [connections.admit(ANNE, is_socket=True) for _ in range(3)]
    woken: list[int] = []
    for number, connection in enumerate(open_ones):
        connection.wake = lambda number=number: woken.append(number)  # type: ignore[misc]
    open_ones[0].end(POLICY)
    connections.close_all()
    assert [connection.ending for connection in open_ones] == [POLICY, GOING_AWAY, GOING_AWAY]
    assert sorted(woken) == [0, 0, 1, 2]
    with pytest.raises(Unavailable):
        connections.admit(ANNE, is_socket=True)


class Served:
    """A handler on one end of a socket pair; the test holds the other."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.theirs.settimeout(60)
        safe = SafeSock(ours)
        environ = {
            "werkzeug.socket": safe,
            "HTTP_HOST": "portal",
            "HTTP_UPGRADE": "websocket",
            "HTTP_CONNECTION": "Upgrade",
            "HTTP_SEC_WEBSOCKET_VERSION": "13",
            "HTTP_SEC_WEBSOCKET_KEY": "dGhlIHNhbXBsZSBub25jZQ==",
        }
        ws = Server(environ, thread_class=_NoThread, event_class=_NoEvent)
        assert self.theirs.recv(4096).startswith(b"HTTP/1.1 101")
        self.connection = Connection(ANNE, is_socket=True)
        context: Any = None
        here: Any = SimpleNamespace(sources=None)
        handler = SocketHandler(ws, safe, self.connection, context, here, JsonView())
        self.thread = threading.Thread(target=handler.run, daemon=True)
        self.thread.start()

    def hear(self) -> bytes:
        return self.theirs.recv(4096)

    def stays(self, seconds: float) -> bool:
        """Whether it is still there after so long, in which each of its pings was answered."""
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            heard = self.hear()
            pings = len(heard) // len(PING)  # of which a thread that had to wait hears several at once
            if not pings or heard != PING * pings:
                return False
            try:
                self.theirs.sendall(PONG * pings)
            except OSError:
                return False
        return self.thread.is_alive()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webapp.live.socket_handler.PING_S", 0.2)
    monkeypatch.setattr("webapp.live.socket_handler.PONG_LIMIT_S", 3.0)


@pytest.mark.usefixtures("impatient")
def test_a_client_that_answers_pings_stays() -> None:
    # Where answers count for nothing none stays; where a thread stands still for longer than the limit, one does not.
    assert any(Served().stays(4) for _ in range(5))


@pytest.mark.usefixtures("impatient")
def test_a_client_that_gives_no_sign_is_closed() -> None:
    served, heard = Served(), b""
    while (piece := served.hear()) != b"":
        heard += piece
    assert heard.startswith(PING)
    assert (1011).to_bytes(2, "big") in heard
    wait_for(lambda: not served.thread.is_alive())


def test_being_told_to_end_closes_at_once_with_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webapp.live.socket_handler.PING_S", 600.0)  # nothing else wakes the handler
    monkeypatch.setattr("webapp.live.socket_handler.PONG_LIMIT_S", 600.0)
    served = Served()
    served.connection.end(GOING_AWAY)
    heard = served.hear()
    assert heard[0] == 0x88
    assert heard[2:4] == (1012).to_bytes(2, "big")
    served.theirs.close()
    wait_for(lambda: not served.thread.is_alive())
