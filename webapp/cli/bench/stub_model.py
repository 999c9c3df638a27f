"""A model that only streams: what an agent talks to while it is measured. OpenAI's wire, standard library only.

    python -m webapp.cli.bench.stub_model      prints {"event": "ready", "base_url": "http://127.0.0.1:N/v1"}

The last user message says what to do: `stream 300 every 20 ms` gives 300 deltas, each its number and the time at which
it was said (`412:1767225600000000000 `); `quiet 5 s` says nothing for so long. GET /asked tells what was asked, oldest
first: `text, asked_at_ns, left_at_ns` (when the client went before the end, else null).
"""

import asyncio
import json
import re
import sys
import time
from typing import Any

STREAM = re.compile(r"stream (\d+) every (\d+) ms")
QUIET = re.compile(r"quiet (\d+) s")
MODEL = "bench-1"
CONTEXT = 131_072
LIMIT_BYTES = 64 * 1024 * 1024
USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
)


class StubModel:
    """`serve` until the process ends."""

    def __init__(self) -> None:
        self._asked: list[dict[str, Any]] = []

    async def serve(self) -> None:
        server = await asyncio.start_server(self._client, "127.0.0.1", 0, limit=LIMIT_BYTES, backlog=512)
        port = server.sockets[0].getsockname()[1]
        sys.stdout.write(json.dumps({"event": "ready", "base_url": f"http://127.0.0.1:{port}/v1"}) + "\n")
        sys.stdout.flush()
        async with server:
            await server.serve_forever()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._request(reader, writer):
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, ValueError):
            pass  # the client went, or speaks no HTTP
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one; False when the connection is over with it."""
        head = await reader.readuntil(b"\r\n\r\n")
        asked_at_ns = time.time_ns()
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length") or 0))
        if method == "POST" and path.endswith("/chat/completions"):
            request = json.loads(body)
            if request.get("stream"):
                await self._stream(reader, writer, _last_user_text(request), asked_at_ns)
                return False
            message = {"role": "assistant", "content": "A sentence."}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return _whole(writer, 200, {**_of("chat.completion"), "choices": [choice], "usage": USAGE})
        if path == "/asked":
            return _whole(writer, 200, {"asked": self._asked})
        if path.partition("?")[0].endswith("/models"):
            card = {"id": MODEL, "object": "model", "owned_by": "bench", "context_length": CONTEXT}
            return _whole(writer, 200, {"object": "list", "data": [card]})
        return _whole(writer, 404, {"error": {"message": "not here", "type": "invalid_request_error"}})

    async def _stream(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: str, asked_at_ns: int
    ) -> None:
        asked = {"text": text, "asked_at_ns": asked_at_ns, "left_at_ns": None}
        self._asked.append(asked)
        gone = asyncio.ensure_future(reader.read(1))
        has_left = True  # also where a write finds it before the read does
        try:
            await _say(writer, text, gone)
            has_left = gone.done()
        finally:
            if has_left:
                asked["left_at_ns"] = time.time_ns()
            gone.cancel()


async def _say(writer: asyncio.StreamWriter, text: str, gone: "asyncio.Future[bytes]") -> None:
    """The whole answer, or as much as the client waits for."""
    if quiet := QUIET.search(text):
        await asyncio.wait({gone}, timeout=float(quiet[1]))
    writer.write(STREAM_HEAD)
    _event(writer, {"role": "assistant", "content": ""})
    wanted = STREAM.search(text)
    count, every_s = (int(wanted[1]), int(wanted[2]) / 1000) if wanted else (1, 0.0)
    begun = time.monotonic()
    for number in range(count):
        left_s = begun + number * every_s - time.monotonic()
        if left_s > 0:
            await asyncio.wait({gone}, timeout=left_s)
        if gone.done():
            return
        _event(writer, {"content": f"{number}:{time.time_ns()} "})
        await writer.drain()
    _event(writer, {}, finish="stop")
    _chunk(writer, {**_of("chat.completion.chunk"), "choices": [], "usage": USAGE})
    writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    await writer.drain()


def _event(writer: asyncio.StreamWriter, delta: dict[str, str], finish: str | None = None) -> None:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    _chunk(writer, {**_of("chat.completion.chunk"), "choices": [choice]})


def _chunk(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
    line = b"data: " + json.dumps(event).encode() + b"\n\n"
    writer.write(b"%x\r\n%s\r\n" % (len(line), line))


def _whole(writer: asyncio.StreamWriter, status: int, answer: dict[str, Any]) -> bool:
    body = json.dumps(answer).encode()
    head = f"HTTP/1.1 {status} Bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return True


def _of(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-bench", "object": kind, "created": int(time.time()), "model": MODEL}


def _last_user_text(request: dict[str, Any]) -> str:
    content = next((each["content"] for each in reversed(request["messages"]) if each["role"] == "user"), "")
    return content if isinstance(content, str) else " ".join(str(block.get("text", "")) for block in content)


if __name__ == "__main__":
    asyncio.run(StubModel().serve())
