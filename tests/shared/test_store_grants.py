"""What is allowed always: granted with a person's answer, for one profile, until it is revoked (S20)."""

import pytest
from sqlalchemy.orm import Session

from shared.errors import NotFound
from shared.models import ApprovalGrant, Pause
from shared.run_state import RunState
from shared.store import approval_grants, pauses
from tests.factories import a_run, a_session, a_user


def ask(db: Session, *, profile: str | None, patterns: tuple[str, ...] = ("delete in root path",)) -> Pause:
    run = a_run(db, a_session(db, source="cli", profile=profile), state=RunState.RUNNING)
    request = {
        "command": "rm -rf /data/x", "description": "delete in root path",
        "choices": ["once", "session", "always", "deny"], "patterns": list(patterns),
    }  # fmt: skip
    return pauses.open(
        db, run_id=run.id, fence=run.fence, session_id=run.session_id, kind="approval", tool="terminal",
        request=request, timeout_s=60,
    )  # fmt: skip


@pytest.mark.parametrize("profile", [None, "work"])
def test_always_is_kept_with_who_when_and_why(db: Session, profile: str | None) -> None:
    ada = a_user(db)
    pause = pauses.answer(db, ask(db, profile=profile).id, user=ada, choice="always", reason="a scratch disk")
    (grant,) = approval_grants.in_force(db, profile)
    assert (grant.profile, grant.pattern_key, grant.command) == (profile, "delete in root path", "rm -rf /data/x")
    assert (grant.granted_by, grant.reason, grant.description) == (ada.id, "a scratch disk", "delete in root path")
    assert grant.granted_at >= pause.created_at
    assert (grant.revoked_at, grant.revoked_by) == (None, None)


@pytest.mark.parametrize("choice", ["once", "session", "deny"])
def test_no_other_answer_leaves_anything_behind(db: Session, choice: str) -> None:
    pauses.answer(db, ask(db, profile=None).id, user=a_user(db), choice=choice)
    assert approval_grants.in_force(db, None) == []


def test_an_agent_that_remembers_by_itself_gets_no_grant(db: Session) -> None:
    pauses.answer(db, ask(db, profile=None, patterns=()).id, user=a_user(db), choice="always")
    assert approval_grants.in_force(db, None) == []


def test_what_expired_grants_nothing(db: Session) -> None:
    pause = ask(db, profile=None)
    pauses.withdraw(db, pause.id)
    with pytest.raises(Exception, match="no longer waits"):
        pauses.answer(db, pause.id, user=a_user(db), choice="always")
    assert approval_grants.patterns(db, None) == ()


def test_it_never_crosses_profiles(db: Session) -> None:
    for profile in (None, "work", "play"):
        approval_grants.add(db, profile=profile, pattern_key=f"pattern of {profile}", user=None)
    for profile in (None, "work", "play"):
        assert approval_grants.patterns(db, profile) == (f"pattern of {profile}",)
    assert approval_grants.patterns(db, "other") == ()


def test_the_same_twice_is_one(db: Session) -> None:
    ada = a_user(db)
    first = approval_grants.add(db, profile="work", pattern_key="sudo", user=ada)
    assert approval_grants.add(db, profile="work", pattern_key="sudo", user=a_user(db)).id == first.id
    assert first.granted_by == ada.id


def test_what_is_revoked_is_asked_about_again_and_may_be_granted_again(db: Session) -> None:
    ada, bob = a_user(db), a_user(db)
    grant = approval_grants.add(db, profile="work", pattern_key="sudo", user=ada)
    approval_grants.add(db, profile="work", pattern_key="pipe to shell", user=ada)
    approval_grants.add(db, profile=None, pattern_key="sudo", user=ada)
    revoked = approval_grants.revoke(db, grant.id, user=bob)
    assert (revoked.revoked_by, revoked.revoked_at is not None) == (bob.id, True)
    assert approval_grants.patterns(db, "work") == ("pipe to shell",)
    assert approval_grants.patterns(db, None) == ("sudo",)
    approval_grants.revoke(db, grant.id, user=ada)
    assert revoked.revoked_by == bob.id, "the first revocation stays"
    assert approval_grants.add(db, profile="work", pattern_key="sudo", user=ada).id != grant.id
    assert approval_grants.patterns(db, "work") == ("pipe to shell", "sudo")


def test_two_grants_of_the_same_moment_are_revoked_together(db: Session) -> None:
    grant = approval_grants.add(db, profile=None, pattern_key="sudo", user=None)
    db.add(ApprovalGrant(id="twin", profile=None, pattern_key="sudo", granted_at=grant.granted_at))
    db.flush()
    assert approval_grants.patterns(db, None) == ("sudo",)
    approval_grants.revoke(db, grant.id, user=None)
    assert approval_grants.patterns(db, None) == ()


def test_what_is_not_there_cannot_be_revoked(db: Session) -> None:
    with pytest.raises(NotFound):
        approval_grants.revoke(db, "nothing", user=None)


def test_patterns_are_counted_by_profile_and_the_revoked_are_listed_apart(db: Session) -> None:
    ada = a_user(db)
    old = approval_grants.add(db, profile="work", pattern_key="sudo", user=ada)
    approval_grants.revoke(db, old.id, user=ada)
    approval_grants.add(db, profile="work", pattern_key="sudo", user=ada)
    approval_grants.add(db, profile="work", pattern_key="pipe to shell", user=ada)
    grant = approval_grants.add(db, profile=None, pattern_key="sudo", user=ada)
    db.add(ApprovalGrant(id="twin", profile=None, pattern_key="sudo", granted_at=grant.granted_at))
    db.flush()
    assert approval_grants.counts(db) == {"work": 2, None: 1}
    assert [each.id for each in approval_grants.revoked(db, "work")] == [old.id]
    assert approval_grants.revoked(db, None) == []
