"""One turn straight through a backend, without a worker around it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shared import settings
from shared.errors import BackendError
from worker.backends import base

_asides: list[threading.Thread] = []


def aside(work: Callable[..., None], *arguments: Any) -> None:
    """Do it in another thread, as the portal aborts and answers; `play` returns when it is done."""
    thread = threading.Thread(target=work, args=arguments, name="aside")
    _asides.append(thread)
    thread.start()


class Switch:
    """Controls whose abort is a call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._aborted = False
        self._stops: list[Callable[[], None]] = []
        self._is_aborting = False

    @property
    def aborted(self) -> bool:
        return self._aborted

    def on_abort(self, stop: Callable[[], None]) -> None:
        with self._lock:
            if not self._aborted:
                self._stops.append(stop)
                return
        stop()

    def abort(self) -> None:
        with self._lock:
            self._aborted = True
            stops, self._stops = self._stops, []
        for stop in stops:
            stop()

    def abort_aside(self, after: Callable[[], object] = lambda: None) -> None:
        """Abort aside when `after` has returned; once."""

        def abort() -> None:
            after()
            self.abort()

        if not self._is_aborting:
            self._is_aborting = True
            aside(abort)


@dataclass
class Played:
    """What a turn brought: its items, and the error that ended it."""

    items: list[base.Item] = field(default_factory=list)
    error: BackendError | None = None

    def of(self, kind: type[Any]) -> list[Any]:
        return [item for item in self.items if isinstance(item, kind)]

    @property
    def text(self) -> str:
        return "".join(item.text for item in self.of(base.Text))

    @property
    def content(self) -> list[base.Item]:
        """Without signs of life."""
        return [item for item in self.items if not isinstance(item, base.Keepalive)]


def a_turn(text: str = "Hello", history: tuple[base.HistoryMessage, ...] = (), **given: Any) -> base.Turn:
    turn = base.Turn(run_id="0" * 32, session_id="session-1", input=text, make_history=lambda: history)
    return replace(turn, **given)


def play(
    backend: base.Backend,
    turn: base.Turn | None = None,
    *,
    controls: Switch | None = None,
    on_item: Callable[[base.Item], None] = lambda item: None,
) -> Played:
    """Read the whole stream. `on_item` sees each item as it comes."""
    played = Played()
    try:
        for item in backend.stream(turn or a_turn(), controls or Switch()):
            played.items.append(item)
            on_item(item)
    except BackendError as error:
        played.error = error
    while _asides:
        thread = _asides.pop()
        thread.join(60)
        assert not thread.is_alive()
    return played


def some_settings(**given: Any) -> settings.Settings:
    """The defaults, without the machine's environment or files."""
    return settings.load({}, cwd=Path("/nonexistent"), **given)
