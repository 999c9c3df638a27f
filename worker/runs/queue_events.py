"""The events that tell what the end of a run did to the turns that wait behind it. Pure."""

from collections.abc import Sequence

from shared.models import Run
from shared.protocol.events import (
    AnyEvent,
    QueueItem,
    QueueUpdated,
    QueueUpdatedData,
    RunCancelled,
    RunCancelledData,
    RunDequeued,
    RunDequeuedData,
)
from shared.store.runs import Finished

SHOWN_INPUT_CHARS = 200


def queue_events(
    session_id: str, finished: Finished, waiting: Sequence[Run], held_reason: str | None
) -> list[AnyEvent]:
    """What the end of a run did to the turns that wait behind it."""
    events: list[AnyEvent] = []
    for run in finished.cancelled:
        cancelled = RunCancelledData(queue_id=run.queue_id)
        events.append(RunCancelled(session_id=session_id, run_id=run.id, data=cancelled))
        gone = RunDequeuedData(queue_id=run.queue_id, reason="cancelled")
        events.append(RunDequeued(session_id=session_id, run_id=run.id, data=gone))
    if finished.held or finished.cancelled:
        events.append(QueueUpdated(session_id=session_id, data=queue_of(waiting, held_reason)))
    return events


def queue_of(waiting: Sequence[Run], held_reason: str | None) -> QueueUpdatedData:
    """The whole queue as its event tells it."""
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
    return QueueUpdatedData(queue=items, held=held_reason)
