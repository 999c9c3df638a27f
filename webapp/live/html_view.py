"""The page's side of `/chat-run`: events gathered to at most 25 frames a second, each frame HTML (DESIGN 5, 7)."""

import time
from typing import Any

from shared import errors, logs
from shared.protocol import commands as c
from shared.relay.event_log import Cursor
from shared.transcript import Gap
from webapp.auth import Principal
from webapp.context import WebContext
from webapp.errors import problem_of, told
from webapp.live import commands, fragments
from webapp.live.follower import Follower, Item, Resumed
from webapp.live.live_event import LiveEvent
from webapp.live.safe_socket import text_frame
from webapp.render import Reader

log = logs.get("webapp.live.html_view")

FRAME_S = 0.040  # the rate of messages is what costs a browser
MISFITS = 3  # in a row; then the page has to come back


class HtmlView:
    """One page on one session. What follows a pause goes out at once; what comes within FRAME_S of it is gathered."""

    passes_on = False

    def __init__(self, web: WebContext, principal: Principal, session_id: str, reader: Reader) -> None:
        self._page = fragments.PageView(web, principal, session_id, reader)
        self._reader = reader
        self._follower: Follower | None = None
        self._waiting: list[LiveEvent] = []
        self._next_at = 0.0  # time.monotonic()

    def tell(self, follower: Follower, items: list[Item]) -> list[bytes]:
        self._follower = follower
        frames: list[bytes] = []
        for item in items:
            if isinstance(item, LiveEvent):
                self._waiting.append(item)
            else:
                self._waiting.clear()  # they stand in what comes now, or come again after it
                frames += self._whole(follower, item)
        return frames + self.due(time.monotonic())

    def resumed(self, command: c.Resume, follower: Follower, items: list[Item]) -> list[bytes]:
        return self.tell(follower, items)

    def due(self, now: float) -> list[bytes]:
        if not self._waiting or now < self._next_at or self._follower is None:
            return []
        events, self._waiting = self._waiting, []
        self._next_at = now + FRAME_S
        try:
            return [_frame(self._page.apply(events))]
        except Gap:
            return self._refit(self._follower)
        except errors.Unavailable as error:
            self._follower.later(error)
            return []

    def due_at(self) -> float | None:
        return self._next_at if self._waiting else None

    def done(self, command: c.AnyCommand, facts: dict[str, Any]) -> list[bytes]:
        return [_frame(fragments.ack(command.id, **{"event": command.event, **facts}))]

    def failed(self, command_id: commands.CommandId, fault: Exception) -> list[bytes]:
        return [_frame(fragments.notice(self._reader, told(problem_of(fault).detail), command_id=command_id))]

    def pong(self, command_id: commands.CommandId) -> list[bytes]:
        return [_frame(fragments.ack(command_id, event="pong"))]

    def _whole(self, follower: Follower, item: Resumed) -> list[bytes]:
        try:
            if item.replay is None or item.cursor is None:
                return [_frame(self._page.snapshot(item.view))]
            at = Cursor(item.cursor.epoch, item.cursor.seq - len(item.replay))
            return [_frame(self._page.resume(at, item.replay))]
        except errors.Unavailable as error:
            follower.later(error)
            return []

    def _refit(self, follower: Follower) -> list[bytes]:
        """The events do not go on where the page's text ends: a snapshot, once what is missing is saved."""
        for _ in range(MISFITS):
            log.info("html_view.misfit", session_id=follower.session_id)
            items = follower.misfit()
            self._waiting = [item for item in items if isinstance(item, LiveEvent)]
            frames = [frame for item in items if isinstance(item, Resumed) for frame in self._whole(follower, item)]
            try:
                if self._waiting:
                    events, self._waiting = self._waiting, []
                    frames.append(_frame(self._page.apply(events)))
            except Gap:
                continue
            return frames
        raise errors.Unavailable("The session cannot be shown at the moment.", retry_after_s=1)


def _frame(html: str) -> bytes:
    return text_frame(html.encode("utf-8", "replace"))
