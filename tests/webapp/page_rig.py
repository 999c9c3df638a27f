"""A session with everything a page can show, made in a real database by the product's own functions."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session, sessionmaker

from shared import clock
from shared.database import db_time, transaction
from shared.models import ChatMessage, ChatSession, Run, User
from shared.protocol import events as e
from shared.run_state import RunState
from shared.store import messages, pauses
from shared.transcript import Transcript, answer_text, fold, to_json
from tests.factories import a_queued_run, a_run, a_session, a_user


class Story:
    """Makes the turns of one session, each with its events `ago_s` seconds back in time."""

    def __init__(
        self, factory: sessionmaker[Session], *, title: str, owner: User | None = None, **session: Any
    ) -> None:
        self.factory = factory
        with transaction(factory) as db:
            self.owner = owner or a_user(db, name="Mara Lindqvist", login=f"mara-{clock.now().timestamp()}")
            self.session = a_session(db, owner=self.owner, title=title, title_edited=True, **session)
        self.session_id = self.session.id

    def turn(
        self, text: str, *steps: tuple[str, dict[str, Any]], state: RunState = RunState.COMPLETED, ago_s: float = 600,
        end: dict[str, Any] | None = None, source: str = "api_server", agent: str = "Hermes", **columns: Any,
    ) -> Run:  # fmt: skip
        """`steps`: (event name, data), one second apart; the end is added for a final state."""
        start = clock.now() - timedelta(seconds=ago_s)
        with transaction(self.factory) as db:
            session = db.get_one(ChatSession, self.session_id)
            run = a_run(db, session, state=state, text=text, **columns)
            t = self._transcript(run, start, steps, source, agent)
            last = start + timedelta(seconds=len(steps) + 2)
            answer = messages.answer_of(db, run.id)
            assert answer is not None
            self._end(t, run, answer, state, last, end or {})
            messages.put_transcript(answer, to_json(t))
            answer.content, answer.model = answer_text(t), t.model
            question = messages.question_of(db, run.id)
            assert question is not None
            question.created_at, answer.created_at = start, start
            if t.end is not None:
                answer.completed_at = run.ended_at = last
                answer.input_tokens, answer.output_tokens = 11_800, 620
                answer.error = run.error = (end or {}).get("message")
            self._pauses(db, run, t)
        return run

    def queued(self, *texts: str) -> list[Run]:
        with transaction(self.factory) as db:
            session = db.get_one(ChatSession, self.session_id)
            return [a_queued_run(db, session, text=text) for text in texts]

    def _transcript(self, run: Run, start: datetime, steps: Any, source: str, agent: str) -> Transcript:
        t = Transcript(run_id=run.id)
        facts = {
            "source": source,
            "agent": agent,
            "profile": "finance-ops",
            "model": "hermes-4-405b",
            "worker": "hel-1",
        }
        queued = {"queue_id": run.queue_id, "position": 0, "queue_length": 1, "message_id": "m", "input": ""}
        all_steps = [("run.queued", queued), ("run.started", {**facts, "number": run.position}), *steps]
        for n, (name, data) in enumerate(all_steps):
            at = start + timedelta(seconds=n * 1.3)
            fold(t, event(self.session_id, run.id, name, data, at=at, fence=run.fence))
        return t

    def _end(
        self, t: Transcript, run: Run, answer: ChatMessage, state: RunState, at: datetime, told: dict[str, Any]
    ) -> None:
        ends: dict[RunState, tuple[str, dict[str, Any]]] = {
            RunState.COMPLETED: ("run.completed", {"message_id": answer.id, "duration_ms": 102_000}),
            RunState.FAILED: ("run.failed", {"code": "backend_refused", "message": "It failed."}),
            RunState.INTERRUPTED: ("run.interrupted", {"reason": "worker_lost"}),
            RunState.ABORTED: (
                "abort.completed",
                {"by": "Mara Lindqvist", "stage": "acknowledged", "duration_ms": 410},
            ),
        }
        if state in ends:
            name, data = ends[state]
            fold(t, event(self.session_id, run.id, name, {**data, **told}, at=at, fence=run.fence))

    def _pauses(self, db: Session, run: Run, t: Transcript) -> None:
        if not t.open_pauses or run.state != RunState.RUNNING:
            return
        for pause in t.open_pauses:
            kind = "approval" if hasattr(pause, "approval_id") else "clarification"
            request = {"command": pause.command, "description": pause.description, "choices": pause.choices} if (
                kind == "approval"
            ) else {"question": pause.question, "choices": pause.choices}  # fmt: skip
            made = pauses.open(
                db, run_id=run.id, fence=run.fence, session_id=self.session_id, kind=kind, tool="shell",  # type: ignore[arg-type]
                request=request, timeout_s=pause.deadline and pause.deadline.timestamp() - db_time(db),
            )  # fmt: skip
            db.flush()
            made.id = getattr(pause, "approval_id", None) or pause.clarify_id


def event(session_id: str, run_id: str | None, name: str, data: dict[str, Any], **envelope: Any) -> e.AnyEvent:
    """An event by its name, as it would be read from the log."""
    return e.EVENT.validate_python(
        {"event": name, "session_id": session_id, "run_id": run_id, "data": data, "at": clock.now(), **envelope}
    )


def text(part: int, offset: int, words: str, kind: str = "message") -> tuple[str, dict[str, Any]]:
    return f"{kind}.delta", {"part": part, "offset": offset, "text": words}


def tool(tool_id: str, name: str, summary: str = "", arguments: Any = None) -> tuple[str, dict[str, Any]]:
    return "tool.started", {"tool_id": tool_id, "name": name, "summary": summary, "arguments": arguments}


def tool_done(tool_id: str, name: str, *, ok: bool | None = True, **more: Any) -> tuple[str, dict[str, Any]]:
    return "tool.completed", {"tool_id": tool_id, "name": name, "ok": ok, "duration_ms": 2_100, **more}
