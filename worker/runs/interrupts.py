"""How a run hears of an abort, an answer, or that it is no longer its worker's while its backend streams.

The database is the truth. A note in the worker's mailbox only says where to look (it is not believed: Redis is not
trusted), and every few seconds all runs of the process are looked up anyway, so that no note is needed.
"""

import threading
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import bindparam, select

from shared import clock, logs
from shared.database import db_now, transaction
from shared.models import Pause, Run
from shared.protocol.events import AbortData, AbortStarted
from shared.relay.mailbox import Mailbox, Note
from shared.run_state import FINAL, RunState
from worker.context import WorkerContext
from worker.runs.inbox import AbortSeen, PauseDecided
from worker.runs.live_run import LiveRun

log = logs.get(__name__)


def look(context: WorkerContext, lives: Iterable[LiveRun], *, noted: str | None = None) -> None:
    """Compare these runs with the database and tell each what it must know. Raises Unavailable.

    `noted`: the pause that a note is about. Who decides tells the pages first and then leaves its note, so a decision
    that no note spoke of may be one that no page was told.
    """
    by_id = {live.run_id: live for live in lives}
    if not by_id:
        return
    pauses = {pause_id: live for live in by_id.values() for pause_id in live.open_pauses}
    with transaction(context.factory, write=False) as db:
        rows = db.execute(_STANDING, {"run_ids": list(by_id)}).all()
        decided = db.scalars(_DECIDED, {"pause_ids": list(pauses)}).all() if pauses else []
    for row in rows:
        _tell(by_id.pop(row.id), row)
    for live in by_id.values():  # its session was deleted for good
        live.lose_lease(taken=True)
    for pause_id in decided:
        pauses[pause_id].signal(PauseDecided(pause_id, is_told=pause_id == noted))


# Between a person's no and the backend that hears it: put together once, SQLAlchemy knows them again.
_STANDING: Final = select(
    Run.id, Run.state, Run.fence, Run.abort_by, (db_now() - Run.abort_requested_at_db).label("elapsed_s")
).where(Run.id.in_(bindparam("run_ids", expanding=True)))
_DECIDED: Final = select(Pause.id).where(Pause.id.in_(bindparam("pause_ids", expanding=True)), Pause.state != "pending")


def abort_requested(live: LiveRun, by: str | None, elapsed_s: float) -> AbortStarted:
    """The request to stop `live`, `elapsed_s` ago, as whoever made it has told it."""
    at = clock.now() - timedelta(seconds=elapsed_s)
    data = AbortData(by=by, stage="requested")
    return AbortStarted(session_id=live.session_id, run_id=live.run_id, at=at, data=data)


def _tell(live: LiveRun, row: Any) -> None:
    if row.fence != live.fence or row.state in FINAL:
        if not live.gone:
            log.warning("run.lost", run_id=live.run_id, fence=live.fence, now_fence=row.fence, state=row.state)
            live.lose_lease(taken=True)
    elif row.state == RunState.ABORTING and not live.abort_seen:
        live.abort_seen = True
        live.signal(AbortSeen(row.abort_by, max(0.0, row.elapsed_s or 0.0)))  # before what the backend says to it
        live.stop_backend()


class MailboxThread:
    """Reads the worker's one list. Each note is checked in the database before anything is done."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mailbox", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        mailbox = Mailbox(self._context.redis, self._context.keys, self._context.worker_id)
        for note in mailbox.listen(self._stop):
            try:
                self._take(note)
            except Exception:
                log.exception("mailbox.note_failed", run_id=note.run_id)

    def _take(self, note: Note) -> None:
        live = self._context.live_runs.get(note.run_id)
        if live is not None and note.fence == live.fence:
            look(self._context, [live], noted=note.pause_id)
