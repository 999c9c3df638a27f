"""What the process holds of one session: its agent, the conversation as the agent knows it, and its turn."""

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .wire import HeldSession

if TYPE_CHECKING:
    from .run import Run


@dataclass(eq=False)
class AgentSession:
    """`agent`, `signature`, `model`, `messages` and `grants` belong to the thread of the session's run while there is
    one; all else to the pool's lock."""

    session_id: str
    agent: Any = None  # also None after an interrupt: the next turn gets another, which is told `messages`
    signature: str = ""  # of what the agent was made with; empty: none was made yet
    model: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)
    grants: set[str] = field(default_factory=set)  # patterns allowed for this session
    grant_epoch: int = 0  # under which they were; another one ends them
    run: "Run | None" = None
    last_run_id: str | None = None  # after which `messages` stand
    idle_since: float = field(default_factory=time.monotonic)
    is_doomed: bool = False  # to be dropped when its run ends
    is_dropped: bool = False  # what runs under its name is to be ended before its next turn

    def told(self) -> HeldSession:
        run = self.run
        return HeldSession(
            session_id=self.session_id,
            run_id=None if run is None else run.run_id,
            last_run_id=self.last_run_id,
            waits_for=None if run is None else run.pauses.waits_for,
            idle_s=0.0 if run is not None else round(time.monotonic() - self.idle_since, 1),
            model=self.model,
        )
