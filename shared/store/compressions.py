"""The summaries that stand in for the older turns of a session when its history is sent to a backend."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from shared import clock, ids
from shared.models import Compression


def add(
    db: Session,
    *,
    session_id: str,
    run_id: str,
    upto_position: int,
    summary: str,
    before_tokens: int,
    after_tokens: int,
) -> Compression:
    """Keep a summary of the turns up to and with that run position."""
    row = Compression(
        id=ids.new_id(),
        session_id=session_id,
        run_id=run_id,
        upto_position=upto_position,
        summary=summary,
        before_tokens=before_tokens,
        after_tokens=after_tokens,
        created_at=clock.now(),
    )
    db.add(row)
    db.flush()
    return row


def latest(db: Session, session_id: str, *, before_position: int | None = None) -> Compression | None:
    """The summary that reaches furthest; with `before_position` of those that end before that run."""
    wanted = select(Compression).where(Compression.session_id == session_id)
    if before_position is not None:
        wanted = wanted.where(Compression.upto_position < before_position)
    wanted = wanted.order_by(Compression.upto_position.desc(), Compression.created_at.desc()).limit(1)
    return db.scalars(wanted).one_or_none()
