"""The HTTP side of the demo gateway. Loopback only; every request but `/health` needs the key."""

import hmac
import json
import re
import secrets
import socket
import threading
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from worker.backends.demo import scenes
from worker.backends.demo.play import AskApproval, AskQuestion, Play
from worker.backends.demo.wire import MODEL, ResponsesWire, RunsWire
from worker.backends.gateway import extension

VERSION = "1"
MAX_BODY_BYTES = 10_000_000
KEPT = 200  # ended plays that can still be asked for
CHOICES = ("once", "session", "always", "deny")
PATH = re.compile(r"/v1/(?P<kind>responses|runs)/(?P<id>\w+)(?:/(?P<verb>approval|clarify|stop|events))?")


class DemoGateway(ThreadingHTTPServer):
    """`address` is the base URL. `serve_forever()` runs it; each request has a thread of its own."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, key: str) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.key = key
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        self._lock = threading.Lock()
        self._plays: OrderedDict[str, tuple[Play, ResponsesWire | RunsWire]] = OrderedDict()

    def start(self, kind: str, body: dict[str, Any]) -> tuple[Play, ResponsesWire | RunsWire]:
        """Begin a play for a request body; raises ValueError for one without input."""
        heard = scenes.Heard.from_body(body)
        wire: ResponsesWire | RunsWire
        if kind == "responses":
            wire = ResponsesWire(f"resp_{secrets.token_hex(14)}", heard.chars)
        else:
            wire = RunsWire(f"run_{secrets.token_hex(16)}", heard.chars)
        play = Play(wire.id, scenes.choose(heard, rich=kind == "responses"), wire)
        with self._lock:
            self._plays[wire.id] = (play, wire)
            ended = [i for i, (p, _) in self._plays.items() if p.status != "in_progress"]
            for old in ended[: max(0, len(self._plays) - KEPT)]:
                del self._plays[old]
        return play, wire

    def find(self, play_id: str) -> tuple[Play, ResponsesWire | RunsWire] | None:
        with self._lock:
            return self._plays.get(play_id)

    def times(self) -> list[dict[str, Any]]:
        """When each play was asked for and told to stop, in nanoseconds: what `portal bench` compares with."""
        with self._lock:
            plays = [play for play, _ in self._plays.values()]
        return [{"id": p.id, "asked_at_ns": p.asked_at_ns, "stopped_at_ns": p.stopped_at_ns} for p in plays]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no fault of ours; the standard class would print a traceback."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: DemoGateway

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def do_GET(self) -> None:
        if self.path == "/health":
            self._json(200, {"status": "ok", "platform": "hermes-portal-demo", "version": VERSION})
        elif not self._allowed():
            return
        elif self.path == "/v1/models":
            self._json(200, {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "hermes-portal"}]})
        elif self.path == "/v1/capabilities":
            facts = {"runs": True, "responses": True}
            self._json(200, {"features": facts, "portal_extensions": extension.Announcement().model_dump()})
        elif self.path == "/v1/skills":
            self._json(200, {"object": "list", "data": []})
        elif self.path == "/v1/demo/plays":
            self._json(200, {"object": "list", "data": self.server.times()})
        elif match := PATH.fullmatch(self.path):
            self._get_play(match["kind"], match["id"], match["verb"])
        else:
            self._error(404, "not_found", "There is nothing at this address")

    def do_POST(self) -> None:
        body = self._body()
        if body is None or not self._allowed():
            return
        if self.path in ("/v1/responses", "/v1/runs"):
            self._start(self.path.removeprefix("/v1/"), body)
        elif (match := PATH.fullmatch(self.path)) and match["verb"]:
            self._tell(match["id"], match["verb"], body)
        else:
            self._error(404, "not_found", "There is nothing at this address")

    def _start(self, kind: str, body: dict[str, Any]) -> None:
        try:
            play, wire = self.server.start(kind, body)
        except ValueError as error:
            self._error(400, "missing_input", str(error))
            return
        if kind == "runs":
            self._json(202, {"run_id": play.id, "status": "started"})
        elif body.get("stream"):
            self._stream(play, stop_when_left=True)
        else:
            play.wait(600)
            assert isinstance(wire, ResponsesWire)
            self._json(200, wire.final(play.status))

    def _get_play(self, kind: str, play_id: str, verb: str | None) -> None:
        found = self.server.find(play_id)
        if found is None:
            self._error(404, "not_found", f"There is no {kind.removesuffix('s')} of this id")
            return
        play, wire = found
        if verb == "events":
            self._stream(play, stop_when_left=False)
        elif isinstance(wire, ResponsesWire):
            self._json(200, wire.final(play.status))
        else:
            waiting = isinstance(play.waiting_for, AskApproval)
            running = "waiting_for_approval" if waiting else "running"
            self._json(200, wire.state(running if play.status == "in_progress" else play.status))

    def _tell(self, play_id: str, verb: str, body: dict[str, Any]) -> None:
        found = self.server.find(play_id)
        if found is None:
            self._error(404, "not_found", "There is no turn of this id")
            return
        play = found[0]
        if verb == "stop":
            play.stop()
            self._json(202, {"run_id": play.id, "status": "stopping"})
        elif verb == "approval":
            choice = body.get("choice")
            if choice not in CHOICES:
                self._error(400, "invalid_approval_choice", f"Expected one of: {', '.join(CHOICES)}")
            elif isinstance(play.waiting_for, AskApproval) and play.answer(str(body.get("approval_id", "")), choice):
                self._json(200, {"object": "hermes.run.approval_response", "choice": choice, "resolved": 1})
            else:
                self._error(409, "approval_not_pending", "No approval of this id is open")
        else:
            answer = body.get("answer")
            told = isinstance(play.waiting_for, AskQuestion) and play.answer(
                str(body.get("clarify_id", "")), None if answer is None else str(answer)
            )
            if told:
                self._json(200, {"resolved": 1})
            else:
                self._error(409, "question_not_pending", "No question of this id is open")

    # ---- HTTP

    def _stream(self, play: Play, *, stop_when_left: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for frame in play.frames():
                data = frame.encode()
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True
            if stop_when_left:
                play.stop()

    def _body(self) -> dict[str, Any] | None:
        try:
            length = int(self.headers.get("Content-Length", "0"))
        except ValueError:
            length = MAX_BODY_BYTES + 1
        if length > MAX_BODY_BYTES:
            self.close_connection = True
            self._error(413, "body_too_large", "The body is larger than 10 MB")
            return None
        try:
            body = json.loads(self.rfile.read(length) or b"{}")
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            self._error(400, "invalid_json", "The body is not a JSON object")
            return None
        return body

    def _allowed(self) -> bool:
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if hmac.compare_digest(given.encode(), self.server.key.encode()):
            return True
        self._error(401, "invalid_api_key", "Invalid API key")
        return False

    def _error(self, status: int, code: str, message: str) -> None:
        self._json(status, {"error": {"message": message, "type": "invalid_request_error", "code": code}})

    def _json(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests of the worker next door are not worth a line each."""
