"""/healthz, /readyz, /metrics."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from shared.database import transaction
from shared.relay.presence import Presence, ProfileFacts, SourceFacts, WorkerFacts
from shared.run_state import RunState
from shared.store import users
from tests.factories import a_run, a_session
from tests.rig.redis_server import RedisServer
from tests.rig.web import Web, WebMaker


@pytest.fixture
def own_redis() -> object:
    server = RedisServer()
    yield server
    server.close()


def beat(web: Web, **told: Any) -> None:
    facts = WorkerFacts(worker_id="w1", host="h", pid=1, started_at="2026-01-02T03:04:05Z", **told)
    Presence(web.context.redis, web.context.keys, ttl_s=3_600).beat_worker(facts)


def ready(web: Web, query: str = "") -> tuple[int, list[str]]:
    answer = web.browser().get(f"/readyz{query}")
    return answer.status_code, answer.json["missing"]


def test_the_process_is_healthy_without_anything_else(make_web: WebMaker, own_redis: RedisServer) -> None:
    web = make_web(redis_url=own_redis.url)
    own_redis.kill()
    Path(web.settings.resolved_database_url.removeprefix("sqlite:///")).unlink()
    answer = web.browser().get("/healthz")
    assert (answer.status_code, answer.json) == (200, {"status": "ok"})


def test_ready_means_that_all_parts_have_answered_once(web: Web) -> None:
    assert ready(web) == (503, ["worker"])
    beat(web)
    assert ready(web) == (200, [])


def test_once_ready_only_the_database_counts(make_web: WebMaker, own_redis: RedisServer) -> None:
    web = make_web(redis_url=own_redis.url)
    beat(web)
    assert ready(web) == (200, [])
    own_redis.kill()
    assert ready(web) == (200, ["redis", "worker"]), "turns are still accepted: they wait"
    told = web.browser().get("/readyz?verbose").get_data(as_text=True)
    assert "redis.sock" not in told, "an address of ours is told to everybody"
    web.context.engine.dispose()
    path = Path(web.settings.resolved_database_url.removeprefix("sqlite:///"))
    for file in path.parent.glob(path.name + "*"):
        file.unlink()
    path.mkdir()
    status, missing = ready(web)
    assert (status, missing[0]) == (503, "database")
    shutil.rmtree(path)


def test_tables_of_another_version_are_named(web: Web) -> None:
    beat(web)
    with transaction(web.factory) as db:
        db.connection().exec_driver_sql("UPDATE alembic_version SET version_num = 'older'")
    answer = web.browser().get("/readyz?verbose")
    assert answer.status_code == 503
    database = answer.json["checks"][0]
    assert (database["name"], database["ok"]) == ("database", False)
    assert "portal migrate" in database["fault"]


def test_verbose_tells_each_part_with_its_time(web: Web) -> None:
    checks = web.browser().get("/readyz?verbose").json["checks"]
    assert [check["name"] for check in checks] == ["database", "redis", "worker", "bridge"]
    assert [check["ok"] for check in checks] == [True, True, False, True]
    assert all(check["durationMs"] >= 0 for check in checks)


NO_HERMES = SourceFacts(source="cli", ok=False, why="HERMES_AGENT_ROOT is /canary.")
HERMES = SourceFacts(source="cli", ok=True)
FAILED = ProfileFacts(profile="canary", state="failed", why="canary")


@pytest.mark.parametrize(
    ("told", "gateway", "fault"),
    [
        ({}, "", None),
        ({"sources": [HERMES]}, "", None),
        ({"sources": [NO_HERMES]}, "", "No installed Hermes"),
        ({"sources": [NO_HERMES]}, "http://gateway.example", None),
        ({"sources": [HERMES], "profiles": [FAILED]}, "http://gateway.example", "portal doctor"),
    ],
)
def test_verbose_tells_of_the_bridge_without_which_the_portal_is_ready(
    make_web: WebMaker, told: dict[str, Any], gateway: str, fault: str | None
) -> None:
    web = make_web(HERMES_GATEWAY_URL=gateway)
    beat(web, **told)
    answer = web.browser().get("/readyz?verbose")
    assert (answer.status_code, answer.json["missing"]) == (200, [])
    (bridge,) = [check for check in answer.json["checks"] if check["name"] == "bridge"]
    assert bridge["ok"] is (fault is None)
    assert (fault or "") in (bridge["fault"] or "")
    assert "canary" not in answer.get_data(as_text=True), "it is told to everybody"


def test_metrics_are_for_the_own_machine(web: Web) -> None:
    with transaction(web.factory) as db:
        a_run(db, a_session(db, owner=users.get(db, web.admin.id)), state=RunState.RUNNING)
    beat(web)
    answer = web.browser().get("/metrics")
    assert answer.status_code == 200
    text = answer.get_data(as_text=True)
    assert 'portal_runs{state="running"} 1' in text
    assert "portal_workers 1" in text
    assert "portal_open_connections 0" in text
    assert web.browser(ip="192.0.2.9").get("/metrics").status_code == 404
    through_proxy = web.browser().get("/metrics", headers={"X-Forwarded-For": "192.0.2.9"})
    assert through_proxy.status_code == 404


def test_metrics_with_a_token(make_web: WebMaker) -> None:
    web = make_web(PORTAL_METRICS_TOKEN="a token for prometheus")
    far = web.browser(ip="192.0.2.9")
    assert far.get("/metrics", headers={"Authorization": "Bearer a token for prometheus"}).status_code == 200
    assert far.get("/metrics", headers={"Authorization": "Bearer wrong"}).status_code == 404
    assert far.get("/metrics").status_code == 404
    assert web.browser().get("/metrics").status_code == 404
