"""Questions of the real agent over a bad day: Redis and the web process restart, the time is over, the page is closed.

Whatever a person has typed as an answer reaches the agent, or stays where it can be sent as a turn.
"""

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator

from shared.database import db_time, transaction
from shared.run_state import RunState
from shared.store import pauses
from tests.rig.bridge_journey import BridgeJourney
from tests.rig.browser_journey import Person, browser_at
from tests.rig.chromium import Chromium
from tests.rig.hermes import ScriptedModel
from tests.rig.journey import Tab
from tests.rig.portal import is_alive, wait_until
from tests.rig.redis_server import RedisServer

pytestmark = pytest.mark.component("hermes")

ASK = "[[clarify:Which colour?|red|blue]] [[then]] [[say:I went on.]]"
LIMIT_S = 600
"""Long enough for whatever a test does first; `run_out` ends it."""
GONE_S = 120.0


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    made = Chromium()
    yield made
    made.close()


def answered(bridge: BridgeJourney, run_id: str) -> str:
    """What the agent was told as the answer, as its model saw it."""
    told = next(each for each in bridge.asked_for(run_id)[-1].messages if each["role"] == "tool")
    return str(json.loads(told["content"])["user_response"])


# ---- without a limit


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def patient(hermes_model: ScriptedModel, redis: RedisServer) -> Iterator[BridgeJourney]:
    with BridgeJourney(hermes_model, redis=redis) as made:
        yield made


def ask(bridge: BridgeJourney) -> tuple[str, Tab, str, str]:
    """A session with an open question: its id, its page, its run, and the question's id."""
    session_id = bridge.new_session()
    tab = bridge.open(session_id)
    run_id = tab.say(bridge.wish(ASK))
    return session_id, tab, run_id, tab.wait_pause(run_id).clarify_id


def reply(bridge: BridgeJourney, run_id: str, clarify_id: str, answer: str) -> None:
    """As a program does it, again until the portal is back."""

    def sent() -> bool:
        given = bridge.post(f"/api/chat/runs/{run_id}/resume", {"clarifyId": clarify_id, "answer": answer})
        assert given.status_code in (200, 202, 204, 409, 503), given.text
        return given.is_success

    wait_until(sent, GONE_S, "the portal's yes")


def test_a_question_survives_a_restart_of_redis(patient: BridgeJourney, redis: RedisServer) -> None:
    session_id, tab, run_id, clarify_id = ask(patient)
    redis.kill()
    redis.start()
    wait_until(lambda: patient.get("/readyz").status_code == 200, GONE_S, "readiness")
    assert patient.open(session_id).wait_pause(run_id).clarify_id == clarify_id
    reply(patient, run_id, clarify_id, "blue, after the restart")
    tab.wait_end(run_id)
    assert answered(patient, run_id) == "blue, after the restart"
    assert patient.run(run_id).state == RunState.COMPLETED
    patient.check(session_id)


def test_an_answer_given_while_redis_is_away_reaches_the_agent(patient: BridgeJourney, redis: RedisServer) -> None:
    session_id, _tab, run_id, clarify_id = ask(patient)
    redis.kill()
    try:
        reply(patient, run_id, clarify_id, "red, without Redis")
    finally:
        redis.start()
    patient.wait_state(run_id, RunState.COMPLETED)
    assert answered(patient, run_id) == "red, without Redis"
    patient.check(session_id)


def test_a_question_survives_a_restarted_web_process_and_a_closed_browser(
    chromium: Chromium, patient: BridgeJourney
) -> None:
    session_id = patient.new_session()
    with browser_at(chromium, patient, session_id) as person:
        run_id = person.say(patient.wish(ASK))
        person.page.locator(f"#run-{run_id} form.answering").wait_for()
    killed = patient.portal.kill("web")
    wait_until(lambda: not is_alive(killed), GONE_S, "the end of the web process")
    wait_until(lambda: _is_up(patient), GONE_S, "a new web process")
    with browser_at(chromium, patient, session_id) as person:
        form = person.page.locator(f"#run-{run_id} form.answering")
        form.locator('[name="answer"]').fill("green, from another browser")
        form.locator("button").click()
        person.wait_end(run_id)
        assert answered(patient, run_id) == "green, from another browser"
        patient.check(session_id)
        person.check()


def _is_up(bridge: BridgeJourney) -> bool:
    try:
        return bridge.get("/healthz").status_code == 200
    except OSError:
        return False
    except Exception as error:  # httpx's own  # noqa: BLE001
        return not error


# ---- with one


@pytest.fixture(scope="module")
def short(hermes_model: ScriptedModel) -> Iterator[BridgeJourney]:
    with BridgeJourney(hermes_model, environ={"PORTAL_CLARIFY_TIMEOUT_S": str(LIMIT_S)}) as made:
        yield made


def card(person: Person, run_id: str) -> Locator:
    return person.page.locator(f"#run-{run_id} [data-late]")


def asked_in(person: Person, bridge: BridgeJourney) -> tuple[str, Locator]:
    run_id = person.say(bridge.wish(ASK))
    form = person.page.locator(f"#run-{run_id} form.answering")
    form.wait_for()
    return run_id, form


def run_out(bridge: BridgeJourney, run_id: str) -> None:
    """The time for an answer is over."""
    with transaction(bridge.factory) as db:
        (pause,) = pauses.of_run(db, run_id)
        pause.expires_at_db = db_time(db)


def sent_as_turn(person: Person, bridge: BridgeJourney, run_id: str, text: str) -> None:
    """Press the button on the card; the text is the next turn, once, and the card is done."""
    known = {run.id for run in bridge.runs_of(person.session_id)}
    bridge._wishes.add(text)
    card(person, run_id).locator("button").click()
    late = person.new_run(known)
    person.wait_end(late)
    assert bridge.run(late).input == text
    assert bridge.asked_for(late)[0].user_texts[-1] == text
    card(person, run_id).wait_for(state="hidden")
    person.reload()
    person.wait_live()
    assert card(person, run_id).count() == 0
    assert [run.input for run in bridge.runs_of(person.session_id)].count(text) == 1


def test_the_limit_is_shown_counts_down_and_the_agent_hears_that_nobody_answered(
    chromium: Chromium, short: BridgeJourney
) -> None:
    session_id = short.new_session()
    with browser_at(chromium, short, session_id) as person:
        run_id, form = asked_in(person, short)
        left = person.page.locator(f"#run-{run_id} .ask .left [data-left]")
        assert 0 <= float(str(left.get_attribute("data-left"))) <= LIMIT_S
        with transaction(short.factory, write=False) as db:
            (pause,) = pauses.of_run(db, run_id)
            assert pause.expires_at_db is not None
        run_out(short, run_id)
        person.wait_end(run_id)
        assert answered(short, run_id).startswith("[Nobody answered this question.")
        assert short.text(run_id).endswith("I went on.")
        assert "Expired without an answer" in card(person, run_id).inner_text()
        assert "Expired without an answer" in person.page.inner_text(f"#run-{run_id}")
        short.check(session_id)
        person.check()
        assert form.count() == 1, "the card stays, to be answered after all"


@pytest.mark.parametrize("how", ["still typing", "looking elsewhere", "after a reload"])
def test_what_was_typed_when_the_time_was_over_is_kept_and_can_be_sent_as_a_turn(
    chromium: Chromium, short: BridgeJourney, how: str
) -> None:
    session_id = short.new_session()
    with browser_at(chromium, short, session_id) as person:
        run_id, form = asked_in(person, short)
        text = f"neither, <b>green</b>, {how}"
        form.locator('[name="answer"]').fill(text)
        if how == "looking elsewhere":
            person.page.locator("#text").focus()
        elif how == "after a reload":
            person.reload()
            person.wait_live()
        run_out(short, run_id)
        person.wait_end(run_id)
        assert card(person, run_id).locator('[name="input"]').input_value() == text
        sent_as_turn(person, short, run_id, text)
        short.check(session_id)
        person.check()


def test_a_chosen_answer_is_kept_too(chromium: Chromium, short: BridgeJourney) -> None:
    session_id = short.new_session()
    with browser_at(chromium, short, session_id) as person:
        run_id, form = asked_in(person, short)
        form.locator(".choices label").nth(1).click()
        run_out(short, run_id)
        person.wait_end(run_id)
        assert card(person, run_id).locator('[value="blue"]').is_checked()
        sent_as_turn(person, short, run_id, "blue")


def test_an_answer_that_was_posted_too_late_is_there_when_the_page_is_opened_again(
    chromium: Chromium, short: BridgeJourney
) -> None:
    """The post loses the race with the deadline, and the page that sent it is gone."""
    _session, tab, run_id, clarify_id = ask(short)
    session_id = tab.session_id
    run_out(short, run_id)
    tab.wait_end(run_id)
    late = tab.ask(event="clarify.respond", clarify_id=clarify_id, answer="late, but meant")
    assert (late["event"], late["code"]) == ("error", "expired")
    assert "kept" in late["message"]
    short.leave(tab)
    with browser_at(chromium, short, session_id) as person:
        assert card(person, run_id).locator('[name="input"]').input_value() == "late, but meant"
        sent_as_turn(person, short, run_id, "late, but meant")
        short.check(session_id)
        person.check()


def test_without_a_script_too(chromium: Chromium, short: BridgeJourney) -> None:
    _session, tab, run_id, _clarify = ask(short)
    session_id = tab.session_id
    run_out(short, run_id)
    tab.wait_end(run_id)
    with chromium.page(java_script_enabled=False) as watched:
        page = watched.page
        page.goto(f"{short.portal.address}/chat/{session_id}")
        form = page.locator(f"#run-{run_id} [data-late] form")
        form.locator('[value="red"]').check(force=True)
        form.locator("button").click()
        page.wait_for_url(f"**/chat/{session_id}")
        wait_until(lambda: len(short.runs_of(session_id)) == 2, what="the turn")
    assert short.runs_of(session_id)[-1].input == "red"


def test_what_was_typed_goes_to_the_field_below_when_the_turn_is_stopped(
    chromium: Chromium, patient: BridgeJourney
) -> None:
    session_id = patient.new_session()
    with browser_at(chromium, patient, session_id) as person:
        run_id, form = asked_in(person, patient)
        form.locator('[name="answer"]').fill("a long thought")
        person.page.fill("#text", "and a draft")
        person.page.click("#composer-state .btn--stop")
        person.wait_end(run_id)
        person.page.wait_for_function("() => document.getElementById('text').value.startsWith('a long thought')")
        assert person.page.input_value("#text") == "a long thought\n\nand a draft"
        assert patient.run(run_id).state == RunState.ABORTED
        person.check()
