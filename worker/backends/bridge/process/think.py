"""Reasoning that a model writes into its answer between think tags, told apart from the answer as it streams. Pure.

It stands in for Hermes' own scrubber, which throws such reasoning away, and with it what was written about the tags.
Here a tag counts only at the beginning of a line outside fenced code.
"""

import re
from collections.abc import Callable

NAMES = ("think", "thinking", "thought", "reasoning", "reasoning_scratchpad")
OPENING = {f"<{name}>": f"</{name}>" for name in NAMES}
FENCES = ("```", "~~~")
MAX_INDENT = 3  # more makes it indented code
LONGEST_MARK = max(len(mark) for mark in (*OPENING, *FENCES))

_ANY_CASE = re.IGNORECASE | re.ASCII
_CLOSING = {closing: re.compile(closing, _ANY_CASE) for closing in OPENING.values()}
_OPENING = re.compile("|".join(OPENING), _ANY_CASE)
_NO_SPACE = re.compile(r"\S")
_LINE_TO_LOOK_AT = re.compile(rf"\n {{0,{MAX_INDENT}}}(?:[<`~]|\Z)")


def without_thoughts(text: str) -> str:
    """The text without what stands between think tags, wherever they are. In time that grows as the text does, also
    where thousands are opened and none is closed."""
    kept: list[str] = []
    place = looked = 0
    unclosed: set[str] = set()
    while (opening := _OPENING.search(text, looked)) is not None:
        looked = opening.end()
        closing = OPENING[opening[0].lower()]
        if closing in unclosed:
            continue
        closed = _CLOSING[closing].search(text, looked)
        if closed is None:
            unclosed.add(closing)
            continue
        kept.append(text[place : opening.start()])
        place = looked = closed.end()
    return "".join((*kept, text[place:]))


class ThinkSplitter:
    """`feed`, `flush` and `reset` as Hermes' `StreamingThinkScrubber` has them: `feed` gives what may be shown, the
    reasoning goes to `on_reasoning` as it comes. Nothing is held back but what may still become a tag or a fence."""

    def __init__(self, on_reasoning: Callable[[str], None]) -> None:
        self._on_reasoning = on_reasoning
        self.reset()

    def reset(self) -> None:
        """The next piece begins a new text."""
        self._held = ""
        self._at = 0  # how much of it is taken; only between `feed`'s steps more than 0
        self._closing: str | None = None  # set while inside
        self._fence: str | None = None
        self._at_line_start = True
        self._is_after = False  # white space between a block and the answer is dropped

    def feed(self, text: str) -> str:
        self._held += text
        shown: list[str] = []
        while self._at < len(self._held) and self._step(shown):
            pass
        self._held, self._at = self._held[self._at :], 0
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
            begin = _NO_SPACE.search(self._held, self._at)
            self._at = len(self._held) if begin is None else begin.start()
            if begin is None:
                return False
            self._is_after = False
        return self._step_line_start() if self._at_line_start else self._step_in_line(shown)

    def _step_inside(self, closing: str) -> bool:
        closed = _CLOSING[closing].search(self._held, self._at)
        if closed is not None:
            thought, self._at = self._held[self._at : closed.start()], closed.end()
            self._closing, self._at_line_start, self._is_after = None, True, True
        else:
            end = len(self._held) - _overlap(self._held[self._at :][-len(closing) :].lower(), closing)
            thought, self._at = self._held[self._at : end], end
        if thought:
            self._on_reasoning(thought)
        return closed is not None

    def _step_in_line(self, shown: list[str]) -> bool:
        """Up to the next line that may begin with a mark."""
        begin = _LINE_TO_LOOK_AT.search(self._held, self._at)
        self._at_line_start = begin is not None
        end = len(self._held) if begin is None else begin.start() + 1
        shown.append(self._held[self._at : end])
        self._at = end
        return True

    def _step_line_start(self) -> bool:
        line = self._held[self._at : self._at + MAX_INDENT + LONGEST_MARK]
        body = line.lstrip(" ")
        indent = len(line) - len(body)
        if indent <= MAX_INDENT:
            begin = body.lower()
            if self._fence is None:
                for opening, closing in OPENING.items():
                    if begin.startswith(opening):
                        self._at += indent + len(opening)
                        self._closing = closing
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
