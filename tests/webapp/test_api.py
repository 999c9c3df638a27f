"""The REST API: shapes, names and codes of DESIGN 6."""

import json
from datetime import datetime
from typing import Any

import pytest

from shared.database import transaction
from shared.relay.presence import Presence
from shared.run_state import RunState
from shared.store import catalogue, chat_sessions, users
from tests.factories import a_run, a_session
from tests.rig.catalogue_story import story_facts
from tests.rig.web import Program, Web
from webapp.api import openapi


@pytest.fixture
def program(web: Web) -> Program:
    return web.program(web.admin)


def test_a_session_has_one_id_under_both_names(program: Program) -> None:
    answer = program.send("POST", "/api/chat/sessions", {"title": "Mine", "modelId": "big", "skillFolder": "pdf"})
    assert answer.status_code == 201
    assert set(answer.json) == {"sessionId", "sessionUuid"}
    assert answer.json["sessionId"] == answer.json["sessionUuid"]
    one = program.get(f"/api/chat/sessions/{answer.json['sessionId']}").json
    assert set(one) == {"session", "messages"}
    assert one["messages"] == []
    assert {
        "title": "Mine",
        "modelId": "big",
        "skillFolder": "pdf",
        "status": "ACTIVE",
        "source": "api_server",
    }.items() <= (one["session"].items())


def test_a_session_can_be_opened_with_no_body_at_all(program: Program) -> None:
    assert program.send("POST", "/api/chat/sessions").status_code == 201
    cli = program.new_session(source="cli")
    datetime.strptime(cli[:15], "%Y%m%d_%H%M%S")


def test_the_list_shows_the_last_activity_first_page_by_page(program: Program) -> None:
    made = [program.new_session(title=f"n{n}") for n in range(5)]
    program.submit(made[0], "A message that is shown\nin the list")
    first = program.get("/api/chat/sessions?limit=3").json
    assert [item["title"] for item in first["sessions"]] == ["n0", "n4", "n3"]
    item = first["sessions"][0]
    assert {"id", "title", "source", "modelId", "skillFolder", "status", "lastMessageAt", "lastMessagePreview"} <= set(
        item
    )
    assert item["lastMessagePreview"] == "A message that is shown in the list"
    assert (item["state"], item["queueLength"]) == ("queued", 1)
    assert item["lastMessageAt"].endswith("Z")
    assert program.get(f"/api/chat/sessions/{made[0]}").json["session"] == item
    rest = program.get(f"/api/chat/sessions?limit=3&before={first['nextBefore']}").json
    assert [item["title"] for item in rest["sessions"]] == ["n2", "n1"]
    assert rest["nextBefore"] is None


def test_archived_sessions_have_a_list_of_their_own(program: Program) -> None:
    session_id = program.new_session(title="old")
    changed = program.send("PATCH", f"/api/chat/sessions/{session_id}", {"status": "ARCHIVED"})
    assert (changed.status_code, changed.json["status"]) == (200, "ARCHIVED")
    assert program.get("/api/chat/sessions").json["sessions"] == []
    assert [s["id"] for s in program.get("/api/chat/sessions?archived=true").json["sessions"]] == [session_id]


def test_a_session_is_changed_field_by_field(program: Program) -> None:
    session_id = program.new_session()
    path = f"/api/chat/sessions/{session_id}"
    changed = program.send("PATCH", path, {"title": "New", "modelId": "big", "onFailure": "cancel"}).json
    assert (changed["title"], changed["modelId"], changed["onFailure"]) == ("New", "big", "cancel")
    changed = program.send("PATCH", path, {"modelId": ""}).json
    assert (changed["title"], changed["modelId"]) == ("New", None)
    for body in ({"status": "GONE"}, {"titel": "x"}, {"onFailure": "explode"}, {"title": "x" * 2_000}):
        assert program.send("PATCH", path, body).status_code == 400
    assert program.send("PATCH", path, {"title": "Half", "modelId": "../x"}).status_code == 400
    assert program.get(path).json["session"]["title"] == "New"


def test_deleting_answers_with_nothing_and_then_it_is_gone(program: Program) -> None:
    session_id = program.new_session()
    deleted = program.send("DELETE", f"/api/chat/sessions/{session_id}")
    assert (deleted.status_code, deleted.data) == (204, b"")
    answer = program.get(f"/api/chat/sessions/{session_id}")
    assert answer.status_code == 404
    assert answer.json == {
        "type": "about:blank", "title": "Not Found", "status": 404, "code": "not_found",
        "detail": "There is no such session.",
    }  # fmt: skip


def test_messages_come_oldest_first_page_by_page(web: Web, program: Program) -> None:
    with transaction(web.factory) as db:
        session = a_session(db, owner=users.get(db, web.admin.id))
        for n in range(60):
            a_run(db, session, state=RunState.COMPLETED, text=f"question {n}", answer=f"answer {n}")
        session_id = session.id
    one = program.get(f"/api/chat/sessions/{session_id}").json["messages"]
    assert len(one) == 50
    assert (one[0]["content"], one[-1]["content"]) == ("question 35", "answer 59")
    assert set(one[-1]) >= {
        "id", "runId", "role", "content", "status", "modelId", "skillFolder", "logs", "error", "createdAt",
        "completedAt",
    }  # fmt: skip
    assert (one[-1]["role"], one[-1]["status"], one[-2]["role"], one[-2]["status"]) == (
        "ASSISTANT", "SUCCESS", "USER", "SENT",
    )  # fmt: skip
    seen = [m["content"] for m in one]
    more = {"hasMore": True}
    while more["hasMore"]:
        oldest = one[0]["id"]
        more = program.get(f"/api/chat/sessions/{session_id}/messages?before={oldest}&limit=30").json
        one = more["messages"]
        seen = [m["content"] for m in one] + seen
    assert seen == [f"{what} {n}" for n in range(60) for what in ("question", "answer")]
    assert program.get(f"/api/chat/sessions/{session_id}/messages?before=nobody").json["messages"] == []


def test_a_run_is_accepted_once(program: Program) -> None:
    session_id = program.new_session()
    first = program.submit(session_id, "Hello", key="k1")
    again = program.submit(session_id, "Hello", key="k1")
    other = program.submit(session_id, "Other", key="k1")
    assert (first.status_code, again.status_code, other.status_code) == (202, 200, 409)
    assert first.json == again.json
    assert first.json["queueId"] == "k1"
    assert len(first.json["runId"]) == 32
    assert other.json["code"] == "queue_id_reused"
    assert program.submit(session_id, "Hello").json["runId"] != first.json["runId"]


def test_the_state_of_a_run(web: Web, program: Program) -> None:
    session_id = program.new_session()
    run_id = program.submit(session_id).json["runId"]
    state = program.get(f"/api/chat/runs/{run_id}/state").json
    assert (state["state"], state["messageId"], state["pause"]) == ("queued", None, None)
    head = web.context.log.head(session_id)
    assert head is not None
    assert (state["seq"], state["epoch"]) == (head.seq, head.epoch)
    with transaction(web.factory) as db:
        failed = a_run(
            db, chat_sessions.get(db, session_id), state=RunState.FAILED, error_code="backend_refused", error="No."
        )
    state = program.get(f"/api/chat/runs/{failed.id}/state").json
    assert (state["state"], state["errorCode"], state["error"]) == ("failed", "backend_refused", "No.")
    assert state["messageId"]


def test_stopping_withdrawing_and_going_on(program: Program) -> None:
    session_id = program.new_session()
    first = program.submit(session_id, "one", key="k1").json["runId"]
    program.submit(session_id, "two", key="k2")
    withdrawn = program.send("DELETE", f"/api/chat/sessions/{session_id}/queue/k2")
    assert withdrawn.json == {"queueId": "k2", "queueLength": 1, "held": None}
    assert program.send("DELETE", f"/api/chat/sessions/{session_id}/queue/nobody").status_code == 404
    assert program.send("POST", f"/api/chat/runs/{first}/abort").json == {"runId": first, "state": "cancelled"}
    assert program.send("POST", f"/api/chat/runs/{first}/abort").json["state"] == "cancelled"
    assert program.send("POST", f"/api/chat/runs/{first}/retry").status_code == 202
    assert program.send("POST", f"/api/chat/sessions/{session_id}/queue/continue").json["held"] is None


def test_a_key_of_any_printable_text_can_be_withdrawn(program: Program) -> None:
    session_id = program.new_session()
    key = "a b%c?d#e"
    assert program.submit(session_id, "one", key=key).status_code == 202
    path = f"/api/chat/sessions/{session_id}/queue/a%20b%25c%3Fd%23e"
    assert program.send("DELETE", path).json["queueId"] == key
    assert program.submit(session_id, "one", key="x" * 201).status_code == 400


def test_what_there_is_to_choose_from(web: Web, program: Program) -> None:
    home = web.settings.hermes_home
    unknown = {"state": "unknown", "workers": 0, "lookedAt": None}
    assert program.get("/api/models").json == {"models": []}
    assert program.get("/api/profiles").json == {
        "profiles": [{"name": "default", "isDefault": True, "health": unknown}]
    }
    with transaction(web.factory) as db:
        catalogue.put_language_model(db, name="Big", model="anthropic/big", key_ref="BIG_KEY", is_default=True)
        catalogue.put_profile(db, name="work", hermes_home=str(home), gateway_url="http://gateway.internal")
    models = program.get("/api/models").get_data(as_text=True)
    assert json.loads(models)["models"][0]["name"] == "Big"
    assert "BIG_KEY" not in models
    profiles = program.get("/api/profiles").get_data(as_text=True)
    assert [(each["name"], each["isDefault"]) for each in json.loads(profiles)["profiles"]] == [
        ("default", True), ("work", False),
    ]  # fmt: skip
    assert str(home) not in profiles
    assert program.get("/api/skills").status_code == 200


def test_health_and_keys_are_told_without_a_path_an_address_or_a_name(web: Web, program: Program) -> None:
    with transaction(web.factory) as db:
        catalogue.put_profile(db, name="finance-ops", hermes_home="/srv/canary", is_default=True)
        catalogue.put_profile(db, name="research", hermes_home="/srv/canary2")
        for name, key in (("a", "OPENROUTER_API_KEY"), ("b", "NOUS_API_KEY"), ("c", "NOBODY_TOLD"), ("d", None)):
            catalogue.put_language_model(db, name=name, model="m", key_ref=key, base_url="https://canary.example")
    facts = story_facts()
    for each in facts:
        Presence(web.context.redis, web.context.keys).beat_worker(each)
    member = web.program(web.user("mara"))
    for who in (program, member):
        answer = who.get("/api/profiles")
        profiles = {each["name"]: each for each in answer.json["profiles"]}
        assert {name: each["health"]["state"] for name, each in profiles.items()} == {
            "default": "ready", "finance-ops": "idle", "research": "failed",
        }  # fmt: skip
        assert profiles["research"]["health"]["workers"] == 2
        assert datetime.fromisoformat(profiles["research"]["health"]["lookedAt"]) == facts[0].looked_at
        assert [name for name, each in profiles.items() if each["isDefault"]] == ["finance-ops"]
        models = who.get("/api/models")
        assert [(each["name"], each["needsKey"], each["keyIsSet"]) for each in models.json["models"]] == [
            ("a", True, True), ("b", True, False), ("c", True, None), ("d", False, None),
        ]  # fmt: skip
        told = answer.get_data(as_text=True) + models.get_data(as_text=True)
        for secret in ("canary", "API_KEY", "NOBODY_TOLD", "run_agent", "hel-1"):
            assert secret not in told


def test_a_session_gets_a_profile_by_any_of_the_listed_names(web: Web, program: Program) -> None:
    with transaction(web.factory) as db:
        catalogue.put_profile(db, name="work", is_default=True)

    def profile_of(session_id: str) -> str | None:
        return str(program.get(f"/api/chat/sessions/{session_id}").json["session"]["profile"])

    assert profile_of(program.new_session()) == "work"
    assert profile_of(program.new_session(profile="default")) == "None"
    session_id = program.new_session(profile="work", source="cli")
    path = f"/api/chat/sessions/{session_id}"
    assert program.send("PATCH", path, {"profile": "default"}).json["profile"] is None
    refused = program.send("PATCH", path, {"profile": "gone"})
    assert (refused.status_code, refused.json["code"]) == (400, "unknown_profile")
    assert program.send("POST", "/api/chat/sessions", {"profile": "gone"}).json["code"] == "unknown_profile"


# ---- the document


def test_every_route_of_the_api_is_described(web: Web) -> None:
    assert openapi.missing(web.app) == []
    web.app.add_url_rule("/api/new-door", "new_door", lambda: "open")
    assert openapi.missing(web.app) == ["new_door"]


def test_the_document_is_openapi_and_complete(program: Program) -> None:
    answer = program.get("/api/openapi.json")
    document = answer.json
    assert document["openapi"] == "3.1.0"
    served = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert ("POST", "/api/chat/sessions/{session_id}/runs") in served
    assert ("GET", "/api/chat/runs/{run_id}/stream") in served
    assert len(served) >= 18
    for reference in _references(document):
        kind, name = reference.removeprefix("#/components/").split("/")
        assert name in document["components"][kind]
    body = document["paths"]["/api/chat/sessions/{session_id}/runs"]["post"]["requestBody"]
    new_run = document["components"]["schemas"]["NewRun"]
    assert body["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/NewRun"}
    assert {
        "message",
        "modelId",
        "skillFolder",
        "maxIterations",
        "source",
        "instructions",
        "attachments",
        "background",
    } == (set(new_run["properties"]))
    assert new_run["required"] == ["message"]


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [found for value in node.values() for found in _references(value)]
    if isinstance(node, list):
        return [found for value in node for found in _references(value)]
    return []


def test_the_page_of_the_api_names_every_operation(web: Web) -> None:
    page = web.browser(web.admin).get("/api/docs")
    assert page.status_code == 200
    text = page.get_data(as_text=True)
    for path in (
        "/api/chat/sessions/{session_id}/runs",
        "/api/chat/runs/{run_id}/resume",
        "Idempotency-Key",
        "maxIterations",
    ):
        assert path in text
    assert "once | session | always | deny" in text
    assert web.browser().get("/api/docs").headers["Location"] == "/login?next=/api/docs"
