"""Which text of a skill somebody has agreed to (RELIABILITY S33): to choose it is to agree to what it says then."""

from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from shared import clock, ids
from shared.models import SkillConsent

Consent = Literal["new", "agreed", "changed"]
"""`new`: never chosen before; `changed`: agreed to another text only."""


def of(db: Session, *, user_id: str, profile: str | None, folder_name: str, sha256: str) -> Consent:
    wanted = select(SkillConsent.sha256).where(
        SkillConsent.user_id == user_id,
        SkillConsent.profile.is_(None) if profile is None else SkillConsent.profile == profile,
        SkillConsent.folder_name == folder_name,
    )
    known = set(db.scalars(wanted))
    if not known:
        return "new"
    return "agreed" if sha256 in known else "changed"


def give(db: Session, *, user_id: str, profile: str | None, folder_name: str, sha256: str) -> None:
    """Agree to that text; once more does nothing."""
    if of(db, user_id=user_id, profile=profile, folder_name=folder_name, sha256=sha256) == "agreed":
        return
    db.add(
        SkillConsent(
            id=ids.new_id(),
            user_id=user_id,
            profile=profile,
            folder_name=folder_name,
            sha256=sha256,
            given_at=clock.now(),
        )
    )
    db.flush()
