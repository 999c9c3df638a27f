"""The append-only record of who did what (S21). Triggers refuse UPDATE and DELETE; only retention may remove."""

from datetime import datetime
from typing import Any

from sqlalchemy.orm import Mapped, mapped_column

from shared.models.base import Base


class AuditEvent(Base):
    __tablename__ = "audit_event"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    at: Mapped[datetime] = mapped_column(index=True)
    action: Mapped[str]  # e.g. sign_in, sign_in_failed, token_created, approval_answered, run_aborted
    user_id: Mapped[str | None]
    user_name: Mapped[str | None]
    address: Mapped[str | None]
    session_id: Mapped[str | None]
    run_id: Mapped[str | None]
    facts: Mapped[dict[str, Any] | None]  # ids, hashes, choices: never contents


class AuditRetention(Base):
    """The switch of retention: while its one row stands, rows of `audit_event` older than `before` may be deleted.

    `shared.store.audit.remove_before` sets and clears it in one transaction, so nobody else ever sees it set.
    """

    __tablename__ = "audit_retention"

    before: Mapped[datetime] = mapped_column(primary_key=True)
