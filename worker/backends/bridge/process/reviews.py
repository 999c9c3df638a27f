"""Keeps Hermes' reviews of itself apart from the turns of people.

After every tenth turn or so Hermes goes over the conversation once more in a thread of its own, to write down what is
worth keeping in its memory and its skills. Nobody watches that: no run is open, or already the next one. So a review
asks for nothing (what would need an approval is refused), tells nothing in a turn, and leaves the shell and the
background processes of its session alone, which Hermes would end with it.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

SESSION_KEY = "portal-review"
"""Approvals are asked under it, and nobody is there to be asked: so they are refused."""
ORIGIN = "background_review"  # by which Hermes marks what a review writes

log = logging.getLogger("portal_bridge")


def keep_apart(module: Any, agent_class: type[Any], approval: Any) -> bool:
    """`agent.background_review`, AIAgent, `tools.approval`. False where this Hermes begins reviews in another way: then
    have none."""
    begin = getattr(module, "spawn_background_review_thread", None)
    if begin is None or not hasattr(agent_class, "_spawn_background_review"):
        return False

    @functools.wraps(begin)
    def begin_apart(agent: Any, *args: Any, **kwargs: Any) -> tuple[Callable[[], None], str]:
        review, prompt = begin(_Unheard(agent), *args, **kwargs)

        def apart() -> None:
            token = approval.set_current_session_key(SESSION_KEY)
            try:
                review()
            finally:
                approval.reset_current_session_key(token)

        return apart, prompt

    module.spawn_background_review_thread = begin_apart
    _close_lightly(agent_class)
    return True


def switch_off(agent: Any) -> None:
    """Have an agent begin no review."""
    agent._memory_nudge_interval = 0
    agent._skill_nudge_interval = 0


class _Unheard:
    """An agent as its review sees it: what the review has to say does not go to the agent's page."""

    background_review_callback = None

    def __init__(self, agent: Any) -> None:
        self._agent = agent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def _safe_print(self, *_: Any, **__: Any) -> None:
        log.info("review.ended session=%s", self._agent.session_id)

    def _emit_auxiliary_failure(self, _: str, error: BaseException) -> None:
        log.warning("review.failed session=%s error=%s", self._agent.session_id, type(error).__name__)


def _close_lightly(agent_class: type[Any]) -> None:
    original = agent_class.close

    @functools.wraps(original)
    def close(self: Any) -> None:
        if getattr(self, "_memory_write_origin", None) == ORIGIN:
            self.release_clients()  # the session, whose id it has, goes on
        else:
            original(self)

    agent_class.close = close
