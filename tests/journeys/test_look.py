"""The pages as they look: pictures in out/look at every width, theme and language, nothing clipped, axe finds nothing.

The pictures are for people; what a machine can tell is checked: no sideways scrolling, no text cut where nothing says
so, and the rules of axe-core (LOOK.md: every page passes it at 360, 390, 820 and 1440 px in both themes).
"""

import importlib.resources
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.run_state import RunState
from tests.rig.browser_journey import browser_at
from tests.rig.chromium import Chromium
from tests.rig.journey import Journey

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
def chromium() -> Iterator[Chromium]:
    made = Chromium()
    yield made
    made.close()


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


@pytest.mark.parametrize(
    ("width", "theme", "language"),
    [
        (w, t, lang)
        for n, w in enumerate((360, 390, 820, 1440))
        for t, lang in zip(THEMES, LANGUAGES[n % 2], strict=True)
    ],
)
def test_the_session_page_at_every_width_theme_and_language(
    chromium: Chromium, journey: Journey, sessions: dict[str, str], width: int, theme: str, language: str
) -> None:
    locale = {"en": "en-GB", "zh": "zh-CN"}[language]
    for name, session_id in sessions.items():
        with browser_at(
            chromium, journey, session_id, width=width, height=900, dark=theme == "dark", locale=locale
        ) as person:
            assert person.page.locator("html").get_attribute("lang", timeout=5000).startswith(language)
            PICTURES.mkdir(parents=True, exist_ok=True)
            person.page.wait_for_timeout(200)  # the page goes to its end
            person.page.screenshot(path=PICTURES / f"{name}-{width}-{theme}-{language}.png")
            assert person.page.evaluate("document.documentElement.scrollWidth") == width
            assert person.page.evaluate(CUT) == []
            person.page.evaluate(AXE)
            assert person.page.evaluate(FAULTS) == []
