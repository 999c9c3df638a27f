"""Celery's remote control, as an operator uses it from the shell."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from celery.app.control import Control

TRY_S = 10.0
GIVE_UP_S = 90.0


def asked(
    control: Control,
    command: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    destination: Sequence[str] | None = None,
    workers: int = 1,
) -> list[Any]:
    """What each of so many workers answers. It is asked again until they do: a broadcast is heard only by who listens
    in that moment, and a worker that takes turns already may begin to listen a little later."""
    give_up_at = time.monotonic() + GIVE_UP_S
    while True:
        told = control.broadcast(
            command, arguments=dict(arguments or {}), destination=destination, reply=True, limit=workers, timeout=TRY_S
        )
        answers = [answer for each in told or [] for answer in each.values()]
        if len(answers) >= workers:
            return answers
        assert time.monotonic() < give_up_at, f"{len(answers)} of {workers} workers answered {command}"
