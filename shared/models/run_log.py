"""The events of a finished run, neighbouring deltas joined, compressed."""

from datetime import datetime

from sqlalchemy import ForeignKey, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from shared.models.base import Base


class RunLog(Base):
    """`events_z`: zlib-compressed JSON lines, each `{"seq", "epoch", ...envelope}`; kept PORTAL_KEEP_RUN_LOGS_DAYS."""

    __tablename__ = "run_log"

    run_id: Mapped[str] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    session_id: Mapped[str] = mapped_column(index=True)
    epoch: Mapped[str]
    first_seq: Mapped[int]
    last_seq: Mapped[int]
    events_z: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[datetime] = mapped_column(index=True)
