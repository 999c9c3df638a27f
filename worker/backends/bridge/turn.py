"""One turn in a bridge child: `chat` and then `stream` on a connection of its own, answers and the stop on others."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from shared.errors import (
    BackendError,
    BackendKilled,
    BackendLost,
    BackendProtocolError,
    BackendRefused,
    BackendUnavailable,
)
from shared.settings import Settings
from worker.backends import base
from worker.backends.bridge.child import Child
from worker.backends.bridge.client import Connection, Cut, NotKnown
from worker.backends.bridge.items import Answers, EventReader
from worker.backends.bridge.process import wire

QUIET_S = 15.0  # without an event, after which the child is asked whether it lives
ASIDE_TIMEOUT_S = 10.0  # of an answer, a stop, a ping
STORY_S = 5.0  # until a child whose connection broke is known to have ended, and how
NO_LONGER_OPEN = frozenset({"not_pending", "run_not_found"})
NOT_NOW = frozenset({"busy", "full", "shutting_down"})
KILLED = "another turn in it did not stop when it was told to"


class Stopper:
    """`begin` is for Controls.on_abort, and the one thing there: it tells the child to interrupt the run, and kills it
    when the run goes on over the grace. `known(child)` when the child has taken the run, `over` when the run, or the
    try to begin it, has ended. `on_begin` wakes who waits for a child."""

    def __init__(self, run_id: str, *, grace_s: float, on_begin: Callable[[], None] = lambda: None) -> None:
        self._run_id = run_id
        self._grace_s = grace_s
        self._on_begin = on_begin
        self._child: Child | None = None
        self._known = threading.Event()
        self._over = threading.Event()
        self.has_killed = False

    def known(self, child: Child) -> None:
        self._child = child
        self._known.set()

    def over(self) -> None:
        self._over.set()
        self._known.set()

    def begin(self) -> None:
        """Returns when the child took it. Raises BackendError when it did not."""
        self._on_begin()
        if self._over.is_set():
            return
        threading.Thread(target=self._kill_after_grace, name=f"kill-{self._run_id[:8]}", daemon=True).start()
        self._known.wait(self._grace_s)
        if self._child is not None and not self._over.is_set():
            self._child.client.request("interrupt", run_id=self._run_id, timeout_s=min(ASIDE_TIMEOUT_S, self._grace_s))

    def _kill_after_grace(self) -> None:
        if not self._over.wait(self._grace_s) and self._child is not None and still_runs(self._child, self._run_id):
            self.has_killed = True
            self._child.kill(KILLED)


def still_runs(child: Child, run_id: str) -> bool:
    """Also True when the child does not say."""
    if child.gone.is_set():
        return False
    try:
        sessions = child.client.request("list", timeout_s=ASIDE_TIMEOUT_S).get("sessions")
    except BackendError:
        return not child.gone.is_set()
    return not isinstance(sessions, list) or any(
        isinstance(session, dict) and session.get("run_id") == run_id for session in sessions
    )


class BridgeTurn:
    """Of a turn that was counted in `child` (Child.join). `fields`: what `chat` is asked beside `history` and `after`;
    its run id may be another than the turn's."""

    def __init__(
        self,
        child: Child,
        turn: base.Turn,
        fields: dict[str, Any],
        controls: base.Controls,
        stopper: Stopper,
        settings: Settings,
    ) -> None:
        self._child = child
        self._turn = turn
        self._fields = fields
        self._run_id: str = fields["run_id"]
        self._controls = controls
        self._stopper = stopper
        self._is_begun = False
        self._response_timeout_s = settings.bridge_timeout_ms / 1000
        self._reader = EventReader(self._run_id, Answers(self._approve, self._clarify))

    def stream(self) -> Iterator[base.Item]:
        """Raises as Backend.stream. A run that goes on in the child when this ends is for the stopper."""
        try:
            with contextlib.closing(self._child.client.open()) as connection:
                if self._begin(connection):
                    yield from self._events(connection)
        except Cut as cut:
            raise self._lost(in_a_line=cut.in_a_line) from cut
        finally:
            if self._reader.ended or not self._is_begun:
                self._stopper.over()

    # ---- beginning

    def _begin(self, connection: Connection) -> bool:
        """False when the turn was stopped before it was sent."""
        if self._turn.after is not None and not self._controls.aborted and self._chat(connection, history=None):
            return True
        if self._controls.aborted:
            return False
        history = [{"role": message.role, "content": message.content} for message in self._turn.history]
        return not self._controls.aborted and self._chat(connection, history=history)

    def _chat(self, connection: Connection, *, history: list[dict[str, str]] | None) -> bool:
        """False: the child does not hold the session, or not as it should stand."""
        after = self._turn.after if history is None else None
        request = {**self._fields, "history": history, "after": after}
        try:
            connection.ask("chat", request, self._response_timeout_s)
        except NotKnown as refusal:
            if refusal.code == "session_not_found" and history is None:
                return False
            raise self._refused(refusal) from refusal
        except (BackendUnavailable, BackendRefused):
            raise
        except BackendError:
            self._may_run()
            raise
        self._may_run()
        try:
            connection.ask("stream", {"run_id": self._run_id, "cursor": 0, "event_cursor": 0}, self._response_timeout_s)
        except BackendUnavailable as error:  # that request did not get there, but the turn did: it is not sent again
            raise Cut from error
        return True

    def _may_run(self) -> None:
        """From here on the child may work on the run: it can be told to stop."""
        self._is_begun = True
        self._stopper.known(self._child)

    def _refused(self, refusal: NotKnown) -> BackendError:
        said = refusal.message or "The agent did not take the turn."
        if refusal.code == "busy":
            self._free_session()
            return BackendUnavailable(
                "The agent still works on an earlier turn of this session.", code="busy", detail=refusal.detail
            )
        if refusal.code in NOT_NOW:
            return BackendUnavailable(said, code=refusal.code, detail=refusal.detail)
        if refusal.code == "run_exists":
            return BackendLost("The agent had begun this turn before: it is not begun twice.", detail=refusal.detail)
        return BackendRefused(said, detail=refusal.detail, retryable=False)

    def _free_session(self) -> None:
        """What the agent still does in this session was ended here before: no other run of it goes on (P4)."""
        try:
            sessions = self._child.client.request("list", timeout_s=ASIDE_TIMEOUT_S).get("sessions") or []
            for session in sessions:
                if session.get("session_id") == self._turn.session_id and session.get("run_id"):
                    self._child.client.request("interrupt", run_id=session["run_id"], timeout_s=ASIDE_TIMEOUT_S)
        except (BackendError, AttributeError, TypeError):
            return  # the next try finds it busy again

    # ---- what comes

    def _events(self, connection: Connection) -> Iterator[base.Item]:
        while not self._reader.ended:
            event = connection.line(QUIET_S)
            if event is not None:
                yield from self._checked(self._reader.read(event))
            elif self._is_alive():
                yield base.Keepalive()

    def _checked(self, items: Iterable[base.Item]) -> Iterator[base.Item]:
        """Raises BackendLost where the agent stopped because its process ends, and not because it was told to."""
        for item in items:
            if isinstance(item, base.Stopped) and not self._controls.aborted and self._child.gone.wait(STORY_S):
                raise self._lost(in_a_line=False)
            yield item

    def _is_alive(self) -> bool:
        try:
            self._child.client.request("ping", timeout_s=ASIDE_TIMEOUT_S)
        except BackendError:
            return False
        return True

    def _lost(self, *, in_a_line: bool) -> BackendError:
        """Why the connection broke."""
        if self._stopper.has_killed:
            return BackendKilled("The turn did not stop when it was told to, so the agent's process was ended.")
        if self._child.gone.wait(STORY_S):
            return BackendLost(
                f"The agent's process {self._child.story()}. What had come is kept, and nothing was sent twice: "
                "try the turn again.",
                detail=self._child.tail(),
            )
        if in_a_line:
            return BackendProtocolError("The agent's process closed the connection in the middle of a line.")
        return BackendLost("The agent's process closed the connection in the middle of the turn. What came is kept.")

    # ---- what goes the other way

    def _approve(self, approval_id: str, choice: base.Choice, reason: wire.Reason) -> None:
        self._answer("approval_respond", approval_id=approval_id, choice=choice, reason=reason)

    def _clarify(self, clarify_id: str, answer: str | None) -> None:
        self._answer("clarify_respond", clarify_id=clarify_id, answer=answer)

    def _answer(self, action: wire.Action, **fields: Any) -> None:
        try:
            self._child.client.request(action, run_id=self._run_id, timeout_s=ASIDE_TIMEOUT_S, **fields)
        except NotKnown as refusal:
            if refusal.code in NO_LONGER_OPEN:
                if self._controls.aborted:
                    return
                raise BackendRefused("The agent no longer waits for this answer.", detail=refusal.detail) from refusal
            raise
