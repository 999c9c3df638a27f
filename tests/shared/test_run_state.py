"""The table of moves, and the one function that obeys it."""

import ast
from itertools import product
from pathlib import Path

import pytest
from sqlalchemy import text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

import shared
from shared.errors import IllegalMove, LeaseLost
from shared.models import Run
from shared.run_state import ACTIVE, FINAL, MOVES, RunState, is_legal
from shared.store import runs
from tests.factories import a_run

S = RunState
ENDS_OF_A_BEGUN_RUN = {S.COMPLETED, S.FAILED, S.INTERRUPTED, S.ABORTING}

# RELIABILITY 2.1, written out again by hand.
LEGAL = {
    (S.QUEUED, S.STARTING),
    (S.QUEUED, S.CANCELLED),
    (S.QUEUED, S.FAILED),
    (S.STARTING, S.RUNNING),
    (S.STARTING, S.QUEUED),
    (S.STARTING, S.ABORTING),
    (S.RUNNING, S.AWAITING_APPROVAL),
    (S.RUNNING, S.AWAITING_CLARIFICATION),
    (S.AWAITING_APPROVAL, S.RUNNING),
    (S.AWAITING_CLARIFICATION, S.RUNNING),
    *((S.RUNNING, end) for end in ENDS_OF_A_BEGUN_RUN),
    *((S.AWAITING_APPROVAL, end) for end in ENDS_OF_A_BEGUN_RUN),
    *((S.AWAITING_CLARIFICATION, end) for end in ENDS_OF_A_BEGUN_RUN),
    (S.ABORTING, S.ABORTED),
    (S.ABORTING, S.COMPLETED),
}


def test_the_table_is_that_of_the_contract() -> None:
    assert {(source, target) for source in MOVES for target in MOVES[source]} == LEGAL
    assert {S.COMPLETED, S.FAILED, S.ABORTED, S.INTERRUPTED, S.CANCELLED} == FINAL
    assert set(RunState) - FINAL - {S.QUEUED} == ACTIVE


def test_every_move_is_made_or_refused_as_the_table_says(db: Session) -> None:
    for source, target in product(RunState, RunState):
        run = a_run(db, state=source, fence=1)
        if is_legal(source, target):
            runs.move(db, run.id, source, target, fence=run.fence)
            assert run.state == target
        else:
            with pytest.raises(IllegalMove):
                runs.move(db, run.id, source, target, fence=run.fence)
            assert runs.state_and_fence(db, run.id)[0] == source


def test_a_stale_fence_cannot_finish_the_run(db: Session) -> None:
    run = a_run(db, state=S.RUNNING, fence=7)
    with pytest.raises(LeaseLost):
        runs.finish(db, run.id, S.RUNNING, S.COMPLETED, fence=6, content="late", transcript=None)
    assert runs.state_and_fence(db, run.id) == (S.RUNNING, 7)


def test_a_writer_that_knows_an_old_state_learns_of_it(db: Session) -> None:
    run = a_run(db, state=S.ABORTING, fence=1)
    with pytest.raises(LeaseLost):
        runs.move(db, run.id, S.RUNNING, S.COMPLETED, fence=1)


def test_the_time_of_a_state_is_set_with_it(db: Session) -> None:
    run = a_run(db, state=S.QUEUED)
    runs.move(db, run.id, S.QUEUED, S.STARTING, fence=0, raise_fence=True)
    assert run.starting_at is not None
    assert run.begun_at is None
    runs.move(db, run.id, S.STARTING, S.RUNNING, fence=1)
    begun_at = run.begun_at
    runs.move(db, run.id, S.RUNNING, S.AWAITING_APPROVAL, fence=1)
    runs.move(db, run.id, S.AWAITING_APPROVAL, S.RUNNING, fence=1)
    assert run.begun_at == begun_at
    runs.move(db, run.id, S.RUNNING, S.COMPLETED, fence=1)
    assert run.ended_at is not None
    assert run.lease_until_db is None


@pytest.mark.parametrize("state", sorted(FINAL))
def test_the_database_itself_refuses_to_change_a_final_state(db: Session, state: RunState) -> None:
    run = a_run(db, state=state)
    for target in set(RunState) - {state}:
        with pytest.raises(IntegrityError), db.begin_nested():
            db.execute(update(Run).where(Run.id == run.id).values(state=target.value))
    db.execute(text("UPDATE run SET error = 'a note' WHERE id = :id"), {"id": run.id})  # only the state is final


def test_the_database_itself_refuses_a_second_active_run(db: Session) -> None:
    first = a_run(db, state=S.RUNNING)
    session = runs.get(db, first.id).session_id
    second = a_run(db, state=S.COMPLETED, session=None)
    with pytest.raises(IntegrityError), db.begin_nested():
        db.execute(update(Run).where(Run.id == second.id).values(session_id=session, state="starting"))


def test_nothing_else_in_the_product_writes_a_state() -> None:
    """No assignment to `.state` of a run and no `values(state=...)` on Run, but in run_moves.py."""
    top = Path(shared.__file__).parent.parent
    writers = set()
    for folder in ("shared", "webapp", "worker"):
        for path in (top / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and _updates_run(node):
                    writers.add(path.name)
                if isinstance(node, ast.Assign | ast.AugAssign):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    if any(_is_state_of_run(t) for t in targets):
                        writers.add(path.name)
    assert writers <= {"run_moves.py"}


def _updates_run(call: ast.Call) -> bool:
    """`….values(state=…)` behind an `update(Run)`."""
    sets_state = (
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "values"
        and (any(keyword.arg == "state" for keyword in call.keywords))
    )
    return sets_state and "update(Run)" in ast.unparse(call)


def _is_state_of_run(target: ast.expr) -> bool:
    is_state = isinstance(target, ast.Attribute) and target.attr == "state"
    return is_state and ast.unparse(target) in {"run.state", "Run.state"}
