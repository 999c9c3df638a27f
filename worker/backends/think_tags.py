"""Reasoning that a model writes into its answer between think tags, told apart from the answer. Pure.

Only a tag with which a text begins counts: further in it is what somebody wrote about, in prose or in code.
"""

from worker.backends.base import Reasoning, Text

TAGS = (("<think>", "</think>"), ("<thinking>", "</thinking>"))


class ThinkTags:
    """`feed` the pieces of one text as they come, cut anywhere; `end` before anything else and at the end. Nothing is
    held back but what may still become a tag, and white space before it."""

    def __init__(self) -> None:
        self._held = ""
        self._closing: str | None = None  # set while inside
        self._is_plain = False  # past the place where a tag counts
        self._was_inside = False

    def feed(self, piece: str) -> list[Text | Reasoning]:
        if self._is_plain:
            return [Text(piece)] if piece else []
        self._held += piece
        found: list[Text | Reasoning] = []
        while self._held and self._step(found):
            pass
        return found

    def end(self) -> list[Text | Reasoning]:
        """What was held back; the next piece begins a new text."""
        held, inside, after = self._held, self._closing is not None, self._was_inside
        self._held, self._closing, self._is_plain, self._was_inside = "", None, False, False
        if inside:
            return [Reasoning(held)] if held else []
        return [Text(held)] if held and not (after and held.isspace()) else []

    def _step(self, found: list[Text | Reasoning]) -> bool:
        """Take what can be taken from the held text; True when there may be more."""
        if self._closing is not None:
            return self._step_inside(self._closing, found)
        begin = self._held.lstrip()
        for opening, closing in TAGS:
            if begin.startswith(opening):
                self._held, self._closing = begin[len(opening) :], closing
                return True
        if not begin or any(opening.startswith(begin) for opening, _ in TAGS):
            return False
        found.append(Text(begin if self._was_inside else self._held))
        self._held, self._is_plain = "", True
        return False

    def _step_inside(self, closing: str, found: list[Text | Reasoning]) -> bool:
        thought, tag, rest = self._held.partition(closing)
        if tag:
            self._held, self._closing, self._was_inside = rest, None, True
        else:
            kept = next((n for n in range(len(closing) - 1, 0, -1) if thought.endswith(closing[:n])), 0)
            self._held = thought[len(thought) - kept :]
            thought = thought[: len(thought) - kept]
        if thought:
            found.append(Reasoning(thought))
        return bool(tag)
