"""/chat and /chat/<id>: what a page shows, and that all of it works by plain forms, without a script or a socket."""

import re
from html import unescape
from typing import Any

import pytest

from shared.database import transaction
from shared.models import ChatSession, Pause, Run
from shared.run_state import RunState
from shared.store import catalogue, runs, tool_outputs
from tests.rig.web import Browser, Web
from tests.webapp.page_rig import Story, text, tool, tool_done


@pytest.fixture
def browser(web: Web) -> Browser:
    return web.browser(web.admin)


def html(browser: Browser, path: str, **given: Any) -> str:
    answer = browser.get(path, **given)
    assert answer.status_code == 200, answer.get_data(as_text=True)
    return answer.get_data(as_text=True)


def new_session(browser: Browser) -> str:
    answer = browser.post("/chat/new", {"source": "api_server"})
    assert answer.status_code == 303
    return answer.headers["Location"].rsplit("/", 1)[1]


def send(browser: Browser, session_id: str, words: str, key: str = "") -> None:
    answer = browser.post(f"/chat/{session_id}/send", {"input": words, "queue_id": key, "event": "run"})
    assert (answer.status_code, answer.headers["Location"]) == (303, f"/chat/{session_id}")


# ---- pages


def test_the_first_page_says_how_to_begin(browser: Browser) -> None:
    assert browser.get("/").headers["Location"] == "/chat"
    page = html(browser, "/chat")
    assert "No chats yet" in page
    assert 'action="/chat/new"' in page


def test_the_first_message_makes_the_chat(web: Web, browser: Browser) -> None:
    answer = browser.post("/chat/new", {"source": "api_server", "input": "Hello\r\nthere"})
    assert answer.status_code == 303
    session_id = answer.headers["Location"].removeprefix("/chat/")
    with transaction(web.factory, write=False) as db:
        assert [run.input for run in runs.queue(db, session_id)] == ["Hello\nthere"]


def test_a_first_message_that_cannot_be_sent_stays_in_the_field(web: Web, browser: Browser) -> None:
    text = "<b>" + "x" * 600 * 1024
    answer = browser.post("/chat/new", {"source": "api_server", "input": text})
    assert answer.status_code == 413
    assert "512 KB at most" in answer.get_data(as_text=True)
    assert f"&lt;b&gt;{text[3:]}</textarea>" in answer.get_data(as_text=True)
    assert "No chats yet" in answer.get_data(as_text=True)


def test_a_new_chat_is_empty_and_ready_to_write_in(browser: Browser) -> None:
    page = html(browser, f"/chat/{new_session(browser)}")
    assert "Nothing here yet" in page
    assert 'ws-connect="/chat-run?view=html&amp;session_id=' in page
    assert re.search(r'<i id="cursor" hidden data-kind="snapshot" data-epoch="" data-first="0" data-last="0"', page)


def test_a_deleted_or_foreign_chat_is_a_page_with_a_way_back(web: Web, browser: Browser) -> None:
    session_id = new_session(browser)
    browser.post(f"/chat/{session_id}/delete")
    stranger = web.browser(web.user("bob"))
    for who, path in ((browser, session_id), (browser, "nothing"), (stranger, new_session(browser))):
        answer = who.get(f"/chat/{path}")
        assert answer.status_code == 404
        assert "Back to chats" in answer.get_data(as_text=True)


def test_the_demo_agent_is_marked_on_every_page_until_a_real_one_is_configured(make_web: Any) -> None:
    demo = make_web(PORTAL_DEMO_URL="http://127.0.0.1:9")
    assert "Demo agent: answers are played from a script" in html(demo.browser(demo.admin), "/chat")
    real = make_web(PORTAL_DEMO_URL="http://127.0.0.1:9", HERMES_GATEWAY_URL="http://127.0.0.1:8642")
    assert "Demo agent" not in html(real.browser(real.admin), "/chat")


def test_a_turn_shows_its_regions_in_order_and_the_text_as_the_store_has_it(web: Web, browser: Browser) -> None:
    story = Story(web.factory, title="Counts", owner=web.admin)
    todo = ("todo.updated", {"todos": [{"id": "1", "text": "Count", "status": "in_progress"}]})
    asked = {"approval_id": "ap1", "kind": "shell", "command": "rm -r  build", "choices": ["once", "deny"]}
    run = story.turn(
        "Count  it", text(0, 0, "How?", "reasoning"), tool("t", "shell", "wc -l"), todo, text(1, 0, "It is **42**"),
        ("approval.requested", asked), state=RunState.RUNNING,
    )  # fmt: skip
    page = html(browser, f"/chat/{story.session_id}")
    regions = ("thinking", "status", "tools", "todos", "approvals", "answer")
    places = [page.index(f'id="run-{run.id}-{name}"') for name in regions]
    assert places == sorted(places)
    assert 'id="approval-ap1"' in page
    assert "<code>rm -r  build</code>" in page
    assert "Count  it" in page
    assert "<strong>42</strong>" in page
    assert "(1)" not in page


def test_a_waiting_turn_stands_in_the_queue_and_nowhere_else(web: Web, browser: Browser) -> None:
    story = Story(web.factory, title="Queue", owner=web.admin)
    story.turn("running", text(0, 0, "…"), state=RunState.RUNNING)
    waiting = story.queued("first in line", "second in line")
    page = html(browser, f"/chat/{story.session_id}")
    assert page.count("first in line") == 1
    assert f'id="q-{waiting[0].queue_id}"' in page
    assert "2 queued" in page
    assert "#2 waits for turn 1" in page
    assert "It will be turn 4." in page


def test_one_message_one_row_one_answer(web: Web, browser: Browser) -> None:
    story = Story(web.factory, title="Once", owner=web.admin)
    done = [story.turn(f"question {n}", text(0, 0, f"answer {n}")) for n in range(3)]
    for _ in range(3):
        page = html(browser, f"/chat/{story.session_id}")
        assert [page.count(f'id="run-{run.id}"') for run in done] == [1, 1, 1]
        ids = re.findall(r'\sid="([^"]+)"', page)
        assert len(ids) == len(set(ids))


def test_older_turns_come_page_by_page_without_a_script_too(web: Web, browser: Browser) -> None:
    story = Story(web.factory, title="Long", owner=web.admin)
    for n in range(60):
        story.turn(f"question {n};", text(0, 0, f"answer {n}"))
    page = html(browser, f"/chat/{story.session_id}")
    assert "question 59;" in page
    assert "question 34;" not in page
    link = re.search(r'href="(/chat/[^"]+before=[^"]+)" hx-get="([^"]+)"', page)
    assert link is not None
    older = html(browser, link[2])
    assert "question 34;" in older
    assert "question 35;" not in older
    assert "question 34;" in html(browser, link[1])


def test_a_long_process_is_fetched_when_its_line_is_opened(web: Web, browser: Browser) -> None:
    story = Story(web.factory, title="Long process", owner=web.admin)
    run = story.turn("go", tool("t", "shell", "cat"), tool_done("t", "shell", result="y" * 15_000), text(0, 0, "done"))
    page = html(browser, f"/chat/{story.session_id}")
    address = f"/chat/{story.session_id}/runs/{run.id}/process"
    assert "y" * 100 not in page
    assert f'hx-get="{address}"' in page
    assert "y" * 15_000 in html(browser, address, headers={"HX-Request": "true"})
    assert "y" * 15_000 in html(browser, address)
    assert web.browser(web.user("eve")).get(address).status_code == 404
    assert browser.get(f"/chat/{story.session_id}/runs/{'0' * 32}/process").status_code == 404


def test_the_whole_output_of_a_tool_is_a_file(web: Web, browser: Browser) -> None:
    story = Story(web.factory, title="Output", owner=web.admin)
    cut = tool_done("t/../1", "shell", result="x" * 16_384, truncated=True, full_size=200_000)
    run = story.turn("go", tool("t/../1", "shell", "cat"), cut, text(0, 0, "done"))
    with transaction(web.factory) as db:
        tool_outputs.put(db, run_id=run.id, tool_id="t/../1", name="shell", text="<script>" + "x" * 200_000)
    answer = browser.get(f"/chat/{story.session_id}/runs/{run.id}/output/0")
    assert answer.content_type == "text/plain; charset=utf-8"
    assert answer.headers["Content-Disposition"].startswith("attachment;")
    assert len(answer.data) == 200_008
    assert browser.get(f"/chat/{story.session_id}/runs/{run.id}/output/7").status_code == 404
    assert web.browser(web.user("eve")).get(f"/chat/{story.session_id}/runs/{run.id}/output/0").status_code == 404


def test_the_list_shows_states_and_finds_by_title(web: Web, browser: Browser) -> None:
    Story(web.factory, title="100% of it", owner=web.admin).turn("x", text(0, 0, "y"), state=RunState.FAILED)
    Story(web.factory, title="Other", owner=web.admin).turn("x", text(0, 0, "y"), state=RunState.RUNNING)
    page = html(browser, "/chat/list")
    assert re.search(r"100% of it.*Other|Other.*100% of it", page, re.DOTALL)
    assert 'data-state="failed"' in page
    assert 'data-state="running"' in page
    found = html(browser, "/chat/list?q=100%25")
    assert "100% of it" in found
    assert "Other" not in found
    assert "No chat has this" in html(browser, "/chat/list?q=nothing+at+all")


def test_days_are_those_of_the_browsers_zone(web: Web, browser: Browser) -> None:
    Story(web.factory, title="Now", owner=web.admin).turn("x", text(0, 0, "y"))
    for zone in ("Asia/Shanghai", "America%2FSt_Johns", "No/Where", "../../etc/passwd"):
        browser.client.set_cookie("portal_zone", zone, domain="127.0.0.1")
        assert "Today" in html(browser, "/chat")


def test_a_frame_is_the_whole_view_for_a_page_whose_socket_stays_shut(web: Web, browser: Browser) -> None:
    story = Story(web.factory, title="Frame", owner=web.admin)
    run = story.turn("hello", text(0, 0, "world"))
    frame = html(browser, f"/chat/{story.session_id}/frame")
    assert frame.startswith('<i id="cursor" hidden data-kind="snapshot"')
    assert f'id="run-{run.id}" data-into="turns"' in frame
    assert 'id="connection" data-conn="live"' in frame


# ---- forms


def test_a_message_sent_by_a_plain_form_becomes_one_run(web: Web, browser: Browser) -> None:
    session_id = new_session(browser)
    send(browser, session_id, "Hello\r\nthere", "key-1")
    send(browser, session_id, "Hello\r\nthere", "key-1")
    with transaction(web.factory, write=False) as db:
        found = db.query(Run).filter_by(session_id=session_id).all()
    assert [run.input for run in found] == ["Hello\nthere"]
    page = html(browser, f"/chat/{session_id}")
    assert "Hello\nthere" in page
    assert 'data-queue-id="key-1"' in page


def test_a_script_gets_a_short_answer_or_a_notice(browser: Browser) -> None:
    session_id = new_session(browser)
    script = {"HX-Request": "true"}
    first = browser.post(f"/chat/{session_id}/send", {"input": "Hello", "queue_id": "k"}, headers=script)
    again = browser.post(f"/chat/{session_id}/send", {"input": "Hello", "queue_id": "k"}, headers=script)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.headers["X-Queue-Id"] == "k"
    other = browser.post(f"/chat/{session_id}/send", {"input": "Other", "queue_id": "k"}, headers=script)
    assert other.status_code == 409
    assert 'class="notice"' in other.get_data(as_text=True)
    empty = browser.post(f"/chat/{session_id}/send", {"input": "  ", "queue_id": "k2"}, headers=script)
    assert empty.status_code == 400


def test_the_queue_can_be_moved_edited_cancelled_and_let_go_on(web: Web, browser: Browser) -> None:
    story = Story(web.factory, title="Queue", owner=web.admin)
    story.turn("running", text(0, 0, "…"), state=RunState.RUNNING)
    one, two, three = story.queued("one", "two", "three")
    at = f"/chat/{story.session_id}"
    whole = "line\n\n  indented & <b>\n" * 100
    [long] = story.queued(whole)
    for headers in ({}, {"HX-Request": "true"}):
        form = html(browser, f"{at}/queue/{long.queue_id}", headers=headers)
        field = re.search(r"<textarea[^>]*>\n(.*)</textarea>", form, re.DOTALL)
        assert field is not None
        assert unescape(field[1]) == whole
    assert web.browser(web.user("eve")).get(f"{at}/queue/{long.queue_id}").status_code == 404
    assert browser.post(f"{at}/cancel", {"queue_id": long.queue_id}).status_code == 303
    assert browser.post(f"{at}/move", {"queue_id": three.queue_id, "position": "1"}).status_code == 303
    assert browser.post(f"{at}/edit", {"queue_id": one.queue_id, "input": "one, better"}).status_code == 303
    assert browser.post(f"{at}/cancel", {"queue_id": two.queue_id}).status_code == 303
    with transaction(web.factory, write=False) as db:
        assert [run.input for run in runs.queue(db, story.session_id)] == ["three", "one, better"]
    with transaction(web.factory) as db:
        session = db.get_one(ChatSession, story.session_id)
        session.held_reason = "failed"
    assert "Go on" in html(browser, at)
    assert browser.post(f"{at}/continue").status_code == 303
    assert "Go on" not in html(browser, at)


def test_a_run_is_stopped_and_tried_again_by_forms(web: Web, browser: Browser) -> None:
    story = Story(web.factory, title="Stop", owner=web.admin)
    failed = story.turn("try me", text(0, 0, "half"), state=RunState.FAILED)
    at = f"/chat/{story.session_id}"
    assert browser.post(f"{at}/retry", {"run_id": failed.id}).status_code == 303
    with transaction(web.factory, write=False) as db:
        retry = db.query(Run).filter_by(retry_of=failed.id).one()
    assert "Retried by Admin as turn 2" in html(browser, at)
    assert browser.post(f"{at}/abort", {"run_id": retry.id}).status_code == 303
    with transaction(web.factory, write=False) as db:
        assert db.get_one(Run, retry.id).state == "cancelled"
    assert "Cancelled" in html(browser, at)


def test_approvals_and_questions_are_answered_by_forms_once(web: Web, browser: Browser) -> None:
    story = Story(web.factory, title="Ask", owner=web.admin)
    asked = {"approval_id": "ap2", "kind": "shell", "command": "ls", "choices": ["once", "deny"]}
    question = {"clarify_id": "cl2", "question": "Which?", "choices": ["this", "that"]}
    waits = [("approval.requested", asked), ("clarify.requested", question)]
    story.turn("go", *waits, state=RunState.RUNNING)
    at = f"/chat/{story.session_id}"
    assert browser.post(f"{at}/approval", {"approval_id": "ap2", "choice": "once"}).status_code == 303
    assert browser.post(f"{at}/approval", {"approval_id": "ap2", "choice": "deny"}).status_code == 409
    assert browser.post(f"{at}/clarify", {"clarify_id": "cl2", "answer": " "}).status_code == 400
    assert browser.post(f"{at}/clarify", {"clarify_id": "cl2", "choice": "that"}).status_code == 303
    with transaction(web.factory, write=False) as db:
        assert (db.get_one(Pause, "ap2").choice, db.get_one(Pause, "cl2").answer) == ("once", "that")


def test_a_chat_is_renamed_archived_deleted_and_brought_back(web: Web, browser: Browser) -> None:
    session_id = new_session(browser)
    at = f"/chat/{session_id}"
    browser.post(f"{at}/rename", {"title": "By hand"})
    assert '<h1 class="cut" id="title" data-signal="">By hand</h1>' in html(browser, at)
    browser.post(f"{at}/archive", {"archived": "1"})
    assert "By hand" not in html(browser, "/chat")
    assert "By hand" in html(browser, "/chat?archived=1")
    assert "This chat is archived" in html(browser, at)
    browser.post(f"{at}/archive", {"archived": "0"})
    assert "By hand" in html(browser, "/chat")
    gone = browser.post(f"{at}/delete")
    assert browser.get(at).status_code == 404
    assert f"{at}/undelete" in html(browser, gone.headers["Location"])
    browser.post(f"{at}/undelete")
    assert "By hand" in html(browser, "/chat")


def test_what_happens_after_a_failure_is_chosen_at_the_queue(web: Web, browser: Browser) -> None:
    story = Story(web.factory, title="Policy", owner=web.admin)
    story.turn("running", text(0, 0, "…"), state=RunState.RUNNING)
    story.queued("next")
    at = f"/chat/{story.session_id}"
    assert browser.post(f"{at}/options", {"on_failure": "continue"}).status_code == 303
    assert '<option value="continue" selected>' in html(browser, at)
    assert browser.post(f"{at}/options", {"on_failure": "explode"}).status_code == 400


def test_who_may_only_read_gets_no_buttons_and_nothing_done(web: Web) -> None:
    viewer = web.user("vera", role="viewer")
    story = Story(web.factory, title="Mine", owner=viewer)
    story.turn("old", text(0, 0, "answer"), state=RunState.FAILED)
    browser = web.browser(viewer)
    page = html(browser, f"/chat/{story.session_id}")
    assert "You may read this session, not write in it." in page
    assert "Retry" not in page
    assert browser.post(f"/chat/{story.session_id}/send", {"input": "x", "queue_id": "k"}).status_code == 403


def test_links_hold_below_a_prefix(make_web: Any) -> None:
    web = make_web(PORTAL_TRUSTED_PROXIES="1")
    browser = web.browser(web.admin)
    story = Story(web.factory, title="Prefix", owner=web.admin)
    story.turn("x", text(0, 0, "y"))
    page = html(browser, f"/chat/{story.session_id}", headers={"X-Forwarded-Prefix": "/portal"})
    addresses = re.findall(r'(?:href|src|action|ws-connect|hx-get|hx-post|data-poll)="(/[^"]*)"', page)
    assert len(addresses) > 20
    assert [address for address in addresses if not address.startswith("/portal/")] == []


def test_models_skills_and_profiles_are_offered_where_there_are_any(web: Web, browser: Browser, make_web: Any) -> None:
    assert 'class="pick-box' not in html(browser, f"/chat/{new_session(browser)}")
    home = web.settings.data_dir.parent / "home"
    skill = home / "skills" / "audit"
    skill.mkdir(parents=True)
    skill.joinpath("SKILL.md").write_text("---\nname: Audit <b>\n---\nDo it well.")
    other = make_web(HERMES_HOME=str(home))
    with transaction(other.factory) as db:
        catalogue.put_language_model(db, name="hermes-4", model="hermes-4-405b")
        catalogue.put_profile(db, name="finance-ops")
    person = other.browser(other.admin)
    session_id = new_session(person)
    page = html(person, f"/chat/{session_id}")
    assert '<option value="hermes-4">hermes-4</option>' in page
    assert "data-skills" in page
    assert "Audit" not in page, "fetched when the list is opened"
    assert "<b>Audit &lt;b&gt;</b>" in html(person, "/chat/skills?profile=finance-ops")
    assert '<option value="finance-ops">finance-ops</option>' in page
    assert person.post(f"/chat/{session_id}/options", {"profile": "finance-ops"}).status_code == 303
    assert '<option value="finance-ops" selected>' in html(person, f"/chat/{session_id}")
    chosen = {"input": "go", "queue_id": "k", "model": "hermes-4", "skill_folder": "audit"}
    person.post(f"/chat/{session_id}/send", chosen)
    with transaction(other.factory, write=False) as db:
        run = db.query(Run).filter_by(session_id=session_id).one()
    assert (run.model, run.skill_folder) == ("hermes-4", "audit")
