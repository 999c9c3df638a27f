"""Who may do what (S14, S15, S16): every role on every route, from the URL map."""

import re
from dataclasses import dataclass
from typing import Any

from flask import Flask
from werkzeug.test import TestResponse

from shared import clock
from shared.database import transaction
from shared.models import AuditEvent, ChatSession, SignIn, User
from shared.run_state import RunState
from shared.store import chat_sessions, pauses, runs, users
from tests.factories import a_queued_run, a_run, a_session
from tests.rig.web import PASSWORD, Browser, Web
from tests.webapp.url_map import ROUTES, Route, filled, served
from webapp import rights

WITH_OBJECT = [(method, rule, route) for (method, rule), route in ROUTES.items() if route.verb is not None]
NEED_MORE = ("/output/<int:n>", "/stream")
"""What I may do there needs a turn with a tool's output, or one that ends: their own tests have one."""


@dataclass(frozen=True)
class Objects:
    """A session of `owner` in which a run waits for an approval and for an answer, another one waits behind it, and
    one has failed before."""

    owner: User
    ids: dict[str, str]


def objects_of(web: Web, owner: User, *, deleted: bool = False) -> Objects:
    with transaction(web.factory) as db:
        session = a_session(db, owner=users.get(db, owner.id))
        failed = a_run(db, session, state=RunState.FAILED)
        run = a_run(db, session, state=RunState.RUNNING)
        queued = a_queued_run(db, session, queue_id="waits")
        given = {"run_id": run.id, "fence": run.fence, "session_id": session.id, "timeout_s": None}
        approval = pauses.open(
            db, **given, kind="approval", tool="terminal", request={"command": "ls", "choices": ["once", "deny"]}
        )
        question = pauses.open(db, **given, kind="clarification", tool="", request={"question": "?", "choices": []})
        session.deleted_at = clock.now() if deleted else None
        ids = {
            "session_id": session.id,
            "run_id": run.id,
            "failed_id": failed.id,
            "queue_id": queued.queue_id,
            "approval_id": approval.id,
            "clarify_id": question.id,
        }
    return Objects(owner, ids)


def call(browser: Browser, method: str, rule: str, route: Route, ids: dict[str, str]) -> TestResponse:
    if "retry" in rule:
        ids = {**ids, "run_id": ids["failed_id"]}
    path = filled(rule, ids)
    if route.form is not None:
        return browser.post(path, {name: filled(value, ids) for name, value in route.form})
    if route.json is not None:
        body = {name: filled(value, ids) if isinstance(value, str) else value for name, value in route.json}
        return browser.send(method, path, None if method == "DELETE" else body)
    return browser.get(path)


def test_every_route_is_listed(web: Web) -> None:
    assert served(web.app) == set(ROUTES)


def test_an_unlisted_route_would_be_found(web: Web) -> None:
    app: Flask = web.app
    app.add_url_rule("/api/new-door", "new_door", lambda: "open")
    assert served(app) - set(ROUTES) == {("GET", "/api/new-door")}


def test_a_new_route_is_closed_without_a_word(web: Web) -> None:
    web.app.add_url_rule("/api/new-door", "new_door", lambda: "open")
    assert web.browser().get("/api/new-door").status_code == 401


def test_what_is_not_mine_does_not_exist(web: Web) -> None:
    """Another member, an operator and an administrator: all get the answer that an id which never was gets."""
    owner = web.user("owner")
    alive, deleted = objects_of(web, owner), objects_of(web, owner, deleted=True)
    strangers = [web.browser(web.user(f"a-{role}", role=role)) for role in rights.ROLES]
    before = web.rows()
    for method, rule, route in WITH_OBJECT:
        theirs = deleted if route.verb == "undelete" else alive
        for stranger in strangers:
            answer = call(stranger, method, rule, route, theirs.ids)
            assert answer.status_code == 404, (method, rule)
            never_was = call(stranger, method, rule, route, dict.fromkeys(theirs.ids, "0" * 32))
            assert (never_was.status_code, never_was.content_type) == (404, answer.content_type), (method, rule)
    assert contents(before) == contents(web.rows())


def test_what_is_mine_i_may_do(web: Web) -> None:
    owner = web.user("owner")
    browser = web.browser(owner)
    for method, rule, route in WITH_OBJECT:
        if rule.endswith(NEED_MORE):
            continue
        mine = objects_of(web, owner, deleted=route.verb == "undelete")
        answer = call(browser, method, rule, route, mine.ids)
        assert answer.status_code in (200, 201, 202, 204, 303), (method, rule, answer.get_data(as_text=True)[:300])


def test_a_viewer_reads_and_does_nothing(web: Web) -> None:
    """S15: also in a session that a viewer once made as a member."""
    viewer = web.user("viewer", role="viewer")
    mine = objects_of(web, viewer)
    browser = web.browser(viewer)
    before = web.rows()
    for method, rule, route in WITH_OBJECT:
        if route.verb not in ("read", "undelete"):
            assert call(browser, method, rule, route, mine.ids).status_code == 403, (method, rule)
        elif not rule.endswith((*NEED_MORE, "/undelete")):
            assert call(browser, method, rule, route, mine.ids).status_code == 200, (method, rule)
    assert contents(before) == contents(web.rows())


def contents(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """What people made, without the bookkeeping of sign-ins."""
    return {table: rows[table] for table in ("run", "chat_session", "chat_message", "pause", "audit_event")}


def test_a_viewer_opens_no_session(web: Web) -> None:
    browser = web.browser(web.user("viewer", role="viewer"))
    assert browser.send("POST", "/api/chat/sessions", {}).status_code == 403
    assert browser.post("/chat/new").status_code == 403
    assert browser.get("/api/chat/sessions").json["sessions"] == []


def test_nobody_reads_without_a_sign_in(web: Web) -> None:
    ids = objects_of(web, web.user("owner")).ids
    browser = web.browser()
    for (method, rule), route in ROUTES.items():
        if method != "GET" or route.public or rule == "/chat-run":
            continue
        answer = browser.get(filled(rule, ids))
        if rule.startswith("/api/") and rule != "/api/docs":
            assert answer.status_code == 401
            assert answer.json["code"] == "not_authenticated"
        else:
            assert answer.status_code == 303, rule
            assert "/login" in answer.headers["Location"]


def test_lists_show_only_what_is_mine(web: Web) -> None:
    mine, theirs = web.user("me"), web.user("owner")
    objects_of(web, theirs)
    with transaction(web.factory) as db:
        own = a_session(db, owner=users.get(db, mine.id)).id
    listed = web.program(mine).get("/api/chat/sessions").json["sessions"]
    assert [item["id"] for item in listed] == [own]
    foreign = objects_of(web, theirs).ids["session_id"]
    after = web.program(mine).get(f"/api/chat/sessions?before={foreign}").json["sessions"]
    assert after == [], "the place of a foreign session in time is told"


def test_ids_of_two_sessions_do_not_mix(web: Web) -> None:
    """An owner of both gets at no run, queue item or pause of one through the other."""
    owner = web.user("owner")
    one, other = objects_of(web, owner), objects_of(web, owner)
    browser = web.browser(owner)
    mixed = {**other.ids, "session_id": one.ids["session_id"], "queue_id": "waits-elsewhere"}
    assert browser.post(f"/chat/{mixed['session_id']}/abort", {"run_id": mixed["run_id"]}).status_code == 404
    for rule in ("approval", "clarify"):
        route = ROUTES[("POST", f"/chat/<session_id>/{rule}")]
        assert call(browser, "POST", f"/chat/<session_id>/{rule}", route, mixed).status_code == 404
    body = {"approvalId": other.ids["approval_id"], "choice": "deny"}
    assert browser.send("POST", f"/api/chat/runs/{one.ids['run_id']}/resume", body).status_code == 404
    path = f"/chat/{one.ids['session_id']}/runs/{other.ids['failed_id']}/process"
    assert browser.get(path).status_code == 404
    with transaction(web.factory, write=False) as db:
        assert {p.state for p in pauses.open_pauses(db, other.ids["session_id"])} == {"pending"}


# ---- the audited switch


def test_an_administrator_reads_another_session_only_with_a_reason_that_is_kept(web: Web) -> None:
    theirs = objects_of(web, web.user("owner")).ids
    session_id = theirs["session_id"]
    browser, elsewhere = web.browser(web.admin), web.browser(web.admin)
    assert browser.get(f"/api/chat/sessions/{session_id}").status_code == 404
    assert browser.post(f"/admin/sessions/{session_id}/open", {"reason": " "}).status_code == 400
    opened = browser.post(f"/admin/sessions/{session_id}/open", {"reason": "asked to help"})
    assert opened.headers["Location"] == f"/chat/{session_id}"
    assert browser.get(f"/api/chat/sessions/{session_id}").status_code == 200
    assert browser.send("POST", f"/api/chat/sessions/{session_id}/runs", {"message": "Hi"}).status_code == 403
    assert browser.send("DELETE", f"/api/chat/sessions/{session_id}").status_code == 403
    assert elsewhere.get(f"/api/chat/sessions/{session_id}").status_code == 404, "the switch is this sign-in's alone"
    with transaction(web.factory, write=False) as db:
        row = db.query(AuditEvent).one()
    assert (row.action, row.session_id, row.facts["reason"]) == (
        "session_opened_by_administrator", session_id, "asked to help",
    )  # fmt: skip


def test_the_switch_is_offered_for_every_id_and_tells_nothing(web: Web) -> None:
    theirs = objects_of(web, web.user("owner")).ids["session_id"]
    made_up = "0" * len(theirs)
    pages = [web.browser(web.admin).get(f"/chat/{id}").get_data(as_text=True) for id in (theirs, made_up)]
    tokenless = [re.sub(r'(value|content)="[^"]{60,}"', "", page).replace(theirs, made_up) for page in pages]
    assert tokenless[0] == tokenless[1]
    assert f"/admin/sessions/{theirs}/open" in pages[0]
    member = web.browser(web.user("member")).get(f"/chat/{theirs}").get_data(as_text=True)
    assert "/admin/" not in member


def test_the_switch_ends_by_itself(web: Web) -> None:
    session_id = objects_of(web, web.user("owner")).ids["session_id"]
    browser = web.browser(web.admin)
    browser.post(f"/admin/sessions/{session_id}/open", {"reason": "asked to help"})
    with transaction(web.factory) as db:
        db.query(SignIn).one().grants = {session_id: clock.now().timestamp() - 1}
    assert browser.get(f"/api/chat/sessions/{session_id}").status_code == 404


def test_the_switch_needs_a_fresh_password_and_the_role(web: Web) -> None:
    session_id = objects_of(web, web.user("owner")).ids["session_id"]
    path, form = f"/admin/sessions/{session_id}/open", {"reason": "curious"}
    for role in ("member", "operator", "viewer"):
        assert web.browser(web.user(role, role=role)).post(path, form).status_code == 403
    browser = web.browser(web.admin)
    browser.csrf()
    with transaction(web.factory) as db:
        for row in db.query(SignIn):
            row.confirmed_at = row.confirmed_at.replace(year=2020)
    stale = browser.post(path, form)
    assert stale.headers["Location"] == f"/settings?next=/chat/{session_id}"
    asked = browser.get(stale.headers["Location"]).get_data(as_text=True)
    assert "/settings/confirm" in asked
    assert "is not done yet" in asked
    assert browser.get(f"/api/chat/sessions/{session_id}").status_code == 404
    assert browser.post("/settings/confirm", {"password": "wrong"}).status_code == 403
    assert browser.post(path, form).headers["Location"].startswith("/settings")
    assert browser.post("/settings/confirm", {"password": PASSWORD}).status_code == 303
    assert browser.post(path, form).status_code == 303
    program = web.program(web.admin)
    assert program.send("POST", path, form).status_code == 403


def test_a_demoted_administrator_loses_the_switch(web: Web) -> None:
    session_id = objects_of(web, web.user("owner")).ids["session_id"]
    other = web.user("second", role="administrator")
    browser = web.browser(other)
    browser.post(f"/admin/sessions/{session_id}/open", {"reason": "asked to help"})
    with transaction(web.factory) as db:
        users.get(db, other.id).role = "member"
    assert browser.get(f"/api/chat/sessions/{session_id}").status_code == 404


def test_a_deleted_session_is_gone_for_its_owner_too(web: Web) -> None:
    mine = objects_of(web, web.user("owner"), deleted=True)
    browser = web.browser(mine.owner)
    for method, rule, route in WITH_OBJECT:
        if route.verb != "undelete" and "/output/" not in rule:
            assert call(browser, method, rule, route, mine.ids).status_code == 404, rule


def test_the_page_of_a_deleted_session_shows_a_way_back(web: Web) -> None:
    """CASES 22."""
    mine = objects_of(web, web.user("owner"), deleted=True)
    page = web.browser(mine.owner).get(f"/chat/{mine.ids['session_id']}")
    assert page.status_code == 404
    assert 'href="/chat"' in page.get_data(as_text=True)


def test_undo_brings_a_deleted_session_back(web: Web) -> None:
    owner = web.user("owner")
    mine = objects_of(web, owner)
    browser = web.browser(owner)
    assert browser.send("DELETE", f"/api/chat/sessions/{mine.ids['session_id']}").status_code == 204
    with transaction(web.factory, write=False) as db:
        session = db.get(ChatSession, mine.ids["session_id"])
        assert session is not None
        assert session.deleted_at is not None
        assert runs.get(db, mine.ids["run_id"]).state == RunState.ABORTING
        assert runs.queue(db, session.id) == []
    assert browser.post(f"/chat/{mine.ids['session_id']}/undelete").status_code in (200, 303)
    with transaction(web.factory, write=False) as db:
        assert chat_sessions.get(db, mine.ids["session_id"]).deleted_at is None
