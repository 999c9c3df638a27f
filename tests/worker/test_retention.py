"""What is kept only for a time: removed when it is over, not a day before."""

from datetime import timedelta

from shared import clock
from shared.models import ChatSession, Run, RunLog
from tests.worker.conftest import Desk
from worker import retention


def test_old_run_logs_and_sessions_deleted_a_week_ago_are_removed_and_nothing_else(desk: Desk) -> None:
    kept, gone, alive = desk.session(), desk.session(), desk.session()
    runs = {name: desk.run([{"text": "x"}]) for name in ("old", "young")}
    in_gone = desk.submit(gone, "x")
    now = clock.now()
    with desk.db() as db:
        db.get_one(ChatSession, kept).deleted_at = now - timedelta(days=6)
        db.get_one(ChatSession, gone).deleted_at = now - timedelta(days=8)
        db.get_one(RunLog, runs["old"]).created_at = now - timedelta(days=91)
        db.get_one(RunLog, runs["young"]).created_at = now - timedelta(days=89)
    retention.tidy(desk.context)
    retention.tidy(desk.context)
    with desk.look() as db:
        assert [db.get(ChatSession, id) is not None for id in (kept, gone, alive)] == [True, False, True]
        assert [db.get(RunLog, runs[name]) is not None for name in ("old", "young")] == [False, True]
    assert [desk.answer(run_id).content for run_id in runs.values()] == ["x", "x"]
    with desk.look() as db:
        assert db.get(Run, in_gone) is None, "what belongs to a removed session goes with it"
