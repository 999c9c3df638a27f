"""What a person must see comes into view in a real browser, and nothing else moves."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page

from shared.models import Run
from shared.protocol import events as e
from shared.run_state import RunState
from tests.rig.chromium import FLAGS, PATIENCE_MS, Chromium, Watched, executable
from tests.webapp.live_portal import Portal
from tests.webapp.page_rig import Story, event, text, tool, tool_done
from tests.webapp.test_page_browser import AT_ITS_END, KNOWN_ZONE, LEAVE_THE_END, go

TOP = "document.getElementById('scroll').scrollTop"
SEEN = """selector => {
    const all = document.querySelectorAll(selector);
    const box = all[all.length - 1].getBoundingClientRect();
    const dock = document.querySelector('.dock').getBoundingClientRect();
    return box.height > 0 && box.top >= document.getElementById('scroll').getBoundingClientRect().top
        && box.bottom <= dock.top;
}"""
NOTE_SCROLLS = """() => {
    window.__scrolls = [];
    const real = Element.prototype.scrollTo;
    Element.prototype.scrollTo = function (how) { window.__scrolls.push(how.behavior); real.call(this, how); };
}"""
WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844, "has_touch": True, "is_mobile": True}
SIZES = pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])


@pytest.fixture
def story(portal: Portal) -> Story:
    made = Story(portal.factory, title="Up and down", owner=portal.owner)
    for n in range(8):
        steps = (tool("a", "shell", "ls"), tool_done("a", "shell", result="files\n" * 40))
        made.turn(f"question {n}", *steps, text(0, 0, f"Answer {n}.\n\n" * 6))
    return made


def sized(chromium: Chromium, portal: Portal, **context: Any) -> Iterator[Watched]:
    with chromium.page(cookies=KNOWN_ZONE, url=portal.web.url, **context) as made:
        yield made
        assert made.violations() == []
        assert made.errors == []


@pytest.fixture
def wide(chromium: Chromium, portal: Portal) -> Iterator[Watched]:
    yield from sized(chromium, portal, **WIDE)


@pytest.fixture
def either(chromium: Chromium, portal: Portal, size: dict[str, Any]) -> Iterator[Watched]:
    yield from sized(chromium, portal, **size)


def ask(portal: Portal, story: Story) -> Run:
    """A turn that waits for an approval, told to the open pages."""
    choices = ["once", "session", "always", "deny"]
    asked = {"approval_id": f"ap{story.session_id[:8]}", "kind": "shell", "command": "rm -r build", "choices": choices}
    runs = tool("b", "shell", "make", {f"argument {n}": n for n in range(20)})
    run = story.turn("go", runs, ("approval.requested", asked), state=RunState.RUNNING)
    told = [event(story.session_id, run.id, "run.started", {"source": "api_server"}, fence=1)]
    told.append(event(story.session_id, run.id, "approval.requested", asked, fence=1))
    portal.log.append(story.session_id, [e.to_payload(each) for each in told])
    return run


# ---- what opens


@SIZES
@pytest.mark.parametrize(("motion", "behavior"), [("reduce", "instant"), ("no-preference", "smooth")])
def test_the_form_of_always_comes_into_view_when_it_is_opened(
    chromium: Chromium, portal: Portal, story: Story, size: dict[str, Any], motion: str, behavior: str
) -> None:
    ask(portal, story)
    with chromium.page(**size, reduced_motion=motion) as watched:
        page = go(watched, portal, story.session_id)
        page.wait_for_function(AT_ITS_END)
        page.evaluate(NOTE_SCROLLS)
        page.click(".always summary")
        page.wait_for_function(SEEN, arg=".always[open]")
        assert page.evaluate("window.__scrolls") == [behavior]
        assert watched.errors == []


def test_a_form_that_fits_moves_nothing_when_it_is_opened(wide: Watched, portal: Portal, story: Story) -> None:
    ask(portal, story)
    page = go(wide, portal, story.session_id)
    page.evaluate("document.getElementById('turns').style.paddingBottom = '400px'")
    page.evaluate("document.getElementById('scroll').scrollTop = 1e6")
    page.wait_for_function(AT_ITS_END)
    page.evaluate(NOTE_SCROLLS)
    before = page.evaluate(TOP)
    page.click(".always summary")
    page.wait_for_function(SEEN, arg=".always[open]")
    page.wait_for_timeout(300)  # in which it would move
    assert page.evaluate(TOP) == before
    assert page.evaluate("window.__scrolls") == []


# ---- what one says


def leave_the_end(page: Page) -> None:
    """Opens an old turn, and reads there."""
    page.wait_for_function(AT_ITS_END)
    page.locator(".fold summary").first.click()
    page.wait_for_selector(".fold > details[open] .tool")
    page.evaluate(LEAVE_THE_END, 0)
    page.wait_for_selector("#jump:not([hidden])")


@SIZES
def test_what_one_sends_comes_into_view(either: Watched, portal: Portal, story: Story) -> None:
    page = go(either, portal, story.session_id)
    leave_the_end(page)
    page.fill("#text", "my own words")
    page.click("#send")
    page.wait_for_function(AT_ITS_END)
    page.wait_for_function(SEEN, arg=".turn--user .says")
    assert page.locator(".turn--user .says").last.inner_text() == "my own words"
    assert page.locator("#jump").is_hidden()


def test_what_waits_in_the_queue_moves_nothing(wide: Watched, portal: Portal, story: Story) -> None:
    portal.turn(story.session_id)
    page = go(wide, portal, story.session_id)
    leave_the_end(page)
    page.fill("#text", "later")
    page.click("#send")
    page.wait_for_selector("#queue .q")
    assert page.evaluate(TOP) == 0


# ---- what needs somebody


@SIZES
def test_the_way_to_the_end_says_that_somebody_is_needed_there(either: Watched, portal: Portal, story: Story) -> None:
    page = go(either, portal, story.session_id)
    leave_the_end(page)
    assert page.locator("#jump .need-word").is_hidden()
    ask(portal, story)
    page.wait_for_selector("#jump .need-word:not([hidden])")
    assert page.locator("#jump").inner_text().startswith("Needs you")
    page.click("#jump")
    page.wait_for_function(SEEN, arg=".ask .btns")
    page.wait_for_selector("#jump", state="hidden")
    page.evaluate(LEAVE_THE_END, -100)  # still to be seen
    page.wait_for_selector("#jump:not([hidden])")
    assert page.locator("#jump .need-word").is_hidden()


# ---- the frame


def test_a_scrollbar_that_appears_moves_nothing_sideways(chromium: Chromium, portal: Portal) -> None:
    """In a browser that shows its scrollbars; those of the other tests take no room."""
    browser = chromium.browser.browser_type.launch(
        executable_path=executable(), args=FLAGS, ignore_default_args=["--hide-scrollbars"], timeout=2 * PATIENCE_MS
    )
    try:
        page = browser.new_page(timezone_id="UTC")
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"{portal.web.url}/chat/{portal.new_session()}")
        lefts = []
        for length in ("0px", "3000px"):
            page.evaluate("length => { document.getElementById('turns').style.paddingBottom = length; }", length)
            lefts.append(page.evaluate("document.getElementById('composer').getBoundingClientRect().left"))
        assert page.evaluate(
            "(s => s.scrollHeight > s.clientHeight && s.offsetWidth > s.clientWidth)(document.getElementById('scroll'))"
        )
        assert lefts[0] == lefts[1]
    finally:
        browser.close()


# ---- a chat that rests


@SIZES
def test_an_archived_chat_has_the_way_back_beside_its_words(either: Watched, portal: Portal, story: Story) -> None:
    page = go(either, portal, story.session_id)
    with either.context.new_page() as other:
        other.goto(f"{portal.web.url}/chat/{story.session_id}")
        other.click('[aria-label="Chat menu"]')
        other.get_by_role("button", name="Archive", exact=True).click()
        other.wait_for_url(f"{portal.web.url}/chat")
    page.wait_for_selector("#why-not:not([hidden])")
    assert page.is_disabled("#text")
    page.locator("#why-not").get_by_role("button", name="Bring back from the archive").click()
    page.wait_for_selector("#why-not", state="hidden")
    assert page.is_enabled("#text")
