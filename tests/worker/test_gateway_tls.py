"""A gateway by https: its certificate is checked before a byte of the turn is sent (S38).

The certificate in tests/wire/tls was made for these tests, with its key, and is trusted by nobody.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.errors import BackendUnavailable
from tests.peers.gateway import Delay, FakeGateway, Frames, stream, text_turn
from tests.rig.backend_turns import Switch, play, some_settings
from tests.rig.gateway_turns import TURNS, a_backend
from worker.backends import base
from worker.backends.gateway import client
from worker.backends.gateway.backend import GatewayBackend

CERTIFICATE = Path(__file__).parents[1] / "wire" / "tls" / "self_signed.pem"


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For one test the system trusts the certificate."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    client._trusted_issuers.cache_clear()
    yield
    client._trusted_issuers.cache_clear()


def test_a_certificate_that_nobody_vouches_for_is_refused():
    with FakeGateway({TURNS: [stream(*text_turn("secret"))]}, tls=CERTIFICATE) as gateway:
        result = play(a_backend(gateway))
        assert gateway.requests == []
    assert isinstance(result.error, BackendUnavailable)
    assert "not trusted" in result.error.message


def test_a_certificate_for_another_name_is_refused(trusted: None):
    with FakeGateway({TURNS: [stream(*text_turn("secret"))]}, tls=CERTIFICATE) as gateway:
        gateway.url = gateway.url.replace("localhost", "127.0.0.1")
        result = play(a_backend(gateway))
        assert gateway.requests == []
    assert isinstance(result.error, BackendUnavailable)


def test_a_trusted_gateway_is_heard(trusted: None):
    with FakeGateway({TURNS: [stream(*text_turn("Hello ", "世界"))]}, tls=CERTIFICATE) as gateway:
        result = play(a_backend(gateway))
    assert result.error is None
    assert result.text == "Hello 世界"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_the_certificate_of_a_gateway_that_was_typed_is_checked_for_its_name(trusted: None, host: str):
    """S37: it is the looked-at address that is connected to, but the name that has to be vouched for."""
    with FakeGateway({TURNS: [stream(*text_turn("Hello"))]}, tls=CERTIFICATE) as gateway:
        url = gateway.url.replace("localhost", host)
        settings = some_settings(allow_private_addresses=True)
        result = play(GatewayBackend(url, "a-key", settings=settings, is_typed=True))
    assert (result.text, result.error is None) == (("Hello", True) if host == "localhost" else ("", False))


def test_an_abort_ends_a_secure_stream_at_once(trusted: None):
    frames = Frames()
    controls = Switch()
    steps = [frames.created(), *frames.text("so far"), Delay(600)]
    with FakeGateway({TURNS: [stream(*steps)]}, tls=CERTIFICATE) as gateway:
        begun = time.monotonic()
        result = play(
            a_backend(gateway),
            controls=controls,
            on_item=lambda item: controls.abort_aside() if isinstance(item, base.Text) else None,
        )
    assert time.monotonic() - begun < 60
    assert result.error is None
    assert result.of(base.Text) == [base.Text("so far")]
