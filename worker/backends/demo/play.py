"""A play: the steps a scene yields, performed in time and turned into the lines of a protocol by a `Wire`."""

import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

Todo = dict[str, str]
WAIT_LIMIT_S = 3600.0  # a pause that nobody answers ends at last, so that no thread stays for ever


@dataclass(frozen=True)
class Say:
    """Text of the answer, in words or in the given pieces, `every_s` apart."""

    text: str
    every_s: float = 0.02
    pieces: Iterator[str] | None = None


@dataclass(frozen=True)
class Think:
    text: str
    every_s: float = 0.03


@dataclass(frozen=True)
class Show:
    """The live status line."""

    text: str


@dataclass(frozen=True)
class Call:
    """A tool call begins."""

    call_id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class News:
    call_id: str
    text: str


@dataclass(frozen=True)
class Return:
    """A tool call ends."""

    call_id: str
    result: str
    ok: bool = True


@dataclass(frozen=True)
class Plan:
    todos: list[Todo]


@dataclass(frozen=True)
class AskApproval:
    """Yields the choice: once, session, always or deny."""

    approval_id: str
    command: str
    description: str


@dataclass(frozen=True)
class AskQuestion:
    """Yields the answer, or None when there was none."""

    clarify_id: str
    question: str
    choices: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Rest:
    seconds: float


@dataclass(frozen=True)
class Fail:
    """The model's provider fails: the turn ends as the real gateway tells such a failure (SURFACES 1.1)."""

    message: str


Step = Say | Think | Show | Call | News | Return | Plan | AskApproval | AskQuestion | Rest | Fail
Scene = Generator[Step, str | None, None]


class Wire(Protocol):
    """Turns steps into the frames of one endpoint; each method returns ready-to-send text, '' for nothing."""

    def begin(self) -> str: ...

    def step(self, step: Step) -> str: ...

    def say(self, piece: str) -> str: ...

    def think(self, piece: str) -> str: ...

    def resolved(self, step: AskApproval | AskQuestion, answer: str | None) -> str: ...

    def end(self, status: str) -> str: ...


class Play:
    """One scene on its own thread. `frames()` gives what it says, from the start, until it has ended.

    status: in_progress, completed, failed, cancelled."""

    def __init__(self, play_id: str, scene: Scene, wire: Wire) -> None:
        self.id = play_id
        self.asked_at_ns = time.time_ns()
        self.stopped_at_ns: int | None = None
        self.status = "in_progress"
        self.waiting_for: AskApproval | AskQuestion | None = None
        self._scene = scene
        self._wire = wire
        self._frames: deque[str] = deque()
        self._changed = threading.Condition()
        self._answers: dict[str, str | None] = {}
        self._stop = threading.Event()
        self._done = False
        threading.Thread(target=self._perform, name=f"play-{play_id}", daemon=True).start()

    def frames(self, keepalive_s: float = 30.0) -> Iterator[str]:
        """Each frame once; ': keepalive' comments while nothing is said for `keepalive_s` seconds."""
        while True:
            with self._changed:
                if not self._frames and not self._done:
                    self._changed.wait(keepalive_s)
                batch, done = "".join(self._frames), self._done
                self._frames.clear()
            if batch:
                yield batch
            elif done:
                return
            else:
                yield ": keepalive\n\n"

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; False when it did not come in time."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not self._done and time.monotonic() < deadline:
                self._changed.wait(deadline - time.monotonic())
            return self._done

    def stop(self) -> None:
        """End the play soon; it then says that it was cut short."""
        self.stopped_at_ns = self.stopped_at_ns or time.time_ns()
        self._stop.set()
        with self._changed:
            self._changed.notify_all()

    def answer(self, pause_id: str, answer: str | None) -> bool:
        """Answer the open pause of that id; False when it is not open."""
        with self._changed:
            open_id = _pause_id(self.waiting_for)
            if open_id is None or pause_id not in (open_id, "") or open_id in self._answers:
                return False
            self._answers[open_id] = answer
            self._changed.notify_all()
            return True

    def _perform(self) -> None:
        self._emit(self._wire.begin())
        status = "completed"
        answer: str | None = None
        try:
            while True:
                step = self._scene.send(answer)
                answer = None
                if self._stop.is_set():
                    status = "cancelled"
                    break
                if isinstance(step, Fail):
                    self._emit(self._wire.step(step))
                    status = "failed"
                    break
                answer = self._do(step)
        except StopIteration:
            pass
        if self._stop.is_set():
            status = "cancelled"
        self._scene.close()
        self.status = status
        with self._changed:
            self._frames.append(self._wire.end(status))
            self._done = True
            self._changed.notify_all()

    def _do(self, step: Step) -> str | None:
        if isinstance(step, Say):
            self._spell(step.pieces if step.pieces is not None else words(step.text), step.every_s, self._wire.say)
        elif isinstance(step, Think):
            self._spell(words(step.text), step.every_s, self._wire.think)
        elif isinstance(step, Rest):
            self._stop.wait(step.seconds)
        elif isinstance(step, AskApproval | AskQuestion):
            return self._ask(step)
        else:
            self._emit(self._wire.step(step))
        return None

    def _spell(self, pieces: Iterator[str], every_s: float, frame: Any) -> None:
        due = time.monotonic()
        for piece in pieces:
            if self._stop.is_set():
                return
            self._emit(frame(piece))
            due += every_s
            if (pause := due - time.monotonic()) > 0:
                self._stop.wait(pause)

    def _ask(self, step: AskApproval | AskQuestion) -> str | None:
        deadline = time.monotonic() + WAIT_LIMIT_S
        pause_id = _pause_id(step)
        assert pause_id is not None
        with self._changed:
            self.waiting_for = step
        self._emit(self._wire.step(step))
        with self._changed:
            while pause_id not in self._answers and not self._stop.is_set() and time.monotonic() < deadline:
                self._changed.wait(1.0)
            self.waiting_for = None
            answer = self._answers.get(pause_id, "deny" if isinstance(step, AskApproval) else None)
        self._emit(self._wire.resolved(step, answer))
        return answer

    def _emit(self, frame: str) -> None:
        if frame:
            with self._changed:
                self._frames.append(frame)
                self._changed.notify_all()


def words(text: str) -> Iterator[str]:
    """The text in pieces of one word, or two Han characters; the pieces joined are the text."""
    start = 0
    for at in range(1, len(text)):
        before, here = text[at - 1], text[at]
        if (before == " " and here != " ") or before == "\n" or (here >= "\u3000" and at - start >= 2):
            yield text[start:at]
            start = at
    if start < len(text):
        yield text[start:]


def _pause_id(step: AskApproval | AskQuestion | None) -> str | None:
    if step is None:
        return None
    return step.approval_id if isinstance(step, AskApproval) else step.clarify_id
