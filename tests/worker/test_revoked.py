"""`celery control revoke` of a turn that waits: withdrawn, told, recorded, and the turn behind it is woken."""

from sqlalchemy import select

from shared.models import AuditEvent
from tests.worker.conftest import Desk
from worker.runs.revoked import cancel_revoked


def test_a_revoked_turn_is_withdrawn_once_and_the_one_behind_it_is_woken(desk: Desk) -> None:
    session_id = desk.session()
    revoked, behind = desk.submit(session_id, "one"), desk.submit(session_id, "two")
    assert cancel_revoked(revoked, desk.context)
    assert not cancel_revoked(revoked, desk.context)  # every worker hears the command
    assert desk.state(revoked) == "cancelled"
    assert desk.names(revoked) == ["run.dequeued", "run.cancelled"]
    assert [run_id for run_id, _ in desk.sent] == [behind]
    head = desk.context.log.head(session_id)
    assert head is not None
    assert head.seq == 3  # the third tells the queue as it is now
    with desk.look() as db:
        rows = db.scalars(select(AuditEvent).where(AuditEvent.action == "run_revoked")).all()
        assert [row.run_id for row in rows] == [revoked]


def test_a_revoked_turn_that_runs_goes_on_and_an_unknown_one_is_nothing(sqlite_desk: Desk) -> None:
    run_id = sqlite_desk.run([{"text": "done"}])
    assert not cancel_revoked(run_id, sqlite_desk.context)
    assert sqlite_desk.state(run_id) == "completed"
    assert not cancel_revoked("0" * 32, sqlite_desk.context)
