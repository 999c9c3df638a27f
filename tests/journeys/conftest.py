"""The portals that journeys share: those that kill nothing use one together."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.bridge_journey import BridgeJourney
from tests.rig.hermes import ScriptedModel
from tests.rig.journey import Journey

SHORT_S = 4
"""How long the approvals of background runs wait here."""
SKILL = "---\nname: demo-skill\ndescription: Shows how a skill is read.\n---\nThe body of the demo skill.\n"


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


@pytest.fixture(scope="module")
def shared_bridge(hermes_model: ScriptedModel) -> Iterator[BridgeJourney]:
    with BridgeJourney(hermes_model, environ={"PORTAL_BACKGROUND_APPROVAL_TIMEOUT_S": str(SHORT_S)}) as made:
        folder = made.home.path / "skills" / "demo-skill"
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(SKILL)
        yield made


@pytest.fixture
def bridge(shared_bridge: BridgeJourney) -> Iterator[BridgeJourney]:
    """The shared portal, with the pages of the last test closed."""
    yield shared_bridge
    for tab in list(shared_bridge.tabs):
        tab.abandon()
    shared_bridge.tabs.clear()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A folder that a turn may try to remove."""
    folder = tmp_path / "target"
    folder.mkdir()
    return folder
