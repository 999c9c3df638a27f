"""The worker's end of the bridge's lines: what a child sends is checked as what a stranger sends."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import BackendError, BackendProtocolError, BackendRefused, BackendTimeout, BackendUnavailable
from worker.backends.bridge import client as bridge_client
from worker.backends.bridge.client import BridgeClient, Cut, Lines, NotKnown
from worker.backends.bridge.process import wire

SECRET = "the-secret-of-this-start"
OK = b'{"ok":true}\n'
Behave = Callable[[socket.socket, bytes], None]


class Peer:
    """A socket that does with each request what the test says."""

    def __init__(self, endpoint: str, behave: Behave) -> None:
        self.behave = behave
        self.connections: list[socket.socket] = []
        self.requests: list[bytes] = []
        if endpoint == "tcp":
            self._server = socket.create_server(("127.0.0.1", 0))
            self.endpoint = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        else:
            self._server = socket.socket(socket.AF_UNIX)
            self._server.bind(endpoint)
            self._server.listen()
            self.endpoint = f"ipc://{endpoint}"
        threading.Thread(target=self._accept, daemon=True).start()

    def client(self, response_timeout_s: float = 60.0) -> BridgeClient:
        return BridgeClient(self.endpoint, SECRET, response_timeout_s=response_timeout_s)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as lines:
            for line in lines:
                self.requests.append(line)
                try:
                    self.behave(connection, line)
                except OSError:
                    return

    def close(self) -> None:
        self._server.close()
        for connection in self.connections:
            connection.close()


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Callable[..., Peer]]:
    made: list[Peer] = []

    def make(behave: Behave, kind: str = "ipc") -> Peer:
        made.append(Peer(kind if kind == "tcp" else str(tmp_path / f"{len(made)}.sock"), behave))
        return made[-1]

    yield make
    for each in made:
        each.close()


def sends(*pieces: bytes, then_close: bool = False) -> Behave:
    def behave(connection: socket.socket, line: bytes) -> None:
        for piece in pieces:
            connection.sendall(piece)
        if then_close:
            connection.shutdown(socket.SHUT_RDWR)

    return behave


# ---- lines


@given(st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"")), max_size=12), st.data())
def test_lines_come_out_as_they_went_in_however_they_are_cut(texts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(text + b"\n" for text in texts)
    lines = Lines()
    found = []
    while whole:
        size = data.draw(st.integers(1, len(whole)))
        lines.feed(whole[:size])
        whole = whole[size:]
        while (line := lines.take()) is not None:
            found.append(line)
    assert found == [text + b"\n" for text in texts]
    assert not lines.is_in_a_line


def test_the_limit_counts_the_whole_line_with_its_end() -> None:
    lines = Lines(max_bytes=10)
    lines.feed(b"123456789\n")
    assert lines.take() == b"123456789\n"
    for too_long in ([b"1234567890\n"], [b"1234567", b"8901"], [b"12345678901"], [b"12345\n12345", b"67890\n"]):
        lines = Lines(max_bytes=10)
        with pytest.raises(BackendProtocolError, match="too long"):
            list(map(lines.feed, too_long))


def test_a_line_that_comes_byte_by_byte_costs_no_more_for_each_the_longer_it_is() -> None:
    def cost(pieces: int) -> float:
        lines = Lines()
        piece = b"x" * 64
        began = time.thread_time()
        for _ in range(pieces):
            lines.feed(piece)
        return (time.thread_time() - began) / pieces

    cost(1_000)
    few, many = min(cost(2_000) for _ in range(3)), min(cost(100_000) for _ in range(3))
    assert many < 16 * few, "quadratic: each byte is looked at again and again"


# ---- requests


@pytest.mark.parametrize("kind", ["ipc", "tcp"])
def test_a_request_carries_the_secret_and_gets_its_answer(peer: Callable[..., Peer], kind: str) -> None:
    there = peer(sends(b'{"ok":true,"told":true}\n'), kind)
    assert there.client().request("interrupt", run_id="r 世界 \ud83d")["told"] is True
    (line,) = there.requests
    assert json.loads(line) == {"action": "interrupt", "secret": SECRET, "run_id": "r 世界 \ufffd"}


def test_requests_share_a_connection_and_notice_one_that_was_closed(peer: Callable[..., Peer]) -> None:
    there = peer(sends(OK))
    client = there.client()
    for _ in range(5):
        client.request("ping")
    assert len(there.connections) == 1
    there.connections[0].shutdown(socket.SHUT_RDWR)
    client.request("ping")
    assert (len(there.connections), len(there.requests)) == (2, 6)


def test_many_requests_run_side_by_side(peer: Callable[..., Peer]) -> None:
    barrier = threading.Barrier(8)

    def behave(connection: socket.socket, line: bytes) -> None:
        barrier.wait(60)
        connection.sendall(OK)

    client = peer(behave).client()
    threads = [threading.Thread(target=client.request, args=("ping",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not barrier.broken
    assert not any(thread.is_alive() for thread in threads)


def test_a_refusal_has_its_code_and_the_connection_goes_on(peer: Callable[..., Peer]) -> None:
    there = peer(sends(b'{"ok":false,"error":{"code":"busy","message":"The session has a run."}}\n'))
    client = there.client()
    for _ in range(2):
        with pytest.raises(NotKnown, match="has a run") as caught:
            client.request("chat")
        assert caught.value.code == "busy"
    assert len(there.connections) == 1


@pytest.mark.parametrize(
    ("sent", "error", "said"),
    [
        (b"nonsense\n", BackendProtocolError, "cannot be read"),
        (b'{"ok":tr\xff\xfeue}\n', BackendProtocolError, "cannot be read"),
        (b'{"ok":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", BackendProtocolError, "cannot be read"),
        (b"[1,2]\n", BackendProtocolError, "cannot be read"),
        (b'{"ok":NaN}\n', BackendProtocolError, "cannot be read"),
        (b'{"okay":true}\n', BackendProtocolError, "no answer"),
        (b'{"ok":false,"error":"no"}\n', BackendProtocolError, "no answer"),
    ],
)
def test_what_is_no_answer_is_an_error_of_the_protocol(
    peer: Callable[..., Peer], sent: bytes, error: type[BackendError], said: str
) -> None:
    with pytest.raises(error, match=said):
        peer(sends(sent)).client().request("ping")


@pytest.mark.parametrize("begun", [b"", b'{"ok":tr'])
def test_a_connection_that_ends_before_the_answer_is_a_cut(peer: Callable[..., Peer], begun: bytes) -> None:
    with pytest.raises(Cut) as caught:
        peer(sends(begun, then_close=True)).client().request("chat")
    assert caught.value.in_a_line is bool(begun)


def test_a_line_without_end_is_refused_before_it_fills_the_memory(peer: Callable[..., Peer]) -> None:
    sent = 0

    def behave(connection: socket.socket, line: bytes) -> None:
        nonlocal sent
        while sent < 50 * 1024 * 1024:
            sent += connection.send(b"x" * 65_536)

    with pytest.raises(BackendProtocolError, match="too long"):
        peer(behave).client().request("ping")
    assert sent < 2 * wire.MAX_LINE_BYTES


def test_no_answer_in_time_is_a_timeout_also_while_half_a_line_comes(peer: Callable[..., Peer]) -> None:
    def behave(connection: socket.socket, line: bytes) -> None:
        for _ in range(3_000):
            connection.sendall(b" ")
            time.sleep(0.02)

    began = time.monotonic()
    with pytest.raises(BackendTimeout, match="did not answer"):
        peer(behave).client(response_timeout_s=0.3).request("ping")
    assert time.monotonic() - began < 20


def test_a_request_over_the_limit_is_refused_here(peer: Callable[..., Peer]) -> None:
    there = peer(sends(OK))
    with pytest.raises(BackendRefused, match="8 MiB"):
        there.client().request("chat", message="x" * wire.MAX_LINE_BYTES)
    assert there.requests == []


@pytest.mark.parametrize("endpoint", ["ipc:///nowhere/bridge.sock", "tcp://127.0.0.1:1"])
def test_nobody_there_is_unavailable_and_says_no_secret(endpoint: str) -> None:
    client = BridgeClient(endpoint, SECRET, response_timeout_s=1)
    with pytest.raises(BackendUnavailable) as caught:
        client.request("chat")
    assert SECRET not in f"{caught.value!r}{caught.value.detail}{client!r}"


def test_another_users_socket_is_not_spoken_to(peer: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch) -> None:
    there = peer(sends(OK))
    monkeypatch.setattr(bridge_client.os, "getuid", lambda: os.geteuid() + 1)
    with pytest.raises(BackendUnavailable):
        there.client().request("ping")
    assert there.requests == []


# ---- a stream


def test_a_stream_gives_line_after_line_and_says_when_none_came(peer: Callable[..., Peer]) -> None:
    go_on = threading.Event()

    def behave(connection: socket.socket, line: bytes) -> None:
        connection.sendall(OK + b'{"n":1}\n{"n":')
        go_on.wait(60)
        connection.sendall(b'2}\n{"n":3}\n')
        connection.shutdown(socket.SHUT_RDWR)

    connection = peer(behave).client().open()
    connection.ask("stream", {"run_id": "r"}, 60)
    assert connection.line(60) == {"n": 1}
    assert connection.line(0.05) is None
    go_on.set()
    assert [connection.line(60), connection.line(60)] == [{"n": 2}, {"n": 3}]
    with pytest.raises(Cut):
        connection.line(60)
    connection.close()


def test_who_reads_hears_of_a_cut_by_another_thread(peer: Callable[..., Peer]) -> None:
    connection = peer(sends(OK)).client().open()
    connection.ask("stream", {}, 60)
    threading.Timer(0.05, connection.cut).start()
    with pytest.raises(Cut):
        connection.line(60)
    connection.close()
