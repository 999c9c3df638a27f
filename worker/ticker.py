"""A thread that does one piece of work again and again until it is stopped; a failure is logged, never its end."""

import threading
from collections.abc import Callable

from shared import logs
from shared.errors import Unavailable

log = logs.get(__name__)


class Ticker:
    """`work` runs every `every_s` seconds, for the first time at once, and at once after `wake`."""

    def __init__(self, name: str, every_s: float, work: Callable[[], None]) -> None:
        self._name = name
        self._every_s = every_s
        self._work = work
        self._awake = threading.Event()
        self._stopping = False
        self._is_down = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._awake.set()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Let the work that is under way end, for a moment at most; it is never begun again."""
        self._stopping = True
        self._awake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._work()
                self._is_down = False
            except Unavailable as error:
                if not self._is_down:
                    log.warning("ticker.unavailable", ticker=self._name, error=type(error).__name__)
                self._is_down = True
            except Exception:
                log.exception("ticker.failed", ticker=self._name)
            self._awake.wait(self._every_s)
            self._awake.clear()
