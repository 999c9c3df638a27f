"""A skill whose text changes is not followed before its user has agreed to what it says now (RELIABILITY S33)."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.database import transaction
from shared.models import AuditEvent
from shared.run_state import RunState
from tests.rig.bridge_journey import BridgeJourney
from tests.rig.browser_journey import browser_at
from tests.rig.chromium import Chromium
from tests.rig.hermes import ScriptedModel

pytestmark = pytest.mark.component("hermes")

TEXT = "---\nname: Ledger\ndescription: Keeps the books.\n---\nCanary {}. <script>alert(1)</script> [x](javascript:0)\n"


@pytest.fixture(scope="module")
def bridge(hermes_model: ScriptedModel) -> Iterator[BridgeJourney]:
    with BridgeJourney(hermes_model) as made:
        yield made


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    made = Chromium()
    yield made
    made.close()


def put(bridge: BridgeJourney, folder: str, word: str) -> str:
    """Write the skill; the hash of its text."""
    path = Path(bridge.home.path) / "skills" / folder / "SKILL.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TEXT.format(word))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def system_of(bridge: BridgeJourney, run_id: str) -> str:
    return str(bridge.asked_for(run_id)[0].messages[0]["content"])


def test_a_skill_that_was_edited_is_asked_about_again_and_not_sent_before(
    bridge: BridgeJourney, chromium: Chromium
) -> None:
    put(bridge, "ledger", "one")
    session_id = bridge.new_session(skillFolder="ledger")
    with browser_at(chromium, bridge, session_id) as person:
        first = person.say(bridge.wish("[[say:By the book.]]"))
        person.wait_end(first)
        assert "Canary one." in system_of(bridge, first)
        sha256 = put(bridge, "ledger", "two")
        second = person.say(bridge.wish("[[say:By the new book.]]"))
        person.wait_end(second)
        assert bridge.run(second).state == RunState.FAILED
        assert bridge.run(second).error_code == "skill_changed"
        assert bridge.asked_for(second) == []
        end = person.page.locator(f"#run-{second}-end")
        assert "has changed since you agreed to it" in end.inner_text()
        end.get_by_role("link", name="Read the skill").click()
        person.page.wait_for_selector("#skill-text")
        assert person.page.inner_text("#skill-text").strip() == TEXT.format("two").strip(), "as text"
        assert person.page.inner_text("#sha256") == sha256
        main = person.page.inner_text("main")
        assert "It has changed since you agreed to it" in main
        assert "this profile" in main
        person.page.get_by_role("button", name="Agree to this text").click()
        person.page.wait_for_url(f"**/chat/{session_id}")
        person.wait_live()
        known = {run.id for run in bridge.runs_of(session_id)}
        person.page.locator(f"#run-{second}-end").get_by_role("button", name="Retry").click()
        again = person.new_run(known)
        person.wait_end(again)
        assert bridge.run(again).state == RunState.COMPLETED
        assert "Canary two." in system_of(bridge, again)
        with transaction(bridge.factory, write=False) as db:
            (event,) = db.query(AuditEvent).filter_by(action="skill_agreed")
            assert event.facts is not None
            assert (event.facts["skill"], event.facts["sha256"]) == ("ledger", sha256)


def test_an_agreement_counts_for_the_text_that_was_shown(bridge: BridgeJourney) -> None:
    """The skill changes once more while its reader still reads."""
    put(bridge, "racy", "one")
    session_id = bridge.new_session(skillFolder="racy")
    tab = bridge.open(session_id)
    tab.wait_end(tab.say(bridge.wish("[[say:ok]]")))
    read = put(bridge, "racy", "two")
    put(bridge, "racy", "three")
    agreed = bridge.post("/api/skills/racy/consent", {"sha256": read})
    assert agreed.status_code == 200, agreed.text
    assert bridge.get("/api/skills/racy").json()["consent"] == "changed"
    refused = tab.say(bridge.wish("[[say:not this]]"))
    tab.wait_end(refused)
    assert bridge.run(refused).error_code == "skill_changed"


def test_a_program_reads_and_agrees(bridge: BridgeJourney) -> None:
    sha256 = put(bridge, "api", "one")
    found = bridge.get("/api/skills/api").json()
    assert (found["sha256"], found["consent"], found["source"]) == (sha256, "new", "profile")
    assert found["text"] == TEXT.format("one")
    session_id = bridge.new_session()
    tab = bridge.open(session_id)
    tab.wait_end(tab.say(bridge.wish("[[say:ok]]"), skill_folder="api"))
    assert bridge.get("/api/skills/api").json()["consent"] == "agreed"
    changed = put(bridge, "api", "two")
    failed = tab.say(bridge.wish("[[say:no]]"), skill_folder="api")
    tab.wait_end(failed)
    assert bridge.run(failed).error_code == "skill_changed"
    assert bridge.post("/api/skills/api/consent", {"sha256": "x" * 64}).status_code == 400
    assert bridge.post("/api/skills/api/consent", {"sha256": changed}).status_code == 200
    again = bridge.retry(failed)
    tab.wait_end(again)
    assert bridge.run(again).state == RunState.COMPLETED
    for bad in ("..", "%2e%2e", "gone", "a b"):
        assert bridge.get(f"/api/skills/{bad}").status_code in (400, 404)
