"""Celery's consumer, but for when it tells its events: together, and not in the way of a turn that begins.

Celery publishes `task-received`, `task-started` and `task-succeeded` each as soon as it can, in the thread that takes
the messages: a quarter of what a turn cost, and in front of the turn's own work (DESIGN 11). Who watches (`celery
events`, Flower) reads them half a second later here.
"""

from typing import Any

from celery.worker import consumer

EVENTS_EVERY_S = 0.5


class Consumer(consumer.Consumer):  # type: ignore[misc]  # Celery has no types
    """Named in `worker_consumer`. Only `on_send_event_buffered` and the end differ."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.timer.call_repeatedly(EVENTS_EVERY_S, self._flush_events)

    def on_send_event_buffered(self) -> None:
        """An event waits in the buffer; the timer tells it. A full buffer is told at once, by the dispatcher."""

    def shutdown(self) -> None:
        self._flush_events()  # how the last turns ended
        super().shutdown()
