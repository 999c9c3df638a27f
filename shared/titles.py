"""The title of a session: the first 30 characters of its first message, as people count characters. Pure."""

from typing import Final

import regex

TITLE_LENGTH: Final = 30

_LOOKED_AT = 2_000  # code points: the beginning of a message of any size is enough
_CHARACTER = regex.compile(r"\X")


def title_from(text: str) -> str:
    """The title that a first message gives: one line, cut between grapheme clusters (an emoji is never halved)."""
    line = " ".join(text[:_LOOKED_AT].split())
    return "".join(_CHARACTER.findall(line)[:TITLE_LENGTH]).strip()
