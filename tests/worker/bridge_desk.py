"""A desk whose sessions of the kind `cli` are answered by a bridge backend of the test's."""

from typing import Any

from shared.models import ChatSession, Pause
from shared.relay import mailbox
from shared.relay.mailbox import Note
from shared.store import pauses, users
from shared.store import runs as run_store
from tests.worker.conftest import Desk
from worker.backends import registry
from worker.backends.bridge.backend import BridgeBackend

ENDS = {"run.completed", "run.failed", "run.cancelled", "run.interrupted", "abort.completed"}


class BridgeDesk:
    """`desk`, and what a test of the bridge says to it."""

    def __init__(self, desk: Desk, backend: BridgeBackend, monkeypatch: Any) -> None:
        self.desk = desk
        self.backend = backend
        monkeypatch.setitem(registry.SOURCES, "cli", lambda backends, source, profile: backend)

    def session(self, **columns: Any) -> str:
        return self.desk.session(source="cli", **columns)

    def run(self, text: str, session_id: str | None = None, **given: Any) -> str:
        """One turn to its end."""
        run_id = self.desk.submit(session_id or self.session(), text, **given)
        self.desk.start(run_id).join(180)  # it may have to start an agent first
        assert self.desk.row(run_id).ended_at is not None, "the turn did not end"
        return run_id

    def begin(self, text: str, session_id: str | None = None, **given: Any) -> str:
        """One turn, in a thread of its own."""
        run_id = self.desk.submit(session_id or self.session(), text, **given)
        self.desk.start(run_id)
        return run_id

    def ended(self, run_id: str) -> tuple[str, str | None]:
        """State and reason, once it is final and was told."""
        self.desk.wait_final(run_id)
        self.desk.wait(lambda: ENDS & set(self.desk.names(run_id)), what="the event that tells the end")
        row = self.desk.row(run_id)
        return row.state, row.reason

    def said(self, run_id: str) -> str:
        return self.desk.row(run_id).error or ""

    def text(self, run_id: str) -> str:
        """The answer, which page and database must agree on."""
        content = self.desk.answer(run_id).content
        assert self.desk.seen_text(run_id) == content
        return content

    def tools(self, run_id: str) -> list[dict[str, Any]]:
        return [item for item in self.desk.transcript(run_id)["items"] if item["type"] == "tool"]

    def asked(self, run_id: str) -> Pause:
        pause = self.desk.wait(lambda: self.desk.pause(run_id), what="the pause")
        assert isinstance(pause, Pause)
        return pause

    def answer(self, pause: Pause, **decision: Any) -> None:
        """As the web process does it: decide, commit, then nudge. That the pages know is left to the worker."""
        desk = self.desk
        with desk.db() as db:
            pauses.answer(db, pause.id, user=users.get(db, desk.user_id), **decision)
            worker_id = run_store.get(db, pause.run_id).worker_id
        note = Note(run_id=pause.run_id, kind="answer", fence=pause.fence)
        mailbox.post(desk.context.redis, desk.context.keys, worker_id, note)

    def abort(self, run_id: str) -> None:
        desk = self.desk
        with desk.db() as db:
            run_store.request_abort(db, run_id, by_name="Ada")
            run = run_store.get(db, run_id)
            note = Note(run_id=run_id, kind="abort", fence=run.fence)
            worker_id = run.worker_id
        mailbox.post(desk.context.redis, desk.context.keys, worker_id, note)

    def row_of(self, session_id: str) -> ChatSession:
        with self.desk.look() as db:
            return db.get_one(ChatSession, session_id)
