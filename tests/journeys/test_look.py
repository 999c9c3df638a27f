"""The pages as they look: pictures in out/look at every width, theme and language, nothing clipped, axe finds nothing.

The pictures are for people; what a machine can tell is checked: no sideways scrolling, no text cut where nothing says
so, and the rules of axe-core (LOOK.md: every page passes it at 360, 390, 820 and 1440 px in both themes).
"""

import importlib.resources
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Page

from shared.database import transaction
from shared.run_state import RunState
from shared.store import catalogue
from tests.rig.browser_journey import browser_at
from tests.rig.catalogue_story import story_facts, tell_story, telling, without_hermes
from tests.rig.chromium import Chromium
from tests.rig.journey import Journey
from tests.rig.portal import wait_until
from tests.rig.redis_server import RedisServer
from tests.webapp.live_portal import Portal

PICTURES = Path(__file__).parents[2] / "out" / "look"
AXE = (importlib.resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
THEMES, LANGUAGES = ("light", "dark"), (("en", "zh"), ("zh", "en"))  # each width in both themes and both languages
FAULTS = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations.map(
    v => v.id + ': ' + v.nodes.slice(0, 3).map(n => n.target.join(' ')).join(' | '))"""
CUT = """() => [...document.querySelectorAll('button, a.btn, .st, .pick, h1, h2, dt, label, .region-head')]
    .filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 1)
    .filter(e => !e.matches('.cut, :has(.cut), :has(.vh), .vh *'))
    .map(e => e.className + ' ' + e.textContent.trim().slice(0, 40))"""


@pytest.fixture(scope="module")
def sessions(shared_journey: Journey) -> Iterator[dict[str, str]]:
    """name -> a session to look at; the pause of the first one waits until the pictures are taken."""
    journey = shared_journey
    full, ended = journey.new_session(), journey.new_session()
    tab = journey.open(ended)
    tab.wait_end(tab.say("Show me a long answer with code and a table, please"))
    tab.wait_end(tab.say("Use tools at the same time"))
    tab.wait_end(tab.say("Fail with an error"))
    slow = tab.say("stream 2000 every 20 ms")
    tab.wait_text(slow, 200)
    tab.ask(event="abort")
    tab.wait_end(slow)
    other = journey.open(full)
    other.wait_end(other.say("整理一下十月份的发票，并说明差异在哪里"))
    asked = "Do something that needs approval, with a rather long request of which the words go on and on"
    waits = other.say(asked, background=True)  # a minute would not do for all pictures
    journey.wait_state(waits, RunState.AWAITING_APPROVAL)
    for text in ("Now do the same for September and compare the totals", "把结果翻译成中文，发给财务组", "a plan"):
        other.say(text)
    yield {"running": full, "ended": ended}
    journey.post(f"/api/chat/runs/{waits}/abort")


WIDTHS = pytest.mark.parametrize(
    ("width", "theme", "language"),
    [
        (w, t, lang)
        for n, w in enumerate((360, 390, 820, 1440))
        for t, lang in zip(THEMES, LANGUAGES[n % 2], strict=True)
    ],
)
LOCALES = {"en": "en-GB", "zh": "zh-CN"}
STILL = {"reduced_motion": "reduce"}
"""No colour is measured on its way to another."""


@WIDTHS
def test_the_session_page_at_every_width_theme_and_language(
    chromium: Chromium, journey: Journey, sessions: dict[str, str], width: int, theme: str, language: str
) -> None:
    for name, session_id in sessions.items():
        with browser_at(
            chromium,
            journey,
            session_id,
            width=width,
            height=900,
            dark=theme == "dark",
            locale=LOCALES[language],
            **STILL,
        ) as person:
            assert person.page.locator("html").get_attribute("lang", timeout=60_000).startswith(language)
            person.page.wait_for_timeout(200)  # the page goes to its end
            picture(person.page, f"{name}-{width}-{theme}-{language}", width)


def picture(page: Page, name: str, width: int) -> None:
    """For people; and what a machine can tell of it."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(CUT) == []
    page.evaluate(AXE)
    assert page.evaluate(FAULTS) == []


# ---- profiles, models, and the menus that lead to them


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Portal, RedisServer]]:
    """A portal with everything that these pages can show, of workers that say what is wrong."""
    with ExitStack() as stack:
        redis = RedisServer()
        stack.callback(redis.close)
        folder = tmp_path_factory.mktemp("configured")
        portal = Portal(folder, redis.url)
        stack.callback(portal.close)
        tell_story(portal.factory, portal.owner, folder)
        yield portal, redis


@WIDTHS
def test_profiles_and_models_at_every_width_theme_and_language(
    chromium: Chromium, configured: tuple[Portal, RedisServer], width: int, theme: str, language: str
) -> None:
    portal, redis = configured
    with transaction(portal.factory, write=False) as db:
        ids = {row.name: row.id for row in (*catalogue.profiles(db), *catalogue.language_models(db))}
    pages = {
        "profiles": "/profiles",
        "profile": f"/profiles/{ids['finance-ops']}",
        "profile-broken": f"/profiles/{ids['research']}",
        "profile-new": "/profiles/new",
        "models": "/models",
        "model": f"/models/{ids['hermes-4']}",
    }
    with (
        telling(redis.url, story_facts()),
        chromium.page(width=width, height=900, dark=theme == "dark", locale=LOCALES[language], **STILL) as watched,
    ):
        page = watched.page
        wait_until(lambda: page.goto(portal.web.url + "/profiles") and page.locator("[data-state=failed]").count() == 2)
        for name, path in pages.items():
            page.goto(portal.web.url + path)
            picture(page, f"{name}-{width}-{theme}-{language}", width)
        page.goto(portal.web.url + "/models/new")
        for field, words in (("name", "a b"), ("base_url", "http://169.254.169.254"), ("key_ref", "sk-" + "x" * 30)):
            page.fill(f"#f-{field}", words)
        page.keyboard.press("Enter")
        page.wait_for_selector(".fault")
        picture(page, f"model-wrong-{width}-{theme}-{language}", width)
        page.goto(f"{portal.web.url}/chat/{portal.new_session()}")
        page.click(".pick-skill summary")
        page.wait_for_selector(".skill")
        picture(page, f"skills-{width}-{theme}-{language}", width)
        assert watched.violations() == []


@WIDTHS
def test_the_menu_of_a_new_chat_at_every_width_theme_and_language(
    chromium: Chromium, configured: tuple[Portal, RedisServer], width: int, theme: str, language: str
) -> None:
    portal, redis = configured
    for name, facts in (("offered", story_facts()), ("not-offered", [without_hermes()])):
        with (
            telling(redis.url, facts),
            chromium.page(width=width, height=900, dark=theme == "dark", locale=LOCALES[language], **STILL) as watched,
        ):
            page, missing = watched.page, 0 if name == "offered" else 1
            wait_until(
                lambda page=page, missing=missing: (
                    page.goto(portal.web.url + "/chat") and page.locator(".offer--not").count() == missing
                )
            )
            if width < 832:
                page.click('[data-drawer="open"]')
            page.click(".menu--new summary")
            picture(page, f"new-chat-{name}-{width}-{theme}-{language}", width)
