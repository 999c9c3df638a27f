"""What every request must bring, and what every answer carries (S11, S12, S22, S23, S51, S52)."""

from datetime import timedelta

import pytest
from werkzeug.test import TestResponse

from shared.database import transaction
from shared.models import AuditEvent
from shared.store import users
from tests.rig.web import ADDRESS, Browser, Web, WebMaker
from tests.webapp.test_rights import objects_of
from tests.webapp.url_map import ROUTES, Route, filled
from webapp.addresses import is_own_origin, local_target

WRITING = [(method, rule, route) for (method, rule), route in ROUTES.items() if method != "GET"]
UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; font-src 'self'; "
    "manifest-src 'self'; worker-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'; object-src 'none'"
)


def raw_call(
    browser: Browser, method: str, rule: str, route: Route, ids: dict[str, str], **given: object
) -> TestResponse:
    """Without a CSRF token."""
    path = filled(rule, ids)
    if route.form is not None:
        return browser.open(path, method=method, data={n: filled(v, ids) for n, v in route.form}, **given)
    body = {n: filled(v, ids) if isinstance(v, str) else v for n, v in route.json or ()}
    return browser.open(path, method=method, json=body, **given)


# ---- S11


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request notes, once a minute, that the sign-in is in use: here none does, however long all of them take."""
    monkeypatch.setattr(users, "TOUCH_EVERY", timedelta(days=1))


@pytest.mark.usefixtures("untouched")
def test_nothing_unsafe_happens_without_the_csrf_token(web: Web) -> None:
    owner = web.user("owner")
    ids = objects_of(web, owner).ids
    browser = web.browser(owner)
    browser.csrf()  # the cookie is there; what is missing is the token in the request
    before = web.rows()
    for method, rule, route in WRITING:
        for given in ({}, {"headers": {"X-CSRF-Token": "made-up"}}, {"headers": {"HX-Request": "true"}}):
            answer = raw_call(browser, method, rule, route, ids, **given)
            assert answer.status_code == 403, (method, rule, given)
    assert web.rows() == before


def test_a_csrf_token_of_another_browser_does_not_help(web: Web) -> None:
    owner, other = web.user("owner"), web.user("other")
    browser, foreign = web.browser(owner), web.browser(other)
    browser.csrf()
    answer = browser.open("/chat/new", method="POST", data={"csrf_token": foreign.csrf()})
    assert answer.status_code == 403


def test_the_token_of_before_the_sign_in_is_of_no_use_after_it(web: Web) -> None:
    browser = web.browser()
    before = browser.csrf()
    browser.sign_in("admin")
    assert browser.open("/chat/new", method="POST", data={"csrf_token": before}).status_code == 403
    assert browser.post("/chat/new").status_code == 303


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "https://127.0.0.1:8080"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_foreign_page_gets_nowhere_even_with_a_token(web: Web, headers: dict[str, str]) -> None:
    browser = web.browser(web.admin)
    answer = browser.post("/chat/new", headers=headers)
    assert answer.status_code == 403
    assert browser.send("POST", "/api/chat/sessions", {}, headers=headers).json["code"] == "foreign_origin"


def test_our_own_page_is_let_through(web: Web) -> None:
    """A plain form sends `Origin: null` under our Referrer-Policy, a script the whole origin."""
    browser = web.browser(web.admin)
    assert browser.post("/chat/new", headers={"Origin": "null", "Sec-Fetch-Site": "same-origin"}).status_code == 303
    headers = {"Origin": ADDRESS, "Sec-Fetch-Site": "same-origin"}
    assert browser.send("POST", "/api/chat/sessions", {}, headers=headers).status_code == 201


@pytest.mark.usefixtures("untouched")
def test_reading_changes_nothing(web: Web) -> None:
    owner = web.user("owner", role="administrator")
    ids = objects_of(web, owner).ids
    browser = web.browser(owner)
    before = web.rows()
    for method, rule in ROUTES:
        if method == "GET" and "stream" not in rule:
            for path in (filled(rule, ids), filled(rule, ids) + "?csrf_token=x&title=Other&input=Hello&_method=DELETE"):
                browser.get(path)
                browser.open(path, method="HEAD")
                browser.open(path, method="OPTIONS")
    assert web.rows() == before


# ---- S11 under AUTH_DISABLED


@pytest.fixture
def open_web(make_web: WebMaker) -> Web:
    return make_web(set_up=False, AUTH_DISABLED="1")


def test_with_auth_disabled_everybody_is_one_local_administrator(open_web: Web) -> None:
    browser = open_web.browser()
    made = browser.open("/api/chat/sessions", method="POST", json={"title": "Mine"})
    assert made.status_code == 201
    assert open_web.browser().get("/api/chat/sessions").json["sessions"][0]["title"] == "Mine"
    assert browser.get("/chat").status_code == 200
    assert browser.get("/login").status_code == 303
    with transaction(open_web.factory, write=False) as db:
        [user] = users.all_users(db)
        assert (user.login, user.role, user.password_hash) == ("local", "administrator", None)


@pytest.mark.parametrize(
    "given",
    [
        {"data": '{"title": "x"}', "content_type": "text/plain"},
        {"data": {"title": "x"}},
        {"data": "{}"},
        {"json": {}, "headers": {"Origin": "https://evil.example"}},
        {"json": {}, "headers": {"Origin": "null"}},
        {"json": {}, "headers": {"Sec-Fetch-Site": "cross-site"}},
        {"json": {}, "headers": {"Sec-Fetch-Site": "same-site"}},
    ],
)
def test_with_auth_disabled_the_api_takes_json_of_our_own_pages_only(open_web: Web, given: dict[str, object]) -> None:
    browser = open_web.browser()
    browser.get("/api/chat/sessions")
    before = open_web.rows()
    assert browser.open("/api/chat/sessions", method="POST", **given).status_code == 403
    assert open_web.rows() == before


def test_with_auth_disabled_pages_still_want_their_token(open_web: Web) -> None:
    browser = open_web.browser()
    assert browser.open("/chat/new", method="POST").status_code == 403
    assert browser.post("/chat/new").status_code == 303


# ---- S12


@pytest.mark.parametrize("origin", [None, "null", "https://evil.example", "http://127.0.0.1:9999", "", "file://"])
def test_a_socket_with_the_cookie_needs_our_origin(web: Web, origin: str | None) -> None:
    """Refused before the upgrade. What is let through is for the tests over a real socket."""
    headers = UPGRADE if origin is None else {**UPGRADE, "Origin": origin}
    answer = _upgrade(web.browser(web.admin), headers)
    assert answer.status_code == 403
    assert answer.json["code"] == "foreign_origin"


def test_a_socket_without_a_sign_in_is_refused(web: Web) -> None:
    assert _upgrade(web.browser(), {**UPGRADE, "Origin": ADDRESS}).status_code == 401
    assert _upgrade(web.browser(web.admin), {**UPGRADE, "Authorization": "Bearer wrong"}).status_code == 401


def test_with_auth_disabled_a_page_of_others_opens_no_socket(open_web: Web) -> None:
    for origin in ("null", "https://evil.example"):
        assert _upgrade(open_web.browser(), {**UPGRADE, "Origin": origin}).status_code == 403


def _upgrade(browser: Browser, headers: dict[str, str]) -> TestResponse:
    return browser.get("/chat-run", headers=headers, environ_overrides={"wsgi.url_scheme": "http"})


# ---- S22, S23


def _answers(web: Web) -> list[tuple[str, TestResponse]]:
    owner = web.user("owner")
    ids = objects_of(web, owner).ids
    browser, stranger = web.browser(owner), web.browser()
    seen = []
    for (method, rule), route in ROUTES.items():
        if "stream" in rule:
            continue
        for who in (browser, stranger):
            path = filled(rule, ids)
            answer = who.get(path) if method == "GET" else raw_call(who, method, rule, route, ids)
            seen.append((f"{method} {rule} {answer.status_code}", answer))
    for method, path in (
        ("GET", "/no/such"),
        ("PUT", "/chat"),
        ("GET", "/chat/"),
        ("TRACE", "/"),
        ("GET", "/static/no"),
    ):
        answer = browser.open(path, method=method)
        seen.append((f"{method} {path} {answer.status_code}", answer))
    return seen


def test_every_answer_carries_the_security_headers(web: Web) -> None:
    answers = _answers(web)
    assert len(answers) > 80
    for name, answer in answers:
        headers = answer.headers
        assert headers.getlist("Content-Security-Policy") == [CSP], name
        assert headers["X-Content-Type-Options"] == "nosniff", name
        assert headers["Referrer-Policy"] == "no-referrer", name
        assert headers["Cross-Origin-Opener-Policy"] == "same-origin", name
        assert "Strict-Transport-Security" not in headers, name
        assert "Access-Control-Allow-Origin" not in headers, name


def test_private_answers_are_kept_by_nobody(web: Web) -> None:
    for name, answer in _answers(web):
        cache = answer.headers["Cache-Control"]
        if "/static/" in name and answer.status_code == 200:
            continue
        if name.startswith("GET /api/") and "docs" not in name and answer.status_code == 200:
            assert cache == "private, no-cache", name
            assert answer.headers["ETag"], name
        else:
            assert cache == "no-store", name


def test_an_unchanged_answer_of_the_api_is_not_sent_again(web: Web) -> None:
    program = web.program(web.admin)
    program.new_session()
    first = program.get("/api/chat/sessions")
    again = program.get("/api/chat/sessions", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")
    assert again.headers["Cache-Control"] == "private, no-cache"
    program.new_session()
    assert program.get("/api/chat/sessions", headers={"If-None-Match": first.headers["ETag"]}).status_code == 200


def test_over_tls_browsers_are_told_to_stay_with_it(make_web: WebMaker) -> None:
    web = make_web(PORTAL_PUBLIC_URL="https://portal.example")
    for path in ("/login", "/healthz", "/no/such"):
        answer = web.browser(address="https://portal.example").get(path)
        assert answer.headers["Strict-Transport-Security"] == "max-age=31536000"


def test_pages_hold_no_inline_script_style_or_handler(web: Web) -> None:
    for name, answer in _answers(web):
        if not answer.content_type.startswith("text/html"):
            continue
        page = answer.get_data(as_text=True).lower()
        assert "<style" not in page, name
        assert " style=" not in page, name
        assert " onclick=" not in page, name
        assert "javascript:" not in page, name
        assert "hx-on" not in page, name
        for script in page.split("<script")[1:]:
            assert " src=" in script.split(">")[0], name


# ---- S51


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8080", "", "a b", "192.0.2.9", "[::1", "@"],
)
def test_a_host_that_is_not_ours_is_refused(web: Web, host: str) -> None:
    answer = web.browser(web.admin).get("/chat", headers={"Host": host})
    assert answer.status_code == 400
    assert "evil" not in answer.get_data(as_text=True)
    assert answer.headers["Content-Security-Policy"] == CSP


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "localhost:9000", "[::1]:8080", "LOCALHOST"])
def test_the_own_machine_is_ours(web: Web, host: str) -> None:
    assert web.browser().get("/login", headers={"Host": host}).status_code == 200


def test_the_public_address_is_ours(make_web: WebMaker) -> None:
    web = make_web(PORTAL_PUBLIC_URL="https://portal.example:8443")
    assert web.browser(address="https://portal.example:8443").get("/login").status_code == 200
    assert web.browser(address="https://other.example").get("/login").status_code == 400


def test_forwarded_headers_count_only_as_often_as_configured(make_web: WebMaker) -> None:
    forged = {
        "X-Forwarded-For": "198.51.100.1, 203.0.113.9",
        "X-Forwarded-Host": "evil.example",
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Prefix": "/evil",
    }
    web = make_web()
    answer = web.browser().get("/login", headers=forged)
    assert answer.status_code == 200
    assert "/evil" not in answer.get_data(as_text=True)
    assert "Strict-Transport-Security" not in answer.headers

    proxied = make_web(PORTAL_TRUSTED_PROXIES="1", PORTAL_PUBLIC_URL="https://portal.example")
    assert proxied.browser().get("/login", headers=forged).status_code == 400
    honest = {**forged, "X-Forwarded-Host": "portal.example", "X-Forwarded-Prefix": ""}
    browser = proxied.browser(address="http://127.0.0.1:8080", ip="192.0.2.1")
    page = browser.get("/login", headers=honest)
    assert page.status_code == 200
    assert page.headers["Strict-Transport-Security"]
    form = {"login": "admin", "password": "wrong"}
    browser.client.get("/healthz")
    answer = browser.open("/login", method="POST", data=form, headers=honest)
    assert answer.status_code == 403  # no CSRF token; the address is what this is about
    with proxied.app.test_request_context(headers=honest, environ_overrides={"REMOTE_ADDR": "192.0.2.1"}):
        pass


def test_the_address_of_a_client_behind_a_proxy_is_the_last_one_it_added(make_web: WebMaker) -> None:
    web = make_web(PORTAL_TRUSTED_PROXIES="1", PORTAL_PUBLIC_URL="https://portal.example")
    headers = {
        "X-Forwarded-For": "198.51.100.1, 203.0.113.9",
        "X-Forwarded-Host": "portal.example",
        "X-Forwarded-Proto": "https",
    }
    browser = web.browser(address="https://portal.example", ip="192.0.2.1")
    browser.post("/login", {"login": "admin", "password": "wrong"}, headers=headers)
    with transaction(web.factory, write=False) as db:
        assert db.query(AuditEvent).one().address == "203.0.113.9"


@pytest.mark.parametrize(
    ("origin", "is_ours"),
    [
        ("https://portal.example", True),
        ("https://portal.example:443", True),
        ("http://portal.example", False),
        ("https://portal.example.evil.example", False),
        ("https://evil.example", False),
        ("null", False),
        ("https://", False),
        ("https://portal.example:x", False),
    ],
)
def test_behind_a_tls_proxy_our_origin_is_the_public_one(make_web: WebMaker, origin: str, is_ours: bool) -> None:
    """CASES 99: the proxy speaks http to us, the browser https to it."""
    web = make_web(PORTAL_TRUSTED_PROXIES="1", PORTAL_PUBLIC_URL="https://portal.example")
    with web.app.test_request_context("/", base_url="http://127.0.0.1:8080"):
        assert is_own_origin(origin, web.settings) is is_ours


# ---- S52


@pytest.mark.parametrize(
    "target",
    [
        "//evil.example", "/\\evil.example", "\\\\evil.example", "https://evil.example", "javascript:alert(1)",
        "/%2fevil.example", "/%2Fevil.example", "/%5cevil.example", "/%252fevil.example", "/x/..//evil.example",
        "/\tevil", "/\r\nSet-Cookie: a=b", " /chat", "chat", "", "http:/evil.example", "/" + "x" * 3_000, "/\x00",
    ],
)  # fmt: skip
def test_after_the_sign_in_nobody_is_led_elsewhere(target: str) -> None:
    assert local_target(target, default="/home") == "/home"


@pytest.mark.parametrize("target", ["/chat", "/chat/abc?before=1#turn", "/settings?next=%2Fchat", "/a-b_c.d~e"])
def test_after_the_sign_in_a_local_page_is_opened(target: str) -> None:
    assert local_target(target, default="/home") == target


def test_the_sign_in_page_leads_back(web: Web) -> None:
    browser = web.browser()
    assert browser.sign_in("admin", next="/chat/abc").headers["Location"] == "/chat/abc"
    assert web.browser().sign_in("admin", next="//evil.example").headers["Location"] == "/"
