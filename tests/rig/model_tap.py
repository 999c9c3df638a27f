"""Stands between an agent and its model and keeps what each said: what a page shows is compared with it.

    tap = ModelTap(model.base_url)          # agents are configured with tap.base_url
    tap.exchanges()                         # oldest first, also those that are still going on

It passes bytes on as they come and hides nothing: an end or a reset of one side is one of the other.
"""

import asyncio
import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

CHUNK = 1 << 16
CHAT = "/v1/chat/completions"


@dataclass
class Exchange:
    """One request to the model, and what it has answered so far. `at`: when the connection was made, seconds of the
    clock."""

    at: float
    request: dict[str, Any]
    status: int = 0
    text: str = ""
    reasoning: str = ""
    calls: list[str] = field(default_factory=list)  # names of tools

    @property
    def messages(self) -> list[dict[str, Any]]:
        return list(self.request["messages"])

    @property
    def system(self) -> str:
        return "\n".join(text_of(each) for each in self.messages if each["role"] in ("system", "developer"))

    @property
    def user_texts(self) -> list[str]:
        return [text_of(each) for each in self.messages if each["role"] == "user"]

    @property
    def roles(self) -> list[str]:
        return [each["role"] for each in self.messages]

    @property
    def is_first_of_turn(self) -> bool:
        """Nothing was answered to its last user message before."""
        return self.messages[-1]["role"] == "user"


def text_of(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(block.get("text", "")) for block in content)
    return content or ""


@dataclass(eq=False)
class _Link:
    """One connection, in bytes."""

    at: float = field(default_factory=time.time)
    asked: bytearray = field(default_factory=bytearray)
    told: bytearray = field(default_factory=bytearray)
    read_at: tuple[int, int] = (0, 0)  # how long both were when they were last read
    exchanges: list[Exchange] = field(default_factory=list)


class ModelTap:
    """Close it."""

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        self._target = (str(parts.hostname), int(parts.port or 80))
        self._links: list[_Link] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="model-tap", daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20, backlog=512), self._loop
        ).result(60)
        self.base_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{parts.path}"

    def exchanges(self) -> list[Exchange]:
        """Requests of chats, oldest first."""
        found = [each for link in list(self._links) for each in _exchanges(link)]
        return sorted(found, key=lambda each: each.at)

    def forget(self) -> None:
        self._links.clear()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(60)
        self._loop.close()

    def _stop(self) -> None:
        self._server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.call_soon(self._loop.stop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link()
        self._links.append(link)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target, limit=1 << 20)
        except OSError:
            writer.transport.abort()
            return
        ways = [
            asyncio.ensure_future(_pass(reader, far_writer, link.asked)),
            asyncio.ensure_future(_pass(far_reader, writer, link.told)),
        ]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            was_reset = any(way.exception() is not None for way in done)
        finally:
            for way in ways:
                way.cancel()
        for end in (writer, far_writer):
            if was_reset:
                end.transport.abort()
            else:
                end.close()


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter, kept: bytearray) -> None:
    """Until the source ends. Raises ConnectionError when it was reset, or the sink was."""
    while piece := await source.read(CHUNK):
        kept += piece
        sink.write(piece)
        await sink.drain()


# ---- HTTP/1.1, as far as this model and its clients speak it


def _exchanges(link: _Link) -> list[Exchange]:
    lengths = len(link.asked), len(link.told)
    if link.read_at != lengths:
        link.read_at, link.exchanges = lengths, _read_all(link)
    return link.exchanges


def _read_all(link: _Link) -> list[Exchange]:
    told = bytes(link.told)
    found = []
    for path, body in _requests(bytes(link.asked)):
        status, answer, told = _answer(told)
        if path == CHAT:
            exchange = Exchange(link.at, json.loads(body), status)
            _read(exchange, answer)
            found.append(exchange)
    return found


def _requests(stream: bytes) -> list[tuple[str, bytes]]:
    found = []
    while b"\r\n\r\n" in stream:
        head, _, rest = stream.partition(b"\r\n\r\n")
        length = int(_header(head, b"content-length") or 0)
        if len(rest) < length:
            break  # still on its way
        found.append((head.split(b" ", 2)[1].decode(), rest[:length]))
        stream = rest[length:]
    return found


def _answer(stream: bytes) -> tuple[int, bytes, bytes]:
    """Status, body as far as it came, and what follows; 0 when nothing came."""
    head, is_there, rest = stream.partition(b"\r\n\r\n")
    if not is_there:
        return 0, b"", b""
    status = int(head.split(b" ", 2)[1])
    if _header(head, b"transfer-encoding") != b"chunked":
        length = int(_header(head, b"content-length") or 0)
        return status, rest[:length], rest[length:]
    body = bytearray()
    while True:
        size, is_there, rest = rest.partition(b"\r\n")
        if not is_there or int(size, 16) == 0:
            return status, bytes(body), rest[2:]
        count = int(size, 16)
        body += rest[:count]
        rest = rest[count + 2 :]


def _header(head: bytes, name: bytes) -> bytes | None:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip().lower()
    return None


def _read(exchange: Exchange, body: bytes) -> None:
    if not exchange.request.get("stream"):
        _read_whole(exchange, body)
        return
    for line in body.split(b"\n\n"):
        try:
            chunk = json.loads(line.removeprefix(b"data: "))
        except ValueError:
            continue  # the end, a comment, garbage on purpose, or cut off
        for choice in chunk.get("choices", []) if isinstance(chunk, dict) else []:
            exchange.text += choice["delta"].get("content") or ""
            exchange.reasoning += choice["delta"].get("reasoning_content") or ""
            names = (call["function"].get("name") for call in choice["delta"].get("tool_calls", ()))
            exchange.calls += [name for name in names if name]


def _read_whole(exchange: Exchange, body: bytes) -> None:
    try:
        message = json.loads(body)["choices"][0]["message"]
    except (ValueError, KeyError, TypeError):
        return
    exchange.text = message.get("content") or ""
    exchange.reasoning = message.get("reasoning_content") or ""
    exchange.calls = [call["function"]["name"] for call in message.get("tool_calls", ())]
