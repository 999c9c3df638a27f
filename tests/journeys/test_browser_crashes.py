"""A person at a browser while worker, Redis and web process are killed: the page says so, comes back, has it all."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from shared.run_state import RunState
from tests.rig.browser_journey import browser_at
from tests.rig.chromium import Chromium
from tests.rig.journey import SHORT_LEASES, Journey, held_reason
from tests.rig.redis_server import RedisServer

LONG = "16 KB of text every 5 ms"
"""8 seconds of Markdown."""
ENDLESS = "200 KB of text every 10 ms"
"""To be stopped, however long a restart takes on a busy machine."""


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def journey(redis: RedisServer) -> Iterator[Journey]:
    with Journey(redis=redis, environ=SHORT_LEASES) as made:
        yield made


@contextmanager
def supervisor_held(journey: Journey) -> Iterator[None]:
    """What ends inside stays away until the end of the block, so that nobody has to look quickly."""
    journey.portal.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        journey.portal.process.send_signal(signal.SIGCONT)


def test_the_worker_is_killed_and_the_person_tries_again(chromium: Chromium, journey: Journey) -> None:
    session_id = journey.new_session()
    with browser_at(chromium, journey, session_id) as person:
        run_id = person.say("stream 90000 every 10 ms")
        queued = person.say("stream 4 every 4 ms")
        seen = person.wait_text(run_id, 500)
        journey.portal.kill("worker")
        person.wait_end(run_id)
        assert journey.run(run_id).reason == "worker_lost"
        assert person.text(run_id).strip().startswith(seen.strip()[:400])
        assert journey.run(queued).state == RunState.QUEUED
        assert held_reason(journey, session_id) == "worker_lost"
        person.page.get_by_role("button", name="Go on").wait_for()
        known = {run.id for run in journey.runs_of(session_id)}
        person.page.locator(f"#run-{run_id}-end").get_by_role("button", name="Retry").click()
        again = person.new_run(known)
        journey.accepted[again] = journey.run(run_id).input
        person.wait_text(again, 100)
        person.page.click("#composer-state .btn--stop")  # it would take as long again
        person.wait_end(again, queued)
        journey.check(session_id)
        person.check()


def test_redis_is_killed_and_the_page_goes_on(chromium: Chromium, journey: Journey, redis: RedisServer) -> None:
    session_id = journey.new_session()
    with browser_at(chromium, journey, session_id) as person:
        run_id = person.say(LONG)
        seen = len(person.wait_text(run_id, 500))
        redis.kill()
        person.page.wait_for_selector('#connection:not([data-conn="live"])')
        queued = person.say("stream 5 every 5 ms")  # accepted while Redis is away
        person.wait_text(run_id, seen + 1)
        redis.start()
        person.wait_live()
        person.wait_end(run_id, queued)
        journey.check(session_id)
        person.check()


def test_the_web_process_is_killed_and_what_was_typed_is_sent_once(chromium: Chromium, journey: Journey) -> None:
    session_id = journey.new_session()
    with browser_at(chromium, journey, session_id, loses_connection=True) as person:
        run_id = person.say(ENDLESS)
        person.wait_text(run_id, 500)
        known = {run.id for run in journey.runs_of(session_id)}
        with supervisor_held(journey):
            os.kill(journey.portal.pid("web"), signal.SIGKILL)
            person.page.wait_for_selector('#connection:not([data-conn="live"])')
            seen = len(person.text(run_id))
            person.page.fill("#text", "stream 6 every 5 ms")  # typed and sent while nobody listens
            person.page.press("#text", "Enter")
        queued = person.new_run(known)
        journey.accepted[queued] = "stream 6 every 5 ms"
        person.wait_live()
        person.wait_text(run_id, seen + 1)
        person.page.click("#composer-state .btn--stop")
        person.wait_end(run_id, queued)
        assert [run.id for run in journey.runs_of(session_id)] == [run_id, queued]
        journey.check(session_id)
        person.check()


def test_a_deploy_of_the_web_process_is_hardly_seen(chromium: Chromium, journey: Journey) -> None:
    session_id = journey.new_session()
    with browser_at(chromium, journey, session_id, loses_connection=True) as person:
        run_id = person.say(ENDLESS)
        person.wait_text(run_id, 500)
        web = journey.portal.pid("web")
        with supervisor_held(journey):
            os.kill(web, signal.SIGTERM)
            person.page.wait_for_selector('#connection:not([data-conn="live"])')
            seen = len(person.text(run_id))
        person.wait_live()
        assert journey.portal.pid("web") != web
        person.wait_text(run_id, seen + 1)
        person.page.click("#composer-state .btn--stop")
        person.wait_end(run_id)
        journey.check(session_id)
        person.check()
