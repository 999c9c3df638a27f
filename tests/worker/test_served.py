"""What a worker says in its heartbeat of what it can serve: without starting anything, and without a secret."""

from pathlib import Path
from typing import Any

import pytest

from shared import clock
from shared.database import make_engine, make_session_factory, transaction
from shared.errors import Unavailable
from shared.models import Profile
from shared.store import catalogue
from tests.worker.conftest import Desk
from worker import heartbeat
from worker.backends import offered, registry
from worker.served import WHY_CHARS


class Held:
    """A backend that holds agents, as far as an operator is told."""

    name, agent, version = "Hermes", "bridge", ""

    def __init__(self, *described: dict[str, Any]) -> None:
        self.described = described

    def describe(self) -> list[dict[str, Any]]:
        return list(self.described)

    def restart(self, *, at_once: bool) -> int:
        return 0

    def drop_session(self, session_id: str) -> bool:
        return False


def look(desk: Desk, *described: dict[str, Any]) -> dict[str | None, Any]:
    desk.context.backends.holding_agents = lambda profile=None: [Held(*described)]
    desk.context.served.look()
    return {each.profile: each for each in desk.context.served.seen.profiles}


def test_what_is_new_is_told_at_once_and_what_is_not_with_the_next_heartbeat(desk: Desk, tmp_path: Path) -> None:
    with transaction(desk.factory) as db:
        catalogue.put_profile(db, name="work", hermes_home=str(tmp_path))
    ready: dict[str, Any] = {"profile": "work", "state": "ready", "answers": True, "sessions": 1}
    desk.context.backends.holding_agents = lambda profile=None: [Held(ready)]
    assert [desk.context.served.look() for _ in range(2)] == [True, False]
    ready["sessions"] = 2
    assert desk.context.served.look()


def test_a_worker_that_starts_tells_what_it_can_serve_before_its_second_heartbeat(desk: Desk) -> None:
    desk.context.settings = desk.settings.model_copy(update={"lease_renew_s": 30.0})
    desk.start_threads()
    told = desk.wait(
        lambda: next((each for each in desk.context.presence.workers() if each.sources), None), what="the sources"
    )
    assert {source.source for source in told.sources} == set(offered.FAULTS)


def test_each_source_has_its_line() -> None:
    assert offered.FAULTS.keys() == registry.SOURCES.keys() - {"scripted"}


def test_nothing_is_said_before_the_first_look(desk: Desk) -> None:
    facts = heartbeat.facts_of(desk.context, clock.now())
    assert (facts.sources, facts.profiles, facts.keys, facts.looked_at) == ([], [], {}, None)


def test_a_heartbeat_tells_what_the_last_look_saw(desk: Desk) -> None:
    with transaction(desk.factory) as db:
        catalogue.put_profile(db, name="work", hermes_home="/no/such/home")
    look(desk)
    desk.context.presence.beat_worker(heartbeat.facts_of(desk.context, clock.now()))
    (told,) = desk.context.presence.workers()
    assert {source.source for source in told.sources} == set(offered.FAULTS)
    assert [each.profile for each in told.profiles] == [None, "work"]
    assert told.looked_at is not None


def test_a_machine_without_hermes_says_how_to_get_one(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/no/such/place")
    monkeypatch.setenv("HOME", "/no/such/home")
    look(desk)
    told = {source.source: source for source in desk.context.served.seen.sources}
    assert not told["cli"].ok
    assert "Install hermes-agent" in told["cli"].why


def test_a_given_root_without_hermes_in_it_is_said(desk: Desk, tmp_path: Path) -> None:
    settings = desk.settings.model_copy(update={"hermes_agent_root": tmp_path})
    assert "there is no run_agent.py" in (offered.fault_of("cli", settings, []) or "")


def test_a_gateway_is_one_of_the_settings_or_of_a_profile(desk: Desk) -> None:
    given = {"hermes_gateway_url": None, "demo_url": None}
    bare = desk.settings.model_copy(update=given)
    row = Profile(name="work", gateway_url="https://gateway.example")
    assert "HERMES_GATEWAY_URL" in (offered.fault_of("api_server", bare, []) or "")
    assert offered.fault_of("api_server", bare, [row]) is None
    configured = bare.model_copy(update={"hermes_gateway_url": "http://127.0.0.1:1"})
    assert offered.fault_of("api_server", configured, []) is None


def test_only_whether_a_key_is_set_is_told_and_of_models_alone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_MODEL_KEY", "canary-value-of-the-key")
    monkeypatch.setenv("NOT_OF_A_MODEL", "x")
    with transaction(desk.factory) as db:
        for name, key in (("a", "A_MODEL_KEY"), ("b", "NOT_SET_ANYWHERE"), ("c", "PORTAL_SECRET_KEY"), ("d", None)):
            catalogue.put_language_model(db, name=name, model="m", key_ref=key)
    look(desk)
    facts = heartbeat.facts_of(desk.context, clock.now())
    assert facts.keys == {"A_MODEL_KEY": True, "NOT_SET_ANYWHERE": False}
    assert "canary-value" not in facts.model_dump_json()


@pytest.mark.parametrize(
    ("described", "state", "why"),
    [
        (None, "idle", ""),
        ({"state": "not started", "why": ""}, "idle", ""),
        ({"state": "not started", "why": "It ended. It said last: boom"}, "failed", "It ended. It said last: boom"),
        ({"state": "starting"}, "starting", ""),
        ({"state": "ready", "answers": True, "sessions": 3, "busy": 1, "version": "0.19.0"}, "ready", ""),
        ({"state": "ready", "answers": False, "why": "No answer in 1 s."}, "failed", "No answer in 1 s."),
        ({"state": "ready", "answers": False}, "failed", "It does not answer."),
    ],
)
def test_the_agent_of_a_profile_in_a_word(desk: Desk, tmp_path: Path, described: Any, state: str, why: str) -> None:
    with transaction(desk.factory) as db:
        catalogue.put_profile(db, name="work", hermes_home=str(tmp_path))
    seen = look(desk, *([] if described is None else [{"profile": "work", **described}]))
    assert (seen["work"].state, seen["work"].why) == (state, why)


def test_of_two_processes_the_one_that_takes_turns_counts(desk: Desk) -> None:
    retiring = {"profile": None, "state": "retiring", "sessions": 9}
    ready = {"profile": None, "state": "ready", "sessions": 1, "answers": True}
    for order in ((retiring, ready), (ready, retiring)):
        assert look(desk, *order)[None].sessions == 1


def test_a_home_that_cannot_be_used_is_missing_and_its_path_is_not_told(desk: Desk, tmp_path: Path) -> None:
    file = tmp_path / "a-file"
    file.write_text("x")
    with transaction(desk.factory) as db:
        catalogue.put_profile(db, name="gone", hermes_home=str(tmp_path / "canary-path"))
        catalogue.put_profile(db, name="file", hermes_home=str(file))
        catalogue.put_profile(db, name="system", hermes_home="/etc")
    seen = look(desk)
    assert [seen[name].state for name in ("gone", "file", "system")] == ["missing"] * 3
    assert "canary-path" not in seen["gone"].model_dump_json()


def test_agents_of_a_profile_that_is_gone_are_ended_at_the_second_look(desk: Desk) -> None:
    forgotten: list[set[str]] = []
    desk.context.backends.profiles = lambda: {"work", "gone"}
    desk.context.backends.forget = forgotten.append
    with transaction(desk.factory) as db:
        catalogue.put_profile(db, name="work")
    for _ in range(3):
        look(desk)
    assert forgotten == [set(), {"gone"}, {"gone"}]


def test_a_long_story_keeps_its_end(desk: Desk, tmp_path: Path) -> None:
    with transaction(desk.factory) as db:
        catalogue.put_profile(db, name="work", hermes_home=str(tmp_path))
    story = "The beginning " + "x" * 9_000 + " the end\0"
    why = look(desk, {"profile": "work", "state": "not started", "why": story})["work"].why
    assert len(why) <= WHY_CHARS + 3
    assert (why[:13], why[-8:]) == ("The beginning", "the end\ufffd")


def test_without_the_database_the_last_look_counts_on(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    look(desk)
    before = desk.context.served.seen
    nowhere = make_session_factory(make_engine("postgresql+psycopg://nobody@127.0.0.1:1/none"))
    monkeypatch.setattr(desk.context.served, "_factory", nowhere)
    with pytest.raises(Unavailable):
        desk.context.served.look()
    assert desk.context.served.seen is before
