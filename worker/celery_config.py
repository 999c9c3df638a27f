"""How Celery is used: queues, acknowledgement, broker.

A message is a hint (RELIABILITY 2.2): it is acknowledged when it is taken, never tried again and has no result; the
database and the janitors are the recovery. Prefetching is off, so that a full worker keeps no turn that a free one
could take.
"""

from celery import Celery
from kombu import Exchange, Queue  # type: ignore[attr-defined]

from shared import task_names
from shared.errors import SettingsError
from shared.relay.broker import use_kept_clients
from shared.relay.connection import celery_url
from shared.settings import Settings

BEAT_SCHEDULE = "beat-schedule"
RETENTION_EVERY_S = 3600.0


def make_app(settings: Settings) -> Celery:
    """The app for these settings. Raises SettingsError without a Redis."""
    if settings.redis_url is None:
        raise SettingsError("REDIS_URL: is not set; `portal up` starts a Redis of its own and gives it")
    use_kept_clients()
    app = Celery("portal", broker=celery_url(settings.redis_url.get_secret_value()))
    app.conf.update(
        # what a message is
        accept_content=["json"],
        task_serializer="json",
        event_serializer="json",
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        task_acks_late=False,
        task_reject_on_worker_lost=False,
        task_send_sent_event=True,
        worker_send_task_events=True,
        enable_utc=True,
        # where it goes
        task_default_queue=task_names.RUNS_QUEUE,
        task_queues=[_queue(task_names.RUNS_QUEUE), _queue(task_names.UPKEEP_QUEUE)],
        task_create_missing_queues=True,
        task_routes={task_names.UPKEEP: {"queue": task_names.UPKEEP_QUEUE}},
        # how a worker takes it
        worker_pool="threads",
        worker_consumer="worker.consumer:Consumer",
        worker_concurrency=settings.worker_concurrency,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_enable_soft_shutdown_on_idle=False,
        # the broker
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "global_keyprefix": settings.redis_prefix,
            "visibility_timeout": 3600,
            "socket_keepalive": True,
            "socket_connect_timeout": 5,
            "health_check_interval": 15,
        },
        # beat
        beat_schedule={
            "upkeep": {"task": task_names.UPKEEP, "schedule": RETENTION_EVERY_S, "options": {"expires": 600}}
        },
        beat_schedule_filename=str(settings.data_dir / BEAT_SCHEDULE),
    )
    return app


def _queue(name: str) -> Queue:
    """With an exchange of its own: bound to a common one, each queue would get the other's tasks too."""
    return Queue(name, Exchange(name), routing_key=name)  # type: ignore[no-untyped-call]
