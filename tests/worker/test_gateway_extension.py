"""What a gateway may add to `/v1/responses`: reasoning, status, to-dos, approvals, questions, stop (DESIGN 8)."""

import time
from collections.abc import Callable

import pytest

from shared.errors import BackendError
from shared.protocol.events import Todo, Usage
from tests.peers.gateway import RESPONSE_ID, Answer, Delay, FakeGateway, Frames, Step, WaitFor, json_answer, stream
from tests.rig.backend_turns import Played, Switch, aside, play
from tests.rig.gateway_turns import TURNS, a_backend
from worker.backends import base
from worker.backends.gateway import extension
from worker.backends.gateway.client import Wire
from worker.backends.gateway.stopper import Stopper

APPROVAL = f"POST /v1/responses/{RESPONSE_ID}/approval"
CLARIFY = f"POST /v1/responses/{RESPONSE_ID}/clarify"
STOP = f"POST /v1/responses/{RESPONSE_ID}/stop"
ANNOUNCED = json_answer({"portal_extensions": extension.Announcement(approval_limit_s=30).model_dump()})


def script(*steps: Step, **answers: Answer) -> dict[str, list[Answer]]:
    ok = json_answer({})
    return {
        TURNS: [stream(*steps)],
        "GET /v1/capabilities": [ANNOUNCED],
        APPROVAL: [answers.get("approval", ok)],
        CLARIFY: [answers.get("clarify", ok)],
        STOP: [answers.get("stop", json_answer({}, status=202))],
    }


def played(*steps: Step, on_item: Callable[[base.Item], None] = lambda item: None) -> Played:
    with FakeGateway(script(*steps)) as gateway:
        return play(a_backend(gateway), on_item=on_item)


def approval(frames: Frames) -> bytes:
    return frames.frame(
        extension.APPROVAL_REQUEST,
        approval_id="a1",
        kind="shell",
        command="rm -r x",
        description="deletes",
        choices=["once", "deny"],
    )


def test_what_it_announces_is_what_it_can_do():
    with FakeGateway(script()) as gateway:
        can = a_backend(gateway).capabilities
    assert can.approvals
    assert can.approval_limit_s == 30
    assert can.clarify
    assert can.stop


def test_the_five_regions_are_carried():
    frames = Frames()
    steps = [
        frames.created(),
        frames.frame(extension.STATUS, text="Thinking"),
        frames.frame(extension.REASONING_DELTA, delta="First "),
        frames.frame(extension.REASONING_DELTA, delta="this."),
        frames.call("c1", "terminal", '{"command": "ls"}'),
        frames.frame(extension.TOOL_PROGRESS, call_id="c1", text="line 1"),
        *frames.result("c1", "done"),
        frames.frame(extension.TODOS, todos=[{"id": "1", "text": "one", "status": "completed"}]),
        frames.frame(extension.USAGE, usage={"input_tokens": 5, "context_used": 5, "context_window": 100}),
        *frames.text("Answer"),
        frames.completed(),
    ]
    result = played(*steps)
    assert result.error is None
    assert result.content[1:-1] == [
        base.Status("Thinking"),
        base.Reasoning("First "),
        base.Reasoning("this."),
        base.ToolBegun("c1", "terminal", {"command": "ls"}),
        base.ToolNews("c1", "line 1"),
        base.ToolEnded("c1", "terminal", ok=True, result="done"),
        base.Todos((Todo(id="1", text="one", status="completed"),)),
        base.UsageNews(Usage(input_tokens=5, context_used=5, context_window=100)),
        base.Text("Answer"),
    ]


def test_an_approval_goes_back_once_and_is_not_withdrawn():
    frames = Frames()
    steps = [
        frames.created(),
        approval(frames),
        WaitFor(APPROVAL),
        frames.frame(extension.APPROVAL_RESOLVED, approval_id="a1", choice="once"),
        *frames.text("x"),
        frames.completed(),
    ]
    with FakeGateway(script(*steps)) as gateway:
        result = play(a_backend(gateway), on_item=answering(base.ApprovalAsked, "once"))
        assert [r.json for r in gateway.of(APPROVAL)] == [{"approval_id": "a1", "choice": "once"}]
    assert result.error is None
    (asked,) = result.of(base.ApprovalAsked)
    assert (asked.key, asked.kind, asked.command, asked.choices) == ("a1", "shell", "rm -r x", ("once", "deny"))
    assert not result.of(base.PauseWithdrawn)


def answering(kind: type[base.Item], answer: str | None) -> Callable[[base.Item], None]:
    """Answers from another thread, as the portal does."""

    def on_item(item: base.Item) -> None:
        if isinstance(item, kind):
            aside(item.respond, answer)  # type: ignore[attr-defined]

    return on_item


@pytest.mark.parametrize("answer", ["blue 🌍", None])
def test_an_answer_goes_back_once(answer: str | None):
    frames = Frames()
    asked = frames.created(), frames.frame(extension.CLARIFY_REQUEST, clarify_id="q1", question="Which?", choices=["a"])
    resolved = frames.frame(extension.CLARIFY_RESOLVED, clarify_id="q1", answer=answer)
    with FakeGateway(script(*asked, WaitFor(CLARIFY), resolved, *frames.text("x"), frames.completed())) as gateway:
        result = play(a_backend(gateway), on_item=answering(base.ClarifyAsked, answer))
        assert [r.json for r in gateway.of(CLARIFY)] == [{"clarify_id": "q1", "answer": answer}]
    assert result.error is None
    assert result.of(base.ClarifyAsked)[0].choices == ("a",)
    assert not result.of(base.PauseWithdrawn)


def test_a_pause_that_the_gateway_ended_itself_is_withdrawn():
    frames = Frames()
    begun = [frames.created(), approval(frames)]
    timed_out = frames.frame(extension.APPROVAL_RESOLVED, approval_id="a1")
    result = played(*begun, timed_out, *frames.text("x"), frames.completed())
    assert result.of(base.PauseWithdrawn) == [base.PauseWithdrawn("a1")]
    frames = Frames()
    result = played(frames.created(), approval(frames), *frames.text("went on"), frames.completed())
    assert result.of(base.PauseWithdrawn) == [base.PauseWithdrawn("a1")]


@pytest.mark.parametrize("status", [404, 409])
def test_an_answer_that_comes_too_late_is_said(status: int):
    frames = Frames()
    late = json_answer({"error": {"message": "over"}}, status=status)
    said: list[BackendError] = []

    def on_item(item: base.Item) -> None:
        if isinstance(item, base.ApprovalAsked):
            with pytest.raises(BackendError) as caught:
                item.respond("once")
            said.append(caught.value)

    with FakeGateway(script(frames.created(), approval(frames), frames.completed(), approval=late)) as gateway:
        play(a_backend(gateway), on_item=on_item)
    assert said[0].code == "no_longer_open"


def test_a_stop_is_confirmed():
    frames = Frames()
    steps = [frames.created(), *frames.text("so far"), WaitFor(STOP)]
    steps += [frames.frame("response.incomplete", response=frames.body("incomplete"))]
    controls = Switch()
    with FakeGateway(script(*steps)) as gateway:
        result = play(a_backend(gateway), controls=controls, on_item=abort_at(base.Text, controls))
        assert len(gateway.of(STOP)) == 1
    assert result.error is None
    assert isinstance(result.items[-1], base.Stopped)


def abort_at(kind: type[base.Item], controls: Switch) -> Callable[[base.Item], None]:
    def on_item(item: base.Item) -> None:
        if isinstance(item, kind):
            controls.abort_aside()

    return on_item


def test_an_answer_that_was_finished_before_the_stop_is_kept():
    frames = Frames()
    controls = Switch()
    steps = [frames.created(), *frames.text("all"), WaitFor(STOP), frames.completed()]
    with FakeGateway(script(*steps, stop=json_answer({}, status=404))) as gateway:
        result = play(a_backend(gateway), controls=controls, on_item=abort_at(base.Text, controls))
    assert result.error is None
    assert isinstance(result.items[-1], base.Finished)


def test_a_gateway_that_takes_the_stop_and_goes_on_is_cut_after_the_grace():
    frames = Frames()
    controls = Switch()
    begun = time.monotonic()
    with FakeGateway(script(frames.created(), *frames.text("so far"), Delay(600))) as gateway:
        backend = a_backend(gateway, abort_grace_s=0.5)
        result = play(backend, controls=controls, on_item=abort_at(base.Text, controls))
        assert len(gateway.of(STOP)) == 1
    assert 0.5 <= time.monotonic() - begun < 60
    assert result.error is None
    assert not result.of(base.Stopped)


@pytest.mark.parametrize("was_cut", [True, False])
def test_a_stream_that_was_cut_before_its_stop_was_sent_is_stopped_there_all_the_same(was_cut: bool):
    """A process that stands still for longer than the grace; what ended by itself needs no stop."""
    told: list[str] = []
    wire = Wire()
    stopper = Stopper(wire, told.append, grace_s=60)
    stopper.known(RESPONSE_ID)
    if was_cut:
        wire.cut()
    stopper.over()
    stopper.begin()
    assert told == ([RESPONSE_ID] if was_cut else [])


def test_incomplete_without_a_stop_has_failed():
    frames = Frames()
    begun = [frames.created(), *frames.text("so far")]
    result = played(*begun, frames.frame("response.incomplete", response=frames.body("incomplete")))
    assert result.error is not None
    assert result.error.code == "incomplete_answer"
