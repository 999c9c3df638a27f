"""The first administrator (S1): no default account, a one-time token, and nothing else answers before."""

from datetime import timedelta

import pytest

from shared import clock
from shared.database import transaction
from shared.models import AuditEvent, User
from shared.store import users
from shared.tokens import new_token, token_hash
from tests.rig.web import PASSWORD, Browser, Web, WebMaker

FORM = {"login": "Mara", "name": "Mara Lind", "password": PASSWORD}


@pytest.fixture
def bare(make_web: WebMaker) -> Web:
    """A portal without an administrator."""
    return make_web(set_up=False)


def a_link(web: Web, *, minutes: float = 30) -> str:
    token = new_token()
    with transaction(web.factory) as db:
        users.create_setup_token(db, token_hash=token_hash(token), expires_at=clock.now() + timedelta(minutes=minutes))
    return token


def logins(web: Web) -> list[str]:
    with transaction(web.factory, write=False) as db:
        return [user.login for user in users.all_users(db)]


def test_the_link_makes_one_administrator_who_is_signed_in(bare: Web) -> None:
    token = a_link(bare)
    browser = bare.browser()
    assert token in browser.get(f"/setup?token={token}").get_data(as_text=True)
    answer = browser.post("/setup", {**FORM, "token": token})
    assert answer.status_code == 303
    assert browser.get("/settings").status_code == 200
    with transaction(bare.factory, write=False) as db:
        user = users.by_login(db, "mara")
        assert user is not None
        assert user.role == "administrator"
        assert [row.action for row in db.query(AuditEvent)] == ["set_up"]


def test_a_link_works_once(bare: Web) -> None:
    token = a_link(bare)
    assert bare.browser().post("/setup", {**FORM, "token": token}).status_code == 303
    again = bare.browser().post("/setup", {**FORM, "login": "other", "token": token})
    assert again.status_code == 403
    assert logins(bare) == ["mara"]


def test_an_old_link_a_wrong_one_and_one_before_the_newest_are_refused(bare: Web) -> None:
    browser = bare.browser()
    first = a_link(bare)
    a_link(bare)
    for token in (a_link(bare, minutes=-1), "wrong", "", first):
        assert browser.post("/setup", {**FORM, "token": token}).status_code == 403
    assert logins(bare) == []


def test_a_weak_password_leaves_the_link_good(bare: Web) -> None:
    token = a_link(bare)
    browser = bare.browser()
    answer = browser.post("/setup", {**FORM, "token": token, "password": "password1234"})
    assert answer.status_code == 400
    assert "stranger" in answer.get_data(as_text=True)
    assert browser.post("/setup", {**FORM, "token": token}).status_code == 303


def test_before_that_only_the_set_up_page_answers(bare: Web) -> None:
    """Walks the URL map: a new route is closed too."""
    browser = bare.browser()
    told = set()
    for rule in bare.app.url_map.iter_rules():
        if rule.endpoint in ("static", "account.set_up", "account.make_administrator"):
            continue
        path = rule.rule.replace("<session_id>", "x").replace("<run_id>", "x").replace("<path:filename>", "x")
        for method in rule.methods - {"HEAD", "OPTIONS"}:
            answer = browser.open(path, method=method)
            if rule.rule in ("/healthz", "/readyz", "/metrics"):
                continue
            to_set_up = answer.status_code == 303 and answer.headers["Location"].endswith("/setup")
            assert answer.status_code == 403 or to_set_up, (method, rule.rule, answer.status_code)
            told.add(rule.endpoint)
    assert len(told) > 20
    assert bare.browser().get("/healthz").status_code == 200
    assert browser.get("/no/such/page").status_code == 403


def test_a_program_gets_nothing_before_that(bare: Web) -> None:
    member = bare.user("member")
    assert bare.program(member).get("/api/chat/sessions").json["code"] == "set_up_first"


def test_after_that_the_set_up_page_leads_to_sign_in(web: Web) -> None:
    assert web.browser().get("/setup").headers["Location"].endswith("/login")
    answer = web.browser().post("/setup", {**FORM, "token": a_link(web)})
    assert answer.status_code == 403
    assert logins(web) == ["admin"]


def test_two_who_use_the_link_at_once_make_one_administrator(bare: Web) -> None:
    """One browser gets as far as the form; another one wins."""
    token = a_link(bare)
    late, early = bare.browser(), bare.browser()
    late.csrf()
    assert early.post("/setup", {**FORM, "token": token}).status_code == 303
    assert late.post("/setup", {**FORM, "login": "late", "token": token}).status_code == 403
    with transaction(bare.factory, write=False) as db:
        assert db.query(User).count() == 1


def test_the_set_up_form_needs_its_csrf_token(bare: Web) -> None:
    token = a_link(bare)
    browser: Browser = bare.browser()
    answer = browser.open("/setup", method="POST", data={**FORM, "token": token})
    assert answer.status_code == 403
    assert logins(bare) == []
