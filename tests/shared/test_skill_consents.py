"""To choose a skill is to agree to its text; another text wants another yes (RELIABILITY S33)."""

from sqlalchemy.orm import Session

from shared.store import skill_consents
from tests.factories import a_user


def test_a_text_is_new_then_agreed_and_another_one_is_a_change(db: Session) -> None:
    user = a_user(db)
    which = {"user_id": user.id, "profile": None, "folder_name": "audit"}
    assert skill_consents.of(db, **which, sha256="1" * 64) == "new"
    skill_consents.give(db, **which, sha256="1" * 64)
    skill_consents.give(db, **which, sha256="1" * 64)
    assert skill_consents.of(db, **which, sha256="1" * 64) == "agreed"
    assert skill_consents.of(db, **which, sha256="2" * 64) == "changed"
    skill_consents.give(db, **which, sha256="2" * 64)
    assert [skill_consents.of(db, **which, sha256=each * 64) for each in "123"] == ["agreed", "agreed", "changed"]


def test_it_is_of_that_person_that_profile_and_that_skill(db: Session) -> None:
    user, other = a_user(db), a_user(db)
    which = {"user_id": user.id, "profile": None, "folder_name": "audit"}
    skill_consents.give(db, **which, sha256="1" * 64)
    for change in ({"user_id": other.id}, {"profile": "work"}, {"folder_name": "ledger"}):
        assert skill_consents.of(db, **{**which, **change}, sha256="2" * 64) == "new"
