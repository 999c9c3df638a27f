"""How what waits in a session is told, alike by the web process and by workers. Pure."""

from collections.abc import Iterable

from shared.models import Run
from shared.protocol.events import (
    AnyEvent,
    QueueItem,
    QueueUpdatedData,
    RunCancelled,
    RunCancelledData,
    RunDequeued,
    RunDequeuedData,
)

SHOWN_INPUT_CHARS = 2_000  # code points of a waiting turn; the whole stands in the database


def queue_told(waiting: Iterable[Run], held: str | None) -> QueueUpdatedData:
    """The whole queue, next one first; `held`: why it waits for a person."""
    items = [
        QueueItem(
            queue_id=run.queue_id,
            run_id=run.id,
            position=place,
            input=run.input[:SHOWN_INPUT_CHARS],
            by=run.user_name,
        )
        for place, run in enumerate(waiting, 1)
    ]
    return QueueUpdatedData(queue=items, held=held)


def cancelled_events(cancelled: Iterable[Run], by: str | None) -> list[AnyEvent]:
    """What tells that waiting runs were withdrawn."""
    told: list[AnyEvent] = []
    for run in cancelled:
        dequeued = RunDequeuedData(queue_id=run.queue_id, reason="cancelled")
        told.append(RunDequeued(session_id=run.session_id, run_id=run.id, data=dequeued))
        ended = RunCancelledData(queue_id=run.queue_id, by=by)
        told.append(RunCancelled(session_id=run.session_id, run_id=run.id, data=ended))
    return told
