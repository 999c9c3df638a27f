"""The tokens of one turn: differences of the counters that an AIAgent adds up over its life."""

from typing import Any

from .wire import Usage

COUNTERS = {
    "input_tokens": "session_prompt_tokens",  # with what came from the cache
    "output_tokens": "session_completion_tokens",
    "cached_tokens": "session_cache_read_tokens",
    "reasoning_tokens": "session_reasoning_tokens",
}


class TurnUsage:
    """Made before the turn, read in it and after it."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._before = self._counters()

    def read(self) -> Usage:
        now = self._counters()
        spent = {
            # a counter that fell was set to 0 in between
            name: count - before if count >= before else count
            for (name, count), before in zip(now.items(), self._before.values(), strict=True)
        }
        compressor = getattr(self._agent, "context_compressor", None)
        return Usage(
            input_tokens=spent["input_tokens"],
            output_tokens=spent["output_tokens"],
            cached_tokens=spent["cached_tokens"],
            reasoning_tokens=spent["reasoning_tokens"],
            context_used=_count(compressor, "last_prompt_tokens") or None,
            context_window=_count(compressor, "context_length") or None,
        )

    def _counters(self) -> dict[str, int]:
        return {name: _count(self._agent, attribute) for name, attribute in COUNTERS.items()}


def none_spent() -> Usage:
    return Usage(
        input_tokens=0, output_tokens=0, cached_tokens=0, reasoning_tokens=0, context_used=None, context_window=None
    )


def _count(owner: Any, name: str) -> int:
    found = getattr(owner, name, 0)
    return max(int(found), 0) if isinstance(found, int | float) else 0
