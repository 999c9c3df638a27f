"""A program's view of the portal: the JSON socket and REST, as fast as Python reads them."""

import json
import threading
import time
from typing import Any

import httpx
from simple_websocket import Client, ConnectionClosed

from webapp.cli.bench.stage import BenchError, Stage


class JsonSocket:
    """One socket on `/chat-run`. `heard` pairs each frame with the time it came, in nanoseconds."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        address = stage.address.replace("http://", "ws://") + "/chat-run"
        self._socket = Client(address)  # no Origin: its Host header lacks the port, and AUTH_DISABLED asks for none
        self._rest = httpx.Client(base_url=stage.address, trust_env=False)

    def new_session(self, source: str = "api_server") -> str:
        """A new session that this socket follows."""
        answer = self._rest.post("/api/chat/sessions", json={"title": "bench", "source": source})
        if answer.status_code not in (200, 201):
            raise BenchError(f"a session could not be made: {answer.status_code} {answer.text[:200]}")
        session_id = str(answer.json()["sessionId"])
        self.send({"event": "resume", "session_id": session_id})
        self.wait_for("resumed", session_id)
        return session_id

    def send(self, command: dict[str, Any]) -> int:
        """Send a command; the time it was sent, in nanoseconds."""
        text = json.dumps(command)
        sent = time.time_ns()
        self._socket.send(text)
        return sent

    def run(self, session_id: str, text: str) -> int:
        return self.send({"event": "run", "session_id": session_id, "input": text})

    def receive(self, timeout_s: float = 30) -> tuple[int, dict[str, Any]]:
        """The next frame with the time it came. BenchError when none came in time."""
        text = self._socket.receive(timeout_s)
        came = time.time_ns()
        if text is None:
            raise BenchError(f"no frame within {timeout_s:.0f} s")
        return came, json.loads(text)

    def wait_for(self, event: str, session_id: str | None = None, timeout_s: float = 60) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            _, frame = self.receive(timeout_s)
            if frame["event"] == "error":
                raise BenchError(f"the portal said: {frame.get('message')}")
            if frame["event"] == event and session_id in (None, frame.get("session_id")):
                return frame
        raise BenchError(f"{event} did not come within {timeout_s:.0f} s")

    def close(self) -> None:
        self._socket.close()
        self._rest.close()

    def __enter__(self) -> "JsonSocket":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PageSocket:
    """A page that watches a session: it takes each frame of HTML and counts it."""

    def __init__(self, stage: Stage, session_id: str) -> None:
        self.frames = 0
        self.characters = 0
        address = stage.address.replace("http://", "ws://") + f"/chat-run?view=html&session_id={session_id}"
        self._socket = Client(address)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while (frame := self._socket.receive()) is not None:
                self.frames += 1
                self.characters += len(frame)
        except ConnectionClosed:
            pass

    def close(self) -> None:
        self._socket.close()
        self._thread.join(5)
