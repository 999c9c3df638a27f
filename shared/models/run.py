"""A run: one execution of a turn (RELIABILITY 2.2)."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Float, ForeignKey, Index, String, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from shared.models.base import Base

ACTIVE_SQL = text("state IN ('starting', 'running', 'awaiting_approval', 'awaiting_clarification', 'aborting')")
QUEUED_SQL = text("state = 'queued'")


class Run(Base):
    """Moved only by `shared.store.runs.move`. Fields ending in `_db` are seconds of the database's own clock."""

    __tablename__ = "run"
    __table_args__ = (
        UniqueConstraint("session_id", "position"),
        UniqueConstraint("session_id", "queue_id"),
        Index(
            "one_active_run_per_session",
            "session_id",
            unique=True,
            sqlite_where=ACTIVE_SQL,
            postgresql_where=ACTIVE_SQL,
        ),
        Index("run_queued", "session_id", "position", sqlite_where=QUEUED_SQL, postgresql_where=QUEUED_SQL),
        Index("run_by_state", "state"),
    )

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    session_id: Mapped[str] = mapped_column(ForeignKey("chat_session.id", ondelete="CASCADE"))
    position: Mapped[int]
    queue_id: Mapped[str]
    body_hash: Mapped[str]  # SHA-256 of the submitted body: the same key with another body is a conflict
    state: Mapped[str] = mapped_column(default="queued")
    reason: Mapped[str | None]  # EndReason
    fence: Mapped[int] = mapped_column(BigInteger, default=0)
    attempt: Mapped[int] = mapped_column(default=0)  # starts that failed before anything was sent
    worker_id: Mapped[str | None]
    lease_until_db: Mapped[float | None] = mapped_column(Float(53))
    dispatched_at_db: Mapped[float | None] = mapped_column(Float(53))
    dispatches: Mapped[int] = mapped_column(default=0)
    queued_at_db: Mapped[float] = mapped_column(Float(53))
    held_seconds: Mapped[float] = mapped_column(Float(53), default=0.0)  # not counted in the 24 h of waiting
    abort_requested_at_db: Mapped[float | None] = mapped_column(Float(53))
    abort_by: Mapped[str | None]  # display name, or "time limit"
    flushed_epoch: Mapped[str | None]
    flushed_seq: Mapped[int] = mapped_column(BigInteger, default=0)
    retry_of: Mapped[str | None]

    user_id: Mapped[str] = mapped_column(ForeignKey("user.id"))
    user_name: Mapped[str]
    input: Mapped[str]
    blocks: Mapped[list[Any] | None]
    instructions: Mapped[str | None]
    model: Mapped[str | None]
    skill_folder: Mapped[str | None]
    source: Mapped[str]
    background: Mapped[bool] = mapped_column(default=False)
    max_iterations: Mapped[int | None]
    backend_run_id: Mapped[str | None]  # the backend's own

    usage: Mapped[dict[str, Any] | None]
    error_code: Mapped[str | None]
    error: Mapped[str | None]  # a sentence for people
    detail_id: Mapped[str | None]

    created_at: Mapped[datetime]
    starting_at: Mapped[datetime | None]
    begun_at: Mapped[datetime | None]  # the first `running`: never started again by the system after it
    ended_at: Mapped[datetime | None]
