"""An agent that cannot start, as a member and as an operator see it: the portal stays up, and everybody hears why."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from shared.database import transaction
from shared.models import ChatSession
from shared.run_state import RunState
from shared.store import catalogue, users
from tests.rig.bridge_journey import BridgeJourney
from tests.rig.chromium import Chromium
from tests.rig.hermes import ScriptedModel
from tests.rig.journey import END_S
from tests.rig.portal import wait_until
from webapp.passwords import hash_password

pytestmark = pytest.mark.component("hermes")

PASSWORD = "four unrelated words then"
BROKEN, SEALED = "broken", "sealed"
NOT_WRITABLE = Path("/sys/kernel")
"""A folder of the kernel's: all can read it and nobody can write it, not even root."""
PLUGIN = """\
import os, sys

def register(ctx):
    sys.stderr.write(f"canary of the plugin: {os.environ['HERMES_HOME']}/plugins/broken is out of date\\n")
    sys.stderr.flush()
    os._exit(7)
"""


@pytest.fixture(scope="module")
def bridge(hermes_model: ScriptedModel) -> Iterator[BridgeJourney]:
    """With sign-in. One profile has a plugin that ends the process of its agent, another a home nobody can write."""
    with BridgeJourney(hermes_model, environ={"AUTH_DISABLED": "0"}) as made:
        home = made.add_profile(BROKEN)
        plugin = home.path / "plugins" / "broken"
        plugin.mkdir(parents=True)
        (plugin / "plugin.yaml").write_text("name: broken\nversion: 1.0.0\ndescription: ends its process\n")
        (plugin / "__init__.py").write_text(PLUGIN)
        home.configure(more="plugins: {enabled: [broken]}\n")
        with transaction(made.factory) as db:
            catalogue.put_profile(db, name=SEALED, hermes_home=str(NOT_WRITABLE))
            for role in ("administrator", "operator", "member"):
                users.create_user(
                    db, login=f"{role}@example.com", name=role.title(), role=role, password_hash=hash_password(PASSWORD)
                )
        yield made


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    made = Chromium()
    yield made
    made.close()


def sign_in(page: Page, bridge: BridgeJourney, role: str) -> None:
    page.set_default_timeout(END_S * 1000)
    page.goto(f"{bridge.portal.address}/login")
    page.fill("#login", f"{role}@example.com")
    page.fill("#password", PASSWORD)
    page.click("form.panel button")
    page.wait_for_selector("#composer")


def ask(page: Page, bridge: BridgeJourney, profile: str, words: str) -> str:
    """Begin a chat in the profile with these words; the end of its turn, as the page says it."""
    page.goto(f"{bridge.portal.address}/chat?source=cli&profile={profile}")
    page.fill("#text", words)
    page.click("#send")
    page.wait_for_selector(".turn--agent .ending, .turn--agent .fold")
    return page.inner_text("#turns")


def test_a_member_hears_why_and_not_where_and_the_portal_stays_up(bridge: BridgeJourney, chromium: Chromium) -> None:
    home = str(bridge.homes[BROKEN].path)
    with chromium.page() as watched:
        page = watched.page
        sign_in(page, bridge, "member")
        said = ask(page, bridge, BROKEN, bridge.wish("[[say:never]]"))
        assert "exit code 7" in said
        assert "canary of the plugin: $HERMES_HOME/plugins/broken is out of date" in said
        assert home not in page.content()
        assert home not in page.content().replace("&#x2F;", "/")
        page.reload()
        page.wait_for_selector("#turns .ending")
        assert "canary of the plugin" in page.inner_text("#turns")
        assert home not in page.content()
        page.goto(f"{bridge.portal.address}/profiles")
        assert home not in page.content()
        answered = ask(page, bridge, "default", bridge.wish("[[say:Others are not disturbed.]]"))
        assert "Others are not disturbed." in answered
        assert watched.violations() == []


def test_an_operator_sees_the_whole_of_it(bridge: BridgeJourney, chromium: Chromium) -> None:
    home = str(bridge.homes[BROKEN].path)
    with transaction(bridge.factory, write=False) as db:
        row = catalogue.profile(db, BROKEN)
        assert row is not None
    with chromium.page() as watched:
        page = watched.page
        sign_in(page, bridge, "operator")
        ask(page, bridge, BROKEN, bridge.wish("[[say:never]]"))

        def shown() -> bool:
            page.goto(f"{bridge.portal.address}/profiles/{row.id}")
            return f"{home}/plugins/broken is out of date" in page.inner_text("main")

        wait_until(shown, END_S, "why it cannot start")
        assert "Cannot start" in page.inner_text("main")


def test_a_home_that_cannot_be_written_is_said_in_the_session_and_on_the_page_of_its_profile(
    bridge: BridgeJourney, chromium: Chromium
) -> None:
    with transaction(bridge.factory, write=False) as db:
        row = catalogue.profile(db, SEALED)
        assert row is not None
    with chromium.page() as watched:
        page = watched.page
        sign_in(page, bridge, "member")
        said = ask(page, bridge, SEALED, bridge.wish("[[say:never]]"))
        assert "The home of the profile 'sealed' cannot be written by the worker (" in said
        assert str(NOT_WRITABLE) not in page.content()
    with chromium.page() as watched:
        page = watched.page
        sign_in(page, bridge, "operator")

        def shown() -> bool:
            page.goto(f"{bridge.portal.address}/profiles/{row.id}")
            return "Its home cannot be written by the worker (" in page.inner_text("#health")

        wait_until(shown, END_S, "why its turns fail")
    failed = [run for session in _sessions(bridge) for run in bridge.runs_of(session) if run.state == RunState.FAILED]
    assert {run.error_code for run in failed} == {"start_failed"}


def _sessions(bridge: BridgeJourney) -> list[str]:

    with transaction(bridge.factory, write=False) as db:
        return [each.id for each in db.query(ChatSession)]
