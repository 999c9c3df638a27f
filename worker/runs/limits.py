"""How long a run may last and how long its backend may be quiet (RELIABILITY 2.2). Pure: no clock of its own.

All times are monotonic seconds.
"""

from collections.abc import Iterator

from shared.settings import Settings

QUIET_NOTICES_S = (30, 60, 120, 300)  # when the page is told; then every ten minutes
QUIET_NOTICE_EVERY_S = 600


class Limits:
    """Fed by the thread of the run with each sign of its backend."""

    def __init__(self, settings: Settings, now: float) -> None:
        self._run_s = settings.run_time_limit_s
        self._quiet_s = settings.run_quiet_timeout_s
        self._keepalive_s = settings.run_keepalive_timeout_s
        self._began_at = now
        self.heard_at = now  # the last content
        self.alive_at = now  # the last sign of life, content or not
        self._notices = _notices()
        self._next_notice_s = next(self._notices)

    def heard(self, now: float) -> None:
        """The backend said something. Cheap: called for each item."""
        self.heard_at = now

    def alive(self, now: float) -> None:
        """The backend is there, without saying anything."""
        self.alive_at = now

    def is_over(self, now: float, *, waited_s: float, has_open_tool: bool) -> bool:
        """Whether the run must be stopped. `waited_s`: for people, does not count."""
        if now - self._began_at - waited_s > self._run_s:
            return True
        if now - self.heard_at > self._keepalive_s:
            return True
        return not has_open_tool and now - max(self.heard_at, self.alive_at) > self._quiet_s

    def notice(self, now: float) -> str | None:
        """What the page should say about a long silence, once for each step of it."""
        quiet_s = now - self.heard_at
        if quiet_s < QUIET_NOTICES_S[0]:
            if self._next_notice_s != QUIET_NOTICES_S[0]:
                self._notices = _notices()
                self._next_notice_s = next(self._notices)
            return None
        if quiet_s < self._next_notice_s:
            return None
        self._next_notice_s = next(self._notices)
        return f"Quiet for {quiet_s:.0f} s"


def _notices() -> Iterator[int]:
    yield from QUIET_NOTICES_S
    after = QUIET_NOTICES_S[-1]
    while True:
        after += QUIET_NOTICE_EVERY_S
        yield after
