"""A session with its log and followers on it, driven by a script instead of a worker: for the tests of webapp/live."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.orm import Session, sessionmaker

from shared.database import transaction
from shared.models import ChatSession
from shared.protocol import events as e
from shared.relay.event_log import Appended, Cursor, EventLog
from shared.run_state import RunState
from shared.store import runs
from shared.transcript import Transcript, fold, to_json
from tests.factories import a_run
from webapp.live.follower import Follower, Item, Resumed, Sources, Wanted
from webapp.live.inbox import Inbox
from webapp.live.live_event import LiveEvent

NOWHERE = Wanted()


def wait_for(condition: Callable[[], Any], *, timeout_s: float = 60.0, what: str = "the condition") -> Any:
    """The first true value of `condition`; fails after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come in {timeout_s} s")
        time.sleep(0.005)
    return value


class Turn:
    """A run that a script drives as a worker would: text first to the log, then saved; states the other way round."""

    def __init__(self, factory: sessionmaker[Session], log: EventLog, session_id: str, *, fence: int = 1) -> None:
        self.factory, self.log, self.session_id, self.fence = factory, log, session_id, fence
        with transaction(factory) as db:
            session = db.get_one(ChatSession, session_id)
            run = a_run(db, session, state=RunState.RUNNING, fence=fence, flushed_epoch=None, flushed_seq=0)
            self.run_id = run.id
            titled = e.SessionUpdated(session_id=session_id, data=e.SessionUpdatedData(title=session.title))
        self.transcript = Transcript(run_id=self.run_id)
        self.epoch: str | None = None
        self.seq = 0
        self.text = ""
        log.append(session_id, [e.to_payload(titled)])
        begun = e.RunStartedData(source="api_server")
        self.append(e.RunStarted(session_id=session_id, run_id=self.run_id, fence=fence, data=begun))

    def append(self, *events: e.Event, new_epoch: bool = False) -> Appended:
        for event in events:
            fold(self.transcript, event)  # type: ignore[arg-type]
        appended = self.log.append(
            self.session_id, [e.to_payload(event) for event in events],
            run_id=self.run_id, fence=self.fence, new_epoch=new_epoch,
        )  # fmt: skip
        self.epoch, self.seq = appended.epoch, appended.last_seq
        return appended

    def say(self, text: str, *, new_epoch: bool = False, unheard: bool = False) -> Appended | None:
        """`unheard`: it reached a log that is no more."""
        piece = e.TextPiece(part=0, offset=len(self.text), text=text)
        self.text += text
        event = e.MessageDelta(session_id=self.session_id, run_id=self.run_id, fence=self.fence, data=piece)
        if unheard:
            fold(self.transcript, event)
            return None
        return self.append(event, new_epoch=new_epoch)

    def save(self) -> None:
        with transaction(self.factory) as db:
            runs.save_progress(
                db, self.run_id, fence=self.fence, content=self.text, transcript=to_json(self.transcript),
                epoch=self.epoch, seq=self.seq,
            )  # fmt: skip

    def finish(self) -> None:
        with transaction(self.factory) as db:
            done = runs.finish(
                db, self.run_id, RunState.RUNNING, RunState.COMPLETED, fence=self.fence,
                content=self.text, transcript=to_json(self.transcript),
            )  # fmt: skip
        data = e.RunCompletedData(message_id=done.message.id, duration_ms=1)
        self.append(e.RunCompleted(session_id=self.session_id, run_id=self.run_id, fence=self.fence, data=data))


@dataclass
class Page:
    """What a client shows, built only from what a follower gives; checks every rule of P5 as it goes."""

    text: dict[tuple[str, int], str] = field(default_factory=dict)  # (run, part) -> text
    ended: set[str] = field(default_factory=set)
    at: Cursor | None = None
    seen: list[tuple[str, int]] = field(default_factory=list)
    snapshots: int = 0
    may_begin_anywhere: bool = False  # the events before the first are taken as shown already

    def apply(self, items: Sequence[Item]) -> None:
        for item in items:
            if isinstance(item, Resumed):
                self._resume(item)
            else:
                self._event(item)

    def _resume(self, item: Resumed) -> None:
        if item.replay is not None:
            for event in item.replay:
                self._event(event)
            assert item.cursor == self.at
            return
        self.snapshots += 1
        self.text.clear()
        self.at = item.cursor
        for message in item.view.messages:
            if message.role != "ASSISTANT":
                continue
            self.text[message.run_id or "", 0] = message.content
            if message.status != "RUNNING":
                self.ended.add(message.run_id or "")

    def _event(self, live: LiveEvent) -> None:
        if self.at is not None and self.at.epoch == live.epoch:
            assert live.seq == self.at.seq + 1, f"a hole or a double: {self.at} then {live.seq}"
        self.at = Cursor(live.epoch, live.seq)
        self.seen.append((live.epoch, live.seq))
        event = live.event
        if isinstance(event, e.MessageDelta):
            key = (event.run_id or "", event.data.part)
            if self.may_begin_anywhere and key not in self.text:
                self.text[key] = "?" * event.data.offset
            have = self.text.get(key, "")
            assert event.data.offset == len(have), f"text at {event.data.offset}, page has {len(have)}"
            self.text[key] = have + event.data.text
        elif isinstance(event, e.RunEnd):
            self.ended.add(event.run_id or "")

    def answer(self, run_id: str) -> str:
        return "".join(text for (run, _), text in sorted(self.text.items()) if run == run_id)


class Reader:
    """A thread that follows one session as a socket's handler does. `stop` ends it; `error` is what it died of."""

    def __init__(
        self, sources: Sources, session_id: str, *, wanted: Wanted = NOWHERE, page: Page | None = None
    ) -> None:
        self.page = page or Page()
        self.error: BaseException | None = None
        self.items = 0
        self.wakes = 0
        self._woken = threading.Event()
        self._stopping = False
        self.inbox: Inbox[Follower] = Inbox(self._woken.set)
        self.follower = Follower(sources, session_id, self.inbox)
        self._wanted = wanted
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        wait_for(lambda: self.error or self.items or not self._thread.is_alive(), what="the first answer")

    def _run(self) -> None:
        try:
            self._give(self.follower.open(self._wanted))
            while not self._stopping:
                due = self.follower.due_at()
                self._woken.wait(1.0 if due is None else max(0.0, min(1.0, due - time.monotonic())))
                self._woken.clear()
                self.wakes += 1
                for follower, events in self.inbox.take():
                    self._give(follower.feed(events))
                self.inbox.called()
                self._give(self.follower.look(time.monotonic()))
        except BaseException as error:  # noqa: BLE001 - the test shows it
            self.error = error
        finally:
            self.follower.close()

    def _give(self, items: Sequence[Item]) -> None:
        self.items += len(items)
        self.page.apply(items)

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def stop(self) -> Page:
        self._stopping = True
        self._woken.set()
        self._thread.join(60)
        self.check()
        return self.page
