"""Whole runs through the gateway backend: what is stored and told when the gateway cuts, fails, waits or is stopped."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.models import ChatSession
from shared.relay import mailbox
from shared.relay.mailbox import Note
from shared.store import catalogue, pauses, users
from shared.store import runs as run_store
from tests.peers.gateway import (
    NO_USAGE,
    RESPONSE_ID,
    RUN_ID,
    Answer,
    Cut,
    FakeGateway,
    Frames,
    WaitFor,
    json_answer,
    raw_answer,
    run_frame,
    run_script,
    stream,
    text_turn,
    tool_turn,
)
from tests.rig.gateway_turns import STORED, TURNS
from tests.rig.hermes import HermesGateway
from tests.worker.conftest import Desk
from worker.backends import registry
from worker.backends.gateway import extension
from worker.backends.gateway.backend import GatewayBackend
from worker.runs.execute import execute

WHOLE = "Let me look. 世界🌍\n\nBoth are there."


@pytest.fixture
def gateway(sqlite_desk: Desk) -> Iterator[FakeGateway]:
    """A scripted gateway that answers the turns of the desk."""
    with FakeGateway({}) as gateway:
        answer_by(sqlite_desk, gateway.url)
        yield gateway


def answer_by(desk: Desk, url: str, *, key: str | None = None, api: Any = "responses") -> None:
    backend = GatewayBackend(url, key, api=api, settings=desk.context.settings)
    registry.SOURCES["api_server"] = lambda backends, source, profile: backend  # the desk's fixture puts it back
    desk.context.backend_for = lambda source, profile: backend


def same_text_everywhere(desk: Desk, run_id: str) -> str:
    """The answer's text, which page and database must agree on."""
    content = desk.answer(run_id).content
    assert desk.seen_text(run_id) == content
    return content


# ---- F33: the gateway cuts at every event index


@pytest.mark.parametrize("place", range(len(tool_turn()[0]) + 1))
def test_a_cut_that_was_finished_over_there_is_completed(sqlite_desk: Desk, gateway: FakeGateway, place: int) -> None:
    steps, stored = tool_turn()
    gateway.script = {TURNS: [stream(*steps[:place], Cut())], STORED: [json_answer(stored)]}
    run_id = sqlite_desk.run("hello")
    assert len(gateway.turns) == 1
    if place == 0:
        assert (sqlite_desk.state(run_id), sqlite_desk.row(run_id).reason) == ("interrupted", "stream_cut")
        return
    assert sqlite_desk.state(run_id) == "completed"
    assert same_text_everywhere(sqlite_desk, run_id) == WHOLE
    tools = [item["tool_id"] for item in sqlite_desk.transcript(run_id)["items"] if item["type"] == "tool"]
    assert tools == ["call_a", "call_b"]


@pytest.mark.parametrize("place", range(1, len(tool_turn()[0])))
def test_a_cut_that_was_not_finished_is_interrupted(sqlite_desk: Desk, gateway: FakeGateway, place: int) -> None:
    steps, stored = tool_turn()
    gateway.script = {TURNS: [stream(*steps[:place], Cut())], STORED: [json_answer(stored | {"status": "in_progress"})]}
    run_id = sqlite_desk.run("hello")
    assert len(gateway.turns) == 1
    assert (sqlite_desk.state(run_id), sqlite_desk.row(run_id).reason) == ("interrupted", "stream_cut")
    assert WHOLE.startswith(same_text_everywhere(sqlite_desk, run_id))
    assert sqlite_desk.events(run_id)[-1].event == "run.interrupted"


# ---- F34, F35


@pytest.mark.parametrize(
    ("answer", "state", "reason", "said"),
    [
        (json_answer({"error": {"message": "Invalid API key"}}, status=401), "failed", "backend_refused", "KEY"),
        (json_answer({"error": {"message": "boom"}}, status=500), "failed", None, "boom"),
        (raw_answer(b"<html>", "text/html"), "interrupted", "protocol_error", "web page"),
        (raw_answer(b"", "text/event-stream"), "interrupted", "protocol_error", "nothing"),
        (Answer(before=[Cut("rst")]), "interrupted", "backend_lost", "closed the connection"),
        (stream(Frames().created(), b"data: {nonsense\n\n"), "interrupted", "protocol_error", "no valid event"),
    ],
)
def test_what_is_no_answer_ends_the_run_with_a_sentence(
    sqlite_desk: Desk, gateway: FakeGateway, answer: Answer, state: str, reason: str | None, said: str
) -> None:
    gateway.script = {TURNS: [answer]}
    run_id = sqlite_desk.run("hello")
    row = sqlite_desk.row(run_id)
    assert (row.state, row.reason) == (state, reason)
    assert said in (row.error or "")
    assert len(gateway.turns) == 1


def test_busy_is_tried_three_times_and_no_more(sqlite_desk: Desk, gateway: FakeGateway) -> None:
    busy = json_answer({"error": {"message": "Too many runs"}}, status=429, headers={"Retry-After": "1"})
    gateway.script = {TURNS: [busy, stream(*text_turn("At last")), busy]}
    assert sqlite_desk.answer(sqlite_desk.run("hello")).content == "At last"
    assert len(gateway.turns) == 2
    run_id = sqlite_desk.run("hello")
    assert (sqlite_desk.state(run_id), sqlite_desk.row(run_id).reason) == ("failed", "start_failed")
    assert len(gateway.turns) == 5
    assert "Too many runs" in (sqlite_desk.row(run_id).error or "")


def test_a_failed_model_ends_as_failed_with_its_cause(sqlite_desk: Desk, gateway: FakeGateway) -> None:
    frames = Frames()
    steps = [frames.created(), *frames.text("HTTP 401: bad key"), frames.completed(usage=NO_USAGE)]
    gateway.script = {TURNS: [stream(*steps)]}
    run_id = sqlite_desk.run("hello")
    assert sqlite_desk.state(run_id) == "failed"
    assert sqlite_desk.row(run_id).error == "The model failed: HTTP 401: bad key"
    assert sqlite_desk.answer(run_id).status == "FAILED"


def test_the_end_of_another_answer_is_a_protocol_error(sqlite_desk: Desk, gateway: FakeGateway) -> None:
    frames = Frames()
    begun = [frames.created(), *frames.text("mine")]
    other = frames.frame("response.completed", response=frames.body("completed") | {"id": "resp_other"})
    gateway.script = {TURNS: [stream(*begun, other)]}
    run_id = sqlite_desk.run("hello")
    assert (sqlite_desk.state(run_id), sqlite_desk.row(run_id).reason) == ("interrupted", "protocol_error")
    assert same_text_everywhere(sqlite_desk, run_id) == "mine"


# ---- context


def roles(gateway: FakeGateway) -> list[tuple[str, str]]:
    return [(item["role"], item["content"]) for item in gateway.turns[-1].json["input"]]


def test_each_turn_brings_the_whole_history_and_no_error(sqlite_desk: Desk, gateway: FakeGateway) -> None:
    session_id = sqlite_desk.session(on_failure="continue")
    frames = Frames()
    failed = [frames.created(), *frames.text("HTTP 429: slow down"), frames.completed(usage=NO_USAGE)]
    gateway.script = {TURNS: [stream(*text_turn("Hello Ada")), stream(*failed), stream(*text_turn("Ada"))]}
    for text in ("My name is Ada", "What is my name?", "Again?"):
        execute(sqlite_desk.submit(session_id, text), sqlite_desk.context)
    told = roles(gateway)
    assert told[:3] == [("user", "My name is Ada"), ("assistant", "Hello Ada"), ("user", "What is my name?")]
    assert told[-1] == ("user", "Again?")
    assert "429" not in str(told)


@pytest.mark.parametrize("by", ["name", "id", "itself"])
def test_the_chosen_model_is_asked_for(sqlite_desk: Desk, gateway: FakeGateway, by: str) -> None:
    """A name or an id of the catalogue stands for its model; the turn's choice goes before the session's."""
    desk = sqlite_desk
    gateway.script[TURNS] = [stream(*text_turn("Hello"))]
    with desk.db() as db:
        row = catalogue.put_language_model(db, name="Big", model="maker/big-1")
        chosen = {"name": "Big", "id": row.id, "itself": "maker/big-1"}[by]
    session_id = desk.session(model="maker/small-1")
    for given in ({"model": chosen}, {}):
        run_id = desk.submit(session_id, "Hello", **given)
        execute(run_id, desk.context)
        assert desk.state(run_id) == "completed"
    assert [turn.json["model"] for turn in gateway.turns] == ["maker/big-1", "maker/small-1"]


def test_a_chosen_skill_goes_before_the_conversation_and_a_missing_one_is_said(
    sqlite_desk: Desk, gateway: FakeGateway, tmp_path: Path
) -> None:
    desk = sqlite_desk
    desk.context.settings = desk.settings.model_copy(update={"hermes_home": tmp_path})
    gateway.script[TURNS] = [stream(*text_turn("Done"))]
    skill = "---\nname: Tidy\n---\nPut everything in its place."
    (tmp_path / "skills" / "tidy").mkdir(parents=True)
    (tmp_path / "skills" / "tidy" / "SKILL.md").write_text(skill)
    session_id = desk.session(skill_folder="tidy")
    execute(desk.submit(session_id, "Go", instructions="Be brief."), desk.context)
    assert gateway.turns[0].json["instructions"] == f"{skill}\n\nBe brief."
    missing = desk.submit(session_id, "Go", skill_folder="gone")
    execute(missing, desk.context)
    assert (desk.state(missing), desk.row(missing).reason) == ("failed", "backend_refused")
    assert "'gone'" in desk.row(missing).error
    assert len(gateway.turns) == 1


def test_a_long_history_is_summarised_and_marked(sqlite_desk: Desk, gateway: FakeGateway) -> None:
    desk = sqlite_desk
    desk.context.settings = desk.settings.model_copy(update={"context_budget_tokens": 1_000})
    session_id = desk.session()
    summary = {"type": "message", "content": [{"type": "output_text", "text": "They spoke of x."}]}
    summarised = json_answer(Frames().body("completed") | {"output": [summary]})
    long = stream(*text_turn("y" * 1_500))
    gateway.script = {TURNS: [long, long, summarised, stream(*text_turn("Done"))]}
    for text in ("x" * 1_000,) * 2:
        execute(desk.submit(session_id, text), desk.context)
    run_id = desk.submit(session_id, "and now?")
    execute(run_id, desk.context)
    assert desk.state(run_id) == "completed"
    names = desk.names(run_id)
    assert names.index("compression.started") < names.index("compression.completed") < names.index("message.delta")
    assert any(item["type"] == "compression" for item in desk.transcript(run_id)["items"])
    assert "They spoke of x." in roles(gateway)[0][1]


# ---- approvals and stop


def test_an_approval_by_runs_goes_through_the_database(sqlite_desk: Desk, gateway: FakeGateway) -> None:
    desk = sqlite_desk
    answer_by(desk, gateway.url, api="runs")
    approval = f"POST /v1/runs/{RUN_ID}/approval"
    steps = [run_frame("tool.started", tool="terminal", preview="rm -r x")]
    steps += [run_frame("approval.request", command="rm -r x", pattern_key="rm", choices=["once", "deny"])]
    ended = run_frame("tool.completed", tool="terminal", error=False)
    gateway.script = run_script(*steps, WaitFor(approval), ended, run_frame("run.completed", output="Gone."))
    desk.start_threads()
    run_id = desk.submit(desk.session(), "delete it")
    thread = desk.start(run_id)
    pause = desk.wait(lambda: desk.pause(run_id), what="the pause")
    assert pause.request["command"] == "rm -r x"
    with desk.db() as db:
        pauses.answer(db, pause.id, user=users.get(db, desk.user_id), choice="once")
        worker_id = run_store.get(db, run_id).worker_id
    note = Note(run_id=run_id, kind="answer", fence=pause.fence, pause_id=pause.id)
    mailbox.post(desk.context.redis, desk.context.keys, worker_id, note)
    thread.join(60)
    assert desk.state(run_id) == "completed"
    assert [r.json for r in gateway.of(approval)] == [{"choice": "once"}]
    assert same_text_everywhere(desk, run_id).endswith("Gone.")


def abort(desk: Desk, run_id: str) -> None:
    with desk.db() as db:
        run_store.request_abort(db, run_id, by_name="Ada")


@pytest.mark.parametrize("can_stop", [True, False])
def test_an_abort_reaches_the_gateway_where_it_can_be_stopped(
    sqlite_desk: Desk, gateway: FakeGateway, can_stop: bool
) -> None:
    desk = sqlite_desk
    stop = f"POST /v1/responses/{RESPONSE_ID}/stop"
    frames = Frames()
    begun = [frames.created(), *frames.text("so far")]
    ended = frames.frame("response.incomplete", response=frames.body("incomplete"))
    rest = [WaitFor(stop if can_stop else "GET /never"), ended]
    announced = {"portal_extensions": extension.Announcement().model_dump()} if can_stop else {}
    gateway.script = {
        TURNS: [stream(*begun, *rest)],
        stop: [json_answer({}, status=202)],
        "GET /v1/capabilities": [json_answer(announced)],
    }
    desk.start_threads()
    run_id = desk.submit(desk.session(), "count")
    thread = desk.start(run_id)
    desk.wait(lambda: desk.seen_text(run_id) == "so far", what="the text")
    abort(desk, run_id)
    thread.join(60)
    assert desk.state(run_id) == "aborted"
    assert len(gateway.of(stop)) == int(can_stop)
    assert same_text_everywhere(desk, run_id) == "so far"
    note = desk.events(run_id)[-1].data.note
    assert (note is None) == can_stop


# ---- the real hermes-agent


@pytest.fixture
def hermes_desk(sqlite_desk: Desk, hermes_gateway: HermesGateway) -> Desk:
    answer_by(sqlite_desk, hermes_gateway.url, key=hermes_gateway.key)
    return sqlite_desk


def test_two_turns_with_the_real_agent_have_context(hermes_desk: Desk) -> None:
    desk = hermes_desk
    session_id = desk.session()
    first = desk.submit(session_id, "[[say:My name is Ada 世界.]]")
    execute(first, desk.context)
    assert same_text_everywhere(desk, first) == "My name is Ada 世界."
    second = desk.submit(session_id, "[[echo:roles]]")
    execute(second, desk.context)
    assert desk.state(second) == "completed"
    assert same_text_everywhere(desk, second).count("user") == 2
    with desk.look() as db:
        assert db.get_one(ChatSession, session_id).total_input_tokens > 0


def test_tools_of_the_real_agent_are_kept_whole(hermes_desk: Desk) -> None:
    run_id = hermes_desk.run('[[say:Look.]] [[tool:terminal:{"command":"seq 20000"}]] [[then]] [[say:Done.]]')
    assert hermes_desk.state(run_id) == "completed"
    assert same_text_everywhere(hermes_desk, run_id) == "Look.\n\nDone."
    names = hermes_desk.names(run_id)
    assert names.index("tool.started") < names.index("tool.completed")


def test_a_failed_model_behind_the_real_agent_fails_the_run(hermes_desk: Desk) -> None:
    run_id = hermes_desk.run("[[error:401]]")
    assert hermes_desk.state(run_id) == "failed"
    assert "401" in (hermes_desk.row(run_id).error or "")


def test_an_abort_stops_the_real_agent_by_runs(hermes_desk: Desk, hermes_gateway: HermesGateway) -> None:
    desk = hermes_desk
    answer_by(desk, hermes_gateway.url, key=hermes_gateway.key, api="runs")
    desk.start_threads()
    run_id = desk.submit(desk.session(), "[[stream:1000:20]]")
    thread = desk.start(run_id)
    desk.wait(lambda: desk.seen_text(run_id), what="some text")
    threading.Thread(target=abort, args=(desk, run_id), daemon=True).start()
    thread.join(60)
    assert desk.state(run_id) == "aborted"
    assert desk.events(run_id)[-1].data.note is None
    kept = same_text_everywhere(desk, run_id)
    assert kept
    desk.wait(lambda: hermes_gateway.model.requests()[-1]["outcome"] != "", what="the model's end")
