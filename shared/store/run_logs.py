"""The events of finished runs, compressed, from which `/stream` plays a run long after its log in Redis is gone."""

import zlib
from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import delete
from sqlalchemy.orm import Session

from shared import clock
from shared.database import rows_changed
from shared.models import RunLog


def put(
    db: Session, *, run_id: str, session_id: str, epoch: str, first_seq: int, last_seq: int, lines: Iterable[str]
) -> None:
    """Keep the events of a run: one JSON object a line, each with its `seq` and `epoch`. Replaces what was there."""
    db.merge(
        RunLog(
            run_id=run_id,
            session_id=session_id,
            epoch=epoch,
            first_seq=first_seq,
            last_seq=last_seq,
            events_z=zlib.compress("\n".join(lines).encode("utf-8"), 6),
            created_at=clock.now(),
        )
    )
    db.flush()


def get(db: Session, run_id: str) -> RunLog | None:
    return db.get(RunLog, run_id)


def lines(log: RunLog) -> list[str]:
    """The events, one JSON object each."""
    text = zlib.decompress(log.events_z).decode("utf-8")
    return text.split("\n") if text else []


def remove_before(db: Session, moment: datetime) -> int:
    """Retention (PORTAL_KEEP_RUN_LOGS_DAYS): gives how many were removed."""
    return rows_changed(db, delete(RunLog).where(RunLog.created_at < moment))
