"""The record of who did what. Rows are only ever added; retention alone removes old ones."""

from datetime import datetime
from typing import Any

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from shared import clock
from shared.database import rows_changed
from shared.models import AuditEvent, AuditRetention, User


def record(
    db: Session,
    action: str,
    *,
    user: User | None = None,
    address: str | None = None,
    session_id: str | None = None,
    run_id: str | None = None,
    **facts: Any,
) -> AuditEvent:
    """Add a row. `facts` are ids, hashes and choices: never contents, never secrets."""
    event = AuditEvent(
        at=clock.now(),
        action=action,
        user_id=None if user is None else user.id,
        user_name=None if user is None else user.name,
        address=address,
        session_id=session_id,
        run_id=run_id,
        facts=facts or None,
    )
    db.add(event)
    db.flush()
    return event


def latest(db: Session, *, before_id: int | None = None, limit: int = 100) -> list[AuditEvent]:
    """The newest rows, newest first; with `before_id` those before it."""
    wanted = select(AuditEvent).order_by(AuditEvent.id.desc()).limit(limit)
    if before_id is not None:
        wanted = wanted.where(AuditEvent.id < before_id)
    return list(db.scalars(wanted))


def remove_before(db: Session, moment: datetime) -> int:
    """Retention: remove rows older than `moment`, and record that. Gives how many.

    The triggers of the table let a row go only while `audit_retention` holds a later time; that row lives in this
    transaction alone, so nobody else can use it.
    """
    db.execute(delete(AuditRetention))
    db.execute(insert(AuditRetention).values(before=moment))
    removed = rows_changed(db, delete(AuditEvent).where(AuditEvent.at < moment))
    db.execute(delete(AuditRetention))
    if removed:
        record(db, "audit_removed", before=moment.isoformat(), count=removed)
    return removed
