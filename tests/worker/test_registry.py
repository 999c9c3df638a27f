"""Which backend serves a session, and whose key goes where."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared import settings as portal_settings
from shared.database import make_engine, make_session_factory, migrate, transaction
from shared.errors import BackendRefused
from shared.store import catalogue
from tests.peers.gateway import FakeGateway
from worker.backends.registry import Backends

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
    made = backends(tmp_path, HERMES_GATEWAY_URL=first.url, HERMES_GATEWAY_KEY=KEY)
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
