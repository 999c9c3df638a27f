"""Which backend serves a session, and whose key goes where."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared import settings as portal_settings
from shared.database import make_engine, make_session_factory, migrate, transaction
from shared.errors import BackendRefused
from shared.store import catalogue
from tests.peers.gateway import FakeGateway
from worker.backends.gateway.backend import GatewayBackend
from worker.backends.registry import SOURCES, Backends

KEY = "the-key-of-the-first-gateway"


@pytest.fixture
def gateways() -> Iterator[tuple[FakeGateway, FakeGateway]]:
    with FakeGateway({}) as first, FakeGateway({}) as second:
        yield first, second


def backends(folder: Path, **given: str) -> Backends:
    url = f"sqlite:///{folder / 'portal.db'}"
    migrate(url)
    settings = portal_settings.load({"DATABASE_URL": url, **given}, cwd=folder)
    return Backends(settings, make_session_factory(make_engine(url)))


def test_the_key_goes_to_the_gateway_it_was_given_for_and_to_no_other(
    tmp_path: Path, gateways: tuple[FakeGateway, FakeGateway]
) -> None:
    """CASES 162: a profile may name a gateway of its own."""
    first, second = gateways
    given = {"HERMES_GATEWAY_URL": first.url, "HERMES_GATEWAY_KEY": KEY, "PORTAL_ALLOW_PRIVATE_ADDRESSES": "1"}
    made = backends(tmp_path, **given)
    with transaction(made.factory) as db:
        catalogue.put_profile(db, name="elsewhere", gateway_url=second.url)
        catalogue.put_profile(db, name="below", gateway_url=first.url + "/p/below")
    for profile in (None, "below", "elsewhere"):
        made.backend_for("api_server", profile).ping()
    assert {request.headers.get("authorization") for request in first.requests} == {f"Bearer {KEY}"}
    assert {request.headers.get("authorization") for request in second.requests} == {None}


def test_what_cannot_be_served_is_said(tmp_path: Path) -> None:
    made = backends(tmp_path)
    for source, profile, word in (
        ("acp:nobody", None, "no agent"),
        ("api_server", None, "HERMES_GATEWAY_URL"),
        ("api_server", "gone", "is gone"),
    ):
        with pytest.raises(BackendRefused, match=word):
            made.backend_for(source, profile)


def test_a_gateway_that_was_typed_is_asked_only_where_that_is_allowed(
    tmp_path: Path, gateways: tuple[FakeGateway, FakeGateway]
) -> None:
    """S37: what is configured is trusted, also with another path; what is typed is looked at when it is asked."""
    first, second = gateways
    made = backends(tmp_path, HERMES_GATEWAY_URL=first.url)
    with transaction(made.factory) as db:
        catalogue.put_profile(db, name="elsewhere", gateway_url=second.url)
        catalogue.put_profile(db, name="by-name", gateway_url=second.url.replace("127.0.0.1", "localhost"))
        catalogue.put_profile(db, name="below", gateway_url=first.url + "/p/below")
    for profile in ("elsewhere", "by-name"):
        answer = made.backend_for("api_server", profile).ping()
        assert not answer.ok
        assert "PORTAL_ALLOW_PRIVATE_ADDRESSES" in (answer.error or "")
    assert second.requests == []
    made.backend_for("api_server", "below").ping()
    assert len(first.requests) > 0


def test_a_gateway_that_was_changed_is_the_one_that_is_asked_next(
    tmp_path: Path, gateways: tuple[FakeGateway, FakeGateway]
) -> None:
    first, second = gateways
    made = backends(tmp_path, HERMES_GATEWAY_URL=first.url, PORTAL_ALLOW_PRIVATE_ADDRESSES="1")
    with transaction(made.factory) as db:
        catalogue.put_profile(db, name="work", gateway_url=first.url)
    backend = made.backend_for("api_server", "work")
    assert made.backend_for("api_server", "work") is backend
    assert not made.is_made("api_server", "work"), "it may have changed"
    with transaction(made.factory) as db:
        catalogue.put_profile(db, name="work", gateway_url=second.url)
    made.backend_for("api_server", "work").ping()
    assert len(second.requests) > 0
    assert first.requests == []
    with transaction(made.factory) as db:
        catalogue.remove_profile(db, "work")
    with pytest.raises(BackendRefused, match="is gone"):
        made.backend_for("api_server", "work")


class Child(GatewayBackend):
    """A backend that holds something until it is closed."""

    closed: threading.Event

    def close(self) -> None:
        self.closed.set()


def test_what_was_made_for_a_profile_that_is_gone_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[Child] = []

    def make(backends_: Backends, source: str, profile: str | None) -> Child:
        child = Child("http://127.0.0.1:1", None, settings=backends_.settings)
        child.closed = threading.Event()
        children.append(child)
        return child

    monkeypatch.setitem(SOURCES, "cli", make)
    made = backends(tmp_path)
    for profile in (None, "stays", "goes"):
        made.backend_for("cli", profile)
    assert made.profiles() == {"stays", "goes"}
    made.forget({"goes"})
    assert children[2].closed.wait(60)
    assert made.profiles() == {"stays"}
    assert not children[0].closed.is_set()
    assert not children[1].closed.is_set()
    assert made.backend_for("cli", "goes") is children[3]


def test_agents_of_one_profile_are_found_by_its_name(tmp_path: Path) -> None:
    """That of the settings has none, but operators call it so."""
    made = backends(tmp_path)
    with transaction(made.factory) as db:
        catalogue.put_profile(db, name="work", hermes_home=str(tmp_path))
    usual, work = made.backend_for("cli", None), made.backend_for("cli", "work")
    assert made.holding_agents() == [usual, work]
    assert made.holding_agents("work") == [work]
    assert made.holding_agents("default") == [usual]
    assert made.holding_agents("nobody") == []
