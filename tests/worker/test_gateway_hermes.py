"""The gateway backend against the real hermes-agent 0.19.0, a scripted model behind it."""

from collections.abc import Callable

import pytest

from shared.errors import BackendRefused
from tests.rig.backend_turns import Switch, a_turn, aside, play, some_settings
from tests.rig.hermes import HermesGateway
from worker.backends import base
from worker.backends.gateway.backend import GatewayBackend

pytestmark = pytest.mark.component("hermes")

DANGER = "[[danger:/tmp/portal-test-nothing-here]]"


@pytest.fixture
def responses(hermes_gateway: HermesGateway) -> GatewayBackend:
    return GatewayBackend(hermes_gateway.url, hermes_gateway.key, settings=some_settings())


@pytest.fixture
def runs(hermes_gateway: HermesGateway) -> GatewayBackend:
    settings = some_settings(abort_grace_s=120)  # a busy machine may take its time to stop
    return GatewayBackend(hermes_gateway.url, hermes_gateway.key, api="runs", settings=settings)


def test_it_tells_its_version_and_what_it_can_do(responses: GatewayBackend, runs: GatewayBackend):
    assert responses.version == "0.19.0"
    assert not responses.capabilities.stop
    assert not responses.capabilities.approvals
    assert runs.capabilities.stop
    assert runs.capabilities.approvals


def test_text_comes_exactly(responses: GatewayBackend):
    result = play(responses, a_turn("[[say:Hello 世界 🌍 from the model.]]"))
    assert result.error is None
    assert result.text == "Hello 世界 🌍 from the model."
    (begun,) = result.of(base.TurnBegun)
    assert begun.backend_run_id.startswith("resp_")
    assert begun.backend_session_id
    assert isinstance(result.items[-1], base.Finished)
    assert result.items[-1].usage.input_tokens > 0


def test_a_long_stream_keeps_every_delta(responses: GatewayBackend):
    result = play(responses, a_turn("[[stream:150:4]]"))
    assert result.error is None
    assert [piece.partition(":")[0] for piece in result.text.split()] == [str(i) for i in range(150)]


def test_a_tool_comes_with_arguments_and_result(responses: GatewayBackend):
    result = play(
        responses, a_turn('[[say:Look.]] [[tool:terminal:{"command":"echo real-one"}]] [[then]] [[say:Done.]]')
    )
    assert result.error is None
    assert result.text == "Look.\n\nDone."
    (begun,) = result.of(base.ToolBegun)
    (ended,) = result.of(base.ToolEnded)
    assert (begun.name, begun.arguments) == ("terminal", {"command": "echo real-one"})
    assert ended.tool_id == begun.tool_id
    assert ended.ok is True
    assert "real-one" in ended.result


def test_parallel_tools_and_todos(responses: GatewayBackend):
    text = '[[tool:read_file:{"path":"/nonexistent-a"}]] [[tool:read_file:{"path":"/nonexistent-b"}]] [[todo]]'
    result = play(responses, a_turn(f"{text} [[then]] [[say:All read.]]"))
    assert result.error is None
    begun = [t.tool_id for t in result.of(base.ToolBegun)]
    assert len(set(begun)) == 3
    assert sorted(t.tool_id for t in result.of(base.ToolEnded)) == sorted(begun)
    assert {t.ok for t in result.of(base.ToolEnded) if t.name == "read_file"} == {False}
    assert len(result.of(base.Todos)[-1].todos) == 3


@pytest.mark.parametrize(
    "text",
    [
        "[[error:401]]",
        '[[tool:terminal:{"command":"echo x"}]] [[then]] [[error:401]]',
        '[[say:Look.]] [[tool:terminal:{"command":"echo x"}]] [[then]] [[error:401]]',
    ],
)
def test_a_failed_model_call_is_a_failed_turn(responses: GatewayBackend, runs: GatewayBackend, text: str):
    by_responses = play(responses, a_turn(text))
    assert isinstance(by_responses.error, BackendRefused)
    assert not by_responses.of(base.Finished)
    by_runs = play(runs, a_turn(text))
    assert isinstance(by_runs.error, BackendRefused)
    assert "401" in by_runs.error.message


def test_two_turns_have_context(responses: GatewayBackend, runs: GatewayBackend):
    history = (base.HistoryMessage("user", "My name is Ada."), base.HistoryMessage("assistant", "Hello Ada."))
    for backend in (responses, runs):
        roles = play(backend, a_turn("[[echo:roles]]", history=history)).text
        assert "Ada" in roles or roles.count("user") == 2, roles
        assert "assistant" in roles


def test_instructions_reach_the_system_prompt(responses: GatewayBackend, runs: GatewayBackend):
    for backend in (responses, runs):
        result = play(backend, a_turn("[[echo:system]]", instructions="ALWAYS-SAY-ZEBRA"))
        assert "ALWAYS-SAY-ZEBRA" in result.text


def test_a_command_that_needs_an_approval_is_not_run_by_responses(responses: GatewayBackend):
    result = play(responses, a_turn(DANGER))
    assert result.error is None
    (ended,) = result.of(base.ToolEnded)
    assert ended.ok is False
    assert "approval" in ended.error


def answering(choice: base.Choice) -> Callable[[base.Item], None]:
    def on_item(item: base.Item) -> None:
        if isinstance(item, base.ApprovalAsked):
            aside(item.respond, choice)

    return on_item


@pytest.mark.parametrize(("choice", "ok"), [("once", True), ("deny", False)])
def test_an_approval_by_runs(runs: GatewayBackend, choice: base.Choice, ok: bool):
    result = play(runs, a_turn(DANGER), on_item=answering(choice))
    assert result.error is None
    (asked,) = result.of(base.ApprovalAsked)
    assert asked.command == "rm -rf /tmp/portal-test-nothing-here"
    assert [t.ok for t in result.of(base.ToolEnded)] == [ok]
    assert not result.of(base.PauseWithdrawn)


def test_an_approval_that_nobody_answers_is_withdrawn(hermes_gateway: HermesGateway, runs: GatewayBackend):
    hermes_gateway.limit_approvals(2)
    try:
        result = play(runs, a_turn(DANGER))
    finally:
        hermes_gateway.limit_approvals(60)
    assert result.error is None
    assert result.of(base.PauseWithdrawn) == [base.PauseWithdrawn("approval-1")]
    assert [t.ok for t in result.of(base.ToolEnded)] == [False]


def abort_at(kind: type[base.Item], controls: Switch) -> Callable[[base.Item], None]:
    def on_item(item: base.Item) -> None:
        if isinstance(item, kind):
            controls.abort_aside()

    return on_item


@pytest.mark.parametrize(("text", "at"), [("[[stream:500:20]]", base.Text), (DANGER, base.ApprovalAsked)])
def test_a_stop_by_runs_is_confirmed(runs: GatewayBackend, text: str, at: type[base.Item]):
    controls = Switch()
    result = play(runs, a_turn(text), controls=controls, on_item=abort_at(at, controls))
    assert result.error is None
    assert isinstance(result.items[-1], base.Stopped)


def test_an_abort_by_responses_ends_our_side_only(responses: GatewayBackend):
    controls = Switch()
    result = play(responses, a_turn("[[stream:250:20]]"), controls=controls, on_item=abort_at(base.Text, controls))
    assert result.error is None
    assert not result.of(base.Finished)
    assert not result.of(base.Stopped)


def test_a_wrong_key_is_said(hermes_gateway: HermesGateway):
    result = play(GatewayBackend(hermes_gateway.url, "wrong", settings=some_settings()))
    assert isinstance(result.error, BackendRefused)
    assert "HERMES_GATEWAY_KEY" in result.error.message


def test_execute_and_ping(responses: GatewayBackend):
    assert responses.execute(a_turn("[[say:Short.]]")).text == "Short."
    with pytest.raises(BackendRefused):
        responses.execute(a_turn("[[error:401]]"))
    pong = responses.ping()
    assert not pong.ok  # the scripted model repeats what it is told
    assert pong.got == "ok: Reply with exactly PONG."
