"""The web app, but its process dies between the commit of a turn and all that follows it (F1)."""

import os
from typing import Any

from webapp.actions import runs
from webapp.wsgi import app

__all__ = ["app"]


def _die(*_: Any, **__: Any) -> None:
    os._exit(9)


runs._tell_accepted = _die
