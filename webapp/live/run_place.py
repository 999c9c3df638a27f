"""Where in the log of its session a run begins."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from shared.models import Run
from shared.protocol.events import AnyEvent
from shared.relay.event_log import Cursor, EventLog, event_of

WINDOWS: Final = (64, 500, 2_000)  # how many events back is looked, at first and then


@dataclass(frozen=True)
class RunPlace:
    """`before`: the place before the run's first event that was found; None: none was. `is_sure`: an earlier one does
    not lie out of reach."""

    before: Cursor | None
    is_sure: bool = True


def place_of(
    log: EventLog, run: Run, head: Cursor, counts: Callable[[AnyEvent], bool] = lambda event: True, *, is_near: bool
) -> RunPlace | None:
    """Where the first event of the run is that `counts`. `is_near`: it is among the latest, or nowhere. None when there
    is no log. Raises RelayDown."""
    for window in WINDOWS:
        start = max(0, head.seq - window)
        entries = log.read_after(run.session_id, Cursor(head.epoch, start))
        if entries is None:
            return None
        events = ((entry.seq, event_of(entry, run.session_id)) for entry in entries)
        first = next((n for n, event in events if event and event.run_id == run.id and counts(event)), None)
        is_last = start == 0 or window == WINDOWS[-1]
        if first is None:
            if is_near or is_last:
                return RunPlace(None)
        elif first > start + 1 or is_last:
            return RunPlace(Cursor(head.epoch, first - 1), is_sure=first > start + 1 or start == 0)
    return None
