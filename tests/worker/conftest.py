"""A worker without Celery: the context of a process, its runs driven by calling `execute` in threads of the test."""

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from shared import ids
from shared import settings as portal_settings
from shared.database import migrate, transaction
from shared.models import ChatMessage, Pause, Run
from shared.protocol.events import AnyEvent
from shared.relay.event_log import Cursor, event_of
from shared.relay.presence import Presence
from shared.run_state import FINAL
from shared.store import chat_sessions, messages, pauses, users
from shared.store import runs as run_store
from shared.transcript import fold
from shared.transcript_json import from_json, to_json
from tests import factories
from tests.rig.bridge_child import BridgeChild
from tests.rig.hermes import ScriptedModel
from tests.rig.redis_server import RedisServer
from tests.rig.worker_process import FAST
from tests.worker.scripted_backend import EFFECTS, ScriptedBackend, serve
from worker.backends import registry
from worker.context import WorkerContext
from worker.lifecycle import Process, make_context
from worker.runs.execute import execute


class Desk:
    """Submits turns, drives them, and looks at what came of them."""

    def __init__(self, environ: dict[str, str], folder: Path) -> None:
        self.environ = environ
        self.effects_path = Path(environ[EFFECTS])
        self.settings = portal_settings.load({"PORTAL_DATA_DIR": str(folder), **environ}, cwd=folder)
        self.backend = ScriptedBackend()
        self.sent: list[tuple[str, str]] = []  # run id, queue
        self.contexts: list[WorkerContext] = []
        self.processes: list[Process] = []
        self.threads: list[threading.Thread] = []
        self.context = self.new_context("worker-a")
        self.factory = self.context.factory
        with self.db() as db:
            self.user_id = factories.a_user(db, login="ada").id

    def new_context(self, worker_id: str) -> WorkerContext:
        """Another worker, as far as anybody can see."""
        context = make_context(self.settings, Celery("nobody"), worker_id)
        context.send_task = lambda run_id, queue, labels: self.sent.append((run_id, queue))
        context.presence = Presence(context.redis, context.keys, ttl_s=3600)  # no heartbeat ends while a test is slow
        self.contexts.append(context)
        return context

    def start_threads(self, context: Any = None) -> Process:
        """Mailbox, leases, looks, heartbeats and the janitor of a worker."""
        process = Process(context or self.context, is_worker=True)
        self.processes.append(process)
        process.start()
        return process

    def db(self) -> Any:
        return transaction(self.factory)

    def look(self) -> Any:
        return transaction(self.factory, write=False)

    # ---- turns

    def session(self, **columns: Any) -> str:
        with self.db() as db:
            return factories.a_session(db, owner=users.get(db, self.user_id), **columns).id

    def submit(self, session_id: str, steps: Any, **given: Any) -> str:
        text = steps if isinstance(steps, str) else json.dumps(steps)
        with self.db() as db:
            session = chat_sessions.get(db, session_id)
            return factories.a_queued_run(db, session, text=text, **given).id

    def run(self, steps: Any, **columns: Any) -> str:
        """One turn in a new session, driven to its end."""
        run_id = self.submit(self.session(**columns), steps)
        execute(run_id, self.context)
        return run_id

    def start(self, run_id: str, context: Any = None) -> threading.Thread:
        """Drive a run in a thread of its own."""
        thread = threading.Thread(target=execute, args=(run_id, context or self.context), daemon=True)
        thread.start()
        self.threads.append(thread)
        return thread

    # ---- what came of them

    def row(self, run_id: str) -> Run:
        with self.look() as db:
            return run_store.get(db, run_id)

    def state(self, run_id: str) -> str:
        return self.row(run_id).state

    def answer(self, run_id: str) -> ChatMessage:
        with self.look() as db:
            message = messages.answer_of(db, run_id)
            assert message is not None
            return message

    def transcript(self, run_id: str) -> dict[str, Any]:
        return messages.transcript_of(self.answer(run_id)) or {}

    def transcript_after(self, run_id: str, events: list[AnyEvent], packed: dict[str, Any]) -> dict[str, Any]:
        transcript = from_json(packed)
        for event in events:
            fold(transcript, event)
        return to_json(transcript)

    def pause(self, run_id: str) -> Pause | None:
        with self.look() as db:
            found = [pause for pause in pauses.of_run(db, run_id) if pause.state == "pending"]
        return found[0] if found else None

    def events(self, run_id: str) -> list[AnyEvent]:
        """What the session's log has of the run, all epochs' last one."""
        session_id = self.row(run_id).session_id
        head = self.context.log.head(session_id)
        if head is None:
            return []
        entries = self.context.log.read_after(session_id, Cursor(head.epoch, 0), limit=100_000, max_bytes=1 << 30)
        found = [event_of(entry, session_id) for entry in entries or []]
        return [event for event in found if event is not None and event.run_id == run_id]

    def event_of(self, entry: Any, session_id: str) -> AnyEvent:
        found = event_of(entry, session_id)
        assert found is not None
        return found

    def names(self, run_id: str) -> list[str]:
        """Names of the run's events, neighbours that are equal counted once."""
        names = [event.event for event in self.events(run_id)]
        return [name for n, name in enumerate(names) if n == 0 or names[n - 1] != name]

    def seen_text(self, run_id: str) -> str:
        """The answer as a page puts it together, checking each offset."""
        parts: dict[int, str] = {}
        for event in self.events(run_id):
            if event.event == "message.delta":
                text = parts.get(event.data.part, "")
                assert event.data.offset == len(text), f"a hole in part {event.data.part}"
                parts[event.data.part] = text + event.data.text
        return "".join(parts[part] for part in sorted(parts))

    def effects(self) -> list[str]:
        return self.effects_path.read_text().splitlines() if self.effects_path.exists() else []

    def turns(self, run_id: str) -> int:
        """How often the backend was asked for this turn."""
        return self.effects().count(f"turn {run_id}")

    def wait(self, condition: Callable[[], Any], timeout_s: float = 60.0, what: str = "the condition") -> Any:
        deadline = time.monotonic() + timeout_s
        while not (value := condition()):
            assert time.monotonic() < deadline, f"{what} did not come true in {timeout_s:g} s"
            time.sleep(0.02)
        return value

    def wait_final(self, run_id: str, timeout_s: float = 60.0) -> str:
        self.wait(lambda: self.state(run_id) in FINAL, timeout_s, f"the end of {run_id} ({self.state(run_id)})")
        return self.state(run_id)

    def close(self) -> None:
        self.backend.released.set()
        for context in self.contexts:
            context.draining.set()
            for live in context.live_runs.all():
                live.shut_down()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive(), "a run that does not end"
        for process in self.processes:
            process.close()
        for context in self.contexts:
            context.engine.dispose()


@pytest.fixture(scope="module")
def model(hermes_python: Path) -> Iterator[ScriptedModel]:
    """Behind the bridge children of a module."""
    model = ScriptedModel()
    yield model
    model.close()


@pytest.fixture(scope="module")
def child(model: ScriptedModel) -> Iterator[BridgeChild]:
    """The real bridge child, as it comes, for the tests of a module."""
    child = BridgeChild(model)
    yield child.start()
    child.close()


@pytest.fixture
def patience_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads a gateway's stream finds at each look that 50 s have gone by."""
    clock = SimpleNamespace(monotonic=itertools.count(0, 50).__next__)
    monkeypatch.setattr("worker.backends.gateway.patience.time", clock)


@pytest.fixture
def desk(
    database_url: str, redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Desk]:
    """A worker's desk on each kind of database, which looks and sweeps often."""
    yield from a_desk(database_url, redis_server.url, tmp_path, monkeypatch)


@pytest.fixture
def sqlite_desk(redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """The same where the kind of database makes no difference."""
    yield from a_desk(f"sqlite:///{tmp_path / 'portal.db'}", redis_server.url, tmp_path, monkeypatch)


def a_desk(url: str, redis_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    migrate(url)
    environ = {
        "DATABASE_URL": url,
        "REDIS_URL": redis_url,
        # a mailbox that the test before this one has just closed may listen for a second more
        "PORTAL_REDIS_PREFIX": f"desk-{ids.new_id()[:12]}:",
        EFFECTS: str(folder / "effects.log"),
        **FAST,
    }
    monkeypatch.setenv(EFFECTS, environ[EFFECTS])
    monkeypatch.setitem(registry.SOURCES, "api_server", registry.SOURCES["api_server"])
    desk = Desk(environ, folder)
    serve(desk.backend)
    yield desk
    desk.close()
