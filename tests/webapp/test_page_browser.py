"""The session page in a real browser: what it shows live is what the store holds, whatever happens on the way."""

import random
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page

from shared.database import transaction
from shared.models import Run
from shared.protocol import events as e
from shared.run_state import RunState
from shared.store import messages, runs
from shared.transcript import answer_text, from_json
from tests.rig.chromium import Chromium, Watched
from tests.webapp.hostile import HOSTILE
from tests.webapp.live_portal import Portal
from tests.webapp.live_rig import Turn
from tests.webapp.page_rig import Story, event, text, tool, tool_done

KEEP_SOCKETS = """
window.__sockets = [];
const Real = WebSocket;
window.WebSocket = class extends Real { constructor(...a) { super(...a); window.__sockets.push(this); } };
"""
ANSWER = (
    "Both sides agree on **28** of 31 days.\n\n| Day | n |\n|---|--:|\n| 1 | 18,204 |\n| 2 | 17,950 |\n\n"
    "Counted like this:\n\n```python\ndef f(x):\n    return x + 1  # c\n```\n\n"
    "- one\n- two\n  - 深入\n\n> quoted\n\nDone. 完毕。"
)


KNOWN_ZONE = {"portal_zone": "Europe%2FBerlin"}
"""A browser that has been here before: its first page need not be drawn again in its own zone."""


@pytest.fixture
def story(portal: Portal) -> Story:
    return Story(portal.factory, title="In the browser", owner=portal.owner)


@pytest.fixture
def watched(chromium: Chromium, portal: Portal) -> Iterator[Watched]:
    with chromium.page(cookies=KNOWN_ZONE, url=portal.web.url) as made:
        made.context.add_init_script(KEEP_SOCKETS)
        yield made
        assert made.violations() == []
        assert made.foreign(portal.web.url) == []
        assert made.errors == []


def go(watched: Watched, portal: Portal, session_id: str) -> Page:
    page = watched.page
    page.goto(f"{portal.web.url}/chat/{session_id}")
    page.wait_for_selector('#connection[data-conn="live"]')
    return page


LEAVE_THE_END = """async to => {
    const scroll = document.getElementById('scroll'), jump = document.getElementById('jump');
    const frames = () => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
    for (const until = performance.now() + 60000; performance.now() < until;) {
        scroll.scrollTop = to < 0 ? scroll.scrollHeight - scroll.clientHeight + to : to;
        await frames();
        if (!jump.hidden) return;
        scroll.scrollTop = scroll.scrollHeight;
        await frames();
    }
}"""
"""Scrolls there until the page knows: unlike a hand, `scrollTop` is told a frame later, and what arrives before that
still follows the end. Below 0: so far from the end."""
AT_ITS_END = "() => (s => s.scrollHeight - s.scrollTop - s.clientHeight)(document.getElementById('scroll')) < 5"


def shown(page: Page) -> str:
    """The words of the turns, without white space and what counts on."""
    words = page.evaluate("""() => {
        const copy = document.getElementById('turns').cloneNode(true);
        copy.querySelectorAll('.vh, time, [data-since], [data-left], [hidden], .region-meta').forEach(e => e.remove());
        return copy.textContent;
    }""")
    return re.sub(r"\s+", "", words)


def stored(portal: Portal, run_id: str) -> str:
    with transaction(portal.factory, write=False) as db:
        answer = messages.answer_of(db, run_id)
        assert answer is not None
        saved = messages.transcript_of(answer)
        assert saved is None or answer_text(from_json(saved)) == answer.content
        return answer.content


def say(turn: Turn, words: str) -> None:
    turn.say(words)
    if random.random() < 0.3:
        turn.save()


def pieces(words: str, seed: int) -> list[str]:
    dice, found, at = random.Random(seed), [], 0
    while at < len(words):
        size = dice.randint(1, 9)
        found.append(words[at : at + size])
        at += size
    return found


def wait_shown(page: Page, words: str) -> None:
    page.wait_for_function("words => document.getElementById('turns').textContent.includes(words)", arg=words)


def finish(turn: Turn, page: Page) -> None:
    turn.save()
    turn.finish()
    page.wait_for_selector(f"#run-{turn.run_id} .fold")


# ---- what is shown live


def test_a_streamed_turn_is_the_turn_that_a_reload_shows(watched: Watched, portal: Portal, story: Story) -> None:
    page = go(watched, portal, story.session_id)
    turn = portal.turn(story.session_id)

    def tell(kind: str, **data: Any) -> None:
        turn.append(event(turn.session_id, turn.run_id, kind, data, fence=turn.fence))

    tell("tool.started", tool_id="a", name="shell", summary="ls")
    tell("tool.progress", tool_id="a", text="half")
    page.wait_for_selector(f'#run-{turn.run_id}-t0[open] pre:text-is("half")')
    tell("tool.completed", tool_id="a", name="shell", ok=True, result="all of it", duration_ms=10)
    tell("todo.updated", todos=[{"id": "1", "text": "Do it", "status": "completed"}])
    for piece in pieces(ANSWER, 1):
        turn.say(piece)
        time.sleep(0.01)
    wait_shown(page, "完毕。")
    finish(turn, page)
    live, before = shown(page), page.inner_html(".answer .prose")
    page.reload()
    page.wait_for_selector('#connection[data-conn="live"]')
    assert shown(page) == live
    assert re.sub(r"<div class=\"open\".*</div>$", "", before) == page.inner_html(".answer .prose")
    assert stored(portal, turn.run_id) == ANSWER


def test_the_socket_may_be_cut_five_times_in_a_turn(watched: Watched, portal: Portal, story: Story) -> None:
    page = go(watched, portal, story.session_id)
    turn = portal.turn(story.session_id)
    words = "".join(f"word{n} " for n in range(200))
    for n, piece in enumerate(pieces(words, 2)):
        say(turn, piece)
        time.sleep(0.01)
        if n % 45 == 20:
            page.wait_for_function("() => window.__sockets.at(-1).readyState === 1")  # it has come back
            page.evaluate("window.__sockets.at(-1).close(4000, 'cut')")
    finish(turn, page)
    assert re.sub(r"\s", "", page.inner_text(".answer")) == re.sub(r"\s", "", words)
    assert len(page.evaluate("window.__sockets")) >= 5
    watched.errors[:] = [
        error for error in watched.errors if not re.search(r"WebSocket|wsError|^\[object Event", error)
    ]
    assert page.locator(f'[id="run-{turn.run_id}"]').count() == 1


@pytest.mark.parametrize("seed", range(4))
def test_a_reload_in_mid_stream_loses_and_doubles_nothing(
    watched: Watched, portal: Portal, story: Story, seed: int
) -> None:
    page = go(watched, portal, story.session_id)
    turn = portal.turn(story.session_id)
    words = "".join(f"w{n}, " for n in range(150)) + "\n\n```\ncode\n"
    all_pieces = pieces(words, seed)
    moments = set(random.Random(seed).sample(range(len(all_pieces)), 3))
    for n, piece in enumerate(all_pieces):
        say(turn, piece)
        if n in moments:
            page.reload(wait_until="commit")
        time.sleep(0.005)
    finish(turn, page)
    assert re.sub(r"\s", "", page.inner_text(".answer")).replace("textCopy", "") == re.sub(r"\s|```", "", words)


def test_what_a_person_opened_or_selected_stays_while_it_streams(
    watched: Watched, portal: Portal, story: Story
) -> None:
    page = go(watched, portal, story.session_id)
    turn = portal.turn(story.session_id)
    for name, data in (tool("a", "shell", "ls"), tool_done("a", "shell", result="files")):
        turn.append(event(turn.session_id, turn.run_id, name, data, fence=1))
    turn.say("A first paragraph.\n\nA second")
    wait_shown(page, "A second")
    page.click(f"#run-{turn.run_id}-t0 summary")
    page.evaluate("""() => {
        const range = document.createRange();
        range.selectNodeContents(document.querySelector('.answer p'));
        getSelection().removeAllRanges();
        getSelection().addRange(range);
    }""")
    for n in range(20):
        turn.say(f" word{n}")
        time.sleep(0.02)
    for name, data in (tool("b", "read"), tool_done("b", "read", result="more")):
        turn.append(event(turn.session_id, turn.run_id, name, data, fence=1))
    page.wait_for_selector(f"#run-{turn.run_id}-t1")
    wait_shown(page, "word19")
    assert page.evaluate("getSelection().toString()") == "A first paragraph."
    assert page.locator(f"#run-{turn.run_id}-t0").get_attribute("open") is not None


def test_hostile_texts_do_nothing_loaded_or_live(watched: Watched, portal: Portal, story: Story) -> None:
    watched.page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    page = go(watched, portal, story.session_id)
    turn = portal.turn(story.session_id)
    for n, words in enumerate(text_.replace("\0", "\ufffd") for text_ in HOSTILE):
        turn.say(words + "\n\n")
        for name, data in (
            ("reasoning.delta", {"part": 1000 + n, "offset": 0, "text": words}),
            ("status.updated", {"text": words}),
            tool(f"t{n}", words, words, {"x": words}),
            ("tool.progress", {"tool_id": f"t{n}", "text": words}),
            tool_done(f"t{n}", words, ok=n % 2 == 0, result=words, error=words),
        ):
            turn.append(event(turn.session_id, turn.run_id, name, data, fence=1))
    wait_shown(page, HOSTILE[-1].split("&")[0])
    page.wait_for_selector(f"#run-{turn.run_id}-t{len(HOSTILE) - 1}")
    finish(turn, page)
    page.reload()
    page.wait_for_selector('#connection[data-conn="live"]')
    page.wait_for_timeout(200)


# ---- sending


def test_enter_sends_unless_a_word_is_being_composed(watched: Watched, portal: Portal, story: Story) -> None:
    page = go(watched, portal, story.session_id)
    page.fill("#text", "你好")
    for options in ("{isComposing: true}", "{keyCode: 229}", "{shiftKey: true}"):
        page.evaluate(f"""document.getElementById('text').dispatchEvent(
            new KeyboardEvent('keydown', {{key: 'Enter', bubbles: true, cancelable: true, ...{options}}}))""")
    assert runs_of(portal, story) == []
    page.press("#text", "Enter")
    page.wait_for_selector("#turns .turn--user")
    assert page.input_value("#text") == ""
    assert [run.input for run in runs_of(portal, story)] == ["你好"]


def runs_of(portal: Portal, story: Story) -> list[Run]:
    with transaction(portal.factory, write=False) as db:
        return db.query(Run).filter_by(session_id=story.session_id).order_by(Run.position).all()


def test_a_double_click_sends_once_and_more_turns_wait_in_the_queue(
    watched: Watched, portal: Portal, story: Story
) -> None:
    portal.turn(story.session_id)
    page = go(watched, portal, story.session_id)
    page.fill("#text", "second turn")
    page.dblclick("#send")
    page.wait_for_selector("#queue .q")
    page.fill("#text", "third turn")
    page.press("#text", "Enter")
    page.wait_for_function("() => document.querySelectorAll('#queue .q').length === 2")
    assert [run.input for run in runs_of(portal, story)][1:] == ["second turn", "third turn"]
    page.locator("#queue .q").nth(1).get_by_label("Move turn 3 up").click()
    page.wait_for_function("() => document.querySelector('#queue .q').textContent.includes('third turn')")
    page.locator("#queue .q").first.get_by_label("Cancel turn").click()
    page.wait_for_function("() => document.querySelectorAll('#queue .q').length === 1")


def test_a_draft_survives_a_reload_and_another_chat_does_not_show_it(
    watched: Watched, portal: Portal, story: Story
) -> None:
    page = go(watched, portal, story.session_id)
    page.type("#text", "not yet")
    page.reload()
    assert page.input_value("#text") == "not yet"
    page.goto(f"{portal.web.url}/chat/{portal.new_session()}")
    assert page.input_value("#text") == ""
    assert page.evaluate("localStorage.length") == 0


def test_a_message_over_a_dead_socket_arrives_once(watched: Watched, portal: Portal, story: Story) -> None:
    page = go(watched, portal, story.session_id)
    page.evaluate("""() => {  // the socket looks open and takes nothing any more
        window.__sockets.at(-1).send = () => {};
    }""")
    page.fill("#text", "into the void")
    page.press("#text", "Enter")
    page.wait_for_function("() => document.getElementById('text').value === ''")
    page.wait_for_selector("#turns .turn--user")
    assert [run.input for run in runs_of(portal, story)] == ["into the void"]


def test_turns_sent_before_the_first_is_taken_all_arrive_in_order(
    watched: Watched, portal: Portal, story: Story
) -> None:
    page = go(watched, portal, story.session_id)
    page.evaluate("""() => {  // the socket looks open and takes nothing any more
        window.__sockets.at(-1).send = () => {};
    }""")
    page.route("**/send", lambda route: None)  # nor is there an answer to the second way, which it tries after a while
    for words in ("one", "two", "three"):
        page.type("#text", words)
        page.press("#text", "Enter")
        assert page.input_value("#text") == ""
    page.press("#text", "Enter")
    page.type("#text", "a draft")
    page.wait_for_function("() => document.querySelectorAll('#outbox li').length === 3")
    assert page.locator("#outbox li").all_inner_texts() == ["Sending\none", "Sending\ntwo", "Sending\nthree"]
    page.unroute("**/send")
    page.reload()  # what was not taken is sent by the page that comes after
    page.wait_for_function("() => document.querySelectorAll('#queue .q').length === 2")
    assert page.input_value("#text") == "a draft"
    assert [run.input for run in runs_of(portal, story)] == ["one", "two", "three"]


def test_the_first_message_begins_a_chat(watched: Watched, portal: Portal) -> None:
    page = watched.page
    page.goto(f"{portal.web.url}/chat")
    page.keyboard.type("the first words")  # the field has the focus
    page.reload()
    assert page.input_value("#text") == "the first words"
    page.press("#text", "Enter")
    page.wait_for_selector("#turns .turn--user")
    assert page.inner_text("#turns .says") == "the first words"
    page.goto(f"{portal.web.url}/chat")
    assert page.input_value("#text") == ""


def test_a_refused_message_keeps_the_text_and_says_why(watched: Watched, portal: Portal, story: Story) -> None:
    page = go(watched, portal, story.session_id)
    page.evaluate("document.getElementById('text').value = 'x'.repeat(600 * 1024)")
    page.evaluate("document.getElementById('composer').requestSubmit()")
    page.wait_for_selector("#notices .notice")
    assert len(page.input_value("#text")) == 600 * 1024
    assert page.is_enabled("#send")


# ---- approvals, titles, places


def test_the_field_has_the_focus_when_a_decision_has_taken_its_buttons_away(
    watched: Watched, portal: Portal, story: Story
) -> None:
    page = go(watched, portal, story.session_id)
    portal.turn(story.session_id)
    page.wait_for_selector("#composer-state .btn--stop")
    page.fill("#text", "later")
    page.press("#text", "Enter")
    page.locator("#queue .q").get_by_label("Cancel turn").press("Enter")
    page.wait_for_selector("#queue", state="hidden")
    page.wait_for_function("() => document.activeElement.id === 'text'")


def test_an_approval_marks_the_tab_and_is_decided_by_one_click(watched: Watched, portal: Portal, story: Story) -> None:
    page = go(watched, portal, story.session_id)
    approval_id = f"ap{story.session_id[:8]}"
    asked = {"approval_id": approval_id, "kind": "shell", "command": "rm -r  build", "choices": ["once", "deny"]}
    run = story.turn("go", ("approval.requested", asked), state=RunState.RUNNING)
    told = [event(story.session_id, run.id, "run.started", {"source": "api_server"}, fence=1)]
    told.append(event(story.session_id, run.id, "approval.requested", asked, fence=1))
    portal.log.append(story.session_id, [e.to_payload(each) for each in told])
    page.wait_for_selector(".ask pre")
    assert page.inner_text(".ask pre") == "rm -r  build"
    page.wait_for_function("() => document.title.startsWith('(1) ')")
    page.wait_for_function("() => document.getElementById('announce').textContent.includes('waits for a decision')")
    page.click(".ask button[value=once]")
    page.wait_for_selector(".decided")
    assert "Allowed once by" in page.inner_text(".decided")
    assert page.locator(".ask").count() == 0


def test_older_turns_come_without_moving_the_line_one_reads(watched: Watched, portal: Portal, story: Story) -> None:
    for n in range(40):
        story.turn(f"question {n}", text(0, 0, f"Answer {n}.\n\n" * 4))
    page = go(watched, portal, story.session_id)
    page.wait_for_function(AT_ITS_END)
    page.evaluate(LEAVE_THE_END, 0)
    first = page.locator("#turns .turn").first
    name, at = first.get_attribute("id"), first.bounding_box()
    page.click("#older a")
    page.wait_for_function("() => document.querySelectorAll('#turns .turn').length === 80")
    page.wait_for_function("() => document.querySelectorAll('#turns > .day').length === 1")  # the last to be put right
    box = page.locator(f"#{name}").bounding_box()
    assert box is not None
    assert at is not None
    assert abs(box["y"] - at["y"]) < 60  # the button above it is gone, a day's heading may have moved


def test_reading_further_up_is_not_pulled_down_and_a_button_leads_to_the_end(
    watched: Watched, portal: Portal, story: Story
) -> None:
    for n in range(8):
        story.turn(f"question {n}", text(0, 0, f"Answer {n}.\n\n" * 6))
    page = go(watched, portal, story.session_id)
    turn = portal.turn(story.session_id)
    page.wait_for_selector(f"#run-{turn.run_id}")
    page.evaluate(LEAVE_THE_END, 200)
    page.wait_for_selector("#jump:not([hidden])")
    for n in range(30):
        turn.say(f"line {n}\n\n")
        time.sleep(0.01)
    wait_shown(page, "line 29")
    assert page.evaluate("document.getElementById('scroll').scrollTop") == 200
    page.click("#jump")
    page.wait_for_selector("#jump[hidden]", state="attached")
    turn.say("the end")
    wait_shown(page, "the end")
    page.wait_for_function(AT_ITS_END)


def test_a_reader_is_told_of_start_need_and_end_and_not_of_every_word(
    watched: Watched, portal: Portal, story: Story
) -> None:
    page = go(watched, portal, story.session_id)
    page.evaluate("""() => {
        window.__said = [];
        new MutationObserver(() => window.__said.push(document.getElementById('announce').textContent.trim()))
            .observe(document.body, {subtree: true, childList: true, characterData: true});
    }""")
    turn = portal.turn(story.session_id)
    for n in range(200):
        turn.say(f"w{n} ")
        time.sleep(0.003)
    finish(turn, page)
    page.wait_for_function("() => document.getElementById('announce').textContent.includes('Done')")
    said = page.evaluate("window.__said")
    assert len(dict.fromkeys(words for words in said if words)) <= 3
    live = page.evaluate("document.querySelectorAll('[aria-live], [role=status], [role=alert]').length")
    assert live <= 3


def test_the_drawer_of_a_phone_is_modal_and_there_is_one_side(chromium: Chromium, portal: Portal, story: Story) -> None:
    with chromium.page(width=390, height=844, has_touch=True, is_mobile=True) as watched:
        page = go(watched, portal, story.session_id)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.click('[data-drawer="open"]')
        page.wait_for_selector("#drawer[open] #side")
        assert page.evaluate("document.getElementById('drawer').matches(':modal')")
        assert page.evaluate("document.getElementById('drawer').contains(document.activeElement)")
        page.keyboard.press("Escape")
        page.wait_for_selector("#drawer:not([open])", state="attached")
        assert page.locator("#side").count() == 1
        assert watched.errors == []


def test_times_and_days_are_those_of_the_browser(chromium: Chromium, portal: Portal, story: Story) -> None:
    story.turn("when", text(0, 0, "now"), ago_s=0)
    for zone in ("Asia/Shanghai", "America/St_Johns"):
        with chromium.page(zone=zone) as watched:
            page = go(watched, portal, story.session_id)
            there, here = page.evaluate("""() => {
                const time = document.querySelector('.turn--user time');
                const parts = {hour: '2-digit', minute: '2-digit'};
                return [time.textContent, new Date(time.dateTime).toLocaleTimeString('en-GB', parts)];
            }""")
            assert there == here
            assert page.evaluate("document.cookie").count("portal_zone=") == 1


def test_a_page_whose_portal_went_away_says_so_and_comes_back_by_itself(
    chromium: Chromium, shared_redis: Any, tmp_path: Any
) -> None:
    portal = Portal(tmp_path, shared_redis.url)
    try:
        session_id = portal.new_session()
        with chromium.page() as watched:
            page = go(watched, portal, session_id)
            portal.web.kill()
            page.wait_for_selector('#connection:not([data-conn="live"])')
            page.fill("#text", "kept")
            page.press("#text", "Enter")
            page.wait_for_selector("#notices [data-unsent]")
            page.fill("#text", "kept too")
            page.press("#text", "Enter")
            page.wait_for_function("() => document.querySelectorAll('#outbox li').length === 2")
            assert "Not sent yet" in page.inner_text("#outbox li:first-child")
            portal.web.start()
            page.wait_for_selector('#connection[data-conn="live"]')
            page.wait_for_selector("#turns .turn--user")
            page.wait_for_selector("#outbox", state="hidden")
            assert page.locator("#notices [data-unsent]").count() == 0
        with transaction(portal.factory, write=False) as db:
            assert [run.input for run in runs.queue(db, session_id)] == ["kept", "kept too"]
    finally:
        portal.close()


def test_a_folded_process_is_fetched_when_it_is_opened(watched: Watched, portal: Portal, story: Story) -> None:
    run = story.turn("go", tool("a", "shell", "ls"), tool_done("a", "shell", result="y" * 9_000), text(0, 0, "done"))
    page = go(watched, portal, story.session_id)
    assert page.locator(f"#run-{run.id}-t0").count() == 0
    page.click(f"#run-{run.id} .fold summary")
    page.click(f"#run-{run.id}-t0 summary")
    assert page.inner_text(f"#run-{run.id}-t0 pre") == "y" * 9_000


def test_a_chat_that_is_deleted_elsewhere_says_so(watched: Watched, portal: Portal, story: Story) -> None:
    page = go(watched, portal, story.session_id)
    with watched.context.new_page() as other:
        other.goto(f"{portal.web.url}/chat/{story.session_id}")
        other.click('[aria-label="Chat menu"]')
        other.click(".menu-item--bad")
        other.wait_for_url("**/chat?deleted=*")
        page.wait_for_selector("#why-not:not([hidden])")
        assert page.is_disabled("#text")
        other.click("#notices button")
        other.wait_for_url(f"**/chat/{story.session_id}")
        assert other.is_enabled("#text")


def test_the_whole_of_a_waiting_turn_is_edited_and_stays_open_while_the_queue_changes(
    watched: Watched, portal: Portal, story: Story
) -> None:
    portal.turn(story.session_id)
    long = "first line\n\n  second line\n" * 40
    story.queued(long)
    page = go(watched, portal, story.session_id)
    page.click("#queue .edit summary")
    page.wait_for_selector("#queue .edit textarea")
    assert page.input_value("#queue .edit textarea") == long
    page.fill("#queue .edit textarea", "changed")
    page.fill("#text", "another")
    page.press("#text", "Enter")
    page.wait_for_function("() => document.querySelectorAll('#queue .q').length === 2")
    page.click("#queue .edit[open] button")
    page.wait_for_function("() => document.querySelector('#queue .q').textContent.includes('changed')")
    assert [run.input for run in runs_of(portal, story)][1:] == ["changed", "another"]
