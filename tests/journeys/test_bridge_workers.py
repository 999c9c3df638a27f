"""Journeys of `cli` sessions with two workers: the one that holds a session's agent gets its next turn, and wherever a
turn runs its agent knows the whole conversation. The requests to the model are the witness."""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator

import psutil
import pytest

from shared import settings as portal_settings
from shared.relay.keys import Keys
from shared.relay.presence import Presence
from shared.run_state import RunState
from tests.rig import operator
from tests.rig.bridge_journey import BridgeJourney
from tests.rig.hermes import ScriptedModel
from tests.rig.journey import SHORT_LEASES, Tab
from tests.rig.portal import PORTAL, START_S, is_alive, wait_until
from tests.rig.redis_server import RedisServer
from webapp.dispatch import make_celery

pytestmark = pytest.mark.component("hermes")


class Workers:
    """The worker of the portal and one more: their process ids are `first` and `second`."""

    def __init__(self, journey: BridgeJourney, redis: RedisServer) -> None:
        settings = portal_settings.load(journey.portal.environ, cwd=journey.portal.data_dir)
        self._celery = make_celery(settings)
        self._presence = Presence(redis.client, Keys(settings.redis_prefix))
        self._process = subprocess.Popen(
            [*PORTAL, "worker"],
            env=journey.portal.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.first, self.second = journey.portal.pid("worker"), self._process.pid
        both = {self.first, self.second}
        wait_until(lambda: {w.pid for w in self._presence.workers()} == both, START_S, "two workers")

    def take_turns(self, *pids: int) -> None:
        """Only these take new turns from now on."""
        for pid, name in ((self.first, "celery"), (self.second, f"worker-{self.second}")):
            if is_alive(pid):
                node, on = f"{name}@{socket.gethostname()}", pid not in pids
                operator.asked(self._celery.control, "portal_drain", {"on": on}, destination=[node])

    def below(self, pid: int) -> list[int]:
        """The agent's processes of a worker."""
        return [each.pid for each in psutil.Process(pid).children(recursive=True)]

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        if pid == self.second:
            self._process.wait()

    def close(self) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._celery.close()


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture
def bridge(hermes_model: ScriptedModel, redis: RedisServer) -> Iterator[BridgeJourney]:
    # no janitor sends a turn to all because its worker is slow to take it
    environ = {**SHORT_LEASES, "PORTAL_DISPATCH_AGAIN_S": "60"}
    with BridgeJourney(hermes_model, redis=redis, environ=environ) as made:
        yield made


@pytest.fixture
def workers(bridge: BridgeJourney, redis: RedisServer) -> Iterator[Workers]:
    made = Workers(bridge, redis)
    yield made
    made.close()


def ran_on(bridge: BridgeJourney, run_id: str) -> int:
    """The process id of the run's worker (worker/identity.py)."""
    return int(str(bridge.run(run_id).worker_id).split("-")[-3])


def play(bridge: BridgeJourney, tab: Tab, text: str) -> str:
    run_id = tab.say(bridge.wish(text))
    tab.wait_end(run_id)
    assert bridge.run(run_id).state == RunState.COMPLETED, bridge.run(run_id).error
    return run_id


def check_whole(bridge: BridgeJourney, session_id: str, run_id: str) -> None:
    """The turn's first request holds every turn of the session before it, once and in order, with its answer."""
    before = [run for run in bridge.runs_of(session_id) if run.position < bridge.run(run_id).position]
    asked = bridge.asked_for(run_id)[0]
    assert asked.user_texts == [run.input for run in before] + [bridge.run(run_id).input]
    said = [each["content"] for each in asked.messages if each["role"] == "assistant" and not each.get("tool_calls")]
    assert [text.strip() for text in said] == [bridge.text(run.id).strip() for run in before]


def is_warm(bridge: BridgeJourney, run_id: str) -> bool:
    """The agent that made the first turn of a session remembers its tools; one that is told of it knows only texts."""
    return "tool" in bridge.asked_for(run_id)[0].roles


def test_a_turn_goes_to_the_agent_that_knows_its_session_and_any_other_is_told_all(
    bridge: BridgeJourney, workers: Workers
) -> None:
    first, second = workers.first, workers.second
    session_id = bridge.new_session()
    tab = bridge.open(session_id)
    workers.take_turns(second)
    opening = play(bridge, tab, "[[todo]] [[then]] [[say:My name is Ada.]]")
    assert ran_on(bridge, opening) == second

    workers.take_turns(first, second)
    for n in range(5):
        run_id = play(bridge, tab, f"[[say:warm {n}]]")
        assert ran_on(bridge, run_id) == second
        assert is_warm(bridge, run_id)
        check_whole(bridge, session_id, run_id)

    workers.take_turns(first)
    run_id = play(bridge, tab, "[[say:elsewhere]]")
    assert ran_on(bridge, run_id) == first
    assert bridge.run(run_id).dispatches == 1, "nobody waits for a worker that takes no turns until a janitor comes"
    assert not is_warm(bridge, run_id)
    check_whole(bridge, session_id, run_id)

    workers.take_turns(second)
    run_id = play(bridge, tab, "[[say:back again]]")
    assert ran_on(bridge, run_id) == second
    assert not is_warm(bridge, run_id), "an agent that has missed a turn is not asked as if it knew all"
    check_whole(bridge, session_id, run_id)

    cut_id = bridge.new_session()
    cut_tab = bridge.open(cut_id)
    cut = cut_tab.say(bridge.wish("[[stream:3000:10]]"))
    seen = cut_tab.wait_text(cut, 200)
    assert ran_on(bridge, cut) == second
    agents = workers.below(second)
    assert len(agents) >= 2, "a launcher and its agent"
    workers.take_turns(first, second)
    workers.kill(second)
    wait_until(lambda: not any(is_alive(pid) for pid in agents), what="the end of the agent of a killed worker")
    run_id = play(bridge, tab, "[[echo:roles]]")
    assert ran_on(bridge, run_id) == first
    assert not is_warm(bridge, run_id)
    check_whole(bridge, session_id, run_id)

    cut_tab.wait_end(cut)
    assert (bridge.run(cut).state, bridge.run(cut).reason) == (RunState.INTERRUPTED, "worker_lost")
    assert bridge.text(cut).startswith(seen)
    again = bridge.retry(cut)
    cut_tab.wait_text(again, 20)
    assert ran_on(bridge, again) == first
    assert cut_tab.ask(event="abort", run_id=again)["event"] == "ack"
    cut_tab.wait_end(again)
    bridge.check(session_id, tab)
    bridge.check(cut_id, cut_tab)
