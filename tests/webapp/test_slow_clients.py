"""Clients that never finish their request cannot keep the web process from the others (S56)."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from shared.database import migrate
from tests.rig.redis_server import RedisServer
from tests.rig.web_process import WebProcess
from tests.webapp.live_portal import Portal
from webapp.gunicorn_conf import SPARE_THREADS

MAX_SOCKETS = 1
HEAD = b"GET / HTTP/1.1\r\nHost: "
BODY = (
    b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 1000\r\n\r\nlogin=a"
)
CHUNKED = BODY.replace(b"Content-Length: 1000", b"Transfer-Encoding: chunked").replace(b"login=a", b"7\r\nlogin=a")


@pytest.fixture(scope="module")
def web(shared_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    folder: Path = tmp_path_factory.mktemp("slow")
    url = f"sqlite:///{folder}/portal.db"
    migrate(url)
    made = WebProcess(
        database_url=url, redis_url=shared_redis.url, data_dir=folder, app="tests.webapp.impatient_web:app",
        environ={"PORTAL_MAX_SOCKETS": str(MAX_SOCKETS)},
    )  # fmt: skip
    yield made
    made.close()


@pytest.mark.parametrize("sent", [HEAD, BODY, CHUNKED], ids=["half a head", "half a body", "half a chunk"])
def test_more_slow_clients_than_threads_are_sent_away(web: WebProcess, sent: bytes) -> None:
    with contextlib.ExitStack() as stack:
        slow = []
        for _ in range(MAX_SOCKETS + SPARE_THREADS + 20):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", web.port), timeout=60))
            client.sendall(sent)
            slow.append(client)
        assert httpx.get(f"{web.url}/healthz", trust_env=False, timeout=60).status_code == 200
        first = slow[0].recv(1000)
        assert first == b"" or first.startswith(b"HTTP/1.1 4")


def test_a_body_in_broken_chunks_is_a_bad_request(web: WebProcess) -> None:
    with socket.create_connection(("127.0.0.1", web.port), timeout=60) as client:
        client.sendall(CHUNKED.replace(b"7\r\n", b"zz\r\n"))
        assert client.recv(1000).startswith(b"HTTP/1.1 400")
    assert "request.failed" not in web.log()


def test_a_body_that_comes_slowly_but_in_time_is_read(portal: Portal) -> None:
    with socket.create_connection(("127.0.0.1", portal.web.port), timeout=60) as client:
        for piece in (BODY.replace(b"1000", b"14"), b"&a", b"=b", b"&c="):
            client.sendall(piece)
        assert client.recv(1000).startswith(b"HTTP/1.1 403")  # it was read: there is no CSRF token in it
