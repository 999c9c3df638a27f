"""A backend that does what the turn's own text says: a JSON list of steps. In process, so no gateway is in the way.

Steps: {"text"|"reasoning": str, "times": n, "every_s": s, "until_enough": true (again and again until the test has seen
`enough`)}, {"status": str}, {"tool": name, "id", "arguments", "result", "error", "takes_s"}, {"approval": command,
"choices"}, {"clarify": question}, {"withdraw": key}, {"sleep": s}, {"deaf": s} (does not stop, but for the end of the
test), {"block": true} (until it is stopped), {"usage": {...}}, {"todos": [...]}, {"raise": error class, "message"},
{"refuse": n} (the first n tries), {"kill": true} (its process, before anything is sent), {"cut": true} (the stream just
ends). A text that is no such list is answered with itself.

Each turn, each tool call and each beginning deafness appends one line to the file PORTAL_TEST_EFFECTS: the oracle for
"at most once".
"""

import itertools
import json
import os
import queue
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from shared import errors
from shared.protocol.events import Todo, Usage
from worker.backends import base, registry

EFFECTS = "PORTAL_TEST_EFFECTS"
STALLED = "stalled"  # a profile whose backend cannot be had before the time is over
STALL_S = 30.0


class ScriptedBackend:
    name = "Scripted"
    agent = "scripted"
    version = "1"

    def __init__(self, capabilities: base.Capabilities | None = None) -> None:
        self.capabilities = capabilities or base.Capabilities(
            tools=True, approvals=True, clarify=True, todos=True, stop=True
        )
        self.answers: list[tuple[str, Any]] = []  # what `respond` was called with, by key
        self.tries: Counter[str] = Counter()
        self.released = threading.Event()  # the test is over: nobody need be deaf any more
        self.enough = threading.Event()  # has the test seen of a text that goes on until then

    def stream(self, turn: base.Turn, controls: base.Controls) -> Iterator[base.Item]:
        steps = _steps(turn.input)
        if any(step.get("kill") for step in steps):
            os.kill(os.getpid(), signal.SIGKILL)
        self.tries[turn.run_id] += 1
        if self.tries[turn.run_id] <= sum(step.get("refuse", 0) for step in steps):
            raise errors.BackendUnavailable("Nobody listens there.", retry_after_s=None)
        stopped = threading.Event()
        controls.on_abort(stopped.set)
        effect(f"turn {turn.run_id}")
        yield base.TurnBegun(backend_run_id=f"peer-{turn.run_id}", model="scripted-1")
        for number, step in enumerate(steps):
            for item in self._do(turn, str(number), step, stopped):
                yield item
                if stopped.is_set() and "deaf" not in step:
                    break
            if step.get("cut"):
                return
            if stopped.is_set():
                yield base.Stopped()
                return
        yield base.Finished(usage=Usage(input_tokens=7, output_tokens=3))

    def _do(self, turn: base.Turn, key: str, step: dict[str, Any], stopped: threading.Event) -> Iterator[base.Item]:
        if "text" in step or "reasoning" in step:
            kind, text = (base.Text, step["text"]) if "text" in step else (base.Reasoning, step["reasoning"])
            for number in itertools.count() if step.get("until_enough") else range(step.get("times", 1)):
                yield kind(text.replace("#", str(number)))
                if (step.get("every_s") and stopped.wait(step["every_s"])) or self.enough.is_set():
                    return
        elif "tool" in step:
            tool_id = step.get("id", f"call-{key}")
            yield base.ToolBegun(tool_id, step["tool"], step.get("arguments", {}))
            effect(f"call {turn.run_id} {tool_id}")
            stopped.wait(step.get("takes_s", 0))
            yield base.ToolEnded(
                tool_id, step["tool"], ok=not step.get("error"), result=step.get("result", ""), error=step.get("error")
            )
        elif "approval" in step:
            choices = tuple(step.get("choices", ("once", "session", "always", "deny")))
            answer: queue.Queue[Any] = queue.Queue()
            yield base.ApprovalAsked(key, "shell", step["approval"], "dangerous", choices, self._answer(key, answer))
            yield from self._wait_for(answer, stopped)
        elif "clarify" in step:
            answer = queue.Queue()
            yield base.ClarifyAsked(key, step["clarify"], ("yes", "no"), self._answer(key, answer))
            yield from self._wait_for(answer, stopped)
        elif "ask_and_go_on" in step:
            yield base.ApprovalAsked(key, "shell", step["ask_and_go_on"], "", ("once", "deny"), self._answer(key, None))
        elif "withdraw" in step:
            yield base.PauseWithdrawn(step["withdraw"])
        elif "status" in step:
            yield base.Status(step["status"])
        elif "todos" in step:
            yield base.Todos(tuple(Todo(**todo) for todo in step["todos"]))
        elif "usage" in step:
            yield base.UsageNews(Usage(**step["usage"]))
        elif "sleep" in step:
            stopped.wait(step["sleep"])
        elif "deaf" in step:
            effect(f"deaf {turn.run_id}")
            self.released.wait(step["deaf"])
        elif "block" in step:
            stopped.wait()
        elif "raise" in step:
            raise getattr(errors, step["raise"])(step.get("message", "It went wrong."), detail="what only the log has")

    def _answer(self, key: str, answer: "queue.Queue[Any] | None") -> Any:
        def respond(given: Any) -> None:
            self.answers.append((key, given))
            effect(f"answer {key} {given}")
            if answer is not None:
                answer.put(given)

        return respond

    def _wait_for(self, answer: "queue.Queue[Any]", stopped: threading.Event) -> Iterator[base.Item]:
        while not stopped.is_set():
            try:
                yield base.Text(f"[{answer.get(timeout=0.02)}]")
                return
            except queue.Empty:
                continue

    def execute(self, turn: base.Turn) -> base.Result:
        return base.Result("a summary")

    def ping(self) -> base.PingResult:
        return base.PingResult(True, 0.0, "PONG")


def _steps(text: str) -> list[dict[str, Any]]:
    try:
        steps = json.loads(text)
    except ValueError:
        return [{"text": text}]
    return steps if isinstance(steps, list) else [{"text": text}]


def effect(line: str) -> None:
    path = os.environ.get(EFFECTS)
    if path:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)


def serve(backend: ScriptedBackend) -> None:
    """Have this process answer every turn with it."""

    def made(backends: registry.Backends, source: str, profile: str | None) -> base.Backend:
        if profile == STALLED:
            time.sleep(STALL_S)
        return backend

    registry.SOURCES["api_server"] = made
