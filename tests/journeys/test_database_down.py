"""Journeys without PostgreSQL: what runs goes on and is saved; what is asked meanwhile is refused, never lost."""

from collections.abc import Iterator

import httpx
import pytest

from shared.run_state import RunState
from tests.rig.journey import SHORT_LEASES, Journey
from tests.rig.portal import wait_until
from tests.rig.postgres_server import PostgresRig

SHORT = "stream 7 every 4 ms"
LONG = "stream 1500 every 10 ms"
ENDLESS = "stream 90000 every 10 ms"
"""To be cut off, however long a restart takes on a busy machine."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresRig]:
    """A PostgreSQL of these tests alone: they stop it."""
    rig = PostgresRig(keeps_commits=True)
    yield rig
    rig.close()


@pytest.fixture(scope="module")
def patient(server: PostgresRig) -> Iterator[Journey]:
    """Leases as in a real portal: a database that is away for seconds costs nobody its turn."""
    with Journey(database_url=server.new_database()) as made:
        yield made


def test_a_database_away_for_seconds_costs_no_turn_and_no_word(patient: Journey, server: PostgresRig) -> None:
    """C9, F22: stopped in the middle of everything, and started again."""
    journey = patient
    writes, waits, idle = (journey.new_session() for _ in range(3))
    tabs = {session_id: journey.open(session_id) for session_id in (writes, waits, idle)}
    asked = tabs[waits].say("Do something dangerous")
    approval_id = tabs[waits].wait_pause(asked).approval_id
    run_id = tabs[writes].say(LONG)
    queued = tabs[writes].say("stream 5 every 4 ms")
    tabs[writes].wait_text(run_id, 500)

    def submit() -> httpx.Response:
        key = {"Idempotency-Key": "asked-while-away"}
        return journey.post(f"/api/chat/sessions/{idle}/runs", {"message": SHORT}, headers=key)

    server.stop_at_once()
    try:
        seen = len(tabs[writes].text(run_id))
        tabs[writes].wait_text(run_id, seen + 500)  # it is shown all the same
        refused = submit()
        assert refused.status_code == 503, refused.text
        assert int(refused.headers["Retry-After"]) > 0
        assert journey.get(f"/chat/{writes}").status_code == 503
        late = journey.post(f"/api/chat/runs/{asked}/resume", {"approvalId": approval_id, "choice": "once"})
        assert late.status_code == 503, late.text
    finally:
        server.start()

    def accepted() -> str | None:
        answer = submit()
        return str(answer.json()["runId"]) if answer.status_code in (200, 202) else None

    made = wait_until(accepted, 60, "the turn that was refused, sent again")
    journey.accepted[made] = SHORT
    answered = journey.post(f"/api/chat/runs/{asked}/resume", {"approvalId": approval_id, "choice": "once"})
    assert answered.status_code == 200, answered.text
    tabs[writes].wait_end(run_id, queued)
    tabs[waits].wait_end(asked)
    tabs[idle].wait_end(made)
    assert [journey.run(each).state for each in (run_id, queued, asked, made)] == [RunState.COMPLETED] * 4
    assert [run.id for run in journey.runs_of(idle)] == [made]
    for session_id, tab in tabs.items():
        journey.check(session_id, tab)


def test_connections_that_are_cut_lose_no_turn(patient: Journey, server: PostgresRig) -> None:
    """F24: again and again while turns run, are submitted and end."""
    journey = patient
    session_id = journey.new_session()
    tab = journey.open(session_id)
    runs = [tab.say(f"stream 150 every 10 ms, {n}") for n in range(2)]
    for count in (200, 600, 1_000):
        tab.wait_text(runs[0], count)
        server.cut_connections()
        runs.append(tab.say(f"stream 5 every 4 ms, after {count}"))
    tab.wait_end(*runs)
    assert {journey.run(run_id).state for run_id in runs} == {RunState.COMPLETED}
    journey.check(session_id, tab)


def test_a_database_away_for_longer_than_a_lease_ends_turns_and_says_so(server: PostgresRig) -> None:
    """C10, F23: the worker stops its backends itself; the queue goes on once a person says so."""
    with Journey(database_url=server.new_database(), environ=SHORT_LEASES) as journey:
        session_id = journey.new_session()
        tab = journey.open(session_id)
        run_id = tab.say(ENDLESS)
        queued = tab.say("stream 5 every 4 ms")
        seen = tab.wait_text(run_id, 500)
        server.stop_at_once()
        try:
            wait_until(lambda: all(play["stopped_at_ns"] for play in journey.plays()), 60, "the stop of the backend")
        finally:
            server.start()
        tab.wait_end(run_id)
        run = journey.run(run_id)
        assert (run.state, run.reason) == (RunState.INTERRUPTED, "worker_lost")
        assert journey.text(run_id).startswith(seen[:200])
        assert tab.ask(event="continue_queue")["event"] == "ack"
        tab.wait_end(queued)
        journey.check(session_id, tab)
