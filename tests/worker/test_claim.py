"""Whose turn it is: doubled, late and out-of-order deliveries change nothing, and the queue keeps its order."""

import itertools
import threading

import pytest

from shared import clock
from shared.models import ChatSession
from shared.run_state import RunState
from shared.store import runs as run_store
from tests import factories
from tests.worker.conftest import Desk
from worker import heartbeat
from worker.runs.claim import claim, dispatch, hand_on
from worker.runs.execute import execute


def test_ten_deliveries_at_once_begin_one_turn(desk: Desk) -> None:
    """F4."""
    run_id = desk.submit(desk.session(), [{"text": "a"}, {"sleep": 0.2}])
    others = [desk.new_context(f"worker-{n}") for n in range(2)]
    threads = [desk.start(run_id, context) for context in [desk.context, *others] * 4]
    for thread in threads:
        thread.join(60)
    assert (desk.state(run_id), desk.turns(run_id), desk.row(run_id).fence) == ("completed", 1, 1)
    for context in others:
        context.engine.dispose()


@pytest.mark.parametrize("state", ["completed", "failed", "aborted", "interrupted", "cancelled"])
def test_the_delivery_of_a_final_run_changes_nothing(desk: Desk, state: str) -> None:
    """F5."""
    with desk.db() as db:
        run_id = factories.a_run(db, state=RunState(state)).id
    before = desk.row(run_id).fence
    execute(run_id, desk.context)
    assert (desk.state(run_id), desk.row(run_id).fence) == (state, before)
    assert desk.events(run_id) == []
    assert desk.turns(run_id) == 0


def test_a_delivery_of_a_run_that_does_not_exist_is_dropped(desk: Desk) -> None:
    execute("0" * 32, desk.context)


def test_turns_of_a_session_run_one_after_another_in_order(desk: Desk) -> None:
    session_id = desk.session()
    runs = [desk.submit(session_id, [{"text": str(n)}, {"sleep": 0.05}]) for n in range(5)]
    stop = threading.Event()

    def deliver() -> None:
        while not stop.wait(0.01):
            for run_id in reversed(runs):
                execute(run_id, desk.context)

    threads = [threading.Thread(target=deliver) for _ in range(2)]
    for thread in threads:
        thread.start()
    for run_id in runs:
        desk.wait_final(run_id)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert [line for line in desk.effects() if line.startswith("turn")] == [f"turn {run_id}" for run_id in runs]
    rows = [desk.row(run_id) for run_id in runs]
    for earlier, later in itertools.pairwise(rows):
        assert earlier.ended_at is not None
        assert later.begun_at is not None
        assert earlier.ended_at <= later.begun_at


def test_a_run_whose_backend_is_at_hand_begins_with_its_claim(desk: Desk) -> None:
    first, second = desk.submit(desk.session(), "one"), desk.submit(desk.session(), "two")
    claimed = claim(first, desk.context)
    assert claimed is not None
    assert (desk.state(first), claimed.message_id) == ("starting", None)
    desk.context.backends.backend_for("api_server", None)
    claimed = claim(second, desk.context)
    assert claimed is not None
    assert (desk.state(second), claimed.message_id) == ("running", desk.answer(second).id)
    row = desk.row(second)
    assert row.begun_at is not None
    assert row.lease_until_db is not None


def test_a_held_queue_is_not_claimed_until_a_person_says_go_on(desk: Desk) -> None:
    session_id = desk.session(held_reason="backend_refused")
    run_id = desk.submit(session_id, "hello")
    assert claim(run_id, desk.context) is None
    with desk.db() as db:
        run_store.release_queue(db, session_id)
    execute(run_id, desk.context)
    assert desk.state(run_id) == "completed"


def test_a_dispatch_is_noted_and_labelled(desk: Desk) -> None:
    run_id = desk.submit(desk.session(), "hello")
    labels = []
    desk.context.send_task = lambda run_id, queue, given: labels.append((run_id, queue, given))
    dispatch(desk.row(run_id), desk.context)
    row = desk.row(run_id)
    given = {"session": row.session_id, "user": "Ada", "backend": "api_server"}
    assert labels == [(run_id, "runs", given)]
    assert row.dispatches == 1
    assert row.dispatched_at_db is not None


def test_a_turn_goes_to_the_worker_with_its_warm_agent_only_while_that_takes_turns(sqlite_desk: Desk) -> None:
    desk = sqlite_desk
    run_id = desk.submit(desk.session(source="cli"), "hello", source="cli")
    dispatch(desk.row(run_id), desk.context, warm_worker="worker-a")
    heartbeat.beat(desk.context, clock.now())
    dispatch(desk.row(run_id), desk.context, warm_worker="worker-a")
    gateway = desk.submit(desk.session(), "hello")
    dispatch(desk.row(gateway), desk.context, warm_worker="worker-a")
    assert desk.sent == [(run_id, "runs"), (run_id, "runs.worker-a"), (gateway, "runs")]
    desk.context.draining.set()
    heartbeat.beat(desk.context, clock.now())
    dispatch(desk.row(run_id), desk.context, warm_worker="worker-a")
    assert desk.sent[3:] == [(run_id, "runs")]


def test_a_broker_that_is_away_does_not_fail_the_end_of_a_run(desk: Desk) -> None:
    session_id = desk.session()
    first, second = desk.submit(session_id, "one"), desk.submit(session_id, "two")

    def away(run_id: str, queue: str, labels: dict[str, str]) -> None:
        raise ConnectionError("no broker")

    desk.context.send_task = away
    execute(first, desk.context)
    hand_on(second, desk.context)
    assert (desk.state(first), desk.state(second)) == ("completed", "queued")


def test_a_deleted_session_is_not_claimed(desk: Desk) -> None:
    session_id = desk.session()
    run_id = desk.submit(session_id, "hello")
    with desk.db() as db:
        session = db.get(ChatSession, session_id)
        session.deleted_at = session.created_at
    execute(run_id, desk.context)
    assert desk.state(run_id) == "queued"
