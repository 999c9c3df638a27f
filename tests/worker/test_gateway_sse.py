"""Server-sent events are read as the standard says, however their bytes were cut."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import BackendProtocolError
from worker.backends.gateway.sse import COMMENT, Comment, SseDecoder, SseEvent

STREAM = (
    '\ufeffevent: a\ndata: {"x": 1}\n\n: keepalive\n\nevent: b\r\ndata: 你好😀\r\n\r\ndata: one\rdata:two\rdata\r\r'
    "id: 7\nretry: 10\nunknown\nevent: c\ndata:   three\n\nevent: empty\n\ndata: last\n\n"
).encode()
EVENTS = [
    SseEvent("a", b'{"x": 1}'),
    COMMENT,
    SseEvent("b", "你好😀".encode()),
    SseEvent("", b"one\ntwo\n"),
    SseEvent("c", b"  three"),
    SseEvent("", b"last"),
]


def read(*chunks: bytes) -> list[SseEvent | Comment]:
    decoder = SseDecoder()
    found = [event for chunk in chunks for event in decoder.feed(chunk)]
    return [*found, *decoder.close()]


def test_all_line_ends_comments_and_fields_are_understood():
    assert read(STREAM) == EVENTS


def test_every_cut_gives_the_same_events():
    for place in range(len(STREAM) + 1):
        assert read(STREAM[:place], STREAM[place:]) == EVENTS, place
    assert read(*(STREAM[i : i + 1] for i in range(len(STREAM)))) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_any_cuts_give_the_same_events(places: list[int]):
    edges = [0, *sorted(places), len(STREAM)]
    assert read(*(STREAM[a:b] for a, b in itertools.pairwise(edges))) == EVENTS


def test_an_event_comes_with_its_blank_line_and_not_later():
    decoder = SseDecoder()
    assert decoder.feed(b"data: x\r\n") == []
    assert decoder.feed(b"\r") == [SseEvent("", b"x")]
    assert decoder.feed(b"\n") == []


def test_what_is_left_at_the_end_is_marked():
    assert read(b'data: whole\n\nevent: e\ndata: {"cut') == [
        SseEvent("", b"whole"),
        SseEvent("e", b'{"cut', is_whole=False),
    ]
    assert read(b"event: only a name\n") == []


def test_a_line_of_5_mb_is_read_in_small_chunks_without_scanning_it_again():
    line = b"data: " + b"x" * 5_000_000 + b"\n\n"
    (event,) = read(*(line[i : i + 4096] for i in range(0, len(line), 4096)))
    assert isinstance(event, SseEvent)
    assert len(event.data) == 5_000_000


def feed_often(decoder: SseDecoder, chunk: bytes) -> None:
    for _ in range(200):
        decoder.feed(chunk)


def test_an_endless_line_is_refused_before_it_fills_the_memory():
    decoder = SseDecoder(max_event_bytes=1_000_000)
    with pytest.raises(BackendProtocolError):
        feed_often(decoder, b"x" * 10_000)


def test_an_endless_event_of_short_lines_is_refused():
    decoder = SseDecoder(max_event_bytes=1_000_000)
    with pytest.raises(BackendProtocolError):
        feed_often(decoder, b"data: " + b"x" * 9_000 + b"\n")


def test_many_events_do_not_add_up_to_the_limit():
    decoder = SseDecoder(max_event_bytes=1_000)
    pieces = random.Random(7)
    for _ in range(200):
        assert decoder.feed(b"data: " + b"y" * pieces.randint(1, 900) + b"\n\n")
