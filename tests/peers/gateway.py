"""A scripted gateway: an HTTP server that answers each request as its script says, and logs every request.

    with FakeGateway({"POST /v1/responses": [stream(*text_turn("Hello"))]}) as gw:
        ...  # gw.url, gw.requests, gw.turns

A script maps "METHOD /path" (`*` at the end: any that begins so) to answers, used one after the other, the last one
again and again. An answer is a status, headers and steps: bytes to send, or Delay, Cut, WaitFor. What is not in the
script is 404, but `GET /health`. As a process: `python -m tests.peers.gateway --script FILE [--port N] [--log FILE]`,
whose script is JSON: `{"POST /v1/responses": [{"status": 200, "headers": {}, "steps": ["text", {"delay": 0.1},
{"cut": "rst"}, {"wait_for": "POST /v1/runs/x/stop"}]}]}`; it prints `{"event": "ready", "url": ...}`.
"""

import argparse
import contextlib
import json
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

RESPONSE_ID = "resp_0123456789abcdef"
RUN_ID = "run_0123456789abcdef"
USAGE = {"input_tokens": 120, "output_tokens": 12, "total_tokens": 132}
NO_USAGE = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
KEEPALIVE = b": keepalive\n\n"


@dataclass(frozen=True)
class Delay:
    seconds: float


@dataclass(frozen=True)
class Cut:
    """End the connection here: `fin` politely, `rst` at once. Without it a stream ends properly."""

    how: str = "fin"


@dataclass(frozen=True)
class WaitFor:
    """Go on when a request of that kind ("METHOD /path") has come."""

    request: str
    timeout_s: float = 60.0


Step = bytes | Delay | Cut | WaitFor


@dataclass(frozen=True)
class Answer:
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    steps: Sequence[Step] = ()
    before: Sequence[Step] = ()  # before the head is sent
    chunked: bool = True


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float  # monotonic

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Script = Mapping[str, Sequence[Answer]]


class FakeGateway:
    """Serves from entering to leaving the block. `requests` grows while it does. `tls`: a file with key and certificate
    of localhost."""

    def __init__(self, script: Script, *, port: int = 0, log: Path | None = None, tls: Path | None = None) -> None:
        self.script = dict(script)
        self.requests: list[Request] = []
        self._used: dict[str, int] = {}
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._log = log
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.gateway = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self.url = f"https://localhost:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def __enter__(self) -> "FakeGateway":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def follow(self, script: Script) -> None:
        """From now on another script, from its beginning; the log goes on."""
        with self._changed:
            self.script = dict(script)
            self._used.clear()

    @property
    def turns(self) -> list[Request]:
        """The requests that begin a turn: at most one for each turn of the portal."""
        return [r for r in self.requests if r.method == "POST" and r.path in ("/v1/responses", "/v1/runs")]

    def of(self, request: str) -> list[Request]:
        """The requests of a kind, "METHOD /path" with or without `*`."""
        return [r for r in self.requests if _matches(request, f"{r.method} {r.path}")]

    def wait_for(self, request: str, *, count: int = 1, timeout_s: float = 60.0) -> list[Request]:
        """Those requests as soon as there are `count`. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.of(request)) >= count or self._closing.is_set(), timeout_s):
                raise TimeoutError(f"no {request} within {timeout_s} s")
        return self.of(request)

    # ---- for the handler

    def take(self, request: Request) -> Answer:
        with self._changed:
            self.requests.append(request)
            if self._log is not None:
                with self._log.open("a", encoding="utf-8") as file:
                    line = {
                        "method": request.method,
                        "path": request.path,
                        "body": request.body.decode("utf-8", "replace"),
                    }
                    file.write(json.dumps(line) + "\n")
            self._changed.notify_all()
            name = f"{request.method} {request.path}"
            key = next((k for k in self.script if _matches(k, name)), None)
            if key is None:
                known = {"GET /health": json_answer({"status": "ok", "platform": "hermes-agent", "version": "0.19.0"})}
                return known.get(name, json_answer({"error": {"message": "no such thing"}}, status=404))
            place = self._used.get(key, 0)
            self._used[key] = place + 1
            return self.script[key][min(place, len(self.script[key]) - 1)]

    def sleep(self, seconds: float) -> None:
        self._closing.wait(seconds)


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    gateway: FakeGateway
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is no fault of ours."""


class _Hangup(Exception):
    pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, self.path, headers, body, time.monotonic())
        answer = self.server.gateway.take(request)
        self.close_connection = True
        with contextlib.suppress(_Hangup, OSError):
            for step in answer.before:
                self._play(step, chunked=False)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.chunked:
                self.send_header("Transfer-Encoding", "chunked")
            self.send_header("Connection", "close")
            self.end_headers()
            for step in answer.steps:
                self._play(step, chunked=answer.chunked)
            if answer.chunked:
                self.wfile.write(b"0\r\n\r\n")
                self.wfile.flush()

    def _play(self, step: Step, *, chunked: bool) -> None:
        match step:
            case bytes():
                if step:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(step), step) if chunked else step)
                    self.wfile.flush()
            case Delay(seconds):
                self.server.gateway.sleep(seconds)
            case WaitFor(request, timeout_s):
                self.server.gateway.wait_for(request, timeout_s=timeout_s)
            case Cut(how):
                if how == "rst":
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()
                else:
                    self.connection.shutdown(socket.SHUT_RDWR)
                raise _Hangup


# ---- answers


def json_answer(body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    return raw_answer(json.dumps(body).encode(), "application/json", status=status, headers=headers)


def raw_answer(body: bytes, kind: str, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(status, {"Content-Type": kind, **(headers or {})}, [body])


def stream(*steps: Step, headers: Mapping[str, str] | None = None, before: Sequence[Step] = ()) -> Answer:
    """A 200 of server-sent events that ends properly after the last step."""
    return Answer(200, {"Content-Type": "text/event-stream", **(headers or {})}, steps, before)


def split(steps: Iterable[Step], size: int) -> Iterator[Step]:
    """The same bytes in pieces of `size`."""
    for step in steps:
        if isinstance(step, bytes):
            yield from (step[i : i + size] for i in range(0, len(step), size))
        else:
            yield step


def crlf(frames: Iterable[bytes]) -> list[bytes]:
    return [frame.replace(b"\n", b"\r\n") for frame in frames]


# ---- frames of /v1/responses


class Frames:
    """Makes the frames of one response, with rising sequence numbers, as Hermes does."""

    def __init__(self, response_id: str = RESPONSE_ID) -> None:
        self.response_id = response_id
        self._number = 0
        self._place = 0
        self._text = ""
        self._output: list[dict[str, Any]] = []

    def frame(self, kind: str, /, **fields: Any) -> bytes:
        data = {"type": kind, **fields, "sequence_number": self._number}
        self._number += 1
        return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()

    def created(self, model: str = "hermes-agent") -> bytes:
        body = {"id": self.response_id, "status": "in_progress", "model": model, "output": []}
        return self.frame("response.created", response=body)

    def text(self, *pieces: str) -> list[bytes]:
        self._text += "".join(pieces)
        return [self.frame("response.output_text.delta", item_id="msg_1", output_index=0, delta=p) for p in pieces]

    def call(self, call_id: str, name: str, arguments: str = "{}", *, item_id: str | None = None) -> bytes:
        item = {"type": "function_call", "name": name, "call_id": call_id, "arguments": arguments}
        self._output.append(item)
        self._place += 1
        item = {"id": item_id or f"fc_{call_id}", "status": "in_progress", **item}
        return self.frame("response.output_item.added", output_index=self._place, item=item)

    def result(self, call_id: str, text: str, *, item_id: str | None = None) -> list[bytes]:
        """The call done, then its output twice, as Hermes sends them."""
        call = next(item for item in self._output if item.get("call_id") == call_id and item["type"] == "function_call")
        done = {"id": item_id or f"fc_{call_id}", "status": "completed", **call}
        output = {"type": "function_call_output", "call_id": call_id, "output": [{"type": "input_text", "text": text}]}
        cut = text if len(text) <= 1000 else text[:500] + f"...[{len(text) - 500} more chars]"
        self._output.append(output | {"output": [{"type": "input_text", "text": cut}]})
        frames = [self.frame("response.output_item.done", output_index=self._place, item=done)]
        self._place += 1
        item = {"id": f"fco_{call_id}", "status": "completed", **output}
        frames += [
            self.frame(f"response.output_item.{kind}", output_index=self._place, item=item)
            for kind in ("added", "done")
        ]
        return frames

    def completed(self, *, usage: Mapping[str, int] | None = USAGE, **fields: Any) -> bytes:
        return self.frame("response.completed", response=self.body("completed", usage=usage, **fields))

    def body(self, status: str, *, usage: Mapping[str, int] | None = USAGE, **fields: Any) -> dict[str, Any]:
        """The response as `GET /v1/responses/{id}` gives it."""
        message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": self._text}]}
        body = {"id": self.response_id, "status": status, "model": "hermes-agent", "output": [*self._output, message]}
        return body | ({} if usage is None else {"usage": dict(usage)}) | fields


def text_turn(*pieces: str) -> list[bytes]:
    """A whole turn that only says something."""
    frames = Frames()
    return [frames.created(), *frames.text(*pieces), frames.completed()]


def tool_turn() -> tuple[list[bytes], dict[str, Any]]:
    """A turn with text, two tools at once and text again; and its stored response."""
    frames = Frames()
    steps = [
        frames.created(),
        *frames.text("Let me ", "look. 世界🌍"),
        frames.call("call_a", "read_file", '{"path": "/a"}'),
        frames.call("call_b", "terminal", '{"command": "ls"}'),
        *frames.result("call_a", '{"content": "alpha"}'),
        *frames.result("call_b", '{"output": "beta", "exit_code": 0}'),
        *frames.text("\n\nBoth ", "are there."),
        frames.completed(),
    ]
    return steps, frames.body("completed")


# ---- frames of /v1/runs


def run_frame(kind: str, /, *, run_id: str = RUN_ID, **fields: Any) -> bytes:
    return f"data: {json.dumps({'event': kind, 'run_id': run_id, 'timestamp': 1.0, **fields})}\n\n".encode()


def run_script(*steps: Step, run_id: str = RUN_ID, status: Mapping[str, Any] | None = None) -> dict[str, list[Answer]]:
    """A script for one run: started, heard by `steps`, asked for by `status`."""
    script = {
        "POST /v1/runs": [json_answer({"run_id": run_id, "status": "started"}, status=202)],
        f"GET /v1/runs/{run_id}/events": [stream(*steps), json_answer({"error": {"message": "gone"}}, status=404)],
        f"POST /v1/runs/{run_id}/approval": [json_answer({"object": "hermes.run.approval_response", "resolved": 1})],
        f"POST /v1/runs/{run_id}/stop": [json_answer({"run_id": run_id, "status": "stopping"})],
    }
    if status is not None:
        script[f"GET /v1/runs/{run_id}"] = [json_answer({"run_id": run_id, **status})]
    return script


# ---- as a process


def _script_from(data: Mapping[str, Any]) -> dict[str, list[Answer]]:
    return {key: [_answer_from(answer) for answer in answers] for key, answers in data.items()}


def _answer_from(data: Mapping[str, Any]) -> Answer:
    steps = [_step_from(step) for step in data.get("steps", ())]
    before = [_step_from(step) for step in data.get("before", ())]
    headers = data.get("headers", {"Content-Type": "text/event-stream"})
    return Answer(data.get("status", 200), headers, steps, before, data.get("chunked", True))


def _step_from(data: Any) -> Step:
    if isinstance(data, str):
        return data.encode("utf-8", "surrogatepass")
    if "delay" in data:
        return Delay(float(data["delay"]))
    if "cut" in data:
        return Cut(str(data["cut"]))
    return WaitFor(str(data["wait_for"]), float(data.get("timeout_s", 60.0)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.peers.gateway")
    parser.add_argument("--script", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", type=Path)
    given = parser.parse_args()
    with FakeGateway(_script_from(json.loads(given.script.read_text())), port=given.port, log=given.log) as gateway:
        print(json.dumps({"event": "ready", "url": gateway.url}), flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
