"""Which text of a skill a person has agreed to (RELIABILITY S33)."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from shared.models.base import Base


class SkillConsent(Base):
    """The person chose the skill when its SKILL.md had this hash, or agreed to it after a change."""

    __tablename__ = "skill_consent"
    __table_args__ = (Index("skill_consent_of_user", "user_id", "folder_name"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("user.id", ondelete="CASCADE"))
    profile: Mapped[str | None]  # None: the default one
    folder_name: Mapped[str]
    sha256: Mapped[str]  # of the bytes of the file
    given_at: Mapped[datetime]
