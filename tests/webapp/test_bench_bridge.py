"""`portal bench --backend bridge`: its model, what it says without a Hermes, and each row once, small."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.rig.portal import clean_environ, run_portal, wait_until
from webapp.cli.bench import bridge_rows
from webapp.cli.bench.bridge_stage import BridgeStage


def asked_for(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "bench-1", "messages": [{"role": "user", "content": text}], **more}


@pytest.fixture(scope="module")
def model() -> Iterator[httpx.Client]:
    command = [sys.executable, "-m", "webapp.cli.bench.stub_model"]
    process = subprocess.Popen(command, env=clean_environ(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    base_url = json.loads(process.stdout.readline())["base_url"]
    with httpx.Client(base_url=base_url, trust_env=False, timeout=60) as client:
        yield client
    process.kill()
    process.wait()
    process.stdout.close()


def events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def asked_of(model: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = model.get("/../asked").json()["asked"]
    return found


def test_the_model_says_when_it_said_what_and_at_the_asked_pace(model: httpx.Client) -> None:
    began = time.time_ns()
    with model.stream("POST", "/chat/completions", json=asked_for("stream 20 every 10 ms", stream=True)) as answer:
        got = list(events(answer))
    text = "".join(choice["delta"].get("content", "") for event in got for choice in event["choices"])
    numbers, stamps = zip(*((int(part) for part in piece.split(":")) for piece in text.split()), strict=True)
    assert numbers == tuple(range(20))
    assert began < stamps[0]
    assert all(before < after for before, after in pairwise(stamps))
    assert stamps[-1] - asked_of(model)[-1]["asked_at_ns"] >= 185e6
    assert [choice["finish_reason"] for event in got for choice in event["choices"]][-1] == "stop"
    assert got[-1]["usage"]["total_tokens"] > 0
    last = asked_of(model)[-1]
    assert began <= last["asked_at_ns"] <= stamps[0]
    assert last["left_at_ns"] is None


def test_the_model_notices_when_nobody_listens_any_more(model: httpx.Client) -> None:
    with model.stream("POST", "/chat/completions", json=asked_for("stream 9000 every 10 ms", stream=True)) as answer:
        next(events(answer))
    wait_until(lambda: asked_of(model)[-1]["left_at_ns"], what="the end of the stream")
    whole = model.post("/chat/completions", json=asked_for("a title"))
    assert whole.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("python", [None, "/nowhere/python", sys.executable])
def test_without_a_hermes_one_line_says_what_is_missing_and_how_to_get_it(python: str | None, tmp_path: Path) -> None:
    given = [] if python is None else ["--hermes-python", python]
    ended = run_portal("bench", "--backend", "bridge", *given, environ=clean_environ({"TMPDIR": str(tmp_path)}))
    assert ended.returncode == 1
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("portal: ")
    assert "pip install hermes-agent" in line
    assert "--hermes-python" in line
    assert list(tmp_path.iterdir()) == []


def test_a_row_of_another_backend_is_refused() -> None:
    ended = run_portal("bench", "--only", "bridge-abort", environ=clean_environ())
    assert ended.returncode == 2
    assert "one-stream" in ended.stderr


@pytest.mark.component("hermes")
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_every_row_is_taken_from_the_real_agent(
    hermes_python: Path, database: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = request.getfixturevalue("empty_postgres_url") if database == "postgresql" else None
    monkeypatch.setattr(bridge_rows, "SPARE_S", 0.5)
    for name in ("HERMES_HOME", "HERMES_AGENT_BRIDGE_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    with BridgeStage(str(hermes_python), url) as stage:
        submit = bridge_rows.submit(stage, turns=3, sessions=2)
        abort = bridge_rows.abort(stage, turns=2)
        streams = bridge_rows.few_streams(stage, streams=2, deltas=20)
        for _ in range(3):  # where the machine stood still just while the floor was taken
            if streams.floor["p50_ms"] > streams.figures["p50_ms"]:
                streams = bridge_rows.few_streams(stage, streams=2, deltas=20)
        folder = stage.folder
    for row in (submit, abort, streams):
        assert row.reach.keys() <= row.figures.keys()
        assert all(value >= 0 for value in row.figures.values())
    assert 0 < submit.floor["warm_p50_ms"] < 60_000
    assert 0 < abort.figures["p50_ms"] <= abort.figures["ended_p50_ms"]
    assert streams.figures["of_it_bridge_s"] > 0, "the agent's process is found, and counted"
    assert 0 < streams.floor["p50_ms"] <= streams.figures["p50_ms"]
    assert 0 <= streams.figures["streams_behind"] <= 2
    assert not folder.exists()
