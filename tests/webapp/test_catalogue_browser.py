"""Profiles, models, skills and the menu of a new chat in a real browser: by keyboard, by touch, without a script."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from shared.database import transaction
from shared.models import ChatSession, Run
from shared.store import approval_grants, catalogue, users
from tests.rig.catalogue_story import story_facts, telling, without_hermes
from tests.rig.chromium import Chromium, Watched
from tests.rig.portal import wait_until
from tests.rig.redis_server import RedisServer
from tests.webapp.live_portal import Portal

PHONE = {"width": 390, "height": 844, "has_touch": True, "is_mobile": True}


@pytest.fixture(scope="module")
def portal(shared_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    """Its own: what is configured in it counts for all its pages."""
    folder = tmp_path_factory.mktemp("catalogue")
    made = Portal(folder, shared_redis.url)
    for name in ("audit", "tidy", "translate"):
        path = folder / "skills" / name / "SKILL.md"
        path.parent.mkdir(parents=True)
        path.write_text(f"---\nname: {name.title()}\ndescription: What {name} does\n---\nBody")
    with transaction(made.factory) as db:
        for name in ("finance-ops", "research"):
            catalogue.put_profile(db, name=name, hermes_home=f"/srv/{name}")
        catalogue.put_language_model(db, name="big", model="m")
    yield made
    made.close()


@pytest.fixture
def watched(chromium: Chromium, portal: Portal) -> Iterator[Watched]:
    with chromium.page() as made:
        yield made
        assert made.violations() == []
        assert made.foreign(portal.web.url) == []
        assert made.errors == []


def go(page: Page, portal: Portal, path: str) -> Page:
    page.goto(portal.web.url + path)
    return page


def runs(portal: Portal, session_id: str) -> list[Run]:
    with transaction(portal.factory, write=False) as db:
        return db.query(Run).filter_by(session_id=session_id).order_by(Run.position).all()


def session(portal: Portal, session_id: str) -> ChatSession:
    with transaction(portal.factory, write=False) as db:
        return db.get_one(ChatSession, session_id)


# ---- the menu of a new chat


def test_a_bridge_chat_is_begun_by_keyboard_alone(watched: Watched, portal: Portal, shared_redis: RedisServer) -> None:
    page = watched.page
    with telling(shared_redis.url, story_facts()):
        go(page, portal, "/profiles")
        page.locator(".menu--new summary").focus()
        page.keyboard.press("Enter")
        page.wait_for_selector(".menu--new[open]")
        page.keyboard.press("ArrowDown")
        assert "API" in page.evaluate("document.activeElement.textContent")
        page.keyboard.press("Escape")
        assert page.locator(".menu--new[open]").count() == 0
        assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
        page.keyboard.press("Enter")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        assert "Bridge" in page.evaluate("document.activeElement.textContent")
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowUp")
        assert "Profiles and models" in page.evaluate("document.activeElement.textContent"), "it goes around"
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Enter")
        page.wait_for_url("**/chat?source=cli")
        page.wait_for_selector("#text:focus")
        page.keyboard.type("Hello")
        page.keyboard.press("Enter")
        page.wait_for_selector("#turns .turn--user")
    session_id = page.url.rsplit("/", 1)[1]
    assert session(portal, session_id).source == "cli"
    assert [run.source for run in runs(portal, session_id)] == ["cli"]


def test_the_usual_chat_is_one_click(watched: Watched, portal: Portal) -> None:
    page = go(watched.page, portal, "/profiles")
    page.get_by_label("New chat", exact=True).first.click()
    page.wait_for_url("**/chat")
    page.wait_for_selector("#text:focus")


def test_on_a_phone_the_menu_opens_in_the_drawer_and_fits(
    chromium: Chromium, portal: Portal, shared_redis: RedisServer
) -> None:
    with telling(shared_redis.url, [without_hermes()]), chromium.page(**PHONE) as watched:
        page = watched.page

        def is_told() -> bool:
            return "No installed Hermes" in go(page, portal, "/models").content()

        wait_until(is_told, what="the page to hear of the worker")
        page.tap('[data-drawer="open"]')
        page.tap("#drawer .menu--new summary")
        box, side = page.locator(".new-chat").bounding_box(), page.locator("#side").bounding_box()
        assert box is not None
        assert side is not None
        assert side["x"] <= box["x"]
        assert box["x"] + box["width"] <= side["x"] + side["width"]
        assert page.locator(".offer--not .why").inner_text().startswith("No installed Hermes was found.")
        assert page.locator(".offer--not a, .offer--not button").count() == 0
        heights = page.evaluate(
            "[...document.querySelectorAll('.new-chat a')].map(a => a.getBoundingClientRect().height)"
        )
        assert min(heights) >= 40
        page.tap('.new-chat a[href*="source=api_server"]')
        page.wait_for_url("**/chat?source=api_server")
        assert watched.errors == []


# ---- skills


def open_skills(page: Page) -> None:
    page.locator(".pick-skill summary").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".skill")
    page.wait_for_selector("#skill-filter:focus")


def picked(page: Page) -> str:
    return page.inner_text("[data-skill-name]")


def test_a_skill_is_found_and_chosen_by_keyboard_and_goes_with_the_turn(watched: Watched, portal: Portal) -> None:
    session_id = portal.new_session()
    page = go(watched.page, portal, f"/chat/{session_id}")
    page.wait_for_selector('#connection[data-conn="live"]')
    open_skills(page)
    assert page.locator(".skill").count() == 4
    page.keyboard.type("what TRANS")
    assert page.locator(".skill:not([hidden])").all_inner_texts() == [
        "Translate translate · the portal\nWhat translate does"
    ]
    page.keyboard.press("Enter")
    assert page.locator(".pick-skill[open]").count() == 0
    assert picked(page) == "translate"
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    assert runs(portal, session_id) == [], "Enter there sends nothing"
    page.fill("#text", "with a skill")
    page.press("#text", "Enter")
    page.wait_for_selector("#turns .turn--user")
    assert [run.skill_folder for run in runs(portal, session_id)] == ["translate"]


def test_arrow_keys_go_through_the_skills_and_leave_the_list_open(watched: Watched, portal: Portal) -> None:
    page = go(watched.page, portal, "/chat")
    open_skills(page)
    page.keyboard.press("Tab")
    for name in ("audit", "tidy"):
        page.keyboard.press("ArrowDown")
        assert picked(page) == name
    assert page.locator(".pick-skill[open]").count() == 1
    page.keyboard.press("Escape")
    assert page.locator(".pick-skill[open]").count() == 0
    page.fill("#text", "the first")
    page.press("#text", "Enter")
    page.wait_for_selector("#turns .turn--user")
    [run] = runs(portal, page.url.rsplit("/", 1)[1])
    assert session(portal, run.session_id).skill_folder == "tidy"
    assert picked(page) == "tidy"


def test_a_click_chooses_and_closes_and_no_skill_takes_it_back(watched: Watched, portal: Portal) -> None:
    page = go(watched.page, portal, f"/chat/{portal.new_session()}")
    page.click(".pick-skill summary")
    page.click(".skill >> text=What audit does")
    page.wait_for_selector(".pick-skill:not([open])")
    assert picked(page) == "audit"
    page.click(".pick-skill summary")
    page.fill("#skill-filter", "nothing like it")
    assert page.locator("[data-nothing]").is_visible()
    page.fill("#skill-filter", "")
    page.click(".skill >> text=No skill")
    page.wait_for_selector(".pick-skill:not([open])")
    assert picked(page) == "No skill"


def test_another_profile_brings_its_own_skills_and_is_kept(watched: Watched, portal: Portal, tmp_path: Path) -> None:
    path = tmp_path / "skills" / "ledger" / "SKILL.md"
    path.parent.mkdir(parents=True)
    path.write_text("---\nname: Ledger\n---\n")
    with transaction(portal.factory) as db:
        catalogue.put_profile(db, name="with-skills", hermes_home=str(tmp_path))
    session_id = portal.new_session()
    page = go(watched.page, portal, f"/chat/{session_id}")
    open_skills(page)
    assert "Ledger" not in page.inner_text("#skills")
    page.keyboard.press("Escape")
    with page.expect_response(f"**/chat/{session_id}/options"), page.expect_response("**/chat/skills?**"):
        page.select_option("#pick-profile", "with-skills")
    page.click(".pick-skill summary")
    page.wait_for_selector(".skill >> text=Ledger")
    assert session(portal, session_id).profile == "with-skills"
    page.reload()
    assert page.input_value("#pick-profile") == "with-skills"


# ---- forms


def test_a_wrong_form_keeps_what_was_typed_and_has_the_focus_where_it_is_wrong(
    watched: Watched, portal: Portal
) -> None:
    page = go(watched.page, portal, "/models/new")
    page.fill("#f-name", "fine-name")
    page.fill("#f-model", "has a space")
    page.fill("#f-context_window", "131072")
    with page.expect_console_message(lambda message: "status of 400" in message.text):
        page.keyboard.press("Enter")
    page.wait_for_selector("#f-model-fault")
    watched.errors[:] = [error for error in watched.errors if "status of 400" not in error]
    page.wait_for_selector("#f-model:focus")
    assert page.input_value("#f-name") == "fine-name"
    assert page.input_value("#f-model") == "has a space"
    assert page.input_value("#f-context_window") == "131072"
    page.fill("#f-model", "mended")
    page.keyboard.press("Enter")
    page.wait_for_url("**/models?done=added")
    assert "mended" in page.inner_text(".entries")


NOTICES_STAY = (
    "const later = setTimeout; setTimeout = (act, ms, ...given) => later(act, ms === 6e3 ? 6e8 : ms, ...given)"
)
"""They go by themselves after six seconds, which is soon on a busy machine."""


def test_a_permission_is_revoked_by_keyboard(watched: Watched, portal: Portal) -> None:
    with transaction(portal.factory) as db:
        approval_grants.add(
            db, profile=None, pattern_key="sudo", user=users.get(db, portal.owner.id), description="asks for root",
            command="sudo  rm -r /x", reason="a scratch machine",
        )  # fmt: skip
    watched.context.add_init_script(NOTICES_STAY)
    page = go(watched.page, portal, "/profiles/default")
    assert page.inner_text("#allowed pre") == "sudo  rm -r /x"
    page.get_by_role("button", name="Revoke: Asks for root").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/profiles/default?done=revoked")
    assert "Nothing is allowed always" in page.inner_text("#allowed")
    page.click("[data-dismiss]")
    assert page.locator(".notice").count() == 0


COVERED = """() => [...document.querySelectorAll('.main :is(a, button, h1, h2)')].filter(element => {
    const box = element.getBoundingClientRect();
    const at = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
    return box.bottom < innerHeight && element.checkVisibility() && !element.contains(at);
}).map(element => element.textContent)"""


@pytest.mark.parametrize("size", [{"width": 1440, "height": 900}, PHONE], ids=["wide", "phone"])
def test_the_word_of_what_was_done_covers_nothing(chromium: Chromium, portal: Portal, size: dict[str, Any]) -> None:
    with chromium.page(**size) as watched:
        for path in ("/profiles?done=added", "/profiles/default?done=revoked", "/models?done=removed"):
            page = go(watched.page, portal, path)
            page.wait_for_selector(".notice[data-state=done]")
            assert page.evaluate(COVERED) == []


def test_removing_takes_a_second_click(watched: Watched, portal: Portal) -> None:
    with transaction(portal.factory) as db:
        row = catalogue.put_profile(db, name="to-remove")
    page = go(watched.page, portal, f"/profiles/{row.id}")
    sure = page.get_by_role("button", name="Yes, remove to-remove")
    assert not sure.is_visible()
    page.click("#remove summary")
    sure.click()
    page.wait_for_url("**/profiles?done=removed")
    assert "to-remove" not in page.inner_text(".entries")


def test_pages_work_without_a_script(chromium: Chromium, portal: Portal) -> None:
    with chromium.page(java_script_enabled=False) as watched:
        page = go(watched.page, portal, "/chat?source=cli")
        page.click(".pick-skill summary")
        page.fill("#skill-folder", "audit")
        page.fill("#text", "no script")
        page.click("#send")
        page.wait_for_url("**/chat/2*")
        [run] = runs(portal, page.url.rsplit("/", 1)[1])
        assert session(portal, run.session_id).skill_folder == "audit"
        go(page, portal, "/models")
        page.click("text=big")
        page.fill("#f-model", "by-hand")
        page.click("text=Save")
        page.wait_for_url("**/models?done=saved")
        assert "by-hand" in page.inner_text(".entries")


def test_the_language_is_changed_where_one_is(watched: Watched, portal: Portal) -> None:
    page = go(watched.page, portal, "/models")
    page.get_by_label("中文").click()
    page.locator(".bar h1", has_text="模型").wait_for()
