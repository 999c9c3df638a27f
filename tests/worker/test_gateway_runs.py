"""A turn through `/v1/runs`: approvals, stop, lost streams (hermes/SURFACES.md 1.3)."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from shared.errors import BackendError, BackendLost, BackendProtocolError, BackendRefused, BackendUnavailable, StreamCut
from tests.peers.gateway import (
    KEEPALIVE,
    NO_USAGE,
    RUN_ID,
    USAGE,
    Answer,
    Cut,
    Delay,
    FakeGateway,
    Step,
    WaitFor,
    json_answer,
    raw_answer,
    run_frame,
    run_script,
    stream,
)
from tests.rig.backend_turns import Played, Switch, a_turn, aside, play, some_settings
from worker.backends import base
from worker.backends.gateway.backend import GatewayBackend

APPROVAL = f"POST /v1/runs/{RUN_ID}/approval"
STOP = f"POST /v1/runs/{RUN_ID}/stop"
STATUS = f"GET /v1/runs/{RUN_ID}"
ASKED = run_frame(
    "approval.request", command="rm -r x", description="deletes", pattern_key="rm", choices=["once", "deny"]
)
COMPLETED = run_frame("run.completed", output="All done.", usage=USAGE)
CLOSED = b": stream closed\n\n"


def a_backend(gateway: FakeGateway, **limits: float) -> GatewayBackend:
    return GatewayBackend(gateway.url, "a-key", api="runs", settings=some_settings(**limits))


def played(
    *steps: Step,
    status: dict[str, object] | None = None,
    on_item: Callable[[base.Item], None] = lambda item: None,
    **limits: float,
) -> Played:
    """A turn that is started exactly once, whatever happens to it."""
    with FakeGateway(run_script(*steps, status=status)) as gateway:
        result = play(a_backend(gateway, **limits), on_item=on_item)
        assert len(gateway.turns) == 1
    return result


def text(*pieces: str) -> list[bytes]:
    return [run_frame("message.delta", delta=piece) for piece in pieces]


def tool(name: str, **ended: object) -> list[bytes]:
    return [
        run_frame("tool.started", tool=name, preview=f"run {name}"),
        run_frame("tool.completed", tool=name, **ended),
    ]


def test_the_run_is_started_once_with_its_history():
    history = (base.HistoryMessage("user", "one"), base.HistoryMessage("assistant", "two"))
    with FakeGateway(run_script(*text("Hi"), COMPLETED, CLOSED)) as gateway:
        play(a_backend(gateway), a_turn("three", history=history, instructions="Be brief."))
        assert gateway.turns[0].json == {
            "input": "three",
            "conversation_history": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}],
            "session_id": "session-1",
            "instructions": "Be brief.",
        }


def test_text_and_tools_arrive_in_order():
    steps = [
        *text("Let me ", "look."),
        run_frame("reasoning.available", text="Let me look."),
        *tool("terminal", duration=0.25, error=False),
        *text("\n\nAll ", "done."),
        COMPLETED,
        CLOSED,
    ]
    result = played(*steps)
    assert result.error is None
    assert result.content[:-1] == [
        base.TurnBegun(RUN_ID),
        base.Text("Let me "),
        base.Text("look."),
        base.ToolBegun("tool-1", "terminal", None, summary="run terminal"),
        base.ToolEnded("tool-1", "terminal", ok=True, duration_ms=250),
        base.Text("\n\nAll "),
        base.Text("done."),
    ]
    assert result.of(base.Finished)[0].usage.input_tokens == 120


def test_tools_of_one_name_end_in_the_order_in_which_they_began():
    names = ["read", "read", "grep"]
    begun = [run_frame("tool.started", tool=name) for name in names]
    ended = [run_frame("tool.completed", tool=name, error=name == "grep") for name in ("grep", "read", "read")]
    result = played(*begun, *ended, *text("x"), COMPLETED)
    assert [(t.tool_id, t.ok) for t in result.of(base.ToolEnded)] == [
        ("tool-3", False),
        ("tool-1", True),
        ("tool-2", True),
    ]


def test_an_approval_is_answered_once():
    steps = [run_frame("tool.started", tool="terminal"), ASKED, WaitFor(APPROVAL)]
    steps += [run_frame("approval.responded", choice="once", resolved=1), run_frame("tool.completed", tool="terminal")]
    with FakeGateway(run_script(*steps, *text("x"), COMPLETED)) as gateway:
        result = play(a_backend(gateway), on_item=answering("once"))
        assert [r.json for r in gateway.of(APPROVAL)] == [{"choice": "once"}]
    assert result.error is None
    (asked,) = result.of(base.ApprovalAsked)
    assert (asked.kind, asked.command, asked.choices) == ("rm", "rm -r x", ("once", "deny"))
    assert not result.of(base.PauseWithdrawn)


def answering(choice: base.Choice) -> Callable[[base.Item], None]:
    def on_item(item: base.Item) -> None:
        if isinstance(item, base.ApprovalAsked):
            aside(item.respond, choice)

    return on_item


@pytest.mark.parametrize(
    "goes_on",
    [
        run_frame("tool.completed", tool="terminal", error=True),
        run_frame("approval.responded", choice="deny", resolved=1),
        COMPLETED,
        run_frame("run.failed", error="x"),
    ],
)
def test_an_approval_that_ended_there_is_withdrawn(goes_on: bytes):
    result = played(run_frame("tool.started", tool="terminal"), ASKED, goes_on, COMPLETED)
    assert result.of(base.PauseWithdrawn) == [base.PauseWithdrawn("approval-1")]


def test_an_approval_waits_while_another_tool_ends():
    begun = [run_frame("tool.started", tool="read"), run_frame("tool.started", tool="terminal"), ASKED]
    with FakeGateway(
        run_script(*begun, run_frame("tool.completed", tool="read"), WaitFor(APPROVAL), COMPLETED)
    ) as gateway:
        seen: list[base.Item] = []

        def on_item(item: base.Item) -> None:
            seen.append(item)
            if isinstance(item, base.ToolEnded):  # only now, so that a withdrawal would have come before
                next(i for i in seen if isinstance(i, base.ApprovalAsked)).respond("deny")

        result = play(a_backend(gateway), on_item=on_item)
    assert result.error is None
    assert not result.of(base.PauseWithdrawn)


def test_a_late_answer_is_said():
    caught: list[BackendError] = []

    def on_item(item: base.Item) -> None:
        if isinstance(item, base.ApprovalAsked):
            with pytest.raises(BackendError) as error:
                item.respond("once")
            caught.append(error.value)

    over = json_answer({"error": {"message": "no", "code": "approval_not_pending"}}, status=409)
    with FakeGateway(run_script(ASKED, COMPLETED) | {APPROVAL: [over]}) as gateway:
        play(a_backend(gateway), on_item=on_item)
    assert caught[0].code == "no_longer_open"


def test_a_stop_is_confirmed():
    controls = Switch()
    steps = [*text("so far"), WaitFor(STOP), run_frame("run.cancelled"), CLOSED]
    with FakeGateway(run_script(*steps)) as gateway:
        result = play(a_backend(gateway), controls=controls, on_item=lambda item: abort(controls))
        assert len(gateway.of(STOP)) == 1
    assert result.error is None
    assert isinstance(result.items[-1], base.Stopped)


def abort(controls: Switch) -> None:
    controls.abort_aside()


def test_a_stop_that_has_no_effect_ends_our_side_after_the_grace():
    controls = Switch()
    begun = time.monotonic()
    with FakeGateway(run_script(*text("so far"), Delay(600))) as gateway:
        result = play(a_backend(gateway, abort_grace_s=0.5), controls=controls, on_item=lambda item: abort(controls))
    assert 0.5 <= time.monotonic() - begun < 60
    assert result.error is None
    assert not result.of(base.Stopped)


def test_a_run_that_somebody_else_cancelled_has_failed():
    result = played(*text("so far"), run_frame("run.cancelled"))
    assert result.error is not None
    assert result.error.code == "cancelled_there"


def test_a_failed_run_says_why():
    result = played(run_frame("run.failed", error="HTTP 401: bad key"))
    assert isinstance(result.error, BackendRefused)
    assert result.error.message == "The model failed: HTTP 401: bad key"


@pytest.mark.parametrize("how", [Cut("fin"), Cut("rst"), b'data: {"event": "message.del', b""])
def test_a_lost_stream_is_polled_until_the_run_is_over(how: Step):
    script = run_script(*text("Let me look."), *tool("terminal"), *text("\n\nAll "), how)
    script[STATUS] = [
        json_answer({"run_id": RUN_ID, "status": "running"}),
        json_answer({"run_id": RUN_ID, "status": "completed", "output": "All done.", "usage": USAGE}),
    ]
    with FakeGateway(script) as gateway:
        result = play(a_backend(gateway))
        assert len(gateway.turns) == 1
        assert len(gateway.of(f"GET /v1/runs/{RUN_ID}/events")) == 1  # it can be had once only
    assert result.error is None
    expected = "Let me look.\n\nAll done."
    assert result.text == expected or how == Cut("rst")  # what was on its way may be lost with the connection
    assert result.text.endswith("All done.")
    assert result.of(base.Finished)[0].usage.output_tokens == 12


def test_a_run_that_failed_after_its_stream_was_lost_has_failed():
    result = played(*text("so far"), Cut(), status={"status": "failed", "error": "out of memory"})
    assert isinstance(result.error, BackendRefused)
    assert "out of memory" in result.error.message


def test_a_run_that_is_not_known_after_its_stream_was_lost_is_interrupted():
    result = played(*text("so far"), Cut())
    assert isinstance(result.error, StreamCut)
    assert result.text == "so far"


def test_a_stop_while_polling_is_confirmed():
    controls = Switch()
    script = run_script(*text("so far"), Cut())
    cancelled = json_answer({"run_id": RUN_ID, "status": "cancelled"})
    script[STATUS] = [json_answer({"run_id": RUN_ID, "status": "running"}), replace(cancelled, before=[WaitFor(STOP)])]
    with FakeGateway(script) as gateway:
        controls.abort_aside(lambda: gateway.wait_for(STATUS))
        result = play(a_backend(gateway), controls=controls)
        assert len(gateway.of(STOP)) == 1
    assert isinstance(result.items[-1], base.Stopped)


@pytest.mark.parametrize(
    "frame", [run_frame("message.delta", run_id="run_other", delta="x"), run_frame("run.completed", run_id="x")]
)
def test_an_event_of_another_run_is_a_protocol_error(frame: bytes):
    result = played(*text("mine"), frame, COMPLETED)
    assert isinstance(result.error, BackendProtocolError)
    assert result.text == "mine"


def test_the_status_of_another_run_is_a_protocol_error():
    script = run_script(*text("mine"), Cut())
    script[STATUS] = [json_answer({"run_id": "run_other", "status": "completed", "output": "x"})]
    with FakeGateway(script) as gateway:
        result = play(a_backend(gateway))
    assert isinstance(result.error, BackendProtocolError)


def test_nonsense_is_a_protocol_error():
    result = played(*text("so far"), b"data: {nonsense\n\n", COMPLETED)
    assert isinstance(result.error, BackendProtocolError)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (json_answer({"error": {"message": "busy"}}, status=429, headers={"Retry-After": "1"}), BackendUnavailable),
        (json_answer({"error": {"message": "no"}}, status=404), BackendRefused),
        (raw_answer(b"<html>", "text/html"), BackendProtocolError),
        (json_answer({"status": "started"}), BackendProtocolError),
        (raw_answer(b"", "application/json"), BackendProtocolError),
        (Answer(before=[Cut("rst")]), BackendLost),
        (Answer(headers={"Content-Type": "application/json"}, steps=[b'{"run', Cut("rst")]), StreamCut),
    ],
)
def test_a_start_that_fails_becomes_a_sentence(answer: Answer, kind: type[BackendError]):
    with FakeGateway({"POST /v1/runs": [answer]}) as gateway:
        result = play(a_backend(gateway))
        assert len(gateway.turns) == 1
    assert isinstance(result.error, kind)
    assert isinstance(result.error, BackendUnavailable) == (kind is BackendUnavailable)
    assert not result.of(base.TurnBegun)


def test_a_stream_that_cannot_be_had_never_means_not_accepted():
    """The run was started: whatever the events endpoint says, the turn must not be sent again."""
    script = run_script(status={"status": "completed", "output": "All done.", "usage": NO_USAGE})
    script[f"GET /v1/runs/{RUN_ID}/events"] = [json_answer({"error": "x"}, status=503)]
    with FakeGateway(script) as gateway:
        result = play(a_backend(gateway))
        assert len(gateway.turns) == 1
    assert result.error is None
    assert result.text == "All done."


@pytest.mark.parametrize("asked", [True, False])
def test_keepalives_while_waiting_for_a_person_are_not_counted(patience_clock: None, asked: bool):
    steps = [run_frame("tool.started", tool="t"), *[ASKED] * asked, *[KEEPALIVE] * 20, COMPLETED]
    result = played(*steps, run_keepalive_timeout_s=60)
    assert (result.error is None) == asked


def test_an_abort_while_the_run_is_started_ends_our_side():
    controls = Switch()
    begun = time.monotonic()
    with FakeGateway({"POST /v1/runs": [stream(b"", before=[Delay(600)])]}) as gateway:
        controls.abort_aside(lambda: gateway.wait_for("POST /v1/runs"))
        result = play(a_backend(gateway, abort_grace_s=0.5), controls=controls)
    assert time.monotonic() - begun < 60
    assert result.error is None
