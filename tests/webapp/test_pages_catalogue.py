"""/profiles and /models: what each role sees and may do, forms that lose nothing, and texts that stay texts."""

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from shared import clock
from shared.database import transaction
from shared.models import ApprovalGrant, AuditEvent, SignIn, User
from shared.relay.presence import Presence, ProfileFacts, WorkerFacts
from shared.store import approval_grants, catalogue, users
from tests.rig.catalogue_story import CRASH, story_facts, without_hermes, worker_facts
from tests.rig.web import PASSWORD, Browser, Web
from tests.webapp.hostile import HOSTILE
from tests.webapp.test_templates import assert_inert
from webapp.errors import told
from webapp.render import Reader, reading_as

HOME = "/srv/canary-home/work"
GATEWAY = "https://canary-gateway.example/p/work"
CANARY = "sk-canary0123456789abcdefghijkl"


class Catalogue:
    """A profile `work` with a permission of Mara's, a model with a key, and people of every role."""

    def __init__(self, web: Web) -> None:
        self.web = web
        self.mara = web.user("mara")
        with transaction(web.factory) as db:
            self.profile_id = catalogue.put_profile(db, name="work", hermes_home=HOME, gateway_url=GATEWAY).id
            row = catalogue.put_language_model(
                db, name="big", model="vendor/big", provider="openrouter", base_url="https://canary-model.example/v1",
                key_ref="CANARY_KEY",
            )  # fmt: skip
            self.model_id = row.id
            self.grant_id = self.allow(db, "recursive delete", self.mara).id

    def allow(self, db: Any, pattern: str, user: User) -> ApprovalGrant:
        return approval_grants.add(
            db, profile="work", pattern_key=pattern, user=users.get(db, user.id), description="deletes a folder",
            command="rm -r /canary-command", reason="because canary-reason",
        )  # fmt: skip

    def tell(self, *facts: WorkerFacts) -> None:
        presence = Presence(self.web.context.redis, self.web.context.keys)
        for each in facts:
            presence.beat_worker(each)
        self.web.context.workers.forget()

    def page(self, path: str, role: str = "administrator", **given: Any) -> str:
        user = self.web.admin if role == "administrator" else self.web.user(f"{role}{clock.now()}", role=role)
        return html(self.web.browser(user), path, **given)


@pytest.fixture
def story(web: Web) -> Catalogue:
    return Catalogue(web)


@pytest.fixture
def browser(web: Web) -> Browser:
    return web.browser(web.admin)


def html(browser: Browser, path: str, status: int = 200, **given: Any) -> str:
    answer = browser.get(path, **given)
    assert answer.status_code == status, answer.get_data(as_text=True)
    return answer.get_data(as_text=True)


def posted(browser: Browser, path: str, form: dict[str, str], status: int) -> str:
    answer = browser.post(path, form)
    assert answer.status_code == status, answer.get_data(as_text=True)[-2_000:]
    return answer.get_data(as_text=True)


def value_of(page: str, field: str) -> str:
    found = re.search(rf'<input[^>]*name="{field}"[^>]*>', page)
    assert found is not None, field
    value = re.search(r'value="([^"]*)"', found[0])
    return unescape(value[1]) if value else ""


def fault_of(page: str, field: str) -> str:
    """What stands beside the field, which has to say that it is wrong and where the reason is."""
    found = re.search(rf'<input[^>]*name="{field}"[^>]*>', page)
    assert found is not None
    assert 'aria-invalid="true"' in found[0]
    assert f'aria-describedby="f-{field}-fault' in found[0]
    fault = re.search(rf'id="f-{field}-fault">(.*?)</p>', page, re.DOTALL)
    assert fault is not None
    return re.sub(r"<[^>]+>", "", fault[1]).strip()


def make_stale(web: Web) -> None:
    with transaction(web.factory) as db:
        for row in db.query(SignIn):
            row.confirmed_at = row.confirmed_at.replace(year=2020)


# ---- what each role sees


@pytest.mark.parametrize("role", ["member", "viewer"])
def test_members_see_names_and_health_and_nothing_that_leads_anywhere(story: Catalogue, role: str) -> None:
    why = f"No such file: {HOME}/config.yaml"
    story.tell(worker_facts("hel-7", profiles=[ProfileFacts(profile="work", state="failed", why=why)]))
    pages = [
        story.page(path, role)
        for path in ("/profiles", f"/profiles/{story.profile_id}", "/profiles/default", "/models")
    ]
    assert "work" in pages[0]
    assert "Cannot start" in pages[0]
    assert "Cannot start" in pages[1]
    assert "Recursive delete" not in pages[1]
    assert "Deletes a folder" in pages[1]
    assert "big" in pages[3]
    for page in pages:
        for secret in (HOME, "canary", "CANARY_KEY", "hel-7", str(story.web.settings.hermes_home)):
            assert secret not in page.replace(CANARY, "")
        assert 'name="hermes_home"' not in page
        assert "/remove" not in page
        assert "/default" not in page.replace("/profiles/default", "")
        assert "Revoke" not in page


@pytest.mark.parametrize("role", ["operator", "administrator"])
def test_who_configures_sees_all_but_a_key(story: Catalogue, role: str) -> None:
    story.tell(*story_facts())
    page = story.page(f"/profiles/{story.profile_id}", role)
    for shown in (HOME, "rm -r /canary-command", "because canary-reason", "allowed by Mara", "Revoke"):
        assert shown in page
    assert value_of(page, "gateway_url") == GATEWAY
    models = story.page("/models", role)
    assert "CANARY_KEY" in models
    assert "https://canary-model.example/v1" in models
    locked = 'name="gateway_url" type="text"' in page and bool(re.search(r'name="gateway_url"[^>]*disabled', page))
    assert locked is (role == "operator")


def test_forms_are_not_there_for_who_may_not_use_them(story: Catalogue) -> None:
    ids = (story.profile_id, story.model_id)
    for role in ("member", "viewer"):
        browser = story.web.browser(story.web.user(f"x-{role}", role=role))
        before = story.web.rows()
        for path in ("/profiles/new", "/models/new", f"/models/{ids[1]}"):
            html(browser, path, 403)
        for path in (
            "/profiles", f"/profiles/{ids[0]}", f"/profiles/{ids[0]}/default", f"/profiles/{ids[0]}/remove", "/models",
            f"/models/{ids[1]}", f"/models/{ids[1]}/default", f"/models/{ids[1]}/remove",
        ):  # fmt: skip
            posted(browser, path, {"name": "mine", "model": "m", "hermes_home": "/"}, 403)
        posted(browser, f"/profiles/grants/{story.grant_id}/revoke", {}, 404)
        for table in ("profile", "language_model", "approval_grant", "audit_event"):
            assert story.web.rows()[table] == before[table]


@pytest.mark.parametrize("role", ["operator", "administrator"])
def test_a_token_reads_and_configures_nothing(story: Catalogue, role: str) -> None:
    program = story.web.program(story.web.user(f"t-{role}", role=role))
    before = story.web.rows()["profile"]
    assert HOME not in program.get("/profiles").get_data(as_text=True)
    assert HOME not in program.get(f"/profiles/{story.profile_id}").get_data(as_text=True)
    for path in ("/profiles", f"/profiles/{story.profile_id}/remove", f"/models/{story.model_id}/remove"):
        assert program.send("POST", path).status_code == 403
    assert story.web.rows()["profile"] == before
    writing = story.web.program(story.web.user(f"w-{role}", role=role), "write")
    assert writing.get("/profiles").status_code == 403


def test_what_is_not_there_is_not_found(story: Catalogue, browser: Browser) -> None:
    for path in ("/profiles/nothing", "/models/nothing", f"/profiles/{'0' * 32}"):
        html(browser, path, 404)
    for path in ("/profiles/nothing", "/profiles/nothing/remove", "/models/nothing", "/profiles/grants/nothing/revoke"):
        posted(browser, path, {"model": "m"}, 404)
    posted(browser, "/profiles/default/remove", {}, 404)
    posted(browser, "/profiles/default", {"hermes_home": "/"}, 404)


# ---- health


def test_health_is_the_worst_that_a_worker_says_with_the_end_of_what_went_wrong(story: Catalogue) -> None:
    with transaction(story.web.factory) as db:
        row = catalogue.put_profile(db, name="research")
        catalogue.put_profile(db, name="legal")
    story.tell(*story_facts())
    page = story.page("/profiles")
    assert "Cannot start, 1 of 2 workers" in page
    assert "No home" in page
    assert page.count("Ready") == 1
    detail = unescape(story.page(f"/profiles/{row.id}"))
    assert CRASH.splitlines()[-1] in detail
    assert "hel-1" in detail
    assert "hel-2" in detail


def test_nothing_is_made_up_where_no_worker_tells(story: Catalogue) -> None:
    assert "No worker answers now." in story.page("/profiles")
    story.tell(worker_facts())
    assert "No worker has looked at it yet." in story.page("/profiles")
    story.tell(WorkerFacts(worker_id="hel-1", host="h", pid=1, started_at=clock.now().replace(microsecond=0)))
    assert "Not known" in story.page("/profiles"), "an older worker says nothing of it"


def test_without_hermes_no_profile_looks_as_if_it_could_start(story: Catalogue) -> None:
    facts = without_hermes()
    story.tell(facts.model_copy(update={"profiles": [ProfileFacts(profile="work", state="idle")]}))
    page = story.page("/profiles")
    assert "No Hermes" in page
    assert "starts with the first turn" not in page


def test_what_redis_holds_is_shown_as_text_and_cut(story: Catalogue) -> None:
    """S48."""
    hostile = "<script>alert(1)</script>" + "x" * 100_000
    story.tell(
        worker_facts(
            "w", host=hostile, profiles=[ProfileFacts(profile="work", state=hostile, why=hostile, version=hostile)]
        )
    )
    page = story.page(f"/profiles/{story.profile_id}")
    assert_inert(page)
    assert len(page) < 60_000


# ---- forms


def test_what_was_typed_stays_with_each_fault_beside_its_field(story: Catalogue, browser: Browser) -> None:
    typed = {"name": "a b", "hermes_home": "~/x\u202e<b>", "gateway_url": "gopher://x", "is_default": "1"}
    page = posted(browser, "/profiles", typed, 400)
    assert {field: value_of(page, field) for field in typed} == typed
    assert fault_of(page, "name").startswith("Letters, digits")
    assert fault_of(page, "hermes_home") == "This is not the path of a folder."
    assert fault_of(page, "gateway_url").startswith("An address begins")
    assert page.count("autofocus") == 1
    assert re.search(r'name="is_default"[^>]*checked', page)
    edited = posted(browser, f"/profiles/{story.profile_id}", {"hermes_home": "relative", "gateway_url": GATEWAY}, 400)
    assert value_of(edited, "hermes_home") == "relative"
    assert "Deletes a folder" in edited, "the rest of the page is there"


def test_a_model_is_added_changed_and_removed_by_forms(story: Catalogue, browser: Browser) -> None:
    wrong = {"name": "x y", "model": "", "provider": "Open", "base_url": "x", "context_window": "lots"}
    page = posted(browser, "/models", wrong, 400)
    assert {field: value_of(page, field) for field in wrong} == wrong
    for field in wrong:
        assert fault_of(page, field)
    posted(browser, "/models", {"name": "new", "model": "m", "is_default": "1"}, 303)
    page = html(browser, "/models?done=added")
    assert "Added." in page
    assert "new" in page
    with transaction(story.web.factory, write=False) as db:
        row = catalogue.language_model(db, "new")
        assert row is not None
        assert row.is_default
    posted(browser, f"/models/{row.id}", {"model": "vendor/second", "base_url": "", "provider": "", "key_ref": ""}, 303)
    assert "vendor/second" in html(browser, "/models")
    posted(browser, f"/models/{story.model_id}/default", {}, 303)
    posted(browser, f"/models/{row.id}/remove", {}, 303)
    assert "vendor/second" not in html(browser, "/models")


def test_a_key_that_was_typed_by_mistake_is_not_shown_again(story: Catalogue, browser: Browser) -> None:
    """S41; everything else that was typed stays."""
    page = posted(browser, "/models", {"name": "new", "model": "m", "key_ref": CANARY}, 400)
    assert CANARY not in page
    assert "never the key itself" in fault_of(page, "key_ref")
    assert (value_of(page, "name"), value_of(page, "model"), value_of(page, "key_ref")) == ("new", "m", "")


@pytest.mark.parametrize(
    ("keys", "words"),
    [({}, "Key not known"), ({"CANARY_KEY": True}, "Key set"), ({"CANARY_KEY": False}, "Key not set")],
)
def test_of_a_key_is_told_only_whether_the_workers_have_it(story: Catalogue, keys: dict[str, bool], words: str) -> None:
    story.tell(worker_facts(keys=keys))
    assert words in story.page("/models")


def test_a_key_that_some_workers_lack_is_said(story: Catalogue) -> None:
    story.tell(worker_facts("a", keys={"CANARY_KEY": True}), worker_facts("b", keys={"CANARY_KEY": False}))
    assert "Key set in 1 of 2 workers" in story.page("/models", "member")


def test_a_profile_is_added_and_leads_to_its_page(story: Catalogue, browser: Browser, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    answer = browser.post("/profiles", {"name": "play", "hermes_home": str(home), "gateway_url": ""})
    assert answer.status_code == 303
    page = html(browser, answer.headers["Location"])
    assert "Profile play" in page
    assert "Added." in page
    assert "Nothing is allowed always" in page
    posted(browser, answer.headers["Location"].split("?")[0] + "/default", {}, 303)
    assert re.search(
        r'id="profile-[0-9a-f]{32}".{0,400}play.{0,100}Default for new chats', html(browser, "/profiles"), re.S
    )


def test_an_operator_saves_a_form_whose_locked_fields_are_not_sent(story: Catalogue) -> None:
    browser = story.web.browser(story.web.user("olga", role="operator"))
    posted(browser, f"/profiles/{story.profile_id}", {"hermes_home": HOME, "is_default": "1"}, 303)
    posted(browser, f"/models/{story.model_id}", {"model": "other"}, 303)
    page = posted(
        browser, f"/profiles/{story.profile_id}", {"hermes_home": HOME, "gateway_url": "https://1.1.1.1"}, 403
    )
    assert "Only an administrator may say where turns are sent." in page
    with transaction(story.web.factory, write=False) as db:
        row = catalogue.get_profile(db, story.profile_id)
        model = catalogue.get_language_model(db, story.model_id)
    assert (row.gateway_url, row.is_default) == (GATEWAY, True)
    assert (model.model, model.key_ref, model.provider) == ("other", "CANARY_KEY", "openrouter")


# ---- the password (S16)


def test_a_form_asks_for_the_password_when_it_was_given_long_ago_and_keeps_what_was_typed(
    story: Catalogue, browser: Browser
) -> None:
    browser.csrf()
    assert 'name="password"' not in html(browser, "/models/new")
    make_stale(story.web)
    assert 'name="password"' in html(browser, "/models/new")
    typed = {"name": "new", "model": "m"}
    page = posted(browser, "/models", typed, 400)
    assert fault_of(page, "password") == "Give your password again to do that."
    page = posted(browser, "/models", {**typed, "password": "wrong password"}, 400)
    assert fault_of(page, "password") == "The password is wrong."
    assert value_of(page, "name") == "new"
    assert value_of(page, "password") == ""
    posted(browser, "/models", {**typed, "password": PASSWORD}, 303)
    assert 'name="password"' not in html(browser, "/models/new"), "it counts for ten minutes"


def test_a_button_leads_to_the_password_and_back(story: Catalogue, browser: Browser) -> None:
    browser.csrf()
    make_stale(story.web)
    for path, back in (
        (f"/profiles/{story.profile_id}/remove", "/profiles"),
        (f"/models/{story.model_id}/remove", "/models"),
    ):
        answer = browser.post(path)
        assert (answer.status_code, answer.headers["Location"]) == (303, f"/settings?next={back}")
    done = browser.post("/settings/confirm", {"password": PASSWORD, "next": "/profiles"})
    assert done.headers["Location"] == "/profiles"
    assert browser.post(f"/models/{story.model_id}/remove").headers["Location"] == "/models?done=removed"


def test_revoking_needs_no_password(story: Catalogue, browser: Browser) -> None:
    """What makes it safer is never put off."""
    browser.csrf()
    make_stale(story.web)
    answer = browser.post(f"/profiles/grants/{story.grant_id}/revoke")
    assert answer.headers["Location"] == f"/profiles/{story.profile_id}?done=revoked"


# ---- permissions


def test_what_is_allowed_always_is_listed_revoked_and_kept_as_a_trace(story: Catalogue, browser: Browser) -> None:
    path = f"/profiles/{story.profile_id}"
    assert "Nothing is allowed always" not in html(browser, path)
    posted(browser, f"/profiles/grants/{story.grant_id}/revoke", {}, 303)
    page = html(browser, f"{path}?done=revoked")
    assert "asked about again" in page
    assert "Nothing is allowed always" in page
    assert "1 revoked before" in page
    assert "revoked by Admin" in page
    with transaction(story.web.factory, write=False) as db:
        assert [row.action for row in db.query(AuditEvent)] == ["grant_revoked"]
        assert approval_grants.patterns(db, "work") == ()


def test_who_allowed_something_sees_and_revokes_their_own_alone(story: Catalogue) -> None:
    jonas = story.web.user("jonas")
    with transaction(story.web.factory) as db:
        story.allow(db, "sudo", jonas)
    browser = story.web.browser(story.mara)
    page = html(browser, f"/profiles/{story.profile_id}")
    assert page.count("rm -r /canary-command") == 1
    assert page.count(">Revoke<") == 1
    posted(browser, f"/profiles/grants/{story.grant_id}/revoke", {}, 303)
    assert "rm -r" not in html(browser, f"/profiles/{story.profile_id}").split("revoked before")[0]


def test_two_grants_of_one_pattern_are_one_line(story: Catalogue) -> None:
    with transaction(story.web.factory) as db:
        twin = {"profile": "work", "pattern_key": "recursive delete", "granted_at": clock.now()}
        db.add(ApprovalGrant(id="twin", description="deletes a folder", command="x", **twin))
    page = story.page(f"/profiles/{story.profile_id}")
    assert page.count("Deletes a folder") == 2  # the line, and the name of its button
    assert "1 allowed always" in story.page("/profiles")


def test_a_profile_of_the_same_name_begins_with_nothing(story: Catalogue, browser: Browser) -> None:
    posted(browser, f"/profiles/{story.profile_id}/remove", {}, 303)
    posted(browser, "/profiles", {"name": "work", "hermes_home": "", "gateway_url": ""}, 303)
    with transaction(story.web.factory, write=False) as db:
        assert approval_grants.patterns(db, "work") == ()


# ---- empty, and hostile


def test_the_first_pages_say_what_to_do(web: Web) -> None:
    admin, member = web.browser(web.admin), web.browser(web.user("mara"))
    assert "Only the default profile" in html(admin, "/profiles")
    assert 'href="/profiles/new"' in html(admin, "/profiles")
    assert "No models yet" in html(admin, "/models")
    for path in ("/profiles", "/models"):
        page = html(member, path)
        assert "An operator can add one." in page
        assert "/new" not in page.replace("/chat/new", "")


def test_done_is_one_of_our_own_words(browser: Browser) -> None:
    for done in ("<script>", "saved2", "__class__", "-1"):
        page = html(browser, f"/profiles?done={done}")
        assert 'class="notice"' not in page


@pytest.mark.parametrize("text", HOSTILE)
def test_pages_are_inert_whatever_stands_in_their_texts(web: Web, text: str) -> None:
    text = text.replace("\0", "\ufffd")
    with transaction(web.factory) as db:
        row = catalogue.put_profile(db, name=text, hermes_home=text, gateway_url=text)
        model = catalogue.put_language_model(db, name=text, model=text, provider=text, base_url=text, key_ref=text)
        user = users.get(db, web.admin.id)  # type: ignore[union-attr]
        user.name = text
        grant = approval_grants.add(
            db, profile=text, pattern_key=text, user=user, description=text, command=text, reason=text
        )
        approval_grants.add(db, profile=text, pattern_key="x", user=user)
        approval_grants.revoke(db, grant.id, user=user)
        approval_grants.add(db, profile=text, pattern_key=text, user=user, description=text, command=text, reason=text)
    facts = [ProfileFacts(profile=text, state=text, why=text, version=text)]
    Presence(web.context.redis, web.context.keys).beat_worker(
        worker_facts("w", host=text, profiles=facts, keys={text: True})
    )
    browser = web.browser(web.admin)
    for path in (
        "/profiles",
        f"/profiles/{row.id}",
        "/models",
        f"/models/{model.id}",
        "/chat",
        "/chat?profile=" + text[:30],
    ):
        assert_inert(html(browser, path))
    typed = dict.fromkeys(
        ("name", "hermes_home", "gateway_url", "model", "provider", "base_url", "context_window"), text
    )
    for path in ("/profiles", f"/profiles/{row.id}", "/models", f"/models/{model.id}"):
        answer = browser.post(path, typed)
        assert answer.status_code in (303, 400)
        assert_inert(answer.get_data(as_text=True))


def test_a_chinese_browser_gets_chinese_pages_and_faults(story: Catalogue, browser: Browser) -> None:
    browser.client.set_cookie("portal_lang", "zh_Hans", domain="127.0.0.1")
    assert "配置档" in html(browser, "/profiles")
    assert "密钥状态未知" in html(browser, "/models")
    page = posted(browser, "/profiles", {"name": "a b", "hermes_home": "x", "gateway_url": "http://10.0.0.1"}, 400)
    for field in ("name", "hermes_home", "gateway_url"):
        assert re.search(r"[\u4e00-\u9fff]", fault_of(page, field)), field


def test_every_fault_of_the_forms_has_a_chinese_sentence() -> None:
    """They are written in the actions, where nothing extracts them."""
    sources = [
        Path(__file__).parents[2] / path
        for path in ("webapp/actions/models.py", "webapp/actions/profiles.py", "shared/outbound.py")
    ]
    raised = r'(?:InvalidCommand|RefusedAddress|Forbidden|NotFound)\(\s*f?"([^"]+)"|return (?:\(\s*)?"([^"]+)"'
    found = [one or two for source in sources for one, two in re.findall(raised, source.read_text(encoding="utf-8"))]
    assert len(found) > 20
    with reading_as(Reader("zh_Hans")):
        for sentence in found:
            filled = re.sub(r"\{\w+\}", "1000", sentence)
            if filled.endswith(" "):
                continue  # the first half of a long one
            assert told(filled) != filled, sentence
