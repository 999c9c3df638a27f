"""`/chat-run` under slow clients, too many of them, restarts, and a Redis that is away."""

import socket
import time
from pathlib import Path

import pytest
import websocket

from shared.database import transaction
from shared.store import users
from shared.tokens import token_hash
from tests.rig.proxy import Proxy
from tests.rig.redis_server import RedisServer
from tests.webapp.live_portal import Portal, ask, closed_with, dials, ended_with, get, same_as_stored
from tests.webapp.live_rig import wait_for
from webapp.live.watch import HEADS_S, SECOND_HEAD_S, STATES_S

# ---- slow clients, limits, restarts


def test_a_page_that_never_reads_is_closed_and_does_not_hold_up_the_others(portal: Portal) -> None:
    """F45."""
    session_id = portal.new_session()
    good = [portal.page(session_id) for _ in range(2)]
    asleep = portal.dial(sockopt=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)])
    ask(asleep, event="resume", session_id=session_id)
    turn = portal.turn(session_id)
    for _ in range(400):
        turn.say("x" * 16_000)
        for page in good:  # they read, and nothing holds them up
            page.wait(lambda p: p.seq > turn.seq - 20)
        turn.save() if len(turn.text) % 640_000 == 0 else None
        time.sleep(0.001)
    turn.finish()
    for page in good:
        page.wait(lambda p: turn.run_id in p.ended)
        assert page.text(turn.run_id) == turn.text
        page.stop()
        assert page.connects == 1
    started = time.monotonic()
    assert ended_with(asleep) in (1013, None)  # None: it did not even read so far within the grace
    assert time.monotonic() - started < 50  # the program itself waits for 60 s
    back = portal.page(session_id)
    back.wait(lambda p: p.text(turn.run_id) == turn.text)
    back.stop()


def test_sockets_above_the_cap_get_503_and_pages_still_answer(shared_redis: RedisServer, tmp_path: Path) -> None:
    """F48."""
    portal = Portal(tmp_path, shared_redis.url, environ={"PORTAL_MAX_SOCKETS": "10"})
    try:
        held = [portal.dial() for _ in range(10)]
        for _ in range(5):
            with pytest.raises(websocket.WebSocketBadStatusException) as refused:
                portal.dial()
            assert refused.value.status_code == 503
            assert refused.value.resp_headers["retry-after"]
            started = time.monotonic()
            assert get(f"{portal.web.url}/healthz") == 200
            assert time.monotonic() - started < 20
        held.pop().close()
        wait_for(lambda: dials(portal))
    finally:
        portal.close()


def test_a_stopped_web_process_asks_its_pages_to_come_back(shared_redis: RedisServer, tmp_path: Path) -> None:
    """F52: 1012 at once, the process is gone soon, pages go on where they were."""
    patient = {"GUNICORN_CMD_ARGS": "--graceful-timeout 600"}  # nothing is cut off because it takes too long
    portal = Portal(tmp_path, shared_redis.url, environ=patient)
    try:
        session_id = portal.new_session()
        pages = [portal.page(session_id) for _ in range(20)]
        turn = portal.turn(session_id)
        turn.say("before ")
        for page in pages:
            page.wait(lambda p: p.text(turn.run_id) == "before ")
        portal.web.stop(timeout_s=60)
        turn.say("while nobody listened ")
        portal.web.start()
        turn.say("after")
        turn.finish()
        for page in pages:
            page.wait(lambda p: turn.run_id in p.ended)
            assert page.text(turn.run_id) == turn.text
            assert page.closes == [1012]
            assert page.snapshots == 1
            page.stop()
    finally:
        portal.close()


def test_signing_out_or_losing_rights_closes_the_socket(shared_redis: RedisServer, tmp_path: Path) -> None:
    """S8, for a token, a disabled user and a changed role."""
    portal = Portal(tmp_path, shared_redis.url, auth_disabled=False)
    try:
        with transaction(portal.factory) as db:
            users.create_user(db, login="admin", name="Admin", role="administrator", password_hash="x")
            people = [
                users.create_user(db, login=f"u{n}", name="U", role="member", password_hash="x") for n in range(3)
            ]
            secrets = [f"secret-{n}" for n in range(3)]
            tokens = [
                users.create_api_token(db, user=user, name="t", token_hash=token_hash(secret), scopes=["read"])
                for user, secret in zip(people, secrets, strict=True)
            ]
        sockets = [portal.dial(header=[f"Authorization: Bearer {secret}"], suppress_origin=True) for secret in secrets]
        for ws in sockets:
            assert ask(ws, event="ping", id=1)["event"] == "pong"
        with transaction(portal.factory) as db:
            users.revoke_api_token(db, tokens[0].id)
            users.get(db, people[1].id).disabled = True
            users.get(db, people[2].id).role = "viewer"
        assert [closed_with(ws) for ws in sockets] == [1008, 1008, 1012]  # the last may come back, with fewer rights
        with pytest.raises(websocket.WebSocketBadStatusException) as refused:
            portal.dial(header=["Authorization: Bearer secret-0"], suppress_origin=True)
        assert refused.value.status_code == 401
    finally:
        portal.close()


def test_lost_publishes_are_seen_within_five_seconds(tmp_path: Path) -> None:
    """F18: the network drops what Redis pushes; the log is whole."""
    server = RedisServer()
    proxy = Proxy(server.socket)
    portal = Portal(tmp_path, server.url, web_redis_url=proxy.redis_url)
    try:
        session_id = portal.new_session()
        page = portal.page(session_id)
        turn = portal.turn(session_id)
        turn.say("heard ")
        page.wait(lambda p: p.text(turn.run_id) == "heard ")
        proxy.dropping_pushes = True
        turn.say("unheard ")
        turn.say("either")
        started = time.monotonic()
        page.wait(lambda p: p.text(turn.run_id) == turn.text)
        assert HEADS_S + SECOND_HEAD_S < 5
        assert time.monotonic() - started < STATES_S - 3, "by the log, not by comparing with the database"
        assert proxy.dropped
        proxy.dropping_pushes = False
        turn.finish()
        page.wait(lambda p: turn.run_id in p.ended)
        assert same_as_stored(portal, page, turn.run_id)
        assert (page.snapshots, page.misfits) == (1, 0)
        page.stop()
    finally:
        portal.close()
        proxy.close()
        server.close()


def test_without_redis_pages_show_what_is_saved_and_afterwards_go_on(tmp_path: Path) -> None:
    """C8, F14: a killed Redis that comes back empty."""
    server = RedisServer()
    portal = Portal(tmp_path, server.url)
    try:
        session_id = portal.new_session()
        page = portal.page(session_id)
        turn = portal.turn(session_id)
        turn.say("told ")
        page.wait(lambda p: p.text(turn.run_id) == "told ")
        server.kill()
        turn.say("only saved ", unheard=True)
        turn.save()
        page.wait(lambda p: p.text(turn.run_id) == turn.text)
        assert page.state["relay"] == "polling"
        late = portal.page(session_id)
        assert late.text(turn.run_id) == turn.text
        server.start()
        turn.say("and told again", new_epoch=True)
        turn.save()
        turn.finish()
        for one in (page, late):
            one.wait(lambda p: turn.run_id in p.ended and p.state["relay"] == "live")
            assert same_as_stored(portal, one, turn.run_id)
            assert one.connects == 1
            one.stop()
    finally:
        portal.close()
        server.close()
