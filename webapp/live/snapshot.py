"""The whole view of a session at one place in its log: what a page is drawn from, and what `resumed` carries.

`take` reads the database and finds the cursor from which the log goes on, so that what the snapshot already holds is
not told again and nothing in between is lost (RELIABILITY 3, Connect):

- Text is appended first and saved a moment later, so while a run is active the cursor is the one its saved text reaches
  to (`flushed_epoch`, `flushed_seq`), or the place just before its first event while nothing is saved.
- Everything else is committed first and appended then, so with no run active the cursor is the head of the log,
  provided that it did not move while the database was read.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Text, cast, func, select, text
from sqlalchemy.orm import Session, sessionmaker

from shared import clock
from shared.database import transaction
from shared.errors import NotFound
from shared.models import ChatMessage, ChatSession, Pause, Run
from shared.queue_events import queue_told
from shared.relay.connection import RelayDown
from shared.relay.event_log import Cursor, EventLog
from shared.run_state import ACTIVE, RunState
from shared.store import messages as message_store
from shared.store.session_state import SessionState, states_of
from shared.transcript import Gap, Transcript, fold, from_json
from webapp.live.live_event import LiveEvent
from webapp.live.run_place import place_of

MESSAGES = 50
TRIES = 8
TRY_AGAIN_S = 0.02


@dataclass(frozen=True)
class Snapshot:
    """A session as of `cursor`. The rows are detached; `messages` are oldest first and hold the active run's answer,
    whose transcript is the one saved at the cursor. `cursor` is None where there is no log, or no Redis."""

    session: ChatSession
    messages: tuple[ChatMessage, ...]
    active: Run | None
    queue: tuple[Run, ...]
    pauses: tuple[Pause, ...]  # the open ones
    cursor: Cursor | None
    has_older: bool = False
    relay_up: bool = True

    @property
    def session_id(self) -> str:
        return self.session.id

    @property
    def is_aborting(self) -> bool:
        return self.active is not None and self.active.state == RunState.ABORTING

    @property
    def state(self) -> SessionState:
        """The part of it that events tell, to compare with the database later."""
        return SessionState(
            waiting=frozenset(run.id for run in self.queue),
            active=None if self.active is None else self.active.id,
            begun=self.active is not None and self.active.state != RunState.STARTING,
            pauses=frozenset(pause.id for pause in self.pauses),
            held=self.session.held_reason is not None,
            title=self.session.title,
            archived=self.session.status == "ARCHIVED",
            deleted=self.session.deleted_at is not None,
            owner_id=self.session.owner_id,
        )


def take(factory: sessionmaker[Session], log: EventLog, session_id: str, *, limit: int = MESSAGES) -> Snapshot:
    """The session now. Without Redis it is what the database holds, with no cursor. Rights are the caller's matter.

    Raises NotFound, Unavailable."""
    view = None
    for _ in range(TRIES):
        try:
            before = log.head(session_id)
            view = read(factory, session_id, limit=limit)
            placed, cursor = _place(log, view, before)
        except RelayDown:
            return without_relay(view or read(factory, session_id, limit=limit))
        if placed:
            return replace(view, cursor=cursor)
        time.sleep(TRY_AGAIN_S)
    assert view is not None
    return replace(
        view, cursor=before
    )  # events pour in with no run: from here some are told twice, which sets them anew


def read(factory: sessionmaker[Session], session_id: str, *, limit: int = MESSAGES) -> Snapshot:
    """What the database holds at one moment, without a cursor: `limit` messages besides those that wait.

    Raises NotFound, Unavailable."""
    with transaction(factory, write=False) as db:
        if db.get_bind().dialect.name == "postgresql":  # one moment for all statements, as SQLite gives by itself
            db.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
        session = db.get(ChatSession, session_id)
        if session is None:
            raise NotFound("There is no such session.")
        states = [RunState.QUEUED.value, *(state.value for state in ACTIVE)]
        runs = db.scalars(
            select(Run).where(Run.session_id == session_id, Run.state.in_(states)).order_by(Run.position)
        ).all()
        queue = tuple(run for run in runs if run.state == RunState.QUEUED)
        limit += len(queue)  # what waits stands after the active run's answer, and must not push it out
        shown = message_store.page(db, session_id, limit=limit + 1)
        pauses = db.scalars(
            select(Pause).where(Pause.session_id == session_id, Pause.state == "pending").order_by(Pause.created_at)
        ).all()
        return Snapshot(
            session=session,
            messages=tuple(shown[-limit:]),
            active=next((run for run in runs if run.state != RunState.QUEUED), None),
            queue=queue,
            pauses=tuple(pauses),
            cursor=None,
            has_older=len(shown) > limit,
        )


def pulse(factory: sessionmaker[Session], session_id: str) -> object:
    """Equal to an earlier one while nothing that a snapshot shows has changed; cheap, for pages that poll.

    Raises NotFound, Unavailable."""
    with transaction(factory, write=False) as db:
        state = states_of(db, [session_id]).get(session_id)
        if state is None:
            raise NotFound("There is no such session.")
        in_play = [run_id for run_id in (state.active, *state.waiting) if run_id is not None]
        facts = select(ChatSession.updated_at, ChatSession.last_message_at).where(ChatSession.id == session_id)
        runs = select(Run.id, Run.state, Run.position, Run.input).where(Run.id.in_(in_play)).order_by(Run.position)
        saved = select(
            func.length(ChatMessage.content),
            func.length(cast(ChatMessage.transcript, Text)),
            func.length(ChatMessage.transcript_z),
        ).where(ChatMessage.run_id == state.active, ChatMessage.role == "ASSISTANT")
        return state, [[tuple(row) for row in db.execute(statement)] for statement in (facts, runs, saved)]


# ---- the cursor


def _place(log: EventLog, view: Snapshot, before: Cursor | None) -> tuple[bool, Cursor | None]:
    """(found, cursor); not found when the log moved under a view that only stands still with it."""
    now = log.head(view.session_id)
    run = view.active
    if now is None or run is None:
        return now == before, now
    if run.flushed_epoch is None:
        # Only what its worker appended counts; a second after the first of that something is saved.
        place = place_of(log, run, now, lambda event: event.fence is not None, is_near=True)
        first = None if place is None else place.before
        return (first is not None or now == before), (first or now)
    if run.flushed_epoch != now.epoch:
        return True, Cursor(now.epoch, 0)
    return True, Cursor(now.epoch, min(run.flushed_seq, now.seq))


def fits(view: Snapshot, events: Sequence[LiveEvent]) -> bool:
    """Whether the log goes on where the saved text of the active run ends. It does not for a moment after a log was
    lost: the text that only the old log held is saved right after the new one began."""
    run = view.active
    if run is None:
        return True
    answer = next((m for m in view.messages if m.run_id == run.id and m.role == "ASSISTANT"), None)
    saved = None if answer is None else message_store.transcript_of(answer)
    transcript = Transcript(run_id=run.id) if saved is None else from_json(saved)
    try:
        for event in events:
            if event.event is not None:
                fold(transcript, event.event)
    except Gap:
        return False
    return True


def without_relay(view: Snapshot) -> Snapshot:
    """The view as it is told while Redis does not answer: without a place in a log."""
    return replace(view, cursor=None, relay_up=False)


# ---- `resumed` (DESIGN 5)


def resumed_text(view: Snapshot, *, replay: Sequence[LiveEvent] | None = None, cursor: Cursor | None = None) -> str:
    """The JSON of `resumed`: the snapshot; or, with `replay`, no messages but in `events` what came after the client's
    cursor. `seq` and `epoch` are where the client stands after it, `snapshot` says whether it replaces all it has."""
    at = view.cursor if replay is None else cursor
    facts = {
        "event": "resumed",
        "session_id": view.session_id,
        "snapshot": replay is None,
        "messages": [message_body(message) for message in view.messages] if replay is None else [],
        **_state_facts(view),
        "seq": 0 if at is None else at.seq,
        "epoch": None if at is None else at.epoch,
    }
    head = json.dumps(facts, ensure_ascii=False, separators=(",", ":"))
    events = ",".join(event.text for event in replay or ())
    return f'{head[:-1]},"events":[{events}]}}'


def message_body(message: ChatMessage) -> dict[str, Any]:
    """A message as programs see it (DESIGN 6); `logs` is the transcript."""
    return {
        "id": message.id,
        "runId": message.run_id,
        "role": message.role,
        "content": message.content,
        "status": message.status,
        "author": message.author_name,
        "modelId": message.model,
        "skillFolder": message.skill_folder,
        "logs": message_store.transcript_of(message),
        "error": message.error,
        "errorCode": message.error_code,
        "inputTokens": message.input_tokens,
        "outputTokens": message.output_tokens,
        "createdAt": clock.iso_ms(message.created_at),
        "completedAt": None if message.completed_at is None else clock.iso_ms(message.completed_at),
    }


def _state_facts(view: Snapshot) -> dict[str, Any]:
    session = view.session
    return {
        "title": session.title,
        "archived": session.status == "ARCHIVED",
        "isWorking": view.active is not None,
        "isAborting": view.is_aborting,
        "runId": None if view.active is None else view.active.id,
        "state": None if view.active is None else view.active.state,
        "inputTokens": session.total_input_tokens,
        "outputTokens": session.total_output_tokens,
        "queueLength": len(view.queue),
        "queue": [item.model_dump() for item in queue_told(view.queue, session.held_reason).queue],
        "held": session.held_reason,
        "pauses": [pause_body(pause) for pause in view.pauses],
        "hasOlder": view.has_older,
        "relay": "live" if view.relay_up else "polling",
    }


def pause_body(pause: Pause) -> dict[str, Any]:
    """An open approval or question, with the names of its `*.requested` event."""
    is_approval = pause.kind == "approval"
    deadline = None if pause.expires_at_db is None else clock.iso_ms(datetime.fromtimestamp(pause.expires_at_db, UTC))
    return {
        "event": "approval.requested" if is_approval else "clarify.requested",
        "run_id": pause.run_id,
        **({"kind": pause.tool} if is_approval else {}),
        **pause.request,
        ("approval_id" if is_approval else "clarify_id"): pause.id,
        "deadline": deadline,
    }
