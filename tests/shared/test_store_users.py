"""People and programs in the database: logins, tokens, the first start."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session, sessionmaker

from shared import clock
from shared.database import transaction
from shared.errors import Conflict, NotFound
from shared.store import users
from tests.factories import a_user
from tests.rig.at_once import at_once


def test_a_login_is_one_persons_whatever_its_case(db: Session) -> None:
    ann = users.create_user(db, login=" Ann ", name="Ann", role="member", password_hash="x")
    assert users.by_login(db, "ANN") is ann
    with pytest.raises(Conflict) as refused:
        users.create_user(db, login="aNN", name="Other", role="member", password_hash="x")
    assert refused.value.code == "login_taken"
    assert users.all_users(db) == [ann], "the transaction goes on after the refusal"
    with pytest.raises(NotFound):
        users.get(db, "nobody")


def test_the_local_administrator_is_made_once_by_many_at_once(factory: sessionmaker[Session]) -> None:
    def local() -> str:
        with transaction(factory) as db:
            return users.local_administrator(db).id

    assert len(set(at_once(*[local] * 6))) == 1
    with transaction(factory, write=False) as db:
        assert not users.any_administrator(db), "nobody can sign in as it"


def test_an_administrator_counts_while_able_to_sign_in(db: Session) -> None:
    assert not users.any_administrator(db)
    a_user(db, role="member", password_hash="x")
    admin = a_user(db, role="administrator", password_hash="x")
    assert users.any_administrator(db)
    admin.disabled = True
    db.flush()
    assert not users.any_administrator(db)


def test_a_login_is_found_until_it_ends(db: Session) -> None:
    ann = a_user(db)
    users.create_sign_in(db, user=ann, id_hash="h1", address="::1", agent="x" * 1000)
    users.create_sign_in(db, user=ann, id_hash="h2")
    found = users.find_sign_in(db, "h1")
    assert found is not None
    assert found[1] is ann
    assert users.find_sign_in(db, "other") is None
    assert users.end_sign_in(db, "h1")
    assert not users.end_sign_in(db, "h1")
    assert users.find_sign_in(db, "h1") is None
    assert users.find_sign_in(db, "h2") is not None


@pytest.mark.parametrize("change", ["disable", "end all"])
def test_all_logins_of_a_person_end_together(db: Session, change: str) -> None:
    ann = a_user(db)
    users.create_sign_in(db, user=ann, id_hash="h1")
    if change == "disable":
        ann.disabled = True
        db.flush()
    else:
        users.end_all_of_user(db, ann)
    assert users.find_sign_in(db, "h1") is None


def test_use_is_noted_at_most_once_a_minute(db: Session) -> None:
    ann = a_user(db)
    sign_in = users.create_sign_in(db, user=ann, id_hash="h1")
    assert not users.touch_sign_in(db, sign_in)
    sign_in.seen_at -= timedelta(minutes=2)
    assert users.touch_sign_in(db, sign_in)
    token = users.create_api_token(db, user=ann, name="ci", token_hash="t", scopes=["write", "read"])
    assert users.touch_api_token(db, token)
    assert not users.touch_api_token(db, token)


def test_a_token_works_until_it_expires_or_is_revoked(db: Session) -> None:
    ann = a_user(db)
    token = users.create_api_token(db, user=ann, name="ci", token_hash="t", scopes={"write", "read"})
    assert token.scopes == ["read", "write"]
    assert users.find_api_token(db, "t") == (token, ann)
    token.expires_at = clock.now() - timedelta(seconds=1)
    db.flush()
    assert users.find_api_token(db, "t") is None
    token.expires_at = None
    db.flush()
    with pytest.raises(NotFound):
        users.revoke_api_token(db, token.id, user_id=a_user(db).id)
    assert users.list_api_tokens(db, ann.id) == [token]
    users.revoke_api_token(db, token.id, user_id=ann.id)
    assert users.find_api_token(db, "t") is None
    assert users.list_api_tokens(db) == []


def test_a_token_of_a_disabled_person_does_not_work(db: Session) -> None:
    ann = a_user(db)
    users.create_api_token(db, user=ann, name="ci", token_hash="t", scopes=["read"])
    ann.disabled = True
    db.flush()
    assert users.find_api_token(db, "t") is None


def test_a_setup_token_is_spent_once_by_one(factory: sessionmaker[Session]) -> None:
    with transaction(factory) as db:
        users.create_setup_token(db, token_hash="old", expires_at=clock.now() + timedelta(minutes=30))
        users.create_setup_token(db, token_hash="new", expires_at=clock.now() + timedelta(minutes=30))
        assert not users.is_setup_token(db, "old"), "a newer one replaces it"
        assert users.is_setup_token(db, "new")

    def spend() -> bool:
        with transaction(factory) as db:
            return users.use_setup_token(db, "new")

    assert sorted(at_once(*[spend] * 5)) == [False] * 4 + [True]


def test_an_expired_setup_token_is_not_taken(db: Session) -> None:
    users.create_setup_token(db, token_hash="t", expires_at=clock.now() - timedelta(seconds=1))
    assert not users.is_setup_token(db, "t")
    assert not users.use_setup_token(db, "t")


def test_names_are_given_for_those_that_there_are(db: Session) -> None:
    ada = a_user(db, name="Ada")
    assert users.names(db, [ada.id, None, "nobody", ada.id]) == {ada.id: "Ada"}
    assert users.names(db, []) == {}
