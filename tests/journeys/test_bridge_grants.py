"""What a person allowed for one session ends with what they allowed it for: the session as it was, in its profile."""

from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from shared import settings as portal_settings
from tests.rig import operator
from tests.rig.bridge_journey import BridgeJourney
from tests.rig.hermes import ScriptedModel
from tests.rig.journey import Tab
from webapp.dispatch import make_celery

pytestmark = pytest.mark.component("hermes")

OTHER = "other"


@pytest.fixture(scope="module")
def bridge(hermes_model: ScriptedModel) -> Iterator[BridgeJourney]:
    with BridgeJourney(hermes_model) as made:
        made.add_profile(OTHER)
        yield made


def patch(bridge: BridgeJourney, session_id: str, **given: str) -> None:
    changed = bridge._web.patch(f"/api/chat/sessions/{session_id}", json=given)
    assert changed.status_code == 200, changed.text


def archived_and_back(bridge: BridgeJourney, session_id: str) -> None:
    patch(bridge, session_id, status="ARCHIVED")
    patch(bridge, session_id, status="ACTIVE")


def to_another_profile_and_back(bridge: BridgeJourney, session_id: str) -> None:
    patch(bridge, session_id, profile=OTHER)
    patch(bridge, session_id, profile="default")


def dropped_by_an_operator(bridge: BridgeJourney, session_id: str) -> None:
    environ = psutil.Process(bridge.portal.pid("worker")).environ()
    with make_celery(portal_settings.load(environ, cwd=bridge.portal.data_dir)) as celery:
        operator.asked(celery.control, "portal_drop_session", {"session_id": session_id})


def danger(folder: Path) -> str:
    folder.mkdir()
    return f"[[danger:{folder}]] [[then]] [[say:over]]"


def answer(bridge: BridgeJourney, tab: Tab, run_id: str, choice: str) -> None:
    pause = tab.wait_pause(run_id)
    reply = tab.ask(event="approval.respond", approval_id=pause.approval_id, choice=choice)
    assert reply["event"] == "ack", reply
    tab.wait_end(run_id)


@pytest.mark.parametrize(
    "happens", [archived_and_back, to_another_profile_and_back, dropped_by_an_operator], ids=lambda each: each.__name__
)
def test_what_was_allowed_for_a_session_is_asked_again_after_it_was(
    bridge: BridgeJourney, tmp_path: Path, happens: Callable[[BridgeJourney, str], None]
) -> None:
    session_id = bridge.new_session()
    tab = bridge.open(session_id)
    answer(bridge, tab, tab.say(bridge.wish(danger(tmp_path / "one"))), "session")
    free = tab.say(bridge.wish(danger(tmp_path / "two")))
    tab.wait_end(free)
    assert tab.runs[free].pauses == []
    happens(bridge, session_id)
    asked = tab.say(bridge.wish(danger(tmp_path / "three")))
    answer(bridge, tab, asked, "deny")
    assert [(tmp_path / name).exists() for name in ("one", "two", "three")] == [False, False, True]
    bridge.check(session_id, tab)


def test_what_was_allowed_in_one_profile_is_asked_in_the_other(bridge: BridgeJourney, tmp_path: Path) -> None:
    session_id = bridge.new_session()
    tab = bridge.open(session_id)
    answer(bridge, tab, tab.say(bridge.wish(danger(tmp_path / "one"))), "session")
    patch(bridge, session_id, profile=OTHER)

    answer(bridge, tab, tab.say(bridge.wish(danger(tmp_path / "two"))), "deny")
    assert [(tmp_path / name).exists() for name in ("one", "two")] == [False, True]
