"""A conversation, and the summaries that stand in for its older turns."""

from datetime import datetime

from sqlalchemy import BigInteger, Float, ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from shared.models.base import Base

KEPT_SQL = text("deleted_at IS NULL")


class ChatSession(Base):
    """`held_reason` set: the queue waits for a person (DESIGN 4). `deleted_at` set: gone, with 7 days to undo."""

    __tablename__ = "chat_session"
    __table_args__ = (
        Index(
            "chat_session_by_activity",
            "owner_id",
            "status",
            "last_message_at",
            "id",
            sqlite_where=KEPT_SQL,
            postgresql_where=KEPT_SQL,
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    owner_id: Mapped[str] = mapped_column(ForeignKey("user.id"))
    title: Mapped[str] = mapped_column(default="")
    title_edited: Mapped[bool] = mapped_column(default=False)  # an edited title is never overwritten
    source: Mapped[str] = mapped_column(default="api_server")  # api_server | cli | acp:<agent>
    profile: Mapped[str | None]
    model: Mapped[str | None]
    skill_folder: Mapped[str | None]
    backend_session_id: Mapped[str | None]  # the backend's own
    status: Mapped[str] = mapped_column(default="ACTIVE")  # ACTIVE | ARCHIVED
    visibility: Mapped[str] = mapped_column(default="private")
    on_failure: Mapped[str] = mapped_column(default="hold")  # hold | continue | cancel
    held_reason: Mapped[str | None]  # EndReason or "failed", of the run that ended badly
    held_by_run_id: Mapped[str | None]
    held_at: Mapped[datetime | None]
    held_at_db: Mapped[float | None] = mapped_column(Float(53))  # seconds of the database's clock
    next_position: Mapped[int] = mapped_column(default=1)  # the next run's
    grant_epoch: Mapped[int] = mapped_column(default=0, server_default="0")  # rises when what it may unasked ends
    warm_worker: Mapped[str | None]  # the worker that holds its agent
    total_input_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    total_output_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    tokens_per_char: Mapped[float | None]  # calibrated by the usage last reported
    deleted_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    last_message_at: Mapped[datetime]


class Compression(Base):
    """A summary that the backend made of the turns up to `upto_position`; shown history is never altered by it."""

    __tablename__ = "compression"

    id: Mapped[str] = mapped_column(primary_key=True)
    session_id: Mapped[str] = mapped_column(ForeignKey("chat_session.id", ondelete="CASCADE"), index=True)
    run_id: Mapped[str]  # the run that needed it
    upto_position: Mapped[int]  # run position, inclusive
    summary: Mapped[str]
    before_tokens: Mapped[int]
    after_tokens: Mapped[int]
    created_at: Mapped[datetime]
