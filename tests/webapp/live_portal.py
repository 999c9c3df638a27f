"""A real web process with its database and Redis, and the hands of a program on its sockets."""

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import websocket
from sqlalchemy.orm import Session, sessionmaker

from shared.database import in_transaction, make_engine, make_session_factory, migrate, transaction
from shared.relay.connection import connect_url
from shared.relay.event_log import EventLog
from shared.relay.keys import Keys
from shared.store import messages, users
from tests.factories import a_session
from tests.rig.recorder import RecorderPage
from tests.rig.redis_server import RedisServer
from tests.rig.web_process import WebProcess
from tests.webapp.live_rig import Turn


class Portal:
    """A web process with its database and Redis, and a session of the local administrator."""

    def __init__(self, folder: Path, redis_url: str, **given: Any) -> None:
        url = f"sqlite:///{folder / 'portal.db'}"
        migrate(url)
        self.engine = make_engine(url)
        self.factory: sessionmaker[Session] = make_session_factory(self.engine)
        self.log = EventLog(connect_url(redis_url), Keys(), max_events=given.pop("max_events", 5_000))
        self.owner = in_transaction(self.factory, users.local_administrator)
        web_redis_url = given.pop("web_redis_url", redis_url)
        self.web = WebProcess(database_url=url, redis_url=web_redis_url, data_dir=folder, **given)

    def new_session(self) -> str:
        with transaction(self.factory) as db:
            return a_session(db, owner=users.get(db, self.owner.id)).id

    def turn(self, session_id: str) -> Turn:
        return Turn(self.factory, self.log, session_id)

    def page(self, session_id: str) -> RecorderPage:
        page = RecorderPage(self.web.socket_url, session_id)
        page.wait(lambda p: p.state)
        return page

    def dial(self, **given: Any) -> websocket.WebSocket:
        return websocket.create_connection(self.web.socket_url, timeout=60, **given)

    def close(self) -> None:
        self.web.close()
        self.engine.dispose()


@pytest.fixture(scope="session")
def portal(shared_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    """One for all tests that neither stop nor overload it; each makes its own sessions."""
    made = Portal(tmp_path_factory.mktemp("portal"), shared_redis.url)
    yield made
    made.close()


def ask(ws: websocket.WebSocket, **command: Any) -> dict[str, Any]:
    """Send a command; the answer with its id."""
    ws.send(json.dumps(command))
    return hear(ws)


def hear(ws: websocket.WebSocket) -> dict[str, Any]:
    frame: dict[str, Any] = json.loads(ws.recv())
    return frame


def closed_with(ws: websocket.WebSocket) -> int | None:
    """The close code, after whatever was still on its way."""
    while True:
        frame = ws.recv_frame()
        if frame.opcode == websocket.ABNF.OPCODE_CLOSE:
            with contextlib.suppress(OSError):  # the other side may wait for no answer
                ws.send_close()
            return int.from_bytes(frame.data[:2], "big") if len(frame.data) >= 2 else None
        if frame.opcode == websocket.ABNF.OPCODE_PING:
            ws.pong(frame.data)


def get(url: str) -> int:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return int(answer.status)


def dials(portal: "Portal") -> bool:
    try:
        portal.dial().close()
    except websocket.WebSocketBadStatusException:
        return False
    return True


def ended_with(ws: websocket.WebSocket) -> int | None:
    """Like `closed_with`; None where the connection ends without a code."""
    try:
        return closed_with(ws)
    except (websocket.WebSocketException, OSError):
        return None


def same_as_stored(portal: Portal, page: RecorderPage, run_id: str) -> bool:
    with transaction(portal.factory, write=False) as db:
        answer = messages.answer_of(db, run_id)
        assert answer is not None
        return page.text(run_id) == answer.content
