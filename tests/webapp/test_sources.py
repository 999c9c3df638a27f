"""The menu of a new chat: what is offered, what is not and why, the usual one in one click; profiles, models and skills
of the first message."""

import re
from pathlib import Path

import pytest

from shared.database import transaction
from shared.models import ChatSession, Run
from shared.relay.presence import Presence, ProfileFacts, WorkerFacts
from shared.store import catalogue, chat_sessions
from tests.rig.catalogue_story import without_hermes, worker_facts
from tests.rig.redis_server import RedisServer
from tests.rig.web import Browser, Web, WebMaker
from tests.webapp.hostile import HOSTILE
from tests.webapp.page_rig import Story, text
from tests.webapp.test_pages_catalogue import html
from tests.webapp.test_templates import assert_inert
from webapp.living_workers import LivingWorkers
from webapp.relay_breaker import RelayBreaker

DEMO = {"PORTAL_DEMO_URL": "http://127.0.0.1:9"}
GATEWAY = {"HERMES_GATEWAY_URL": "http://127.0.0.1:8642"}
CLI_ID = re.compile(r"\d{8}_\d{6}_[0-9a-f]{6}")


def tell(web: Web, *facts: WorkerFacts) -> None:
    for each in facts:
        Presence(web.context.redis, web.context.keys).beat_worker(each)
    web.context.workers.forget()


def menu_of(page: str) -> str:
    found = re.search(r'<div class="menu-box new-chat".*?\n</div>', page, re.DOTALL)
    assert found is not None, "no menu"
    return found[0]


def offered(page: str) -> list[str]:
    """The sources that can be chosen in the menu, in its order."""
    return re.findall(r'<a class="menu-item offer" href="/chat\?source=(\w+)"', menu_of(page))


def chosen(page: str) -> str:
    """The source that a message would go to when nothing else is chosen."""
    hidden = re.search(r'<input type="hidden" name="source" value="(\w+)"', page)
    select = re.search(r'<select class="pick" name="source">.*?<option value="(\w+)" selected', page, re.DOTALL)
    found = hidden or select
    assert found is not None
    return found[1]


# ---- what is offered


def test_each_is_offered_with_its_glyph_and_what_it_can_do(make_web: WebMaker) -> None:
    web = make_web(**GATEWAY)
    tell(web, worker_facts())
    page = html(web.browser(web.admin), "/chat")
    assert offered(page) == ["api_server", "cli"]
    menu = menu_of(page)
    for words in ("#g-gateway", "#g-bridge", "<b>API</b>", "<b>Bridge (Hermes)</b>", "text and tools", "approvals"):
        assert words in menu
    assert '<a class="btn btn--icon" href="/chat" aria-label="New chat"' in page, "the usual one is one click"
    assert chosen(page) == "api_server"


def test_a_bridge_without_hermes_is_not_offered_but_says_why_and_how(make_web: WebMaker) -> None:
    web = make_web(**GATEWAY)
    tell(web, without_hermes())
    for role, how in (
        ("operator", "Install hermes-agent where the workers run"),
        ("member", "An operator can connect it."),
    ):
        page = html(web.browser(web.user(role, role=role)), "/chat")
        assert offered(page) == ["api_server"]
        assert "No installed Hermes was found." in menu_of(page)
        assert how in menu_of(page)
        assert 'name="source" value="api_server"' in page
        assert "<option value=" not in page.split('id="composer"')[1].split("</form>")[0]


def test_what_a_worker_found_wrong_is_for_who_can_mend_it(make_web: WebMaker) -> None:
    web = make_web(**GATEWAY)
    tell(web, without_hermes(why="HERMES_AGENT_ROOT is /srv/canary, but there is no run_agent.py."))
    assert "/srv/canary" in html(web.browser(web.admin), "/chat")
    assert "/srv/canary" not in html(web.browser(web.user("mara")), "/chat")


def test_one_worker_with_hermes_is_enough(make_web: WebMaker) -> None:
    web = make_web(**GATEWAY)
    tell(web, without_hermes("a"), worker_facts("b"))
    assert offered(html(web.browser(web.admin), "/chat")) == ["api_server", "cli"]


def test_a_hermes_without_any_home_is_said(make_web: WebMaker) -> None:
    web = make_web(**GATEWAY)
    missing = ProfileFacts(profile=None, state="missing")
    tell(web, worker_facts(profiles=[missing]))
    page = html(web.browser(web.admin), "/chat")
    assert offered(page) == ["api_server"]
    assert "<code>hermes setup</code>" in menu_of(page)
    tell(web, worker_facts(profiles=[missing, ProfileFacts(profile="work", state="idle")]))
    assert offered(html(web.browser(web.admin), "/chat")) == ["api_server", "cli"]


def test_with_nothing_but_the_demo_agent_an_installed_hermes_comes_first(make_web: WebMaker) -> None:
    """DESIGN 2: the demo agent answers when nothing else is there; it is marked where it answers."""
    web = make_web(**DEMO)
    browser = web.browser(web.admin)
    strip = "Demo agent: answers are played"
    tell(web, without_hermes())
    page = html(browser, "/chat")
    assert (offered(page), chosen(page), strip in page) == (["api_server"], "api_server", True)
    assert "<b>API (demo)</b>" in menu_of(page)
    tell(web, worker_facts())
    page = html(browser, "/chat")
    assert (offered(page), chosen(page), strip in page) == (["cli", "api_server"], "cli", False)
    assert strip in html(browser, "/chat?source=api_server")
    for source, is_marked in (("api_server", True), ("cli", False)):
        story = Story(web.factory, title="A chat", owner=web.admin, source=source)
        assert (strip in html(browser, f"/chat/{story.session_id}")) is is_marked
    assert strip not in html(browser, "/profiles")


def test_without_a_gateway_and_without_a_demo_the_bridge_comes_first(web: Web) -> None:
    facts = worker_facts().model_dump(mode="python")
    facts["sources"] = [{"source": "api_server", "ok": False, "why": "No gateway is configured."}, facts["sources"][1]]
    tell(web, WorkerFacts(**facts))
    page = html(web.browser(web.admin), "/chat")
    assert (offered(page), chosen(page)) == (["cli"], "cli")
    assert "No gateway is connected.</span><span>Set HERMES_GATEWAY_URL" in menu_of(page)


def test_where_nothing_can_answer_the_field_says_so(web: Web) -> None:
    facts = without_hermes().model_dump(mode="python")
    facts["sources"][0] |= {"ok": False, "why": "No gateway is configured."}
    tell(web, WorkerFacts(**facts))
    page = html(web.browser(web.admin), "/chat")
    assert offered(page) == []
    assert re.search(r"<textarea[^>]*disabled", page)
    assert re.search(
        r'why-not">API: No gateway is connected\..*Bridge \(Hermes\): No installed Hermes', page, re.DOTALL
    )


def test_while_nobody_can_tell_nothing_is_taken_away(make_web: WebMaker) -> None:
    """C17: a turn waits until a worker is there. An older worker says nothing of its sources."""
    web = make_web(**GATEWAY)
    browser = web.browser(web.admin)
    assert offered(html(browser, "/chat")) == ["api_server", "cli"]
    tell(web, WorkerFacts(worker_id="old", host="h", pid=1, started_at="2026-01-01T00:00:00Z"))
    page = html(browser, "/chat")
    assert (offered(page), chosen(page)) == (["api_server", "cli"], "api_server")


def test_with_redis_away_pages_come_all_the_same(make_web: WebMaker) -> None:
    own = RedisServer()
    try:
        web = make_web(redis_url=own.url, **DEMO)
        browser = web.browser(web.admin)
        own.kill()
        page = html(browser, "/chat")
        assert (offered(page), chosen(page)) == (["api_server", "cli"], "api_server")
        assert "Not known" in html(browser, "/profiles")
        assert web.program(web.admin).get("/api/profiles").json["profiles"][0]["health"]["state"] == "unknown"
    finally:
        own.close()


def test_workers_are_asked_once_in_a_moment(web: Web) -> None:
    workers = LivingWorkers(web.context.redis, web.context.keys, RelayBreaker(), kept_s=60)
    assert workers.now() == []
    Presence(web.context.redis, web.context.keys).beat_worker(worker_facts())
    assert workers.now() == []
    workers.forget()
    assert [each.worker_id for each in workers.now() or ()] == ["hel-1"]


def test_a_viewer_is_offered_nothing(web: Web) -> None:
    page = html(web.browser(web.user("vera", role="viewer")), "/chat")
    assert "new-chat" not in page
    assert "You may read here, but not open sessions." in page


# ---- beginning


def only_session(web: Web) -> ChatSession:
    with transaction(web.factory, write=False) as db:
        return db.query(ChatSession).one()


def test_a_bridge_chat_begins_with_its_first_message_and_has_a_cli_id(web: Web) -> None:
    browser = web.browser(web.admin)
    page = html(browser, "/chat?source=cli")
    assert chosen(page) == "cli"
    answer = browser.post("/chat/new", {"source": "cli", "input": "Hello"})
    session_id = answer.headers["Location"].removeprefix("/chat/")
    assert CLI_ID.fullmatch(session_id)
    assert only_session(web).source == "cli"
    shown = html(browser, f"/chat/{session_id}")
    assert "#g-bridge" in shown
    assert "Bridge</span>" in shown


def test_what_is_chosen_for_the_first_message_counts(web: Web) -> None:
    browser = web.browser(web.admin)
    with transaction(web.factory) as db:
        catalogue.put_profile(db, name="work")
        catalogue.put_profile(db, name="play", is_default=True)
        catalogue.put_language_model(db, name="big", model="m", is_default=True)
    page = html(browser, "/chat")
    assert '<option value="play" selected>' in page
    assert '<option value="work" selected>' in html(browser, "/chat?source=cli&profile=work")
    assert "Default: big" in html(browser, "/chat?source=cli")
    assert "Default model" in html(browser, "/chat?source=api_server"), "a gateway has its own"
    form = {"source": "cli", "profile": "work", "model": "big", "skill_folder": "audit", "input": "Hello"}
    browser.post("/chat/new", form)
    session = only_session(web)
    assert (session.profile, session.model, session.skill_folder) == ("work", "big", "audit")
    form = {"source": "cli", "profile": "default", "input": "x" * 600 * 1024}
    again = browser.post("/chat/new", form)
    assert again.status_code == 413
    assert '<option value="default" selected>' in again.get_data(as_text=True)
    assert chosen(again.get_data(as_text=True)) == "cli"


def test_nobody_is_put_words_into_the_pickers_by_an_address(web: Web) -> None:
    for words in HOSTILE:
        page = html(web.browser(web.admin), "/chat", query_string=dict.fromkeys(
            ("source", "profile", "model", "skill_folder"), words
        ))  # fmt: skip
        assert_inert(page)
        assert words[:12] not in page.split("<main")[1] or words[:12] in ("-->", "`", "&lt;script&g")


def test_a_profile_that_is_gone_is_still_told_by_its_chat(web: Web) -> None:
    story = Story(web.factory, title="Mine", owner=web.admin, profile="gone", source="cli")
    assert '<option value="gone" selected>gone (gone)</option>' in html(
        web.browser(web.admin), f"/chat/{story.session_id}"
    )


# ---- skills


@pytest.fixture
def skilled(make_web: WebMaker, tmp_path: Path) -> Web:
    """Skills in the home of the settings, in that of the profile `work`, and in the portal's own folder."""
    web = make_web(HERMES_HOME=str(tmp_path / "home"))
    with transaction(web.factory) as db:
        catalogue.put_profile(db, name="work", hermes_home=str(tmp_path / "work"))
    for root, name in ((tmp_path / "home", "homely"), (tmp_path / "work", "workly"), (web.settings.data_dir, "shared")):
        put_skill(root, name, f"name: {name.title()}\ndescription: What {name} does")
    return web


def put_skill(root: Path, folder: str, matter: str) -> None:
    path = root / "skills" / folder / "SKILL.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"---\n{matter}\n---\nBody", encoding="utf-8")


def folders(page: str) -> list[str]:
    return re.findall(r'type="radio" name="skill_folder" value="([^"]*)"', page)


def test_a_chat_offers_the_skills_of_its_profile_and_the_portals_own(skilled: Web) -> None:
    browser = skilled.browser(skilled.admin)
    assert folders(html(browser, "/chat/skills?profile=work")) == ["", "shared", "workly"]
    assert folders(html(browser, "/chat/skills?profile=default")) == ["", "homely", "shared"]
    assert folders(html(browser, "/chat/skills?profile=gone")) == ["", "homely", "shared"]
    page = html(browser, "/chat/skills?profile=work&skill_folder=workly")
    assert 'value="workly" checked' in page
    for words in ("Workly", "What workly does", "this profile", "the portal"):
        assert words in page
    program = skilled.program(skilled.admin)
    found = program.get("/api/skills?profile=work").json["skills"]
    assert [(each["folderName"], each["source"]) for each in found] == [("shared", "portal"), ("workly", "profile")]
    assert program.get("/api/skills").json["skills"][0]["folderName"] == "homely"
    assert program.get("/api/skills?profile=../x").status_code == 400


def test_the_picker_names_what_is_chosen_and_can_be_used_without_a_script(skilled: Web) -> None:
    story = Story(skilled.factory, title="Mine", owner=skilled.admin, profile="work", skill_folder="workly")
    page = html(skilled.browser(skilled.admin), f"/chat/{story.session_id}")
    assert 'data-skill-name data-none="No skill">workly<' in page
    assert re.search(r'<input class="field" id="skill-folder" name="skill_folder" value="workly"', page)


def test_without_any_skill_there_is_no_picker(web: Web, tmp_path: Path) -> None:
    story = Story(web.factory, title="Mine", owner=web.admin)
    assert "data-skills" not in html(web.browser(web.admin), f"/chat/{story.session_id}")
    assert "This profile has no skills." in html(web.browser(web.admin), "/chat/skills")


def test_the_skill_of_a_turn_stands_in_the_head_of_its_answer(web: Web) -> None:
    story = Story(web.factory, title="Mine", owner=web.admin, source="cli")
    started = ("run.started", {"source": "cli", "skill_folder": "close-the-month", "number": 1})
    run = story.turn("go", started, text(0, 0, "done"))
    page = html(web.browser(web.admin), f"/chat/{story.session_id}")
    head = re.search(rf'id="run-{run.id}-by".*?</div>', page, re.DOTALL)
    assert head is not None
    assert "skill close-the-month" in head[0]


def test_the_skill_that_was_chosen_is_kept_with_the_turn(skilled: Web) -> None:
    browser = skilled.browser(skilled.admin)
    browser.post("/chat/new", {"source": "cli", "profile": "work"})
    session = only_session(skilled)
    form = {"input": "go", "queue_id": "k", "skill_folder": "workly"}
    assert browser.post(f"/chat/{session.id}/send", form).status_code == 303
    with transaction(skilled.factory, write=False) as db:
        assert db.query(Run).one().skill_folder == "workly"
        assert chat_sessions.get(db, session.id).profile == "work"


@pytest.mark.parametrize("words", HOSTILE)
def test_the_list_is_inert_whatever_a_skill_says_of_itself(web: Web, words: str) -> None:
    put_skill(web.settings.data_dir, "evil", f"name: {words}\ndescription: {words}")
    assert_inert(html(web.browser(web.admin), "/chat/skills"))


def test_who_may_not_read_gets_no_list(web: Web) -> None:
    assert web.program(web.user("mara"), "write").get("/chat/skills").status_code == 403
    assert web.browser().get("/chat/skills").status_code == 303


def test_switching_the_profile_of_a_chat_is_told(web: Web) -> None:
    with transaction(web.factory) as db:
        catalogue.put_profile(db, name="work")
    story = Story(web.factory, title="Mine", owner=web.admin)
    browser: Browser = web.browser(web.admin)
    path = f"/chat/{story.session_id}/options"
    script = {"HX-Request": "true"}
    assert browser.post(path, {"profile": "work"}, headers=script).status_code == 204
    assert only_session(web).profile == "work"
    refused = browser.post(path, {"profile": "nobody"}, headers=script)
    assert (refused.status_code, "There is no profile" in refused.get_data(as_text=True)) == (400, True)
    assert browser.post(path, {"profile": "default"}, headers=script).status_code == 204
    assert only_session(web).profile is None
