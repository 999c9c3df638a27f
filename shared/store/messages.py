"""The messages of a session, page by page, and the transcripts that belong to its answers."""

import json
import zlib
from typing import Any, Final

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from shared import clock, ids
from shared.errors import NotFound
from shared.models import ChatMessage, Run

PLAIN_TRANSCRIPT_BYTES: Final = 1 << 20  # a larger one is compressed (DESIGN 3)


def get(db: Session, message_id: str) -> ChatMessage:
    """The message. Raises NotFound."""
    message = db.get(ChatMessage, message_id)
    if message is None:
        raise NotFound("There is no such message.")
    return message


def page(db: Session, session_id: str, *, before_id: str | None = None, limit: int = 50) -> list[ChatMessage]:
    """The last `limit` messages, or those just before one of them; oldest first. Nothing when `before_id` is not of
    this session."""
    wanted = select(ChatMessage).where(ChatMessage.session_id == session_id)
    if before_id is not None:
        place = select(ChatMessage.position).where(ChatMessage.id == before_id, ChatMessage.session_id == session_id)
        wanted = wanted.where(ChatMessage.position < place.scalar_subquery())
    rows = db.scalars(wanted.order_by(ChatMessage.position.desc()).limit(limit)).all()
    return list(reversed(rows))


def question_of(db: Session, run_id: str) -> ChatMessage | None:
    """The user's message that the run answers."""
    return _of_run(db, run_id, "USER")


def answer_of(db: Session, run_id: str) -> ChatMessage | None:
    """The run's answer; None before it began."""
    return _of_run(db, run_id, "ASSISTANT")


def _of_run(db: Session, run_id: str, role: str) -> ChatMessage | None:
    wanted = select(ChatMessage).where(ChatMessage.run_id == run_id, ChatMessage.role == role)
    return db.scalars(wanted).one_or_none()


def transcript_of(message: ChatMessage) -> dict[str, Any] | None:
    """The folded process of an answer (`shared.transcript.from_json` reads it)."""
    if message.transcript_z is not None:
        unpacked: dict[str, Any] = json.loads(zlib.decompress(message.transcript_z))
        return unpacked
    return message.transcript


def put_transcript(message: ChatMessage, transcript: dict[str, Any]) -> None:
    """Keep a transcript, compressed when it is large."""
    for name, value in transcript_columns(transcript).items():
        setattr(message, name, value)


def transcript_columns(transcript: dict[str, Any]) -> dict[str, Any]:
    """The two columns that hold a transcript: one of them filled, the other None."""
    packed = json.dumps(transcript, separators=(",", ":")).encode("ascii")
    if len(packed) > PLAIN_TRANSCRIPT_BYTES:
        return {"transcript": None, "transcript_z": zlib.compress(packed, 1)}
    return {"transcript": transcript, "transcript_z": None}


# ---- what the life of a run writes (called by runs.py, in its transactions)


def add_question(db: Session, run: Run, *, text: str, blocks: list[Any] | None) -> ChatMessage:
    """The user's message of a new run."""
    message = ChatMessage(
        id=ids.new_id(),
        session_id=run.session_id,
        run_id=run.id,
        position=question_position(run.position),
        role="USER",
        status="SENT",
        content=text,
        blocks=blocks,
        author_id=run.user_id,
        author_name=run.user_name,
        created_at=clock.now(),
    )
    db.add(message)
    db.flush()
    return message


def add_answer(
    db: Session,
    run: Run,
    *,
    status: str,
    model: str | None = None,
    skill_folder: str | None = None,
    transcript: dict[str, Any] | None = None,
) -> ChatMessage:
    """The message of a run's answer, still empty."""
    message = ChatMessage(
        id=ids.new_id(),
        session_id=run.session_id,
        run_id=run.id,
        position=question_position(run.position) + 1,
        role="ASSISTANT",
        status=status,
        content="",
        model=model or run.model,
        skill_folder=skill_folder or run.skill_folder,
        created_at=clock.now(),
    )
    if transcript is not None:
        put_transcript(message, transcript)
    db.add(message)
    db.flush()
    return message


def save_answer(db: Session, run_id: str, **columns: Any) -> None:
    """Write columns of a run's answer; `transcript` is packed as needed."""
    transcript = columns.pop("transcript", None)
    if transcript is not None:
        columns.update(transcript_columns(transcript))
    db.execute(
        update(ChatMessage)
        .where(ChatMessage.run_id == run_id, ChatMessage.role == "ASSISTANT")
        .values(**columns)
        .execution_options(synchronize_session=False)
    )
    held = next((m for m in db.identity_map.values() if _is_answer_of(m, run_id)), None)
    if held is not None:
        db.refresh(held)


def question_position(run_position: int) -> int:
    """The place in the session of a turn's question; its answer follows at the next number."""
    return run_position * 2


def _is_answer_of(thing: object, run_id: str) -> bool:
    return isinstance(thing, ChatMessage) and thing.run_id == run_id and thing.role == "ASSISTANT"
