"""The connection under a WebSocket: whole frames to a slow peer, an end to a dead one, wake-ups that are not lost."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from webapp.live.safe_socket import SafeSock, text_frame
from webapp.live.wakeup import Wakeup


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


def test_a_big_frame_reaches_a_slow_reader_whole(pair: tuple[socket.socket, socket.socket]) -> None:
    """STACK D5: 8 MB, of which a plain `send` would write a part."""
    ours, theirs = pair
    safe, wakeup = SafeSock(ours), Wakeup()
    safe.take_over(wakeup)
    payload = bytes(range(256)) * (8 << 12)
    received = bytearray()

    def read() -> None:
        while piece := theirs.recv(1 << 16):
            received.extend(piece)
            time.sleep(0.001)

    reader = threading.Thread(target=read)
    reader.start()
    safe.send(text_frame(payload))
    safe.send(text_frame(b"next"))
    safe.cut()
    reader.join()
    assert bytes(received) == text_frame(payload) + text_frame(b"next")
    wakeup.close()


def test_a_peer_that_takes_nothing_does_not_hold_a_connection_that_is_to_end(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    safe, wakeup = SafeSock(pair[0]), Wakeup()
    safe.take_over(wakeup)
    threading.Timer(0.1, safe.hurry).start()
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        safe.send(b"x" * (8 << 20))
    assert time.monotonic() - started < 20  # a peer that may take its time has 30 s
    wakeup.close()


def test_waiting_ends_for_input_for_a_wakeup_and_in_time(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    safe, wakeup = SafeSock(ours), Wakeup()
    safe.take_over(wakeup)
    assert not safe.wait(0.01)
    assert safe.recv() is None
    threading.Timer(0.05, wakeup.set).start()
    started = time.monotonic()
    assert not safe.wait(600)
    assert time.monotonic() - started < 60
    wakeup.clear()
    theirs.send(b"hello")
    assert safe.wait(60)
    assert safe.recv() == b"hello"
    theirs.close()
    assert safe.wait(60)
    assert safe.recv() == b""
    wakeup.close()
    wakeup.set()  # somebody who did not hear of the end


def test_no_wakeup_is_lost(pair: tuple[socket.socket, socket.socket]) -> None:
    safe, wakeup = SafeSock(pair[0]), Wakeup()
    safe.take_over(wakeup)
    waiting: list[int] = []
    seen = 0

    def produce() -> None:
        for n in range(20_000):
            waiting.append(n)
            wakeup.set()

    producer = threading.Thread(target=produce)
    producer.start()
    while seen < 20_000:
        started = time.monotonic()
        safe.wait(60)
        assert time.monotonic() - started < 60, "nobody woke it"
        wakeup.clear()
        count = len(waiting)
        seen += count
        del waiting[:count]
    producer.join()
    wakeup.close()


@pytest.mark.parametrize(("size", "head"), [(0, 2), (125, 2), (126, 4), (65_535, 4), (65_536, 10), (1 << 20, 10)])
def test_frames_carry_their_length_as_the_standard_says(size: int, head: int) -> None:
    frame = text_frame(b"x" * size)
    assert len(frame) == head + size
    assert frame[0] == 0x81
    told = frame[1] if head == 2 else int.from_bytes(frame[2:head], "big")
    assert told == size
