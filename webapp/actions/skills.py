"""What a person does with a skill: read it, and agree to what it says (RELIABILITY S33).

Nobody installs one here: that is to put a folder into a home, or into the portal's own, as who runs them.
"""

import re
from dataclasses import dataclass
from typing import Final

from sqlalchemy.orm import Session

from shared import errors, skills
from shared.database import in_transaction, transaction
from shared.store import audit, catalogue, skill_consents, users
from shared.store.skill_consents import Consent
from webapp import rights
from webapp.actions import names
from webapp.auth import Principal
from webapp.context import WebContext
from webapp.homes import home_of

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class SkillText:
    """A skill as it is now, and what the reader has agreed to of it."""

    folder_name: str
    profile: str | None
    content: skills.Content
    consent: Consent


def read(web: WebContext, principal: Principal, folder_name: str, profile: str | None) -> SkillText:
    """Raises NotFound, InvalidCommand."""
    rights.reading(principal)
    name = names.name(folder_name, "skill") or ""
    with transaction(web.factory, write=False) as db:
        known = _profile(db, profile)
        home = home_of(db, web.settings, known)
    content = skills.read(home, web.settings.data_dir, name)
    if content is None:
        raise errors.NotFound("There is no such skill, or it cannot be read.")
    with transaction(web.factory, write=False) as db:
        consent = skill_consents.of(
            db, user_id=principal.user_id, profile=known, folder_name=name, sha256=content.sha256
        )
    return SkillText(name, known, content, consent)


def agree(web: WebContext, principal: Principal, folder_name: str, profile: str | None, sha256: str) -> None:
    """Agree to the text of that hash, as it was shown. What it says by then, the next turn looks at. Raises Forbidden,
    InvalidCommand, NotFound."""
    if not rights.may_create(principal):
        raise errors.Forbidden("You may read here, but not choose skills.")
    name = names.name(folder_name, "skill")
    if name is None or not _SHA256.fullmatch(sha256):
        raise errors.InvalidCommand("Say which text of the skill you agree to: its SHA-256.")

    def work(db: Session) -> None:
        known = _profile(db, profile)
        user = users.get(db, principal.user_id)
        skill_consents.give(db, user_id=user.id, profile=known, folder_name=name, sha256=sha256)
        audit.record(
            db, "skill_agreed", user=user, address=principal.address, skill=name, sha256=sha256,
            profile=known or names.DEFAULT_PROFILE,
        )  # fmt: skip

    in_transaction(web.factory, work)


def _profile(db: Session, given: str | None) -> str | None:
    """Raises NotFound for one that is not there."""
    name = names.profile(given)
    if name is not None and catalogue.profile(db, name) is None:
        raise errors.NotFound("There is no profile of this name.")
    return name
