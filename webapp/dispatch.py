"""Wakes a worker for a queued run: sends the Celery task by its name, after the transaction has committed.

The message is a hint. The database is the truth, and what could not be sent the janitor sends later (RELIABILITY 2.2).
"""

import time

from celery import Celery
from celery.exceptions import CeleryError
from kombu.exceptions import KombuError, OperationalError
from redis.exceptions import RedisError

from shared import logs, task_names
from shared.database import transaction
from shared.errors import SettingsError, Unavailable
from shared.models import Run
from shared.relay.broker import use_kept_clients
from shared.relay.connection import celery_url
from shared.relay.presence import Presence
from shared.settings import Settings
from shared.store import runs
from webapp.context import WebContext

log = logs.get("webapp.dispatch")

SEND_TIMEOUT_S = 2


def make_celery(settings: Settings) -> Celery:
    """A Celery app that can send and knows no task. Raises SettingsError without a Redis."""
    if settings.redis_url is None:
        raise SettingsError("REDIS_URL: is not set; `portal up` starts a Redis of its own and gives it")
    use_kept_clients()
    app = Celery("portal-web", broker=celery_url(settings.redis_url.get_secret_value()), set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        event_serializer="json",
        task_ignore_result=True,
        task_send_sent_event=True,
        task_default_queue=task_names.RUNS_QUEUE,
        broker_connection_timeout=SEND_TIMEOUT_S,
        broker_transport_options={
            "global_keyprefix": settings.redis_prefix,
            "socket_connect_timeout": SEND_TIMEOUT_S,
            "socket_timeout": SEND_TIMEOUT_S,
            "health_check_interval": 15,
            # a request waits for this: one try, then the janitor
            "max_retries": 0,
            "interval_start": 0,
            "interval_step": 0,
            "interval_max": 0,
        },
    )
    app.finalize()
    return app


def send_turn(web: WebContext, run: Run, *, warm_worker: str | None = None, marked: bool = False) -> bool:
    """Send the task of a queued run, to the worker that holds its session's agent while that takes turns, else to any.

    `marked`: the dispatch was noted in the database with the run, so that no second write stands in the way of the
    worker's claim. Never raises: False when it could not be sent.
    """
    begun = time.monotonic()
    try:
        if web.breaker.is_open:
            raise OperationalError("Redis is given a rest.")
        web.celery.send_task(
            task_names.RUN_TURN,
            args=[run.id],
            kwargs={"session": run.session_id, "user": run.user_name, "backend": run.source},
            task_id=run.id,
            queue=task_names.turn_queue(run.source, warm_worker, Presence(web.redis, web.keys).takes_turns),
            retry=False,
            ignore_result=True,
        )
        if not marked:
            with transaction(web.factory) as db:
                runs.mark_dispatched(db, run.id)
    except (CeleryError, KombuError, RedisError, OSError, Unavailable) as error:
        web.breaker.failed(begun)
        log.warning("run.not_dispatched", run_id=run.id, session_id=run.session_id, error=type(error).__name__)
        if marked:
            not_sent(web, run)
        return False
    return True


def not_sent(web: WebContext, run: Run) -> None:
    """Take back the note of a dispatch. Never raises: a janitor sends the task later all the same."""
    try:
        with transaction(web.factory) as db:
            runs.mark_unsent(db, run.id)
    except Unavailable as error:
        log.warning("run.still_marked", run_id=run.id, code=error.code)
