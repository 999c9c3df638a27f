"""The journeys of a person at a browser: the page shows what is stored, whatever the person does meanwhile."""

import random
import time
from contextlib import ExitStack

import pytest

from shared.run_state import RunState
from tests.rig.browser_journey import browser_at
from tests.rig.chromium import Chromium
from tests.rig.journey import Journey

NOTE_LENGTHS = """() => {
    window.__lengths = [];
    new MutationObserver(() => {
        const answer = [...document.querySelectorAll('#turns .answer')].at(-1);
        if (answer?.textContent) window.__lengths.push(answer.textContent.length);
    }).observe(document.getElementById('turns'), {subtree: true, childList: true, characterData: true});
}"""
"""How long the answer was each time that it changed."""


def test_the_first_answer_streams_into_the_page(chromium: Chromium, journey: Journey) -> None:
    session_id = journey.new_session()
    with browser_at(chromium, journey, session_id) as person:
        person.page.evaluate(NOTE_LENGTHS)
        endless = person.say("800 KB of text every 6 ms", by="click")  # nobody has to be quick to see it grow
        person.page.wait_for_function("() => new Set(__lengths).size > 5 && __lengths[0] < __lengths.at(-1) / 2")
        assert not person.has_ended(endless)
        person.page.click("#composer-state .btn--stop")
        person.wait_end(endless)
        run_id = person.say("A long answer with code and a table, please", by="click")
        person.wait_end(run_id)
        assert person.page.locator(f"#run-{run_id}-answer table").count() == 1
        assert person.page.locator(f"#run-{run_id}-answer pre").count() >= 1
        journey.check(session_id)
        person.check()
        person.reload()
        person.wait_live()
        person.check()


def test_a_page_reloaded_twenty_times_in_one_turn_shows_all_of_it(chromium: Chromium, journey: Journey) -> None:
    chance = random.Random(4)
    session_id = journey.new_session()
    with browser_at(chromium, journey, session_id) as person:
        run_id = person.say("800 KB of text every 6 ms")
        person.wait_text(run_id)
        for _ in range(20):
            person.page.wait_for_timeout(chance.uniform(0, 150))
            person.reload()
        person.wait_text(run_id, 100)
        assert not person.has_ended(run_id), "the turn was too short for twenty reloads"
        person.page.click("#composer-state .btn--stop")
        person.wait_end(run_id)
        journey.check(session_id)
        person.check()


def test_three_browsers_show_one_session(chromium: Chromium, journey: Journey) -> None:
    session_id = journey.new_session()
    with ExitStack() as stack:
        people = [stack.enter_context(browser_at(chromium, journey, session_id)) for _ in range(3)]
        said = [person.say(f"2 KB of text every 4 ms, {n}") for n, person in enumerate(people)]
        for person in people:
            person.wait_end(*said)
        journey.check(session_id)
        for person in people:
            person.check()


def test_stop_keeps_the_text_and_the_draft(chromium: Chromium, journey: Journey) -> None:
    session_id = journey.new_session()
    with browser_at(chromium, journey, session_id) as person:
        run_id = person.say("800 KB of text every 6 ms")
        person.wait_text(run_id, 300)
        person.page.fill("#text", "a draft, half writ")
        person.page.click("#composer-state .btn--stop")
        person.wait_end(run_id)
        assert journey.run(run_id).state == RunState.ABORTED
        assert person.page.input_value("#text") == "a draft, half writ"
        assert person.page.locator(f"#run-{run_id}-end .ladder li").count() >= 2
        journey.check(session_id)
        person.check()
        person.reload()
        person.wait_live()
        assert person.page.input_value("#text") == "a draft, half writ"
        person.check()


def test_a_queue_of_five_is_shown_cancelled_and_runs_in_order(chromium: Chromium, journey: Journey) -> None:
    session_id = journey.new_session()
    with browser_at(chromium, journey, session_id) as person, browser_at(chromium, journey, session_id) as other:
        first = person.say("stream 30000 every 20 ms")
        texts = [f"stream 4 every 4 ms, turn {n}" for n in range(5)]
        queued = [person.say(text) for text in texts]
        for each in (person, other):
            each.page.wait_for_function("() => document.querySelectorAll('#queue .q').length === 5")
            assert each.queue() == texts
        other.page.locator("#queue .q").nth(2).get_by_label("Cancel turn").click()
        person.page.wait_for_function("() => document.querySelectorAll('#queue .q').length === 4")
        assert person.queue() == texts[:2] + texts[3:]
        person.page.click("#composer-state .btn--stop")
        kept = [run_id for run_id in queued if run_id != queued[2]]
        for each in (person, other):
            each.wait_end(first, *kept)
        assert journey.run(queued[2]).state == RunState.CANCELLED
        person.page.wait_for_selector("#queue", state="hidden")
        journey.check(session_id)
        person.check()
        other.check()


def test_switching_between_sessions_while_both_work(chromium: Chromium, journey: Journey) -> None:
    first, second = journey.new_session(title="The first one"), journey.new_session(title="The second one")
    with browser_at(chromium, journey, first) as person:
        run_a = person.say("10 KB of text every 5 ms")
        person.wait_text(run_a, 200)
        person.page.click(f"#session-{second} a")
        person.page.wait_for_url(f"**/chat/{second}")
        person.wait_live()
        person.session_id = second
        assert person.page.locator(f"#run-{run_a}").count() == 0
        run_b = person.say("2 KB of text every 5 ms")
        person.wait_text(run_b, 100)
        person.page.click(f"#session-{first} a")
        person.page.wait_for_url(f"**/chat/{first}")
        person.wait_live()
        person.session_id = first
        person.wait_end(run_a)
        journey.check(first)
        person.check()
        person.page.click(f"#session-{second} a")
        person.page.wait_for_url(f"**/chat/{second}")
        person.wait_live()
        person.session_id = second
        person.wait_end(run_b)
        journey.check(second)
        person.check()


def test_an_approval_is_clicked_and_every_browser_sees_the_decision(chromium: Chromium, journey: Journey) -> None:
    session_id = journey.new_session()
    with browser_at(chromium, journey, session_id) as person, browser_at(chromium, journey, session_id) as other:
        run_id = person.say("Do something dangerous")
        for each in (person, other):
            each.page.wait_for_selector(f"#run-{run_id} .ask")
        person.reload()
        person.page.wait_for_selector(f"#run-{run_id} .ask")
        person.wait_live()
        person.page.click(f'#run-{run_id} .ask button[value="once"]')
        for each in (person, other):
            each.page.wait_for_selector(f"#run-{run_id} .ask", state="detached")
            each.wait_end(run_id)
        assert "allowed once" in other.text(run_id)
        journey.check(session_id)
        person.check()
        other.check()


@pytest.mark.parametrize("own_words", [None, "neither, ask <b>finance</b>"])
def test_a_question_is_answered_on_the_page(chromium: Chromium, journey: Journey, own_words: str | None) -> None:
    session_id = journey.new_session()
    with browser_at(chromium, journey, session_id) as person:
        run_id = person.say("Ask me a question")
        form = person.page.locator(f"#run-{run_id} form.answering")
        if own_words is None:
            form.locator("label").nth(1).click()
            expected = form.locator("label").nth(1).inner_text()
        else:
            form.locator('[name="answer"]').fill(own_words)
            expected = own_words
        form.locator("button").click()
        person.wait_end(run_id)
        assert expected in person.text(run_id)
        journey.check(session_id)
        person.check()


def test_a_closed_browser_comes_back_to_the_whole_turn(chromium: Chromium, journey: Journey) -> None:
    session_id = journey.new_session()
    with browser_at(chromium, journey, session_id) as person:
        run_id = person.say("3 KB of text every 4 ms")
        person.wait_text(run_id, 100)
    journey.wait_state(run_id, RunState.COMPLETED)
    with browser_at(chromium, journey, session_id) as person:
        assert person.has_ended(run_id)
        journey.check(session_id)
        person.check()


def test_many_turns_with_every_region_look_alike_live_and_after_a_reload(chromium: Chromium, journey: Journey) -> None:
    session_id = journey.new_session()
    with browser_at(chromium, journey, session_id) as person:
        for wish in ("Use several tools at once", "Think first", "Play an error please"):
            person.wait_end(person.say(wish))
        time.sleep(0.2)
        journey.check(session_id)
        person.check()
        person.reload()
        person.wait_live()
        person.check()


def test_always_allow_asks_for_a_reason_first(chromium: Chromium, journey: Journey) -> None:
    """S20: `always` needs the owner's reason; the page asks for it instead of failing."""
    session_id = journey.new_session()
    with browser_at(chromium, journey, session_id) as person:
        run_id = person.say("Do something that needs approval")
        person.page.click(".ask .always summary")
        person.page.fill('.ask .always input[name="reason"]', "it is our own build folder")
        person.page.click(".ask .always button")
        person.wait_end(run_id)
        [pause] = journey.pauses_of(session_id)
        assert (pause.choice, pause.reason) == ("always", "it is our own build folder")
        person.check()
