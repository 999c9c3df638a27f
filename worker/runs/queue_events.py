"""The events that tell what the end of a run did to the turns that wait behind it. Pure."""

from collections.abc import Sequence

from shared.models import Run
from shared.protocol.events import AnyEvent, QueueUpdated
from shared.queue_events import cancelled_events, queue_told
from shared.store.runs import Finished


def queue_events(
    session_id: str, finished: Finished, waiting: Sequence[Run], held_reason: str | None
) -> list[AnyEvent]:
    """What the end of a run did to the turns that wait behind it."""
    events = cancelled_events(finished.cancelled, by=None)
    if finished.held or finished.cancelled:
        events.append(QueueUpdated(session_id=session_id, data=queue_told(waiting, held_reason)))
    return events
