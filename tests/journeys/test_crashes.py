"""Journeys through crashes: worker, Redis and web process are killed in mid-text, and everything ends as promised."""

import os
import signal
import time
from collections.abc import Iterator

import httpx
import pytest

from shared.run_state import RunState
from tests.rig.journey import SHORT_LEASES, Journey, held_reason
from tests.rig.portal import wait_until
from tests.rig.redis_server import RedisServer
from tests.rig.standstill import stop_between_writes
from tests.rig.web_process import WebProcess

LONG = "stream 900 every 10 ms"
"""9 seconds of text that no other turn says: each piece carries the moment it was said."""
ENDLESS = "stream 90000 every 10 ms"
"""To be stopped, however long a restart takes on a busy machine."""
CALM = "stream 20000 every 40 ms"
"""The same, so slow that a page that was away for a minute is not too far behind for its cursor."""


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    """A Redis without persistence: a kill loses all of it."""
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def journey(redis: RedisServer) -> Iterator[Journey]:
    with Journey(redis=redis, environ=SHORT_LEASES) as made:
        yield made


@pytest.fixture(autouse=True)
def pages_closed(journey: Journey) -> Iterator[None]:
    yield
    for tab in list(journey.tabs):
        tab.abandon()
    journey.tabs.clear()


def test_a_worker_killed_in_mid_text_loses_nothing_and_nothing_is_done_twice(journey: Journey) -> None:
    """C5, F7; and in the same moment what else may happen to a worker's turns: P1-P7 for each."""
    holds, continues, waits, stops, starts = (
        journey.new_session(), journey.new_session(onFailure="continue"), journey.new_session(),
        journey.new_session(), journey.new_session(),
    )  # fmt: skip
    tabs = {session_id: journey.open(session_id) for session_id in (holds, continues, waits, stops, starts)}
    second = journey.open(holds)
    cut = tabs[holds].say(ENDLESS)
    held = [tabs[holds].say(f"stream 4 every 4 ms, {n}") for n in range(2)]
    cut_too = tabs[continues].say(ENDLESS)
    goes_on = tabs[continues].say("stream 5 every 4 ms")
    asked = tabs[waits].say("Do something dangerous")
    tabs[waits].wait_pause(asked)
    stopped = tabs[stops].say(ENDLESS)
    for session_id, run_id in ((holds, cut), (continues, cut_too), (stops, stopped)):
        tabs[session_id].wait_text(run_id, 500)

    worker = journey.portal.pid("worker")
    stop_between_writes(worker, journey.engine)  # from here on it does nothing any more
    assert tabs[stops].ask(event="abort")["state"] == RunState.ABORTING
    taken = tabs[starts].say("stream 6 every 4 ms")
    seen = {run_id: tabs[s].text(run_id) for s, run_id in ((holds, cut), (continues, cut_too), (stops, stopped))}
    os.kill(worker, signal.SIGKILL)

    tabs[holds].wait_end(cut)
    tabs[continues].wait_end(cut_too, goes_on)
    tabs[waits].wait_end(asked)
    tabs[stops].wait_end(stopped)
    tabs[starts].wait_end(taken)
    for run_id in (cut, cut_too, asked):
        run = journey.run(run_id)
        assert (run.state, run.reason) == (RunState.INTERRUPTED, "worker_lost")
    assert journey.run(stopped).state == RunState.ABORTED
    assert journey.run(taken).state == journey.run(goes_on).state == RunState.COMPLETED
    for run_id, text in seen.items():
        assert text
        assert journey.text(run_id).startswith(text), "what a page had seen is kept"

    assert held_reason(journey, holds) == "worker_lost"
    assert [journey.run(run_id).state for run_id in held] == ["queued", "queued"]
    late = tabs[waits].ask(event="approval.respond", approval_id=journey.pauses_of(waits)[0].id, choice="once")
    assert (late["event"], late["code"]) == ("error", "already_decided")
    again = journey.retry(cut)
    assert journey.run(again).retry_of == cut
    tabs[holds].wait_text(again, 100)
    assert tabs[holds].ask(event="abort", run_id=again)["event"] == "ack"  # it would take as long again
    tabs[holds].wait_end(again, *held)
    assert held_reason(journey, holds) is None
    for session_id, tab in tabs.items():
        journey.check(session_id, tab, *([second] if session_id == holds else []))


def test_a_held_queue_goes_on_when_a_person_says_so(journey: Journey) -> None:
    session_id = journey.new_session()
    tab = journey.open(session_id)
    with journey.worker_held():
        failed = tab.say("Play an error")
        queued = [tab.say(f"stream 3 every 3 ms, {n}") for n in range(3)]
    tab.wait_end(failed)
    assert journey.run(failed).state == RunState.FAILED
    assert held_reason(journey, session_id)
    late = tab.say("stream 3 every 3 ms, late")
    assert tab.ask(event="cancel_queued_run", queue_id=journey.run(queued[1]).queue_id)["event"] == "ack"
    time.sleep(2.5)  # no janitor starts what is held
    assert [run.state for run in journey.runs_of(session_id)][1:] == ["queued", "cancelled", "queued", "queued"]
    assert tab.ask(event="continue_queue")["event"] == "ack"
    tab.wait_end(*queued, late)
    journey.check(session_id, tab)


def test_redis_killed_in_mid_text_and_started_empty(journey: Journey, redis: RedisServer) -> None:
    """C7, C8, F14, F38, F42: turns go on and are saved; what people ask meanwhile counts."""
    writes, waits, stops, idle = (journey.new_session() for _ in range(4))
    tabs = {session_id: journey.open(session_id) for session_id in (writes, waits, stops, idle)}
    second = journey.open(writes)
    run_id = tabs[writes].say(LONG)
    queued = tabs[writes].say("stream 4 every 4 ms")
    asked = tabs[waits].say("Do something dangerous")
    approval_id = tabs[waits].wait_pause(asked).approval_id
    stopped = tabs[stops].say(ENDLESS)
    tabs[stops].wait_text(stopped, 500)
    seen = tabs[writes].wait_text(run_id, 500)

    redis.kill()
    answer = journey.post(f"/api/chat/runs/{asked}/resume", {"approvalId": approval_id, "choice": "once"})
    assert answer.status_code == 200, answer.text
    assert journey.post(f"/api/chat/runs/{stopped}/abort").status_code == 200
    made = journey.post(f"/api/chat/sessions/{idle}/runs", {"message": "stream 7 every 4 ms"})
    assert made.status_code == 202, made.text
    journey.accepted[made.json()["runId"]] = "stream 7 every 4 ms"
    assert journey.wait_state(stopped, RunState.ABORTED)
    assert journey.wait_state(asked, RunState.COMPLETED)
    assert journey.run(made.json()["runId"]).state == RunState.QUEUED
    redis.start()

    tabs[writes].wait_end(run_id, queued)
    tabs[waits].wait_end(asked)
    tabs[stops].wait_end(stopped)
    tabs[idle].wait_end(made.json()["runId"])
    assert tabs[writes].text(run_id).startswith(seen)
    assert journey.run(run_id).state == RunState.COMPLETED
    assert "allowed once" in journey.text(asked)
    for session_id, tab in tabs.items():
        journey.check(session_id, tab, *([second] if session_id == writes else []))
    next_run = tabs[stops].say(ENDLESS)  # CASES 52: the listeners are back
    tabs[stops].wait_text(next_run)
    assert tabs[stops].ask(event="abort")["event"] == "ack"
    tabs[stops].wait_end(next_run)
    journey.check(stops, tabs[stops])


def test_redis_frozen_in_mid_text_and_thawed(journey: Journey, redis: RedisServer) -> None:
    """F19, CASES 186."""
    session_id, idle = journey.new_session(), journey.new_session()
    tab, other, idle_tab = journey.open(session_id), journey.open(session_id), journey.open(idle)
    run_id = tab.say("stream 1300 every 10 ms")
    seen = tab.wait_text(run_id, 500)
    redis.pause()
    time.sleep(9)  # longer than the lease, and than every timeout of a client
    redis.resume()
    tab.wait_end(run_id)
    assert journey.run(run_id).state == RunState.COMPLETED
    assert tab.text(run_id).startswith(seen)
    next_run = idle_tab.say("stream 5 every 5 ms")
    idle_tab.wait_end(next_run)
    journey.check(session_id, tab, other)
    journey.check(idle, idle_tab)


def test_subscribers_cut_again_and_again_miss_and_double_nothing(journey: Journey, redis: RedisServer) -> None:
    """F17."""
    session_id = journey.new_session()
    tabs = [journey.open(session_id) for _ in range(3)]
    run_id = tabs[0].say("stream 300 every 10 ms")
    for _ in range(8):
        redis.client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        time.sleep(0.3)
    for tab in tabs:
        tab.wait_end(run_id)
        assert tab.misfits == 0
    journey.check(session_id, *tabs)


def test_worker_and_redis_killed_together_lose_at_most_the_last_second(journey: Journey, redis: RedisServer) -> None:
    """RELIABILITY 3: what was only in Redis is gone; all that was saved is there, and it is one turn of text."""
    session_id = journey.new_session()
    tab = journey.open(session_id)
    run_id = tab.say(ENDLESS)
    tab.wait_text(run_id, 1500)
    sure = len(tab.text(run_id))
    wait_until(lambda: len(journey.text(run_id)) >= sure, what="the text in the database")
    journey.portal.kill("worker")
    redis.kill()
    redis.start()
    run = journey.wait_state(run_id, RunState.INTERRUPTED)
    assert run.reason == "worker_lost"
    tab.wait_end(run_id)
    assert len(journey.text(run_id)) >= sure
    journey.check(session_id, tab)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_web_process_restarted_with_open_pages(journey: Journey, number: signal.Signals) -> None:
    session_id = journey.new_session()
    tabs = [journey.open(session_id) for _ in range(5)]
    run_id = tabs[0].say(CALM)
    queued = tabs[1].say("stream 4 every 4 ms")
    tabs[0].wait_text(run_id, 500)
    web = journey.portal.pid("web")
    os.kill(web, number)
    for tab in tabs:
        tab.wait_connected(2)
    assert journey.portal.pid("web") != web
    assert tabs[0].ask(event="abort", run_id=run_id)["event"] == "ack"
    if number == signal.SIGTERM:
        assert all(set(tab.closes) == {1012} for tab in tabs), tabs
    for tab in tabs:
        tab.wait_end(run_id, queued)
        assert tab.snapshots == 1, "a page comes back with its cursor"
    journey.check(session_id, *tabs)


def test_a_web_process_that_dies_between_commit_and_dispatch(journey: Journey, redis: RedisServer) -> None:
    """F1, C2: the turn is accepted, a janitor sends it, and the page's second try finds the same one."""
    session_id = journey.new_session()
    tab = journey.open(session_id)
    body, headers = {"message": "stream 5 every 5 ms"}, {"Idempotency-Key": "one-key"}
    dying = WebProcess(
        database_url=str(journey.engine.url), redis_url=redis.url, data_dir=journey.portal.data_dir or "",  # type: ignore[arg-type]
        app="tests.journeys.dying_web:app",
    )  # fmt: skip
    try:
        with pytest.raises(httpx.TransportError):
            httpx.post(
                f"{dying.url}/api/chat/sessions/{session_id}/runs", json=body,
                headers={**headers, "Origin": dying.url}, trust_env=False, timeout=60,
            )  # fmt: skip
    finally:
        dying.close()
    (run,) = journey.runs_of(session_id)
    journey.accepted[run.id] = body["message"]
    again = journey.post(f"/api/chat/sessions/{session_id}/runs", body, headers=headers)
    assert (again.status_code, again.json()["runId"]) == (200, run.id)
    tab.wait_end(run.id)
    assert len(journey.runs_of(session_id)) == 1
    assert tab.text(run.id)
    journey.check(session_id, tab)
