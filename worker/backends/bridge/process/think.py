"""Reasoning that a model writes into its answer between think tags, told apart from the answer as it streams. Pure.

It stands in for Hermes' own scrubber, which throws such reasoning away, and with it what was written about the tags.
Here a tag counts only at the beginning of a line outside fenced code.
"""

from collections.abc import Callable

NAMES = ("think", "thinking", "thought", "reasoning", "reasoning_scratchpad")
OPENING = {f"<{name}>": f"</{name}>" for name in NAMES}
FENCES = ("```", "~~~")
MAX_INDENT = 3  # more makes it indented code


class ThinkSplitter:
    """`feed`, `flush` and `reset` as Hermes' `StreamingThinkScrubber` has them: `feed` gives what may be shown, the
    reasoning goes to `on_reasoning` as it comes. Nothing is held back but what may still become a tag or a fence."""

    def __init__(self, on_reasoning: Callable[[str], None]) -> None:
        self._on_reasoning = on_reasoning
        self.reset()

    def reset(self) -> None:
        """The next piece begins a new text."""
        self._held = ""
        self._closing: str | None = None  # set while inside
        self._fence: str | None = None
        self._at_line_start = True
        self._is_after = False  # white space between a block and the answer is dropped

    def feed(self, text: str) -> str:
        self._held += text
        shown: list[str] = []
        while self._held and self._step(shown):
            pass
        return "".join(shown)

    def flush(self) -> str:
        """The text is over: what was held back turned out to be no tag."""
        held, inside = self._held, self._closing is not None
        self.reset()
        if inside and held:
            self._on_reasoning(held)
        return "" if inside else held

    def _step(self, shown: list[str]) -> bool:
        """Take what can be taken from the held text; True when there may be more."""
        if self._closing is not None:
            return self._step_inside(self._closing)
        if self._is_after:
            self._held = self._held.lstrip()
            if not self._held:
                return False
            self._is_after = False
        return self._step_line_start() if self._at_line_start else self._step_in_line(shown)

    def _step_inside(self, closing: str) -> bool:
        end = self._held.lower().find(closing)
        if end >= 0:
            thought, self._held = self._held[:end], self._held[end + len(closing) :]
            self._closing, self._at_line_start, self._is_after = None, True, True
        else:
            kept = _overlap(self._held.lower(), closing)
            cut = len(self._held) - kept
            thought, self._held = self._held[:cut], self._held[cut:]
        if thought:
            self._on_reasoning(thought)
        return end >= 0

    def _step_in_line(self, shown: list[str]) -> bool:
        end = self._held.find("\n") + 1
        if end:
            self._at_line_start = True
        else:
            end = len(self._held)
        shown.append(self._held[:end])
        self._held = self._held[end:]
        return bool(self._held)

    def _step_line_start(self) -> bool:
        body = self._held.lstrip(" ")
        indent = len(self._held) - len(body)
        if indent <= MAX_INDENT:
            begin = body.lower()
            if self._fence is None:
                for opening, closing in OPENING.items():
                    if begin.startswith(opening):
                        self._held, self._closing = body[len(opening) :], closing
                        return True
            marks = (*(OPENING if self._fence is None else ()), *FENCES)
            if any(len(begin) < len(mark) and mark.startswith(begin) for mark in marks):
                return False
            for fence in FENCES:
                if begin.startswith(fence) and self._fence in (None, fence):
                    self._fence = fence if self._fence is None else None
                    break
        self._at_line_start = False
        return True


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of the text may be the beginning of the mark."""
    return next((size for size in range(len(mark) - 1, 0, -1) if text.endswith(mark[:size])), 0)
