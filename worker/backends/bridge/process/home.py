"""Whether an agent can live in a home: asked by the worker before it starts a child, and by the child."""

import contextlib
import os
import tempfile
from pathlib import Path


def try_home(home: Path) -> None:
    """Raises OSError when it is no folder, or cannot be read or written: what a file system, a quota or a mount refuses
    shows only when it is tried, also to root."""
    with os.scandir(home) as entries:
        next(entries, None)
    try:
        tempfile.TemporaryFile(dir=home).close()
    except OSError as error:
        raise NotWritable(error.errno, error.strerror) from error


class NotWritable(OSError):
    """It can be read."""


def without_home(text: str, home: Path) -> str:
    """A text for people who are not to see where the home is."""
    places = {str(home)}
    with contextlib.suppress(OSError):
        places.add(str(home.resolve()))
    for place in sorted(places, key=len, reverse=True):
        text = text.replace(place, "$HERMES_HOME")
    return text
