"""The smaller tables: who did what, events of finished runs, outputs of tools, summaries, the catalogue."""

from datetime import timedelta

import pytest
from sqlalchemy import text, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from shared import clock
from shared.errors import Conflict, NotFound
from shared.models import AuditEvent
from shared.store import audit, catalogue, compressions, run_logs, tool_outputs
from tests.factories import a_run, a_session, a_user

# ---- audit (S21)


def test_an_action_is_recorded_with_who_and_what(db: Session) -> None:
    ann = a_user(db)
    audit.record(db, "run_aborted", user=ann, address="::1", session_id="s", run_id="r", stage="seen")
    (row,) = audit.latest(db)
    assert (row.action, row.user_id, row.user_name, row.address) == ("run_aborted", ann.id, ann.name, "::1")
    assert (row.session_id, row.run_id, row.facts) == ("s", "r", {"stage": "seen"})


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_event SET action = 'nothing'",
        "UPDATE audit_event SET facts = NULL",
        "DELETE FROM audit_event",
        "DELETE FROM audit_event WHERE action = 'sign_in'",
    ],
)
def test_the_database_refuses_to_change_or_remove_a_row(db: Session, statement: str) -> None:
    audit.record(db, "sign_in")
    with pytest.raises((IntegrityError, DBAPIError), match="audit_event"), db.begin_nested():
        db.execute(text(statement))
    assert [row.action for row in audit.latest(db)] == ["sign_in"]


def test_the_table_cannot_be_emptied_in_one_go(db: Session) -> None:
    audit.record(db, "sign_in")
    empty = "DELETE FROM audit_event" if db.get_bind().dialect.name == "sqlite" else "TRUNCATE audit_event"
    with pytest.raises((IntegrityError, DBAPIError), match="audit_event"), db.begin_nested():
        db.execute(text(empty))


def test_retention_removes_old_rows_only_and_says_so(db: Session) -> None:
    now = clock.now()
    for days in (400, 200, 1):
        db.add(AuditEvent(at=now - timedelta(days=days), action=f"{days} days"))
    db.flush()
    assert audit.remove_before(db, now - timedelta(days=365)) == 1
    assert [row.action for row in audit.latest(db)] == ["audit_removed", "1 days", "200 days"]
    assert audit.remove_before(db, now - timedelta(days=365)) == 0
    with pytest.raises((IntegrityError, DBAPIError)), db.begin_nested():
        db.execute(text("DELETE FROM audit_event"))  # the switch is off again


def test_even_with_the_switch_on_young_rows_stay_and_none_changes(db: Session) -> None:
    audit.record(db, "sign_in")
    db.execute(text("INSERT INTO audit_retention (before) VALUES ('2020-01-01 00:00:00.000000')"))
    with pytest.raises((IntegrityError, DBAPIError)), db.begin_nested():
        db.execute(text("DELETE FROM audit_event"))
    with pytest.raises((IntegrityError, DBAPIError)), db.begin_nested():
        db.execute(update(AuditEvent).values(action="x"))


def test_the_record_is_read_in_pages(db: Session) -> None:
    made = [audit.record(db, f"a{n}").id for n in range(5)]
    assert [row.id for row in audit.latest(db, limit=2)] == made[:2:-1]
    assert [row.id for row in audit.latest(db, before_id=made[3], limit=2)] == [made[2], made[1]]


# ---- run logs, tool outputs


def test_the_events_of_a_run_come_back_as_they_were(db: Session) -> None:
    run = a_run(db)
    lines = ['{"seq":1,"text":"流"}', '{"seq":2,"text":"a\\nb"}']
    for given in (["{}"], lines):
        run_logs.put(db, run_id=run.id, session_id=run.session_id, epoch="e", first_seq=1, last_seq=2, lines=given)
    log = run_logs.get(db, run.id)
    assert log is not None
    assert run_logs.lines(log) == lines
    assert run_logs.get(db, "nothing") is None
    assert run_logs.remove_before(db, clock.now() - timedelta(days=1)) == 0
    assert run_logs.remove_before(db, clock.now() + timedelta(days=1)) == 1


def test_the_whole_output_of_a_tool_is_kept_to_its_limit(db: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(db)
    monkeypatch.setattr(tool_outputs, "MAX_BYTES", 1000)
    output = tool_outputs.put(db, run_id=run.id, tool_id="t1", name="shell", text="行" * 500)
    assert output.full_size == 1500
    assert tool_outputs.text_of(output) == "行" * 333 + "\N{REPLACEMENT CHARACTER}"
    tool_outputs.put(db, run_id=run.id, tool_id="t1", name="shell", text="short")
    stored = tool_outputs.get(db, run.id, "t1")
    assert stored is not None
    assert tool_outputs.text_of(stored) == "short"


# ---- summaries, catalogue


def test_the_summary_that_reaches_furthest_is_taken(db: Session) -> None:
    session = a_session(db)
    for upto in (4, 9, 6):
        compressions.add(
            db, session_id=session.id, run_id="r", upto_position=upto, summary=f"to {upto}",
            before_tokens=9, after_tokens=3,
        )  # fmt: skip
    latest = compressions.latest(db, session.id)
    earlier = compressions.latest(db, session.id, before_position=9)
    assert latest is not None
    assert earlier is not None
    assert (latest.summary, earlier.summary) == ("to 9", "to 6")
    assert compressions.latest(db, session.id, before_position=4) is None


def test_one_language_model_is_the_default(db: Session) -> None:
    catalogue.put_language_model(db, name="b", model="m-b", is_default=True)
    catalogue.put_language_model(db, name="a", model="m-a")
    c = catalogue.put_language_model(db, name="c", model="m-c", key_ref="C_KEY", is_default=True)
    assert [(m.name, m.is_default) for m in catalogue.language_models(db)] == [("c", True), ("a", False), ("b", False)]
    assert catalogue.language_model(db, "c") is catalogue.language_model(db, c.id) is c
    catalogue.remove_language_model(db, "c")
    with pytest.raises(NotFound):
        catalogue.remove_language_model(db, "c")


def test_one_profile_is_the_default(db: Session) -> None:
    catalogue.put_profile(db, name="b", hermes_home="/h", is_default=True)
    catalogue.put_profile(db, name="a", is_default=True)
    assert [(p.name, p.is_default) for p in catalogue.profiles(db)] == [("a", True), ("b", False)]
    catalogue.remove_profile(db, "a")
    assert catalogue.profile(db, "a") is None
    with pytest.raises(NotFound):
        catalogue.remove_profile(db, "a")


def test_a_name_is_taken_once(db: Session) -> None:
    assert catalogue.get_profile(db, catalogue.add_profile(db, name="work").id).name == "work"
    assert catalogue.get_language_model(db, catalogue.add_language_model(db, name="big", model="m").id).model == "m"
    for again in (
        lambda: catalogue.add_profile(db, name="work"),
        lambda: catalogue.add_language_model(db, name="big", model="n"),
    ):
        with pytest.raises(Conflict) as refused:
            again()
        assert refused.value.code == "name_taken"
    assert len(catalogue.profiles(db)) == len(catalogue.language_models(db)) == 1, "the transaction goes on"
    for missing in (catalogue.get_profile, catalogue.get_language_model):
        with pytest.raises(NotFound):
            missing(db, "nothing")


def test_one_is_chosen_and_taken_back(db: Session) -> None:
    a, b = catalogue.add_profile(db, name="a"), catalogue.add_profile(db, name="b")
    for row in (a, b, b):
        catalogue.choose_profile(db, row)
        assert catalogue.default_profile(db) is row
    catalogue.choose_profile(db, None)
    assert catalogue.default_profile(db) is None
    c, d = (catalogue.add_language_model(db, name=name, model="m") for name in "cd")
    for model in (c, d):
        catalogue.choose_language_model(db, model)
        assert catalogue.default_language_model(db) is model
    catalogue.choose_language_model(db, None)
    assert catalogue.default_language_model(db) is None
