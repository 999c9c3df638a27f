"""What Hermes says of its state, as a plain line: without faces, emoji and other decoration in front. Pure."""

import re

MAX_CHARS = 500

_WORD = re.compile(r"[\"'“«]?[^\W_][\w'’.,:;!?…%/\"»”-]*")


def plain(text: str) -> str:
    """ "( •_•)>⌐■-■ musing..." -> "musing...". Empty when there is nothing but decoration."""
    words = text.split()
    first = next((place for place, word in enumerate(words) if _is_word(word)), len(words))
    return " ".join(words[first:])[:MAX_CHARS]


def _is_word(token: str) -> bool:
    """Faces are made of brackets and signs, or of foreign letters around an underscore."""
    return _WORD.fullmatch(token) is not None and ("_" not in token or token.isascii())
