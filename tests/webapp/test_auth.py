"""Signing in and out, cookies, tokens, and the limits on guessing (S2, S4 to S10)."""

import re
import statistics
import time
from datetime import timedelta

import pytest
from argon2 import PasswordHasher
from sqlalchemy import update
from werkzeug.test import TestResponse

from shared import clock, errors
from shared.database import transaction
from shared.models import ApiToken, AuditEvent, SignIn, User
from shared.store import users
from shared.tokens import token_hash
from tests.rig.redis_server import RedisServer
from tests.rig.web import PASSWORD, Web, WebMaker
from webapp.actions import account

COOKIE = "portal-8080-sign-in"


def sign_in_cookie(answer: TestResponse) -> str:
    found = [value for value in answer.headers.getlist("Set-Cookie") if "sign-in=" in value]
    assert found, "no sign-in cookie"
    return found[-1]


def is_in(answer: TestResponse) -> bool:
    return answer.status_code == 303 and "sign-in=" in " ".join(answer.headers.getlist("Set-Cookie"))


def actions(web: Web) -> list[str]:
    with transaction(web.factory, write=False) as db:
        return [row.action for row in db.query(AuditEvent).order_by(AuditEvent.id)]


# ---- signing in


def test_a_person_signs_in_and_out(web: Web) -> None:
    browser = web.browser()
    assert browser.get("/settings").headers["Location"].endswith("/login?next=/settings")
    assert is_in(browser.sign_in("Admin"))  # names are case-folded
    assert browser.get("/settings").status_code == 200
    value = browser.client.get_cookie(COOKIE, domain="127.0.0.1").value
    assert browser.post("/logout").status_code == 303
    assert browser.get("/settings").status_code == 303
    browser.put_sign_in(value)
    assert browser.get("/settings").status_code == 303, "a cookie of a sign-in that was ended works again"
    assert actions(web) == ["sign_in", "sign_out"]


@pytest.mark.parametrize(("login", "password"), [("admin", "wrong"), ("nobody", PASSWORD), ("admin", ""), ("", "")])
def test_a_wrong_name_or_password_gets_the_same_answer(web: Web, login: str, password: str) -> None:
    answer = web.browser().sign_in(login, password)
    assert answer.status_code == 403
    assert "Name or password is wrong." in answer.get_data(as_text=True)
    assert "Set-Cookie" not in answer.headers or not is_in(answer)


def test_a_disabled_user_cannot_sign_in(web: Web) -> None:
    web.user("gone", disabled=True)
    answer = web.browser().sign_in("gone")
    assert "Name or password is wrong." in answer.get_data(as_text=True)


def test_unknown_names_take_as_long_as_wrong_passwords(web: Web) -> None:
    """S4: medians within 10 %. Each try comes from another address, so that no pause runs. On a machine that does other
    things besides, more tries are needed until chance cancels out, and the quicker ones say more."""

    def seconds(login: str, n: int) -> float:
        begun = time.perf_counter()
        with pytest.raises(errors.NotAuthenticated):
            account.sign_in(
                web.context, login=login, password="wrong", source=account.From(f"10.1.{n % 250}.{n // 250}", "")
            )
        return time.perf_counter() - begun

    def middle(tries: list[float]) -> float:
        return statistics.median(tries)

    def quick(tries: list[float]) -> float:
        return statistics.quantiles(tries, n=10)[0]

    ratios: list[float] = []
    known: list[float] = []
    unknown: list[float] = []
    for round_number in range(10):
        for n in range(50):
            known.append(seconds("admin", round_number * 100 + n))
            unknown.append(seconds(f"nobody-{n}", round_number * 100 + 50 + n))
        ratios += [of(known) / of(unknown) for of in (middle, quick)]
        if any(abs(ratio - 1) < 0.1 for ratio in ratios[-2:]):
            return
    pytest.fail(f"known to unknown: {ratios}")


def test_signing_in_ends_the_sign_in_before_and_gives_a_new_value(web: Web) -> None:
    """S6."""
    browser = web.browser()
    browser.sign_in("admin")
    first = browser.client.get_cookie(COOKIE, domain="127.0.0.1").value
    browser.get("/settings")
    browser.client.delete_cookie(COOKIE, domain="127.0.0.1")
    browser.put_sign_in(first)
    assert browser.get("/login").status_code == 303  # signed in already
    answer = browser.open(
        "/login",
        method="POST",
        data={"csrf_token": browser.csrf(), "login": "admin", "password": PASSWORD},
    )
    assert is_in(answer)
    second = browser.client.get_cookie(COOKIE, domain="127.0.0.1").value
    assert first != second
    old = web.browser()
    old.put_sign_in(first)
    assert old.get("/settings").status_code == 303


def test_only_hashes_are_stored(web: Web) -> None:
    """S6, S9."""
    browser = web.browser()
    browser.sign_in("admin")
    value = browser.client.get_cookie(COOKIE, domain="127.0.0.1").value
    assert len(value) >= 22  # 128 bits and more in base64
    secret = account.create_token(web.context, _principal(web), name="script").secret
    stored = repr(web.rows())
    assert value not in stored
    assert secret not in stored
    assert token_hash(secret) in stored
    assert PASSWORD not in stored


@pytest.mark.parametrize(
    "columns",
    [
        {"seen_at": clock.now() - timedelta(hours=12, minutes=1)},
        {"created_at": clock.now() - timedelta(days=7, minutes=1)},
        {"ended_at": clock.now()},
        {"generation": 7},
    ],
    ids=["idle", "old", "ended", "of rights that changed"],
)
def test_a_sign_in_ends(web: Web, columns: dict[str, object]) -> None:
    """S6."""
    browser = web.browser(web.admin)
    assert browser.get("/settings").status_code == 200
    with transaction(web.factory) as db:
        db.execute(update(SignIn).values(**columns))
    assert browser.get("/settings").status_code == 303


def test_use_keeps_a_sign_in_alive(web: Web) -> None:
    browser = web.browser(web.admin)
    with transaction(web.factory) as db:
        db.execute(update(SignIn).values(seen_at=clock.now() - timedelta(hours=11)))
    browser.get("/settings")
    with transaction(web.factory, write=False) as db:
        assert db.query(SignIn).one().seen_at > clock.now() - timedelta(minutes=1)


def test_disabling_and_a_new_role_end_what_is_signed_in(web: Web) -> None:
    member = web.user("member")
    browser = web.browser(member)
    assert browser.get("/settings").status_code == 200
    with transaction(web.factory) as db:
        users.end_all_of_user(db, users.get(db, member.id))
    assert browser.get("/settings").status_code == 303
    browser = web.browser(member)
    program = web.program(member)
    with transaction(web.factory) as db:
        users.get(db, member.id).disabled = True
    assert browser.get("/settings").status_code == 303
    assert program.get("/api/chat/sessions").status_code == 401


def test_a_weaker_hash_is_made_anew_at_sign_in(web: Web) -> None:
    weak = PasswordHasher(time_cost=1, memory_cost=1024, parallelism=1).hash(PASSWORD)
    web.user("old", password_hash=weak)
    assert is_in(web.browser().sign_in("old"))
    with transaction(web.factory, write=False) as db:
        assert "m=19456,t=2" in str(users.by_login(db, "old").password_hash)
    assert is_in(web.browser().sign_in("old"))


# ---- the cookie


def test_over_tls_the_cookie_is_bound_to_the_host(make_web: WebMaker) -> None:
    """S7."""
    web = make_web(PORTAL_PUBLIC_URL="https://portal.example")
    browser = web.browser(address="https://portal.example")
    cookie = sign_in_cookie(browser.sign_in("admin"))
    name, *attributes = cookie.split("; ")
    assert name.startswith("__Host-portal-sign-in=")
    assert {"Secure", "HttpOnly", "SameSite=Lax", "Path=/"} <= set(attributes)
    assert not any(part.startswith("Domain") for part in attributes)
    assert browser.get("/settings").status_code == 200


def test_below_a_path_prefix_the_cookie_still_says_path_root(make_web: WebMaker) -> None:
    web = make_web(PORTAL_PUBLIC_URL="https://portal.example/team", PORTAL_TRUSTED_PROXIES="1")
    headers = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "portal.example", "X-Forwarded-Prefix": "/team"}
    browser = web.browser(address="http://127.0.0.1:8080")
    away = browser.get("/settings", headers=headers)
    assert away.headers["Location"] == "/team/login?next=/team/settings"
    page = browser.get("/login?next=/team/settings", headers=headers)
    assert 'action="/team/login"' in page.get_data(as_text=True)
    assert 'value="/team/settings"' in page.get_data(as_text=True)
    cookies = page.headers.getlist("Set-Cookie")
    assert cookies
    assert all("Path=/;" in value + ";" and "Secure" in value and value.startswith("__Host-") for value in cookies)


def test_on_the_own_machine_plain_http_works(web: Web) -> None:
    cookie = sign_in_cookie(web.browser(address="http://localhost:8080").sign_in("admin"))
    assert cookie.startswith("portal-8080-sign-in=")
    assert "Secure" not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie


def test_plain_http_from_elsewhere_is_refused_with_the_reason(make_web: WebMaker) -> None:
    """S7."""
    web = make_web(PORTAL_HOST="0.0.0.0")
    browser = web.browser(address="http://192.0.2.7:8080", ip="192.0.2.9")
    page = browser.get("/login")
    assert page.status_code == 403
    assert "PORTAL_ALLOW_HTTP" in page.get_data(as_text=True)
    answer = browser.open("/login", method="POST", data={"login": "admin", "password": PASSWORD})
    assert answer.status_code == 403
    assert "Set-Cookie" not in answer.headers
    with transaction(web.factory, write=False) as db:
        assert db.query(SignIn).count() == 0


def test_plain_http_works_where_the_operator_says_so(make_web: WebMaker) -> None:
    web = make_web(PORTAL_HOST="0.0.0.0", PORTAL_ALLOW_HTTP="1")
    assert is_in(web.browser(address="http://192.0.2.7:8080", ip="192.0.2.9").sign_in("admin"))


# ---- guessing


LONG_PAUSE = 9
"""So many failures beyond the free ones: the pause of 512 s outlasts whatever a busy machine does to a test."""


def test_guesses_are_paused_for_growing_times(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """S5."""
    browser = web.browser(ip="203.0.113.5")
    free = account.FREE_TRIES
    waits = [int(browser.sign_in("admin", "wrong").headers.get("Retry-After", 0)) for _ in range(free)]
    assert waits == [0] * free
    for more in (LONG_PAUSE, LONG_PAUSE - 2):
        monkeypatch.setattr(account, "FREE_TRIES", free - more)  # as after so many more
        waits.append(int(browser.sign_in("admin", "wrong").headers["Retry-After"]))
    assert 2 ** (LONG_PAUSE - 1) < waits[-2] <= 2**LONG_PAUSE
    assert 2 ** (LONG_PAUSE - 3) < waits[-1] <= 2 ** (LONG_PAUSE - 2)
    blocked = browser.sign_in("admin")  # the right one does not help while the pause runs
    assert blocked.status_code == 429
    assert "Wait" in blocked.get_data(as_text=True)


def test_a_thousand_guesses_reach_few_passwords_and_the_owner_gets_in_elsewhere(web: Web) -> None:
    """S5."""
    tried = 0
    begun = time.monotonic()
    for n in range(1_000):
        try:
            account.sign_in(web.context, login="admin", password=f"guess {n}", source=account.From("203.0.113.5", ""))
        except errors.NotAuthenticated:
            tried += 1
        except errors.TooManyRequests:
            continue
    assert tried <= account.FREE_TRIES + 3 + (time.monotonic() - begun)
    assert is_in(web.browser(ip="198.51.100.20").sign_in("admin"))


def test_guesses_at_many_names_from_one_address_are_paused(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    free = account.FREE_TRIES_OF_ADDRESS
    seen = [web.browser(ip="203.0.113.6").sign_in(f"name{n}", "wrong").status_code for n in range(free)]
    assert seen == [403] * free
    monkeypatch.setattr(account, "FREE_TRIES_OF_ADDRESS", free - LONG_PAUSE)
    assert web.browser(ip="203.0.113.6").sign_in("another", "wrong").status_code == 429
    monkeypatch.undo()
    assert web.browser(ip="203.0.113.7").sign_in("name1", "wrong").status_code == 403


def test_addresses_of_one_ipv6_network_count_together(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    free = account.FREE_TRIES
    codes = [web.browser(ip=f"2001:db8::{n:x}").sign_in("admin", "wrong").status_code for n in range(1, free + 1)]
    assert codes == [403] * free
    monkeypatch.setattr(account, "FREE_TRIES", free - LONG_PAUSE)
    assert web.browser(ip="2001:db8::ff").sign_in("admin", "wrong").status_code == 429


def test_success_forgets_the_failures(web: Web) -> None:
    browser = web.browser()
    for _ in range(account.FREE_TRIES - 1):
        browser.sign_in("admin", "wrong")
    assert is_in(browser.sign_in("admin"))
    browser.post("/logout")
    browser = web.browser()
    codes = [browser.sign_in("admin", "wrong").status_code for _ in range(account.FREE_TRIES)]
    assert 429 not in codes


def test_without_redis_the_limits_hold_in_memory(make_web: WebMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    server = RedisServer()
    web = make_web(redis_url=server.url)
    free = account.FREE_TRIES
    try:
        server.kill()
        codes = [web.browser(ip="203.0.113.5").sign_in("admin", "wrong").status_code for _ in range(free)]
        assert codes == [403] * free
        monkeypatch.setattr(account, "FREE_TRIES", free - LONG_PAUSE)
        assert web.browser(ip="203.0.113.5").sign_in("admin", "wrong").status_code == 429
        monkeypatch.undo()
        assert is_in(web.browser(ip="203.0.113.9").sign_in("admin"))
    finally:
        server.close()


# ---- tokens


def _principal(web: Web, user: User | None = None) -> account.Principal:
    user = user or web.admin
    assert user is not None
    return account.Principal(user.id, user.name, user.role, "cookie")


def test_a_token_is_shown_once_and_works_until_it_is_revoked(web: Web) -> None:
    """S9."""
    browser = web.browser(web.admin)
    page = browser.post("/settings/tokens", {"name": "nightly", "scope": ["read", "write"], "days": "30"})
    with transaction(web.factory, write=False) as db:
        row = db.query(ApiToken).one()
    shown = re.findall(r"(?<![\w-])[\w-]{43}(?![\w-])", page.get_data(as_text=True))
    secret = next(text for text in shown if token_hash(text) == row.token_hash)
    assert secret not in browser.get("/settings").get_data(as_text=True)
    assert _ask(web, secret).status_code == 200
    assert row.expires_at is not None
    assert browser.post(f"/settings/tokens/{row.id}/revoke").status_code == 303
    assert _ask(web, secret).status_code == 401
    assert actions(web) == ["token_created", "token_revoked"]


def _ask(web: Web, secret: str) -> TestResponse:
    return web.app.test_client().get(
        "/api/chat/sessions", base_url="http://127.0.0.1:8080", headers={"Authorization": f"Bearer {secret}"}
    )


def test_the_last_use_of_a_token_is_noted(web: Web) -> None:
    program = web.program(web.admin)
    program.get("/api/models")
    with transaction(web.factory, write=False) as db:
        assert db.query(ApiToken).one().last_used_at is not None


def test_an_expired_token_and_a_made_up_one_are_refused(web: Web) -> None:
    program = web.program(web.admin)
    with transaction(web.factory) as db:
        db.execute(update(ApiToken).values(expires_at=clock.now() - timedelta(seconds=1)))
    for secret in (program.secret, "made-up", "", "x" * 5_000):
        answer = _ask(web, secret)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert answer.json["code"] == "not_authenticated"


def test_a_reading_token_cannot_write(web: Web) -> None:
    session_id = web.program(web.admin).new_session()
    reader = web.program(web.admin, "read")
    assert reader.get(f"/api/chat/sessions/{session_id}").status_code == 200
    assert reader.submit(session_id).status_code == 403
    assert reader.send("POST", "/api/chat/sessions", {}).status_code == 403
    writer = web.program(web.admin, "write")
    assert writer.get("/api/chat/sessions").status_code == 403
    assert writer.get(f"/api/chat/sessions/{session_id}").status_code == 404
    for path in ("/chat", "/chat/list"):
        assert writer.get(path).status_code == 403, path


def test_with_a_token_no_cookie_is_read(web: Web) -> None:
    """A token of one user beside the cookie of another: the token alone counts, also when it is wrong."""
    member = web.user("member")
    browser = web.browser(web.admin)
    mine = web.program(web.admin).new_session()
    token = web.program(member).secret
    path = f"/api/chat/sessions/{mine}"
    assert browser.get(path).status_code == 200
    assert browser.get(path, headers={"Authorization": f"Bearer {token}"}).status_code == 404
    assert browser.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_a_token_cannot_make_tokens_or_change_the_password(web: Web) -> None:
    program = web.program(web.admin)
    assert program.send("POST", "/settings/tokens", {"name": "more"}).status_code == 403
    assert program.send("POST", "/settings/password", {}).status_code == 403


def test_nobody_revokes_a_token_of_somebody_else(web: Web) -> None:
    web.program(web.admin)
    with transaction(web.factory, write=False) as db:
        token_id = db.query(ApiToken).one().id
    assert web.browser(web.user("member")).post(f"/settings/tokens/{token_id}/revoke").status_code == 404


# ---- the password


def test_a_new_password_ends_every_other_sign_in(web: Web) -> None:
    here, elsewhere = web.browser(web.admin), web.browser(web.admin)
    new = "marble kettle running"
    answer = here.post("/settings/password", {"old": PASSWORD, "new": new})
    assert is_in(answer)
    assert here.get("/settings").status_code == 200
    assert elsewhere.get("/settings").status_code == 303
    assert not is_in(web.browser().sign_in("admin"))
    assert is_in(web.browser().sign_in("admin", new))


def test_a_new_password_needs_the_old_one_and_must_be_good(web: Web) -> None:
    browser = web.browser(web.admin)
    assert browser.post("/settings/password", {"old": "wrong", "new": "marble kettle running"}).status_code == 403
    answer = browser.post("/settings/password", {"old": PASSWORD, "new": "password1234"})
    assert answer.status_code == 400
    assert is_in(web.browser().sign_in("admin"))
