"""The messages of a session, and the whole outputs of tools that a transcript shows only the beginning of."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from shared.models.base import Base


class ChatMessage(Base):
    """`position` orders a session: twice the run's position for the user's message, that plus one for the answer.

    `content` of an answer is its message.delta texts joined. `transcript` is the folded process: zlib-compressed JSON
    of `shared.transcript` when above 1 MB, else plain (`transcript_z` and `transcript`).
    """

    __tablename__ = "chat_message"
    __table_args__ = (
        Index("chat_message_in_order", "session_id", "position", unique=True),
        Index("chat_message_of_run", "run_id", "role", unique=True),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    session_id: Mapped[str] = mapped_column(ForeignKey("chat_session.id", ondelete="CASCADE"))
    run_id: Mapped[str | None]
    position: Mapped[int]
    role: Mapped[str]  # USER | ASSISTANT | SYSTEM
    status: Mapped[str]  # SENT | CANCELLED; RUNNING | SUCCESS | FAILED | STOPPED | INTERRUPTED
    content: Mapped[str] = mapped_column(default="")
    blocks: Mapped[list[Any] | None]
    author_id: Mapped[str | None] = mapped_column(ForeignKey("user.id", ondelete="SET NULL"))
    author_name: Mapped[str | None]
    model: Mapped[str | None]  # really used
    skill_folder: Mapped[str | None]
    transcript: Mapped[dict[str, Any] | None]
    transcript_z: Mapped[bytes | None] = mapped_column(LargeBinary)
    error_code: Mapped[str | None]
    error: Mapped[str | None]  # a sentence for people
    input_tokens: Mapped[int | None] = mapped_column(BigInteger)
    output_tokens: Mapped[int | None] = mapped_column(BigInteger)
    parent_id: Mapped[str | None]
    created_at: Mapped[datetime]
    completed_at: Mapped[datetime | None]


class ToolOutput(Base):
    """The whole output of a tool (to 32 MiB), where it is longer than what the transcript keeps; zlib-compressed."""

    __tablename__ = "tool_output"

    run_id: Mapped[str] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    tool_id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    body: Mapped[bytes] = mapped_column(LargeBinary)
    full_size: Mapped[int]  # bytes before compression
    created_at: Mapped[datetime]
