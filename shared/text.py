"""Text that every part of the portal can store, count and send: no NUL, no lone surrogates. Pure: no I/O."""

import re

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def storable(text: str) -> str:
    """`text` with each NUL and each lone surrogate replaced by U+FFFD, so its length in code points stays the same.

    PostgreSQL stores no NUL and UTF-8 knows no lone surrogate; this is done before anything is counted (RELIABILITY 3).
    """
    return _UNSTORABLE.sub("\ufffd", text)
