"""Journeys against a scripted gateway, whose log says what it was asked: each turn once, with all that came before."""

import itertools
from collections.abc import Iterator, Sequence

import httpx
import pytest

from shared.run_state import RunState
from tests.peers.gateway import (
    NO_USAGE,
    Answer,
    Cut,
    Delay,
    FakeGateway,
    Frames,
    Step,
    WaitFor,
    split,
    stream,
    tool_turn,
)
from tests.rig.journey import END_S, SHORT_LEASES, Journey, held_reason
from tests.rig.ports import free_port

TURNS = "POST /v1/responses"
IDS = (f"resp_{n:016x}" for n in itertools.count())


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def office(port: int) -> Iterator[Journey]:
    """A portal whose gateway is to listen at `port`."""
    with Journey(gateway_url=f"http://127.0.0.1:{port}", environ=SHORT_LEASES) as made:
        yield made


@pytest.fixture(scope="module")
def gateway(office: Journey, port: int) -> Iterator[FakeGateway]:
    """That gateway; before the first test that wants it nobody listens there."""
    with FakeGateway({}, port=port) as made:
        yield made


def turns(*scripts: Sequence[Step]) -> dict[str, list[Answer]]:
    return {TURNS: [stream(*steps) for steps in scripts]}


def text_of(*pieces: str) -> list[Step]:
    frames = Frames(next(IDS))
    return [frames.created(), *frames.text(*pieces), frames.completed()]


def said_in(gateway: FakeGateway, number: int) -> list[tuple[str, str]]:
    """(role, text) of all that the gateway was told in its last turn but `number`."""
    return [(message["role"], message["content"]) for message in gateway.turns[-1 - number].json["input"]]


def test_a_turn_that_nobody_takes_fails_and_is_tried_again_by_a_click(
    office: Journey, request: pytest.FixtureRequest
) -> None:
    session_id = office.new_session()
    tab = office.open(session_id)
    with office.worker_held():
        run_id = tab.say("Is anybody there?")
        queued = tab.say("And then?")
    tab.wait_end(run_id)
    run = office.run(run_id)
    assert run.state == RunState.FAILED
    assert run.error
    assert held_reason(office, session_id)
    gateway = request.getfixturevalue("gateway")
    gateway.follow(turns(text_of("Now I am."), text_of("Then this.")))
    again = office.retry(run_id)
    tab.wait_end(again, queued)
    assert len(gateway.turns) == 2
    assert said_in(gateway, 0)[-1] == ("user", "And then?")
    assert "Is anybody there?" in str(said_in(gateway, 1)[-1])
    office.check(session_id, tab, said={again: "Now I am.", queued: "Then this."})


def test_text_and_tools_cut_at_every_byte_arrive_exactly(office: Journey, gateway: FakeGateway) -> None:
    session_id = office.new_session()
    tab, other = office.open(session_id), office.open(session_id)
    steps, _ = tool_turn()
    gateway.follow(turns(list(split(steps, 1))))
    run_id = tab.say("Look at 世界🌍")
    tab.wait_end(run_id)
    assert [(tool.name, tool.ok) for tool in tab.runs[run_id].tools] == [("read_file", True), ("terminal", True)]
    whole = "Let me look. 世界🌍\n\nBoth are there."
    office.check(session_id, tab, other, said={run_id: whole})


def test_every_turn_carries_the_ones_before_it_and_is_sent_once(office: Journey, gateway: FakeGateway) -> None:
    """CASES 113, 111: a turn that failed brings its question along, and no text of an error."""
    session_id = office.new_session()
    tab = office.open(session_id)
    before = len(gateway.turns)
    broken = Frames(next(IDS))
    fails = [broken.created(), *broken.text("API call failed"), broken.completed(usage=NO_USAGE)]
    gateway.follow(turns(text_of("one"), fails, text_of("three"), text_of("four")))
    said = []
    for n in range(4):
        said.append(tab.say(f"turn {n}"))
        tab.wait_end(said[-1])
    assert len(gateway.turns) - before == 4
    told = said_in(gateway, 0)
    assert [text for role, text in told if role == "user"][-1] == "turn 3"
    assert ("assistant", "one") in told
    assert ("assistant", "three") in told
    assert not any("API call failed" in text for _, text in told)
    assert office.run(said[1]).state == RunState.FAILED
    office.check(session_id, tab, said=dict(zip(said, ["one", "API call failed", "three", "four"], strict=True)))


def test_a_stream_that_is_cut_is_interrupted_and_the_turn_is_never_sent_again(
    office: Journey, gateway: FakeGateway
) -> None:
    """C13, F33, P2."""
    session_id = office.new_session()
    tab = office.open(session_id)
    before = len(gateway.turns)
    frames = Frames(next(IDS))
    cut: list[Step] = [frames.created(), *frames.text("as far as ", "this"), WaitFor("GET /shown", END_S), Cut("rst")]
    gateway.follow(turns(cut, text_of("whole")))
    run_id = tab.say("Go on until it breaks")
    tab.wait_text(run_id, len("as far as this"))
    httpx.get(f"{gateway.url}/shown", trust_env=False, timeout=END_S)
    tab.wait_end(run_id)
    run = office.run(run_id)
    assert (run.state, run.reason) == (RunState.INTERRUPTED, "stream_cut")
    assert tab.text(run_id) == "as far as this"
    assert len(gateway.turns) - before == 1
    again = office.retry(run_id)
    tab.wait_end(again)
    assert len(gateway.turns) - before == 2
    office.check(session_id, tab, said={run_id: "as far as this", again: "whole"})


def test_a_worker_killed_after_the_request_never_sends_it_again(office: Journey, gateway: FakeGateway) -> None:
    """F10, P2: the gateway's own log is the witness. The retry is a new turn, by a person."""
    session_id = office.new_session()
    tab = office.open(session_id)
    before = len(gateway.turns)
    frames = Frames(next(IDS))
    silent: list[Step] = [frames.created(), *frames.text("half"), Delay(600)]
    gateway.follow(turns(silent, text_of("whole")))
    run_id = tab.say("Never twice")
    tab.wait_text(run_id, 4)
    office.portal.kill("worker")
    tab.wait_end(run_id)
    assert (office.run(run_id).reason, tab.text(run_id)) == ("worker_lost", "half")
    again = office.retry(run_id)
    tab.wait_end(again)
    assert len(gateway.turns) - before == 2
    office.check(session_id, tab, said={run_id: "half", again: "whole"})
