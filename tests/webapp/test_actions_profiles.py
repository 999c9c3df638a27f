"""Profiles: added, changed, chosen, removed; permissions revoked. Only by who may, with a trace (S16, S21, S37)."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shared import clock, errors
from shared.database import transaction
from shared.models import AuditEvent, Profile, Run, User
from shared.relay.presence import Presence
from shared.run_state import RunState
from shared.store import approval_grants, catalogue, users
from tests.factories import a_queued_run, a_run, a_session
from tests.rig.catalogue_story import worker_facts
from tests.rig.web import Web
from tests.webapp.told import names, notes
from webapp.actions import chat_sessions, profiles
from webapp.actions.fields import WrongFields
from webapp.actions.profiles import ProfileInput
from webapp.auth import Principal

CONFIGURING = ("administrator", "operator")


def fresh(user: User | None, **given: Any) -> Principal:
    """Somebody who has just given the password."""
    assert user is not None
    given = {"kind": "cookie", "confirmed_at": clock.now(), "address": "192.0.2.1", **given}
    return Principal(user.id, user.name, user.role, **given)


@pytest.fixture
def admin(web: Web) -> Principal:
    return fresh(web.admin)


@pytest.fixture
def operator(web: Web) -> Principal:
    return fresh(web.user("olga", role="operator"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def stored(web: Web, name: str) -> Profile | None:
    with transaction(web.factory, write=False) as db:
        return catalogue.profile(db, name)


def audited(web: Web) -> list[tuple[str, Any]]:
    with transaction(web.factory, write=False) as db:
        return [(row.action, row.facts) for row in db.query(AuditEvent).order_by(AuditEvent.id)]


def faults_of(work: Callable[[], Any]) -> dict[str, str]:
    with pytest.raises(WrongFields) as wrong:
        work()
    return wrong.value.faults


# ---- adding and changing


def test_a_profile_is_added_with_a_trace(web: Web, operator: Principal, home: Path) -> None:
    profiles.add(web.context, operator, ProfileInput(name=" work ", hermes_home=f"{home}/"))
    row = stored(web, "work")
    assert row is not None
    assert (row.hermes_home, row.gateway_url, row.is_default) == (str(home), None, False)
    assert audited(web) == [("profile_added", {"profile": "work", "is_default": False})]


@pytest.mark.parametrize(
    "name",
    ["", " ", "..", "../x", "a/b", "a b", ".x", "-x", "x" * 65, "名", "a\0b", "<b>", "a..b", "default", "DEFAULT"],
)
def test_a_name_that_is_none_is_told_beside_its_field(web: Web, admin: Principal, name: str) -> None:
    assert set(faults_of(lambda: profiles.add(web.context, admin, ProfileInput(name=name)))) == {"name"}


def test_all_that_is_wrong_is_told_at_once(web: Web, admin: Principal) -> None:
    given = ProfileInput(name="a b", hermes_home="~/.hermes", gateway_url="gopher://x")
    assert set(faults_of(lambda: profiles.add(web.context, admin, given))) == {"name", "hermes_home", "gateway_url"}


@pytest.mark.parametrize(
    "home",
    [
        "hermes",
        "./x",
        "~/x",
        "/",
        "//",
        "/no/such/folder",
        "/a\0b",
        "/a\nb",
        "/" + "x" * 600,
        "C:\\x",
        "/etc/..",
        "/etc",
        "/srv",
    ],
)  # fmt: skip
def test_a_home_is_an_absolute_folder_that_is_there(web: Web, admin: Principal, home: str) -> None:
    faults = faults_of(lambda: profiles.add(web.context, admin, ProfileInput(name="work", hermes_home=home)))
    assert set(faults) == {"hermes_home"}


def test_a_home_is_never_a_file_nor_the_portals_own_folder(web: Web, admin: Principal, tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("x")
    web.settings.data_dir.mkdir(exist_ok=True)
    link.symlink_to(web.settings.data_dir)
    for home in (file, link, web.settings.data_dir, web.settings.data_dir / "workspaces", web.settings.data_dir.parent):
        given = ProfileInput(name="work", hermes_home=str(home))
        assert set(faults_of(lambda given=given: profiles.add(web.context, admin, given))) == {"hermes_home"}, home


def test_two_profiles_never_share_a_home(web: Web, admin: Principal, home: Path) -> None:
    link = home.parent / "link"
    link.symlink_to(home)
    first = profiles.add(web.context, admin, ProfileInput(name="work", hermes_home=str(home)))
    for same in (home, link, f"{home}/../home"):
        given = ProfileInput(name="play", hermes_home=str(same))
        assert (
            "has this home already"
            in faults_of(lambda given=given: profiles.add(web.context, admin, given))["hermes_home"]
        )
    own = ProfileInput(name="play", hermes_home=str(web.settings.hermes_home))
    assert "hermes_home" in faults_of(lambda: profiles.add(web.context, admin, own))
    profiles.change(web.context, admin, first.id, ProfileInput(hermes_home=str(home)))


def test_a_home_on_another_machine_cannot_be_looked_at_and_is_taken(web: Web, admin: Principal) -> None:
    Presence(web.context.redis, web.context.keys).beat_worker(worker_facts("elsewhere"))
    web.context.workers.forget()
    profiles.add(web.context, admin, ProfileInput(name="work", hermes_home="/srv/on/another/machine"))
    row = stored(web, "work")
    assert row is not None
    assert row.hermes_home == "/srv/on/another/machine"


def test_a_home_that_went_away_does_not_keep_the_rest_from_being_changed(
    web: Web, admin: Principal, home: Path
) -> None:
    row = profiles.add(web.context, admin, ProfileInput(name="work", hermes_home=str(home)))
    home.rmdir()
    profiles.change(web.context, admin, row.id, ProfileInput(hermes_home=str(home), is_default=True))
    assert audited(web)[-1] == ("profile_changed", {"profile": "work", "changed": ["is_default"]})


def test_saving_what_is_there_changes_nothing_and_leaves_no_trace(web: Web, admin: Principal, home: Path) -> None:
    row = profiles.add(web.context, admin, ProfileInput(name="work", hermes_home=str(home)))
    before = len(audited(web))
    profiles.change(web.context, admin, row.id, ProfileInput(hermes_home=str(home)))
    assert len(audited(web)) == before


def test_what_is_not_given_stays_as_it_is(web: Web, admin: Principal, home: Path) -> None:
    given = ProfileInput(name="work", hermes_home=str(home), gateway_url="https://1.1.1.1")
    row = profiles.add(web.context, admin, given)
    profiles.change(web.context, admin, row.id, ProfileInput(is_default=True))
    kept = stored(web, "work")
    assert kept is not None
    assert (kept.hermes_home, kept.gateway_url) == (str(home), "https://1.1.1.1")
    profiles.change(web.context, admin, row.id, ProfileInput(hermes_home="", gateway_url=""))
    kept = stored(web, "work")
    assert kept is not None
    assert (kept.hermes_home, kept.gateway_url) == (None, None)


def test_only_one_is_for_new_chats(web: Web, admin: Principal) -> None:
    first = profiles.add(web.context, admin, ProfileInput(name="a", is_default=True))
    second = profiles.add(web.context, admin, ProfileInput(name="b", is_default=True))
    with transaction(web.factory, write=False) as db:
        assert [row.name for row in catalogue.profiles(db) if row.is_default] == ["b"]
    me = fresh(web.user("mara"))

    def profile_of_a_new_chat(given: str | None = None) -> str | None:
        made = chat_sessions.create(web.context, me, profile=given)
        with transaction(web.factory, write=False) as db:
            return chat_sessions.chat_sessions.get(db, made.session_id).profile

    assert (profile_of_a_new_chat(), profile_of_a_new_chat("a"), profile_of_a_new_chat("default")) == ("b", "a", None)
    profiles.make_default(web.context, admin, first.id)
    assert profile_of_a_new_chat() == "a"
    profiles.make_default(web.context, admin, profiles.DEFAULT)
    assert profile_of_a_new_chat() is None
    profiles.change(web.context, admin, second.id, ProfileInput(is_default=True))
    profiles.change(web.context, admin, second.id, ProfileInput(is_default=False))
    assert profile_of_a_new_chat() is None


def test_a_chat_gets_no_profile_that_is_not_there(web: Web, admin: Principal) -> None:
    me = fresh(web.user("mara"))
    made = chat_sessions.create(web.context, me)
    for work in (
        lambda: chat_sessions.create(web.context, me, profile="gone"),
        lambda: chat_sessions.set_options(web.context, me, made.session_id, profile="gone"),
    ):
        with pytest.raises(errors.InvalidCommand) as refused:
            work()
        assert refused.value.code == "unknown_profile"


def test_a_chat_whose_profile_is_gone_can_still_be_changed_and_given_another(web: Web, admin: Principal) -> None:
    profile = profiles.add(web.context, admin, ProfileInput(name="work"))
    me = fresh(web.user("mara"))
    made = chat_sessions.create(web.context, me, profile="work")
    profiles.remove(web.context, admin, profile.id)
    chat_sessions.set_options(web.context, me, made.session_id, model="big", profile="work")
    chat_sessions.set_options(web.context, me, made.session_id, profile="default")
    with transaction(web.factory, write=False) as db:
        assert chat_sessions.chat_sessions.get(db, made.session_id).profile is None


# ---- who may


def test_members_viewers_and_programs_configure_nothing(web: Web, admin: Principal) -> None:
    row = profiles.add(web.context, admin, ProfileInput(name="work"))
    others = [fresh(web.user(role, role=role)) for role in ("member", "viewer")]
    others += [replace(fresh(web.user(f"t-{role}", role=role)), kind="token") for role in CONFIGURING]
    before = web.rows()
    for who in others:
        for work in (
            lambda who=who: profiles.add(web.context, who, ProfileInput(name="mine")),
            lambda who=who: profiles.change(web.context, who, row.id, ProfileInput()),
            lambda who=who: profiles.make_default(web.context, who, row.id),
            lambda who=who: profiles.remove(web.context, who, row.id),
        ):
            with pytest.raises(errors.Forbidden):
                work()
    assert web.rows() == before


def test_a_password_given_long_ago_does_not_do(web: Web, admin: Principal) -> None:
    stale = replace(admin, confirmed_at=clock.now().replace(year=2020))
    with pytest.raises(errors.Forbidden) as refused:
        profiles.add(web.context, stale, ProfileInput(name="work"))
    assert refused.value.code == "not_fresh"


def test_only_an_administrator_says_where_turns_are_sent(web: Web, admin: Principal, operator: Principal) -> None:
    """S37."""
    given = ProfileInput(name="work", gateway_url="https://1.1.1.1/p/work")
    with pytest.raises(errors.Forbidden, match="Only an administrator"):
        profiles.add(web.context, operator, given)
    row = profiles.add(web.context, admin, given)
    for url in ("https://1.1.1.1/other", ""):
        with pytest.raises(errors.Forbidden):
            profiles.change(web.context, operator, row.id, ProfileInput(gateway_url=url))
    profiles.change(web.context, operator, row.id, ProfileInput(gateway_url=None, is_default=True))
    profiles.change(web.context, operator, row.id, ProfileInput(gateway_url=given.gateway_url))
    kept = stored(web, "work")
    assert kept is not None
    assert kept.gateway_url == "https://1.1.1.1/p/work"
    profiles.change(web.context, admin, row.id, ProfileInput(gateway_url=""))
    assert audited(web)[-1][1]["changed"] == ["gateway_url"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:8642", "http://169.254.169.254", "http://u:p@1.1.1.1", "1.1.1.1"])
def test_a_gateway_that_may_not_be_asked_is_refused_beside_its_field(web: Web, admin: Principal, url: str) -> None:
    given = ProfileInput(name="work", gateway_url=url)
    assert set(faults_of(lambda: profiles.add(web.context, admin, given))) == {"gateway_url"}


def test_what_is_configured_is_trusted_and_private_ones_by_a_setting(make_web: Any) -> None:
    configured = make_web(HERMES_GATEWAY_URL="http://127.0.0.1:8642")
    admin = fresh(configured.admin)
    profiles.add(configured.context, admin, ProfileInput(name="work", gateway_url="http://127.0.0.1:8642/p/work"))
    other = ProfileInput(name="other", gateway_url="http://127.0.0.1:9999")
    assert "gateway_url" in faults_of(lambda: profiles.add(configured.context, admin, other))
    allowing = make_web(PORTAL_ALLOW_PRIVATE_ADDRESSES="1")
    profiles.add(allowing.context, fresh(allowing.admin), other)


# ---- removing (F54)


def test_what_runs_or_waits_in_its_chats_is_stopped_before_it_is_removed(web: Web, admin: Principal) -> None:
    row = profiles.add(web.context, admin, ProfileInput(name="work"))
    mara = web.user("mara")
    with transaction(web.factory) as db:
        mine, other = (a_session(db, owner=users.get(db, mara.id), profile=name) for name in ("work", None))
        running, waiting = a_run(db, mine, state=RunState.RUNNING), a_queued_run(db, mine)
        elsewhere = a_run(db, other, state=RunState.RUNNING)
        approval_grants.add(db, profile="work", pattern_key="sudo", user=users.get(db, mara.id))
        approval_grants.add(db, profile=None, pattern_key="sudo", user=users.get(db, mara.id))
    assert profiles.remove(web.context, admin, row.id) == "work"
    with transaction(web.factory, write=False) as db:
        states = {run.id: run.state for run in db.query(Run)}
        assert approval_grants.patterns(db, "work") == ()
        assert approval_grants.patterns(db, None) == ("sudo",)
    assert (states[running.id], states[waiting.id]) == (RunState.ABORTING, RunState.CANCELLED)
    assert states[elsewhere.id] == RunState.RUNNING
    assert {"abort.started", "run.dequeued", "queue.updated"} <= set(names(web, mine.id))
    assert [note["kind"] for note in notes(web, "worker-1")] == ["abort"]
    assert stored(web, "work") is None
    assert audited(web)[-1] == ("profile_removed", {"profile": "work", "stopped": 2})
    with pytest.raises(errors.NotFound):
        profiles.remove(web.context, admin, row.id)


# ---- permissions


def test_what_was_allowed_in_one_home_is_not_in_the_next(
    web: Web, admin: Principal, home: Path, tmp_path: Path
) -> None:
    """A permission never crosses homes, also where a profile moves to another."""
    other = tmp_path / "other"
    other.mkdir()
    row = profiles.add(web.context, admin, ProfileInput(name="work", hermes_home=str(home)))
    with transaction(web.factory) as db:
        for profile in ("work", None):
            approval_grants.add(db, profile=profile, pattern_key="sudo", user=users.get(db, admin.user_id))

    def allowed(profile: str | None) -> tuple[str, ...]:
        with transaction(web.factory, write=False) as db:
            return approval_grants.patterns(db, profile)

    profiles.change(web.context, admin, row.id, ProfileInput(hermes_home=str(home), is_default=True))
    assert allowed("work") == ("sudo",), "the home is the same"
    profiles.change(web.context, admin, row.id, ProfileInput(hermes_home=str(other), is_default=True))
    assert (allowed("work"), allowed(None)) == ((), ("sudo",))
    assert audited(web)[-1] == ("profile_changed", {"profile": "work", "changed": ["hermes_home"], "revoked": 1})


def test_a_permission_is_revoked_once_with_a_trace(web: Web, operator: Principal) -> None:
    mara = web.user("mara")
    with transaction(web.factory) as db:
        grant = approval_grants.add(db, profile="work", pattern_key="sudo", user=users.get(db, mara.id))
    for _ in range(2):
        profiles.revoke_grant(web.context, operator, grant.id)
    with transaction(web.factory, write=False) as db:
        assert approval_grants.patterns(db, "work") == ()
    trace = [facts for action, facts in audited(web) if action == "grant_revoked"]
    assert trace == [{"grant": grant.id, "profile": "work", "pattern": "sudo", "granted_by": mara.id}]


def test_who_allowed_it_may_revoke_it_and_nobody_else_without_the_role(web: Web) -> None:
    mara, stranger = web.user("mara"), fresh(web.user("eve"))
    with transaction(web.factory) as db:
        grant = approval_grants.add(db, profile=None, pattern_key="sudo", user=users.get(db, mara.id))
    reading = replace(fresh(mara), kind="token", scopes=frozenset({"read"}))
    for who in (stranger, reading, fresh(web.user("vera", role="viewer"))):
        with pytest.raises(errors.NotFound):
            profiles.revoke_grant(web.context, who, grant.id)
    profiles.revoke_grant(web.context, replace(fresh(mara), confirmed_at=None), grant.id)
    with transaction(web.factory, write=False) as db:
        assert approval_grants.patterns(db, None) == ()
    with pytest.raises(errors.NotFound):
        profiles.revoke_grant(web.context, fresh(web.admin), "nothing")
