"""The gateway backend beside its streams: abort, the whole answer at once, ping, capabilities."""

import time

import pytest

from shared.errors import (
    BackendError,
)
from tests.peers.gateway import (
    NO_USAGE,
    Answer,
    Delay,
    FakeGateway,
    Frames,
    json_answer,
    raw_answer,
    stream,
    text_turn,
    tool_turn,
)
from tests.rig.backend_turns import Switch, a_turn, play
from tests.rig.gateway_turns import TURNS, a_backend
from worker.backends import base

# ---- abort


def test_an_abort_without_a_stop_request_ends_our_side_at_once():
    frames = Frames()
    controls = Switch()
    begun = time.monotonic()
    with FakeGateway({TURNS: [stream(frames.created(), *frames.text("so far"), Delay(600))]}) as gateway:
        backend = a_backend(gateway)
        result = play(
            backend,
            controls=controls,
            on_item=lambda item: controls.abort_aside() if isinstance(item, base.Text) else None,
        )
        assert time.monotonic() - begun < 60
        assert [r.path for r in gateway.requests if r.method == "POST"] == ["/v1/responses"]
    assert result.error is None
    assert not result.of(base.Finished)
    assert not result.of(base.Stopped)
    assert result.text == "so far"


def test_an_abort_before_the_head_ends_our_side_at_once():
    controls = Switch()
    begun = time.monotonic()
    with FakeGateway({TURNS: [stream(*text_turn("x"), before=[Delay(600)])]}) as gateway:
        controls.abort_aside(lambda: gateway.wait_for(TURNS))
        result = play(a_backend(gateway), controls=controls)
    assert time.monotonic() - begun < 60
    assert result.error is None


def test_an_abort_before_the_start_sends_nothing_that_is_read():
    controls = Switch()
    controls.abort()
    with FakeGateway({TURNS: [stream(*text_turn("x"))]}) as gateway:
        result = play(a_backend(gateway), controls=controls)
    assert result.error is None
    assert not result.text


# ---- execute, ping, capabilities


def test_execute_brings_the_whole_answer():
    with FakeGateway({TURNS: [json_answer(tool_turn()[1])]}) as gateway:
        result = a_backend(gateway).execute(a_turn("Sum it up"))
        assert gateway.turns[0].json["stream"] is False
    assert result.text == "Let me look. 世界🌍\n\nBoth are there."
    assert result.usage is not None


@pytest.mark.parametrize(
    "answer",
    [
        json_answer({"error": "x"}, status=500),
        json_answer(Frames().body("completed", usage=NO_USAGE)),
        raw_answer(b"", ""),
    ],
)
def test_execute_raises_what_failed(answer: Answer):
    with FakeGateway({TURNS: [answer]}) as gateway, pytest.raises(BackendError):
        a_backend(gateway).execute(a_turn("Sum it up"))


@pytest.mark.parametrize(("said", "ok"), [(" pong\n", True), ("PONG.", True), ("Sure: PONG", False)])
def test_ping_tells_what_came_instead(said: str, ok: bool):
    body = Frames().body("completed") | {
        "output": [{"type": "message", "content": [{"type": "output_text", "text": said}]}]
    }
    with FakeGateway({TURNS: [json_answer(body)]}) as gateway:
        pong = a_backend(gateway).ping()
    assert pong.ok is ok
    assert pong.got == said
    assert pong.latency_ms > 0


def test_ping_tells_the_error():
    with FakeGateway({TURNS: [json_answer({"error": {"message": "no"}}, status=401)]}) as gateway:
        pong = a_backend(gateway).ping()
    assert not pong.ok
    assert "HERMES_GATEWAY_KEY" in (pong.error or "")


def test_a_gateway_that_announces_nothing_can_do_the_least():
    with FakeGateway({}) as gateway:
        backend = a_backend(gateway)
        assert backend.version == "0.19.0"
        assert backend.capabilities == base.Capabilities(tools=True, system_messages=True, todos=True, attachments=True)
        assert len(gateway.of("GET /v1/capabilities")) == 1
        _ = backend.capabilities
        assert len(gateway.of("GET /v1/capabilities")) == 1  # asked once


def test_capabilities_are_asked_again_after_the_gateway_was_away(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("worker.backends.gateway.backend.RETRY_DISCOVERY_S", 3600.0)
    announced = json_answer({"portal_extensions": {"events": [], "stop": "/v1/responses/{id}/stop"}})
    busy = json_answer({"error": "busy"}, status=503)
    script = {
        "GET /v1/capabilities": [busy, announced],
        TURNS: [busy, stream(*text_turn("Hello"))],
    }
    with FakeGateway(script) as gateway:
        backend = a_backend(gateway)
        assert not backend.capabilities.stop
        assert not backend.capabilities.stop
        assert len(gateway.of("GET /v1/capabilities")) == 1  # one that does not answer is left alone for a while
        assert play(backend).error is not None
        assert play(backend).text == "Hello"
        assert backend.capabilities.stop
        assert len(gateway.of("GET /v1/capabilities")) == 2
