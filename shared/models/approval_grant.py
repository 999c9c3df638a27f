"""What people of a profile have allowed for always (RELIABILITY 2.2, S20)."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from shared.models.base import Base


class ApprovalGrant(Base):
    """Every command of the kind `pattern_key` may run in the profile, until somebody revokes it. `command` and
    `description`: those that were shown when it was allowed."""

    __tablename__ = "approval_grant"
    __table_args__ = (Index("approval_grant_of_profile", "profile", "pattern_key"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    profile: Mapped[str | None]  # None: the default one
    pattern_key: Mapped[str]  # in the agent's own words
    description: Mapped[str] = mapped_column(default="")
    command: Mapped[str] = mapped_column(default="")
    reason: Mapped[str | None]  # as the person gave it
    granted_by: Mapped[str | None] = mapped_column(ForeignKey("user.id", ondelete="SET NULL"))
    granted_at: Mapped[datetime]
    revoked_by: Mapped[str | None] = mapped_column(ForeignKey("user.id", ondelete="SET NULL"))
    revoked_at: Mapped[datetime | None]
