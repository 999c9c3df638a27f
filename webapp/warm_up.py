"""What the first request of a process would wait for, done beside its start: templates compiled, Celery connected. Then
all that this made is set aside from the garbage collector."""

import threading

from shared import collector, logs
from webapp.context import WebContext
from webapp.passwords import verify
from webapp.render import environment

log = logs.get("webapp.warm_up")


def begin(context: WebContext) -> threading.Thread:
    """Start it; the process serves meanwhile."""
    thread = threading.Thread(target=_warm_up, args=(context,), name="warm-up", daemon=True)
    thread.start()
    return thread


def _warm_up(context: WebContext) -> None:
    try:
        with context.celery.producer_pool.acquire(block=True, timeout=5) as producer:
            producer.connection.ensure_connection(max_retries=1, timeout=5)
        templates = environment()
        for name in templates.list_templates(extensions=["html"]):
            templates.get_template(name)
        verify(None, "")  # the hash that unknown names are compared with: without it the first would take twice as long
    except Exception:
        log.warning("warm_up.failed", exc_info=True)
    collector.set_aside()
