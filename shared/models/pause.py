"""An approval or a clarification: what a run waits for, and how it was decided (RELIABILITY 2.2)."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Float, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from shared.models.base import Base


class Pause(Base):
    """`request` holds the exact content shown; `args_hash` is checked again at delivery (S18)."""

    __tablename__ = "pause"
    __table_args__ = (Index("pause_open", "session_id", "state"), Index("pause_of_run", "run_id"))

    id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"))
    session_id: Mapped[str] = mapped_column(ForeignKey("chat_session.id", ondelete="CASCADE"))
    fence: Mapped[int] = mapped_column(BigInteger)
    kind: Mapped[str]  # approval | clarification
    tool: Mapped[str] = mapped_column(default="")
    request: Mapped[dict[str, Any]]  # {command, description, choices, patterns?} or {question, choices}
    args_hash: Mapped[str]
    expires_at_db: Mapped[float | None] = mapped_column(Float(53))  # None: no limit
    state: Mapped[str] = mapped_column(default="pending")  # pending | answered | expired | withdrawn
    choice: Mapped[str | None]  # once | session | always | deny
    answer: Mapped[str | None]
    late_answer: Mapped[str | None]  # what somebody answered when it was decided already: kept, to be sent as a turn
    reason: Mapped[str | None]
    by_id: Mapped[str | None]
    by_name: Mapped[str | None]
    created_at: Mapped[datetime]
    decided_at: Mapped[datetime | None]
