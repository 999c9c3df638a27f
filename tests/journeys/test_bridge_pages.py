"""What a person sees of the bridge beside its turns, on the real agent: health, permissions, skills, profiles, models.

Each is looked at in a browser and compared with what the agent's model was asked.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from shared.database import transaction
from shared.store import catalogue
from tests.rig.bridge_journey import BridgeJourney
from tests.rig.browser_journey import Person, browser_at
from tests.rig.chromium import Chromium
from tests.rig.hermes import ScriptedModel
from tests.rig.journey import END_S
from tests.rig.portal import wait_until

pytestmark = pytest.mark.component("hermes")

KEY = "KEY_OF_A_MODEL"
SKILL = "---\nname: Ledger\ndescription: Keeps the books.\n---\nCanary of the ledger skill.\n"


@pytest.fixture(scope="module")
def bridge(hermes_model: ScriptedModel) -> Iterator[BridgeJourney]:
    with BridgeJourney(hermes_model, environ={KEY: "canary-key-of-a-model"}) as made:
        yield made


@pytest.fixture
def person(chromium: Chromium, bridge: BridgeJourney) -> Iterator[Person]:
    with browser_at(chromium, bridge, bridge.new_session()) as made:
        yield made


def go(person: Person, path: str) -> Page:
    person.page.goto(person.journey.portal.address + path)
    return person.page


def wait_shown(person: Person, path: str, words: str, where: str = "main") -> str:
    """Look again until the page says it."""

    def look() -> str | None:
        text = go(person, path).inner_text(where)
        return text if words in text else None

    return str(wait_until(look, END_S, f"{words} on {path}"))


def ask(person: Person, bridge: BridgeJourney, wish: str, session_id: str | None = None) -> str:
    """Say it in the session's page; the run, when it has ended."""
    go(person, f"/chat/{session_id or person.session_id}")
    person.session_id = session_id or person.session_id
    person.wait_live()
    run_id = person.say(bridge.wish(wish))
    person.wait_end(run_id)
    return run_id


def test_health_is_what_the_agent_of_the_profile_does(bridge: BridgeJourney, person: Person) -> None:
    wait_shown(person, "/profiles", "Not started")
    assert "1 chat" in person.page.inner_text("#profile-default")
    ask(person, bridge, "[[say:Hello]]")
    text = wait_shown(person, "/profiles/default", "Ready", "#health")
    assert re.search(r"Hermes 0\.19\.0", text)
    assert "1 chat warm" in text
    home = bridge.add_profile("broken")
    home.path.rename(home.path.with_name(home.path.name + "-away"))
    try:
        wait_shown(person, "/profiles", "No home")
        with transaction(bridge.factory, write=False) as db:
            row = catalogue.profile(db, "broken")
            assert row is not None
        assert "Its home is not there." in wait_shown(person, f"/profiles/{row.id}", "No home", "#health")
    finally:
        home.path.with_name(home.path.name + "-away").rename(home.path)
    wait_shown(person, f"/profiles/{row.id}", "Not started", "#health")


def test_a_bridge_chat_is_begun_by_the_menu_and_its_first_message(bridge: BridgeJourney, person: Person) -> None:
    wait_shown(person, "/profiles", "Ready")
    page = go(person, "/chat")
    page.click(".menu--new summary")
    page.click('.new-chat a[href*="source=cli"]')
    page.wait_for_url("**/chat?source=cli")
    wish = bridge.wish("[[say:From the first message]]")
    page.fill("#text", wish)
    page.press("#text", "Enter")
    page.wait_for_selector("#turns .fold")
    assert "From the first message" in page.inner_text("#turns .answer")
    assert re.search(r"/chat/\d{8}_\d{6}_[0-9a-f]{6}$", page.url)


def test_what_was_allowed_always_stands_on_the_page_until_it_is_revoked_there(
    bridge: BridgeJourney, person: Person, tmp_path: Path
) -> None:
    folder = tmp_path / "scratch"

    def dangerous() -> str:
        folder.mkdir(exist_ok=True)
        return bridge.wish(f"[[danger:{folder}]] [[then]] [[say:Done.]]")

    page = person.page
    run_id = person.say(dangerous())
    page.wait_for_selector(".ask")
    page.click(".always summary")
    page.fill(".always input[name=reason]", "our scratch <b>folder</b>")
    page.click(".always button")
    person.wait_end(run_id)
    assert not folder.exists()
    free = person.say(dangerous())
    person.wait_end(free)
    assert not folder.exists()
    assert page.locator(f"#run-{free} .decided").count() == 0
    text = wait_shown(person, "/profiles/default", f"rm -rf {folder}", "#allowed")
    assert "because: our scratch <b>folder</b>" in text
    assert "allowed by Local administrator" in text
    page.click("#allowed .btn--stop")
    page.wait_for_url("**/profiles/default?done=revoked")
    assert "Nothing is allowed always" in page.inner_text("#allowed")
    go(person, f"/chat/{person.session_id}")
    person.wait_live()
    again = person.say(dangerous())
    page.wait_for_selector(".ask")
    page.click(".ask .btn--stop")
    person.wait_end(again)
    assert folder.exists()


def test_a_skill_that_is_chosen_goes_to_the_model_and_stands_in_the_head_of_the_answer(
    bridge: BridgeJourney, person: Person
) -> None:
    path = bridge.home.path / "skills" / "ledger" / "SKILL.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SKILL)
    page = go(person, f"/chat/{person.session_id}")
    person.wait_live()
    page.click(".pick-skill summary")
    page.click(".skill >> text=Keeps the books.")
    run_id = person.say(bridge.wish("[[say:With the skill]]"))
    person.wait_end(run_id)
    assert "skill ledger" in page.inner_text(f"#run-{run_id}-by")
    assert "Canary of the ledger skill." in bridge.asked_for(run_id)[0].system
    page.click(".pick-skill summary")
    page.click(".skill >> text=No skill")
    plain = person.say(bridge.wish("[[say:Without it]]"))
    person.wait_end(plain)
    assert "skill" not in page.inner_text(f"#run-{plain}-by")
    assert "Canary of the ledger skill." not in bridge.asked_for(plain)[0].system
    page.reload()
    person.wait_live()
    assert "skill ledger" in page.inner_text(f"#run-{run_id}-by")


def test_switching_the_profile_of_a_chat_takes_it_to_the_other_home_with_all_that_was_said(
    bridge: BridgeJourney, person: Person
) -> None:
    ask(person, bridge, "[[say:In the default home]]")
    bridge.add_profile("work")
    page = go(person, f"/chat/{person.session_id}")
    person.wait_live()
    with page.expect_response("**/options"):
        page.select_option("#pick-profile", "work")
    place = '[[tool:terminal:{"command":"echo $HERMES_HOME"}]]'
    run_id = person.say(bridge.wish(f"{place} [[then]] [[say:There]]"))
    person.wait_end(run_id)
    assert "work" in page.inner_text(f"#run-{run_id}-by")
    first = bridge.asked_for(run_id)[0]
    assert any("In the default home" in str(message["content"]) for message in first.messages)
    homes = [str(bridge.homes["work"].path), str(bridge.home.path)]
    results = [str(m["content"]) for m in bridge.asked_for(run_id)[-1].messages if m["role"] == "tool"]
    assert [home in results[-1] for home in homes] == [True, False]


def test_a_model_that_was_added_on_the_page_is_asked_for_with_its_own_key(
    bridge: BridgeJourney, person: Person
) -> None:
    page = go(person, "/models/new")
    page.fill("#f-name", "tapped")
    page.fill("#f-model", "vendor/tapped-1")
    page.fill("#f-provider", "custom")
    page.fill("#f-base_url", bridge.tap.base_url)
    page.fill("#f-key_ref", KEY)
    page.keyboard.press("Enter")
    page.wait_for_url("**/models?done=added")
    text = wait_shown(person, "/models", "Key set")
    assert KEY in text
    assert os.environ.get(KEY) is None
    go(person, f"/chat/{person.session_id}")
    person.wait_live()
    page.select_option("select[name=model]", "tapped")
    run_id = person.say(bridge.wish("[[say:By the model that was chosen]]"))
    person.wait_end(run_id)
    assert bridge.asked_for(run_id)[0].request["model"] == "vendor/tapped-1"
    for path in ("/models", f"/chat/{person.session_id}"):
        assert "canary-key-of-a-model" not in go(person, path).content()


def test_a_profile_that_is_removed_ends_its_turn_and_its_agent(bridge: BridgeJourney, person: Person) -> None:
    home = bridge.add_profile("short-lived")
    session_id = bridge.new_session(profile="short-lived")
    page = go(person, f"/chat/{session_id}")
    person.session_id = session_id
    person.wait_live()
    run_id = person.say(bridge.wish("[[stream:20000:20]]"))
    person.wait_text(run_id, 20)
    with transaction(bridge.factory, write=False) as db:
        row = catalogue.profile(db, "short-lived")
        assert row is not None
    other = person.page.context.new_page()
    other.goto(f"{bridge.portal.address}/profiles/{row.id}")
    other.click("#remove summary")
    other.click("text=Yes, remove short-lived")
    other.wait_for_url("**/profiles?done=removed")
    person.wait_end(run_id)
    assert "Stopped" in page.inner_text(f"#run-{run_id}")
    wait_until(lambda: not any(str(home.path) in line for line in bridge.processes()), what="the end of its agent")
    page.reload()
    person.wait_live()
    assert page.inner_text("#pick-profile option:checked") == "short-lived (gone)"
    gone = person.say(bridge.wish("[[say:never]]"))
    person.wait_end(gone)
    assert "is gone" in page.inner_text(f"#run-{gone}")
    other.close()
