"""Who is behind an open connection, and whether they may stay (S8)."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy.orm import Session, sessionmaker

from shared import clock
from shared.database import make_engine, make_session_factory, migrate, transaction
from shared.models import SignIn
from shared.store import users
from tests.factories import a_user
from webapp.auth import IDLE, LIFE, Principal
from webapp.live.standing import note_use, standings


@pytest.fixture
def factory(tmp_path: Path) -> Iterator[sessionmaker[Session]]:
    url = f"sqlite:///{tmp_path / 'portal.db'}"
    migrate(url)
    engine = make_engine(url)
    yield make_session_factory(engine)
    engine.dispose()


@pytest.fixture
def signed_in(factory: sessionmaker[Session]) -> Principal:
    with transaction(factory) as db:
        user = a_user(db)
        users.create_sign_in(db, user=user, id_hash="h1")
    return Principal(user.id, user.name, user.role, "cookie", sign_in_hash="h1")


def stands(factory: sessionmaker[Session], principal: Principal, *, since: float | None = None) -> str:
    with transaction(factory, write=False) as db:
        return standings(db, [principal], since=clock.now().timestamp() if since is None else since)[principal]


def test_somebody_signed_in_stays(factory: sessionmaker[Session], signed_in: Principal) -> None:
    assert stands(factory, signed_in) == "good"


def test_an_ended_sign_in_is_gone(factory: sessionmaker[Session], signed_in: Principal) -> None:
    with transaction(factory) as db:
        users.end_sign_in(db, "h1")
    assert stands(factory, signed_in) == "gone"


def test_a_new_password_ends_all_sign_ins(factory: sessionmaker[Session], signed_in: Principal) -> None:
    with transaction(factory) as db:
        users.end_all_of_user(db, users.get(db, signed_in.user_id))
    assert stands(factory, signed_in) == "gone"


def test_a_disabled_user_is_gone(factory: sessionmaker[Session], signed_in: Principal) -> None:
    with transaction(factory) as db:
        users.get(db, signed_in.user_id).disabled = True
    assert stands(factory, signed_in) == "gone"


def test_another_role_has_other_rights(factory: sessionmaker[Session], signed_in: Principal) -> None:
    with transaction(factory) as db:
        users.get(db, signed_in.user_id).role = "viewer"
    assert stands(factory, signed_in) == "changed"


@pytest.mark.parametrize(("column", "age"), [("seen_at", IDLE), ("created_at", LIFE)])
def test_an_old_sign_in_is_gone(
    factory: sessionmaker[Session], signed_in: Principal, column: str, age: timedelta
) -> None:
    with transaction(factory) as db:
        setattr(db.get_one(SignIn, "h1"), column, clock.now() - age)
    assert stands(factory, signed_in) == "gone"


def test_who_sends_commands_is_not_idle(factory: sessionmaker[Session], signed_in: Principal) -> None:
    with transaction(factory) as db:
        db.get_one(SignIn, "h1").seen_at = clock.now() - IDLE + timedelta(minutes=1)
    with transaction(factory) as db:
        note_use(db, [signed_in])
    with transaction(factory, write=False) as db:
        assert clock.now() - db.get_one(SignIn, "h1").seen_at < timedelta(minutes=1)


def test_a_grant_that_has_just_run_out_changes_what_may_be_read(
    factory: sessionmaker[Session], signed_in: Principal
) -> None:
    now = clock.now().timestamp()
    reader = Principal(
        signed_in.user_id, "n", signed_in.role, "cookie", sign_in_hash="h1", grants=(("s1", now - 1), ("s2", now + 60))
    )
    assert stands(factory, reader, since=now - 2) == "changed"
    assert stands(factory, reader, since=now) == "good"  # it ran out before this connection was opened


def test_tokens_and_the_local_administrator(factory: sessionmaker[Session]) -> None:
    with transaction(factory) as db:
        user, local = a_user(db), users.local_administrator(db)
        good = users.create_api_token(db, user=user, name="t", token_hash="t1", scopes=["read"])
        users.create_api_token(
            db, user=user, name="old", token_hash="t2", scopes=["read"], expires_at=clock.now() - timedelta(seconds=1)
        )
    program = Principal(user.id, user.name, user.role, "token", sign_in_hash="t1")
    assert stands(factory, program) == "good"
    assert stands(factory, Principal(user.id, user.name, user.role, "token", sign_in_hash="t2")) == "gone"
    assert stands(factory, Principal(user.id, user.name, user.role, "token", sign_in_hash="t3")) == "gone"
    assert stands(factory, Principal(local.id, local.name, local.role, "local")) == "good"
    with transaction(factory) as db:
        users.revoke_api_token(db, good.id)
    assert stands(factory, program) == "gone"
