"""The demo gateway as a process, asked over HTTP: it speaks what the real gateway speaks, and our extension."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

KEY = "a-key-of-the-demo-gateway"


@pytest.fixture(scope="module")
def demo() -> Iterator[httpx.Client]:
    process = subprocess.Popen(
        [sys.executable, "-m", "worker.backends.demo", "--port", "0"],
        env={**os.environ, "PORTAL_DEMO_KEY": KEY},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    url = json.loads(process.stdout.readline())["url"]
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {KEY}"}, trust_env=False, timeout=60) as client:
        yield client
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def frames(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def ask(demo: httpx.Client, text: str, **more: Any) -> list[dict[str, Any]]:
    with demo.stream("POST", "/v1/responses", json={"stream": True, "input": text, **more}) as response:
        return list(frames(response))


def said(heard: list[dict[str, Any]]) -> str:
    return "".join(f["delta"] for f in heard if f["type"] == "response.output_text.delta")


def test_without_the_key_only_health_answers(demo: httpx.Client) -> None:
    assert demo.get("/health", headers={"Authorization": ""}).json()["status"] == "ok"
    refused = demo.get("/v1/models", headers={"Authorization": "Bearer wrong"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")


def test_a_key_that_is_too_short_is_refused_at_start() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "worker.backends.demo"],
        env={**os.environ, "PORTAL_DEMO_KEY": "short"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert "16 characters" in ended.stderr


def test_numbers_rise_from_zero_and_the_last_frame_holds_what_was_said(demo: httpx.Client) -> None:
    heard = ask(demo, "Please help")
    assert [f["sequence_number"] for f in heard] == list(range(len(heard)))
    assert (heard[0]["type"], heard[-1]["type"]) == ("response.created", "response.completed")
    final = heard[-1]["response"]
    assert final["output"][-1]["content"][0]["text"] == said(heard)
    assert final["usage"]["total_tokens"] > 0
    assert demo.get(f"/v1/responses/{final['id']}").json()["status"] == "completed"


def test_the_history_is_heard(demo: httpx.Client) -> None:
    history = [{"role": "user", "content": "my name is Ada"}, {"role": "assistant", "content": "Hello"}]
    assert "my name is Ada" in said(ask(demo, "and now?", conversation_history=history))
    listed = [*history, {"role": "user", "content": "and now?"}]
    assert "my name is Ada" in said(ask(demo, listed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ("think first", {"portal.reasoning.delta", "portal.status"}),
        ("use some tools at the same time", {"response.output_item.added", "portal.tool.progress"}),
        ("make a to-do list", {"portal.todos"}),
    ],
)
def test_each_thing_the_page_can_show_is_played(demo: httpx.Client, asked: str, names: set[str]) -> None:
    heard = ask(demo, asked)
    assert names <= {f["type"] for f in heard}
    assert heard[-1]["type"] == "response.completed"


def test_tools_at_once_end_in_another_order_than_they_began(demo: httpx.Client) -> None:
    heard = ask(demo, "use tools at once")
    begun = [
        f["item"]["call_id"] for f in heard if f["type"].endswith("added") and f["item"]["type"] == "function_call"
    ]
    ended = [f["item"]["call_id"] for f in heard if f["type"].endswith("done") and "output" in f.get("item", {})]
    assert sorted(begun) == sorted(ended)
    assert begun != ended


@pytest.mark.parametrize(("choice", "outcome"), [("once", "allowed once"), ("deny", "was not run")])
def test_an_approval_waits_for_the_choice(demo: httpx.Client, choice: str, outcome: str) -> None:
    body = {"stream": True, "input": "something that needs approval"}
    heard = []
    with demo.stream("POST", "/v1/responses", json=body) as response:
        for frame in frames(response):
            heard.append(frame)
            if frame["type"] == "portal.approval.request":
                path = f"/v1/responses/{heard[0]['response']['id']}/approval"
                bad = demo.post(path, json={"approval_id": frame["approval_id"], "choice": "perhaps"})
                assert bad.json()["error"]["code"] == "invalid_approval_choice"
                assert demo.post(path, json={"approval_id": "another", "choice": choice}).status_code == 409
                answer = {"approval_id": frame["approval_id"], "choice": choice}
                assert demo.post(path, json=answer).status_code == 200
                assert demo.post(path, json=answer).status_code == 409
    assert outcome in said(heard)


def test_a_question_takes_any_words(demo: httpx.Client) -> None:
    heard = []
    with demo.stream("POST", "/v1/responses", json={"stream": True, "input": "ask me a question"}) as response:
        for frame in frames(response):
            heard.append(frame)
            if frame["type"] == "portal.clarify.request":
                path = f"/v1/responses/{heard[0]['response']['id']}/clarify"
                body = {"clarify_id": frame["clarify_id"], "answer": "neither of them"}
                assert demo.post(path, json=body).status_code == 200
    assert "neither of them" in said(heard)


def test_stop_ends_the_turn_soon(demo: httpx.Client) -> None:
    heard = []
    with demo.stream("POST", "/v1/responses", json={"stream": True, "input": "stream 5000 every 50 ms"}) as response:
        for frame in frames(response):
            heard.append(frame)
            if len(heard) == 6:
                assert demo.post(f"/v1/responses/{heard[0]['response']['id']}/stop").status_code == 202
                asked_at = time.monotonic()
    assert heard[-1]["type"] == "response.incomplete"
    assert time.monotonic() - asked_at < 60
    assert len(heard) < 2_000


def test_a_failure_is_told_as_the_real_gateway_tells_it(demo: httpx.Client) -> None:
    final = ask(demo, "fail with an error")[-1]
    assert final["type"] == "response.completed"
    assert final["response"]["usage"]["total_tokens"] == 0


def test_five_megabytes_come_whole_once(demo: httpx.Client) -> None:
    heard = ask(demo, "a 5 MB tool output")
    outputs = [f["item"]["output"][0]["text"] for f in heard if "output" in f.get("item", {})]
    assert len(outputs[0]) > 5 * 1024 * 1024
    assert len(json.dumps(heard[-1])) < 10_000


def test_runs_have_approvals_and_a_late_subscriber_gets_all(demo: httpx.Client) -> None:
    run_id = demo.post("/v1/runs", json={"input": "something that needs approval"}).json()["run_id"]
    deadline = time.monotonic() + 60
    while demo.get(f"/v1/runs/{run_id}").json()["status"] != "waiting_for_approval":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    threading.Timer(0.2, lambda: demo.post(f"/v1/runs/{run_id}/approval", json={"choice": "session"})).start()
    with demo.stream("GET", f"/v1/runs/{run_id}/events") as response:
        events = [f["event"] for f in frames(response)]
    assert events.index("approval.request") < events.index("approval.responded") < events.index("tool.completed")
    assert events[-1] == "run.completed"
    assert "reasoning.delta" not in events


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b'{"input": ""}', b"[" * 100_000])
def test_bad_bodies_are_told_so(demo: httpx.Client, body: bytes) -> None:
    answer = demo.post("/v1/responses", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]
