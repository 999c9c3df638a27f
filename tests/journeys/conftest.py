"""The portals that journeys share: those that kill nothing use one together."""

from collections.abc import Iterator

import pytest

from tests.rig.journey import Journey


@pytest.fixture(scope="session")
def shared_journey() -> Iterator[Journey]:
    """A portal with the demo agent for journeys that neither stop nor slow it; each has its own sessions."""
    with Journey() as made:
        yield made


@pytest.fixture
def journey(shared_journey: Journey) -> Iterator[Journey]:
    """The shared portal, with the pages of the last journey closed."""
    yield shared_journey
    for tab in list(shared_journey.tabs):
        tab.abandon()
    shared_journey.tabs.clear()
