"""Log lines: one JSON object each, ids on every line, no control characters, no secrets, no contents (S41, S43)."""

import io
import json
import logging
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr, ValidationError
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from shared import logs
from shared.settings import load


class Output(io.StringIO):
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.getvalue().splitlines()]

    def last(self) -> dict[str, Any]:
        return self.lines()[-1]


@pytest.fixture
def output() -> Iterator[Output]:
    """What a worker with a gateway key and a Redis password logs. Undone afterwards."""
    root, hook = logging.getLogger(), threading.excepthook
    handlers, level = root.handlers[:], root.level
    stream = Output()
    environ = {
        "HERMES_GATEWAY_KEY": "canary-gateway-key",
        "PORTAL_SECRET_KEY": "canary secret with spaces",
        "REDIS_URL": "redis://:canary-pw@h/0",
    }
    logs.configure(load(environ), "worker", stream=stream)
    strangers = set(threading.enumerate()) - {threading.current_thread()}  # of earlier tests: they may say something
    for handler in root.handlers:
        handler.addFilter(lambda _: threading.current_thread() not in strangers)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    threading.excepthook = hook
    logging.captureWarnings(capture=False)


def test_a_line_is_one_json_object_with_time_level_process_and_facts(output: Output) -> None:
    logs.get("worker.runs").info("run.completed", run_id="r1", duration_ms=12, ok=True, ratio=0.5, none=None)
    line = output.last()
    assert line.pop("at").endswith("Z")
    assert line == {
        "level": "info",
        "process": "worker",
        "logger": "worker.runs",
        "event": "run.completed",
        "run_id": "r1",
        "duration_ms": 12,
        "ok": True,
        "ratio": 0.5,
        "none": None,
    }


def test_records_of_the_standard_library_go_the_same_way(output: Output) -> None:
    logging.getLogger("celery").warning("lost %s", "broker", extra={"worker_id": "w"})
    assert output.last()["event"] == "lost broker"
    assert output.last()["worker_id"] == "w"
    logs.get("x").info("house.style", extra={"run_id": "r2"})
    assert output.last()["run_id"] == "r2"
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert "old" in output.last()["event"]


def test_bound_ids_stand_on_every_line_of_the_thread_until_the_end(output: Output) -> None:
    log = logs.get("x")
    with logs.bind(run_id="r1", session_id="s1"):
        log.info("inside")
        logging.getLogger("y").warning("also")
        other = threading.Thread(target=lambda: log.info("elsewhere"))
        other.start()
        other.join()
    log.info("outside")
    inside, also, elsewhere, outside = output.lines()
    assert (inside["run_id"], inside["session_id"]) == (also["run_id"], also["session_id"]) == ("r1", "s1")
    assert "run_id" not in elsewhere
    assert "run_id" not in outside
    logs.bind(run_id="r2")
    log.info("bound without a block")
    logs.unbind("run_id")
    assert output.last()["run_id"] == "r2"


NASTY = 'a\r\nb\x1b[31mred\x1b]0;t\x07\x9b\x7f\u2028\u202e\x00 {"level": "error"}'


def test_control_characters_come_out_escaped_and_exact(output: Output) -> None:
    logs.get("x").info("named", name=NASTY, nested={NASTY: [NASTY]})
    logging.getLogger("std").warning("said %s", NASTY)
    raw = output.getvalue()
    assert raw.count("\n") == 2
    assert all(32 <= ord(letter) < 127 for letter in raw.replace("\n", ""))
    named, said = output.lines()
    assert named["name"] == NASTY
    assert named["nested"] == {NASTY: [NASTY]}
    assert said["event"] == f"said {NASTY}"


def test_secrets_are_hidden_in_messages_fields_and_traces(output: Output) -> None:
    known = "sk-" + "Ab3dEf6hIj9kLm2nOp5q"
    log = logs.get("x")
    log.info(f"with {known}", url="redis://:canary-pw@h/0", header="Bearer canary-gateway-key", a=[{"b": known}])
    log.info(
        "secret", key=SecretStr("canary-gateway-key"), also="canary secret with spaces", set={known}, pw="canary-pw"
    )
    try:
        raise RuntimeError(f"refused: {known} canary-gateway-key")
    except RuntimeError:
        log.exception("failed")
    logging.getLogger("std").error("%s", known)
    assert known not in output.getvalue()
    assert "canary" not in output.getvalue()


@pytest.mark.parametrize(
    "field", ["prompt", "answer", "text", "content", "arguments", "result", "token", "headers", "Body"]
)
def test_fields_that_could_hold_what_people_wrote_are_not_logged(output: Output, field: str) -> None:
    logs.get("x").info("careless", **{field: "canary"}, nested={field: "canary"})
    logging.getLogger("std").warning("careless", extra={field: "canary"})
    assert "canary" not in output.getvalue()
    assert output.lines()[0][field] == "[not logged]"


def test_a_trace_has_the_frames_and_the_causes_and_no_values(output: Output) -> None:
    class Body(BaseModel):
        age: int

    log = logs.get("x")
    try:
        try:
            Body.model_validate({"age": "canary"})
        except ValidationError as error:
            raise ValueError("wrong body") from error
    except ValueError:
        log.exception("failed")
    line = output.last()
    assert line["error"] == "ValueError: wrong body"
    assert "age: int_parsing" in line["trace"]
    assert "test_logs.py" in line["trace"]
    try:
        with create_engine("sqlite://").connect() as connection:
            connection.execute(text("SELECT :a FROM nowhere"), {"a": "canary"})
    except OperationalError:
        log.exception("failed")
    assert "no such table" in output.last()["error"]
    assert "canary" not in output.getvalue()


def test_long_and_deep_values_are_cut(output: Output) -> None:
    deep: Any = "end"
    for _ in range(50):
        deep = [deep]
    logs.get("x").info("big", line="x" * 1_000_000, many=list(range(1_000_000)), deep=deep)
    assert len(output.getvalue()) < 5_000
    assert "1000000 characters" in output.last()["line"]


def test_anything_can_be_logged(output: Output) -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd\n"

    cycle: list[Any] = []
    cycle.append(cycle)
    logs.get("x").info(
        "odd", odd=Odd(), cycle=cycle, lone="\ud800", data=b"\xff\n", error=ValueError("v"), nan=float("nan")
    )
    assert output.last()["odd"] == "odd\n"
    assert output.last()["error"] == "ValueError: v"
    assert output.last()["nan"] == "nan"


def test_a_thread_that_dies_says_so(output: Output) -> None:
    thread = threading.Thread(target=lambda: 1 / 0, name="listener")
    thread.start()
    thread.join()
    line = output.last()
    assert (line["event"], line["thread_name"], line["level"]) == ("thread.died", "listener", "error")
    assert "ZeroDivisionError" in line["error"]


def test_the_level_is_that_of_the_settings_and_noisy_libraries_are_quiet(output: Output) -> None:
    logs.get("x").debug("hidden")
    logging.getLogger("httpx").info("HTTP Request: POST http://h/?key=canary")
    assert output.getvalue() == ""
    logs.configure(load({"PORTAL_LOG_LEVEL": "debug"}), "web", stream=output)
    logs.get("x").debug("shown")
    assert output.last()["event"] == "shown"
    assert len(output.lines()) == 1  # configured again, not twice
