"""What clients send to `/chat-run` that they should not: each gets an answer, and nobody else notices."""

import contextlib
import json
import socket

import pytest
import websocket

from tests.webapp.live_portal import Portal, ask, closed_with, hear

# ---- bad input: an answer with a code, and the socket stays open


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("", "bad_json"),
        ("nonsense", "bad_json"),
        ("[]", "bad_json"),
        ("7", "bad_json"),
        ('{"event":"run"', "bad_json"),
        ("[" * 100_000, "bad_json"),
        ('{"event":' + "[" * 33 + "]" * 33 + "}", "bad_json"),
        ('{"event":NaN}', "bad_json"),
        ("{}", "invalid_command"),
        ('{"event":"dance"}', "invalid_command"),
        ('{"event":"run","session_id":"S"}', "invalid_command"),
        ('{"event":"run","session_id":"S","input":"x","prompt":"y"}', "invalid_command"),
        ('{"event":"run","session_id":"S","input":"x","source":7}', "invalid_command"),
        ('{"event":"resume"}', "invalid_command"),
        ('{"event":"resume","session_id":"nobody"}', "not_found"),
        ('{"event":"run","session_id":"nobody","input":"x"}', "not_found"),
        ('{"event":"abort","session_id":"nobody"}', "not_found"),
        ('{"event":"abort","session_id":"S"}', "nothing_runs"),
        ('{"event":"cancel_queued_run","session_id":"S","queue_id":"q"}', "not_found"),
        ('{"event":"edit_queued_run","session_id":"S","queue_id":"q","input":"x"}', "not_found"),
        ('{"event":"move_queued_run","session_id":"S","queue_id":"q","position":1}', "not_found"),
        ('{"event":"move_queued_run","session_id":"S","queue_id":"q","position":0}', "invalid_command"),
        ('{"event":"approval.respond","session_id":"S","approval_id":"a","choice":"once"}', "not_found"),
        ('{"event":"approval.respond","session_id":"S","approval_id":"a","choice":"maybe"}', "invalid_command"),
        ('{"event":"clarify.respond","session_id":"S","clarify_id":"a","answer":"x"}', "not_found"),
        ('{"event":"run","session_id":"S","input":""}', None),
    ],
)
def test_a_bad_command_is_answered_and_closes_nothing(portal: Portal, frame: str, code: str | None) -> None:
    session_id = portal.new_session()
    ws = portal.dial()
    ws.send(frame.replace('"S"', f'"{session_id}"').replace('{"event"', '{"id":"mine","event"', 1))
    answer = hear(ws)
    assert answer["event"] == "error"
    assert answer["code"] == code or code is None
    assert answer["message"]
    assert answer["id"] == ("mine" if frame.startswith('{"event"') and code != "bad_json" else None)
    assert ask(ws, event="ping", id=7) == {"event": "pong", "id": 7}
    ws.close()


def test_a_binary_frame_is_answered_and_closes_nothing(portal: Portal) -> None:
    ws = portal.dial()
    ws.send_binary(b"\xff\x00")
    assert hear(ws)["code"] == "invalid_command"
    assert ask(ws, event="ping", id="p")["event"] == "pong"
    ws.close()


def test_a_frame_over_the_limit_closes_with_1009(portal: Portal) -> None:
    """S35."""
    for size in (1_100_000, 4_000_000):
        ws = portal.dial()
        with contextlib.suppress(OSError):  # who is slow to send finds it closed before the end
            ws.send("x" * size)
        assert closed_with(ws) == 1009
        ws.close()


def test_a_flood_closes_with_1013_and_others_go_on(portal: Portal) -> None:
    """S35."""
    calm, wild = portal.dial(), portal.dial()
    for n in range(300):
        try:
            wild.send(json.dumps({"event": "ping", "id": n}))
        except OSError:
            break
    assert closed_with(wild) == 1013
    assert ask(calm, event="ping", id=1)["event"] == "pong"
    wild.close()
    calm.close()


def test_what_is_no_websocket_frame_ends_the_socket_only(portal: Portal) -> None:
    ws = portal.dial()
    ws.sock.sendall(b"\xff" * 64)
    assert closed_with(ws) in (1002, 1007)
    assert ask(portal.dial(), event="ping", id=1)["event"] == "pong"


def test_a_foreign_origin_gets_no_socket(portal: Portal) -> None:
    for origin in ("https://evil.example", "null"):
        with pytest.raises(websocket.WebSocketBadStatusException) as refused:
            portal.dial(origin=origin)
        assert refused.value.status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        "Upgrade: websocket\r\nConnection: Upgrade\r\n",
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 8\r\nSec-WebSocket-Key: x\r\n",
        "",
    ],
)
def test_a_broken_handshake_is_answered_as_a_bad_request(portal: Portal, headers: str) -> None:
    with socket.create_connection(("127.0.0.1", portal.web.port), timeout=60) as connection:
        connection.sendall(f"GET /chat-run HTTP/1.1\r\nHost: 127.0.0.1:{portal.web.port}\r\n{headers}\r\n".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 400")


def test_compression_is_not_negotiated(portal: Portal) -> None:
    """STACK D6: it costs 92 KB a socket."""
    ws = portal.dial(header=["Sec-WebSocket-Extensions: permessage-deflate"])
    assert "sec-websocket-extensions" not in ws.getheaders()
    ws.close()
