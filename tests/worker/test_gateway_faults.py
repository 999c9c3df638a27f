"""What gateways send instead of an answer (F34, F35): at most one turn, and a sentence that a person understands."""

import random
import socket

import pytest

from shared.errors import (
    BackendError,
    BackendLost,
    BackendProtocolError,
    BackendRefused,
    BackendTimeout,
    BackendUnavailable,
)
from tests.peers.gateway import (
    KEEPALIVE,
    Answer,
    Cut,
    Delay,
    FakeGateway,
    Frames,
    json_answer,
    raw_answer,
    split,
    stream,
    text_turn,
    tool_turn,
)
from tests.rig.backend_turns import play, some_settings
from tests.rig.gateway_turns import played
from worker.backends import base
from worker.backends.gateway.backend import GatewayBackend

# ---- F34: what peers send instead


HTML = "text/html"
SAID = [
    (json_answer({"error": {"message": "Bad", "code": "bad_key"}}, status=401), BackendRefused, "HERMES_GATEWAY_KEY"),
    (json_answer({"error": "x"}, status=403), BackendRefused, "HERMES_GATEWAY_KEY"),
    (raw_answer(b"404: Not Found", "text/plain", status=404), BackendRefused, "HERMES_GATEWAY_URL"),
    (json_answer({"error": {"message": "bad block"}}, status=400), BackendRefused, "bad block"),
    (json_answer({"detail": "no"}, status=422), BackendRefused, "no"),
    (json_answer({"error": {"message": "boom"}}, status=500), BackendError, "boom"),
    (raw_answer(b"<html>nginx</html>", HTML, status=502), BackendError, "HTTP 502"),
    (raw_answer(b"", "text/plain", status=504), BackendError, "HTTP 504"),
    (raw_answer(b"", HTML, status=302, headers={"Location": "http://b.example/x"}), BackendRefused, "b.example"),
    (raw_answer(b"<!doctype html><p>Hi", HTML), BackendProtocolError, "web page"),
    (raw_answer(b"<p>Hi", "text/plain"), BackendProtocolError, "web page"),
    (raw_answer(b"", "application/json"), BackendProtocolError, "nothing"),
    (raw_answer(b"", "text/event-stream"), BackendProtocolError, "nothing"),
    (raw_answer(b"", ""), BackendProtocolError, "nothing"),
    (json_answer({"error": {"message": "model not loaded"}}), BackendRefused, "model not loaded"),
    (json_answer({"hello": 1}), BackendProtocolError, "no answer"),
    (raw_answer(b"{nonsense", "application/json"), BackendProtocolError, "no answer"),
]


@pytest.mark.parametrize(("answer", "kind", "said"), SAID)
def test_other_answers_become_a_sentence(answer: Answer, kind: type[BackendError], said: str):
    result = played(answer)
    assert isinstance(result.error, kind)
    assert not isinstance(result.error, BackendUnavailable)  # it may have begun: never sent again
    assert said in result.error.message
    assert "a-key" not in result.error.message + result.error.detail


@pytest.mark.parametrize(
    ("status", "after", "seconds"), [(429, "7", 7), (429, None, None), (503, "7", 7), (503, "soon", None)]
)
def test_busy_is_surely_not_accepted_and_may_be_tried_again(status: int, after: str | None, seconds: int | None):
    headers = {"Retry-After": after} if after else {}
    result = played(json_answer({"error": {"message": "Too many runs"}}, status=status, headers=headers))
    assert isinstance(result.error, BackendUnavailable)
    assert result.error.retry_after_s == seconds
    assert "Too many runs" in result.error.message


def test_nobody_listening_is_surely_not_accepted():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        backend = GatewayBackend(f"http://127.0.0.1:{taken.getsockname()[1]}", None, settings=some_settings())
        result = play(backend)
    assert isinstance(result.error, BackendUnavailable)
    assert "Nothing listens" in result.error.message


def test_an_unknown_name_is_surely_not_accepted():
    result = play(GatewayBackend("http://gateway.invalid:8642", None, settings=some_settings()))
    assert isinstance(result.error, BackendUnavailable)
    assert "gateway.invalid" in result.error.message


def test_http_where_https_is_expected_is_said():
    with FakeGateway({}) as gateway:
        backend = GatewayBackend(gateway.url.replace("http:", "https:"), None, settings=some_settings())
        result = play(backend)
    assert isinstance(result.error, BackendUnavailable)
    assert "https" in result.error.message


def test_a_connection_closed_before_the_head_may_have_begun():
    for how in ("fin", "rst"):
        result = played(Answer(before=[Cut(how)]))
        assert isinstance(result.error, BackendLost)
        assert not isinstance(result.error, BackendUnavailable)


def test_a_slow_head_ends_at_the_limit():
    result = played(stream(*text_turn("late"), before=[Delay(600)]), run_keepalive_timeout_s=3)
    assert isinstance(result.error, BackendTimeout)


def test_silence_in_the_stream_ends_at_the_limit():
    frames = Frames()
    result = played(stream(frames.created(), *frames.text("so far"), Delay(600)), run_keepalive_timeout_s=3)
    assert isinstance(result.error, BackendTimeout)
    assert result.text == "so far"


def test_endless_keepalives_end_at_their_limit(patience_clock: None):
    frames = Frames()
    steps = [frames.created(), *[KEEPALIVE] * 20, *frames.text("at last"), frames.completed()]
    result = played(stream(*steps), run_keepalive_timeout_s=60)
    assert isinstance(result.error, BackendTimeout)
    assert "signs of life" in result.error.message
    assert not result.text


def test_repeated_events_count_once():
    steps, _ = tool_turn()
    doubled = [frame for step in steps for frame in (step, step)]
    result = played(stream(*doubled))
    assert result.error is None
    once = played(stream(*steps)).content
    assert result.content == once
    again = [*steps[:6], *steps[2:6], *steps[6:]]
    assert played(stream(*again)).content == once


@pytest.mark.parametrize("place", [2, 4, 8])
def test_a_missing_or_late_event_is_a_protocol_error(place: int):
    steps, _ = tool_turn()
    missing = played(stream(*steps[:place], *steps[place + 1 :]))
    assert isinstance(missing.error, BackendProtocolError)
    late = played(stream(*steps[:place], steps[place + 1], steps[place], *steps[place + 2 :]))
    assert isinstance(late.error, BackendProtocolError)


@pytest.mark.parametrize(
    "junk",
    [
        b"data: {nonsense\n\n",
        b"event: response.output_text.delta\ndata: [1, 2]\n\n",
        b'event: response.output_text.delta\ndata: {"delta": {"a": 1}}\n\n',
        b"event: response.completed\ndata: {}\n\n",
        b"event: response.created\ndata: " + b"[" * 100_000 + b"\n\n",
        b"event: response.output_text.delta\ndata: \xff\xfe\n\n",
    ],
)
def test_nonsense_where_an_event_was_promised_is_a_protocol_error(junk: bytes):
    frames = Frames()
    result = played(stream(frames.created(), *frames.text("so far"), junk, frames.completed()))
    assert isinstance(result.error, BackendProtocolError)
    assert result.text == "so far"


def test_random_garbage_never_hangs_or_crashes():
    dice = random.Random(34)
    for _ in range(20):
        steps, _ = tool_turn()
        whole = bytearray(b"".join(steps))
        for _ in range(dice.randint(1, 8)):
            whole[dice.randrange(len(whole))] = dice.randrange(256)
        result = played(stream(*split([bytes(whole)], 97)), run_keepalive_timeout_s=20)
        assert result.error is not None or isinstance(result.items[-1], base.Finished)


# ---- F35


def test_the_end_of_another_answer_is_a_protocol_error():
    frames = Frames()
    other = frames.body("completed") | {"id": "resp_other"}
    result = played(stream(frames.created(), *frames.text("mine"), frames.frame("response.completed", response=other)))
    assert isinstance(result.error, BackendProtocolError)
    assert not result.of(base.Finished)
