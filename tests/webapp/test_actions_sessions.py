"""Sessions: opened, renamed, archived, configured, deleted and brought back; each change told to open pages (F54)."""

import pytest

from shared import errors
from shared.database import transaction
from shared.models import ChatSession, Pause
from shared.run_state import RunState
from shared.store import catalogue, chat_sessions, pauses, runs
from tests.factories import a_run
from tests.rig.web import Web
from tests.webapp.test_actions_runs import Mine, principal
from tests.webapp.told import events, names, notes, task_ids
from webapp.actions import chat_sessions as actions


@pytest.fixture
def mine(web: Web) -> Mine:
    return Mine(web)


def stored(mine: Mine) -> ChatSession:
    with transaction(mine.web.factory, write=False) as db:
        return chat_sessions.get(db, mine.id, with_deleted=True)


def test_a_session_is_opened_with_what_was_chosen(web: Web) -> None:
    me = principal(web.user("mara"))
    with transaction(web.factory) as db:
        catalogue.put_profile(db, name="work")
    made = actions.create(
        web.context,
        me,
        title=" My \n title ",
        source="acp:claude",
        profile="work",
        model="anthropic/big",
        skill_folder="pdf",
    )
    with transaction(web.factory, write=False) as db:
        row = chat_sessions.get(db, made.session_id)
    assert (row.title, row.title_edited, row.source) == ("My title", True, "acp:claude")
    assert (row.profile, row.model, row.skill_folder, row.owner_id) == ("work", "anthropic/big", "pdf", me.user_id)
    plain = actions.create(web.context, me)
    assert (plain.source, plain.title, plain.status) == ("api_server", "", "ACTIVE")


@pytest.mark.parametrize("source", ["acp", "acp:", "acp:../x", "gateway", "api_server ", "acp:a b", "CLI", "x" * 500])
def test_an_unknown_source_is_refused(web: Web, source: str) -> None:
    with pytest.raises(errors.InvalidCommand) as refused:
        actions.create(web.context, principal(web.admin), source=source)
    assert refused.value.code == "bad_name"


@pytest.mark.parametrize(
    "name",
    ["..", "../x", "a/b", "a\\b", "/etc", "C:", "a\x00", "a\n", ".hidden", "-x", "x" * 65, "\u4e2d", "a b", "%2e%2e"],
)
def test_a_name_is_never_a_path(web: Web, name: str) -> None:
    for given in ({"profile": name}, {"skill_folder": name}):
        with pytest.raises(errors.InvalidCommand):
            actions.create(web.context, principal(web.admin), **given)


def test_a_title_is_one_line_without_control_characters(mine: Mine) -> None:
    actions.rename(mine.web.context, mine.me, mine.id, "  a\x00b\x1b[31m \r\n c\u202ed ")
    assert stored(mine).title == "a\ufffdb\ufffd[31m c\ufffdd"
    [event] = events(mine.web, mine.id)
    assert event.data.title == "a\ufffdb\ufffd[31m c\ufffdd"
    with pytest.raises(errors.InvalidCommand):
        actions.rename(mine.web.context, mine.me, mine.id, "x" * 201)


def test_a_title_taken_away_is_made_again_from_the_next_message(mine: Mine) -> None:
    actions.rename(mine.web.context, mine.me, mine.id, "Mine")
    actions.rename(mine.web.context, mine.me, mine.id, "")
    mine.submit("What is new?")
    assert stored(mine).title == "What is new?"


def test_archiving_and_bringing_back_is_told(mine: Mine) -> None:
    assert actions.archive(mine.web.context, mine.me, mine.id).status == "ARCHIVED"
    assert actions.archive(mine.web.context, mine.me, mine.id, archived=False).status == "ACTIVE"
    assert [event.data.archived for event in events(mine.web, mine.id)] == [True, False]


def test_options_are_chosen_and_taken_away(mine: Mine) -> None:
    actions.set_options(mine.web.context, mine.me, mine.id, model="big", skill_folder="pdf", on_failure="continue")
    row = stored(mine)
    assert (row.model, row.skill_folder, row.on_failure, row.profile) == ("big", "pdf", "continue", None)
    with transaction(mine.web.factory) as db:
        catalogue.put_profile(db, name="work")
    actions.set_options(mine.web.context, mine.me, mine.id, model="", profile="work")
    row = stored(mine)
    assert (row.model, row.skill_folder, row.profile) == (None, "pdf", "work")
    first, second = events(mine.web, mine.id)
    assert (first.data.model, first.data.skill_folder, first.data.on_failure) == ("big", "pdf", "continue")
    assert (second.data.model, second.data.skill_folder, second.data.profile) == ("", None, "work")
    with pytest.raises(errors.InvalidCommand):
        actions.set_options(mine.web.context, mine.me, mine.id, on_failure="explode")


def test_deleting_stops_what_runs_and_withdraws_what_waits(mine: Mine) -> None:
    with transaction(mine.web.factory) as db:
        run = a_run(db, chat_sessions.get(db, mine.id), state=RunState.RUNNING, worker_id="w1")
        given = {"run_id": run.id, "fence": run.fence, "session_id": mine.id, "timeout_s": None}
        pauses.open(db, **given, kind="approval", tool="t", request={"command": "ls", "choices": ["once"]})
    waiting = mine.submit("later", queue_id="k2")
    assert actions.delete(mine.web.context, mine.me, mine.id).status == "DELETED"
    assert mine.run(run.id).state == "aborting"
    assert mine.run(waiting.run_id).state == "cancelled"
    assert notes(mine.web, "w1")[0]["kind"] == "abort"
    assert names(mine.web, mine.id)[-5:] == [
        "run.dequeued", "run.cancelled", "queue.updated", "abort.started", "session.updated",
    ]  # fmt: skip
    assert events(mine.web, mine.id)[-1].data.deleted is True
    with pytest.raises(errors.NotFound):
        mine.submit("more")
    with transaction(mine.web.factory, write=False) as db:
        assert chat_sessions.list_for(db, mine.user) == []
        assert db.query(Pause).count() == 1


def test_deleting_twice_is_not_found_and_undo_brings_it_back(mine: Mine) -> None:
    actions.delete(mine.web.context, mine.me, mine.id)
    with pytest.raises(errors.NotFound):
        actions.delete(mine.web.context, mine.me, mine.id)
    assert actions.undelete(mine.web.context, mine.me, mine.id).status == "ACTIVE"
    assert events(mine.web, mine.id)[-1].data.deleted is False
    done = mine.submit("again")
    assert task_ids(mine.web)[-1] == done.run_id
    with transaction(mine.web.factory, write=False) as db:
        assert runs.head(db, mine.id) is not None
