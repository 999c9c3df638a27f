"""With nothing configured and a Hermes that a worker has found, whatever begins a chat begins it with Hermes."""

import re
import subprocess
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from shared.database import transaction
from shared.models import ChatSession
from tests.rig.bridge_journey import BridgeJourney
from tests.rig.chromium import Chromium
from tests.rig.hermes import ScriptedModel
from tests.rig.portal import run_portal, wait_until

pytestmark = pytest.mark.component("hermes")

CLI_CHAT = re.compile(r"/chat/\d{8}_\d{6}_[0-9a-f]{6}$")
FOUND_S = 120.0


@pytest.fixture(scope="module")
def bridge(hermes_model: ScriptedModel) -> Iterator[BridgeJourney]:
    with BridgeJourney(hermes_model, gateway_url=None) as made:
        wait_until(lambda: _chosen(made) == "cli", FOUND_S, "Hermes to be found")
        yield made


def _chosen(bridge: BridgeJourney) -> str | None:
    found = re.search(
        r'<select class="pick" name="source">.*?<option value="(\w+)" selected', bridge.get("/chat").text, re.DOTALL
    )
    return None if found is None else found[1]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    made = Chromium()
    yield made
    made.close()


def is_answered_by_hermes(bridge: BridgeJourney, page: Page, words: str) -> None:
    page.wait_for_selector("#turns .fold", timeout=FOUND_S * 1000)
    assert CLI_CHAT.search(page.url)
    assert words in page.inner_text("#turns .answer")
    assert "Demo agent" not in page.inner_text("body")


@pytest.mark.parametrize("by", ["mouse", "keyboard", "phone"])
def test_the_plus_opens_a_chat_with_hermes(bridge: BridgeJourney, chromium: Chromium, by: str) -> None:
    sizes = {"width": 390, "height": 800} if by == "phone" else {}
    with chromium.page(**sizes) as watched:
        page = watched.page
        page.goto(f"{bridge.portal.address}/profiles")
        plus = page.locator('#side a[aria-label="New chat"]')
        if by == "phone":
            page.locator('[data-drawer="open"]:visible').first.click()
        if by == "keyboard":
            plus.focus()
            page.keyboard.press("Enter")
        else:
            plus.click()
        page.wait_for_url("**/chat")
        wish = bridge.wish(f"[[say:Hermes by {by}]]")
        page.fill("#text", wish)
        if by == "keyboard":
            page.press("#text", "Enter")
        else:
            page.click("#send")
        is_answered_by_hermes(bridge, page, f"Hermes by {by}")


def test_the_shell_is_told_that_hermes_answers(bridge: BridgeJourney) -> None:
    environ = bridge.portal.environ
    (gateway, *_) = [line for line in run_portal("doctor", environ=environ).stdout.splitlines() if " gateway " in line]
    assert "new chats go to the installed Hermes, the demo agent answers chats by API" in gateway
    assert "cli          Hermes  can: " in run_portal("provider", "list", environ=environ).stdout
    tested = run_portal("provider", "test", "bridge", environ=environ).stdout
    assert tested.startswith("Hermes 0.19.0 "), "it was asked, whatever the scripted model says"


def test_a_program_that_names_no_source_gets_hermes(bridge: BridgeJourney) -> None:
    made = bridge.post("/api/chat/sessions")
    assert made.status_code == 201
    with transaction(bridge.factory, write=False) as db:
        assert db.get_one(ChatSession, made.json()["sessionId"]).source == "cli"
    named = bridge.post("/api/chat/sessions", {"source": "api_server"})
    with transaction(bridge.factory, write=False) as db:
        assert db.get_one(ChatSession, named.json()["sessionId"]).source == "api_server"


def test_so_does_the_shell(bridge: BridgeJourney) -> None:
    done: subprocess.CompletedProcess[str] = run_portal(
        "run", bridge.wish("[[say:Hermes in the shell]]"), environ=bridge.portal.environ
    )
    assert done.returncode == 0, done.stderr
    assert "Hermes in the shell" in done.stdout
    assert re.search(r"session \d{8}_\d{6}_[0-9a-f]{6}", done.stderr)
