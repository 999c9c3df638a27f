"""Start and stop of a worker process, and of beat: what is opened here is closed here.

On SIGTERM a worker claims nothing more; its runs get `shutdown_grace_s`, then they are interrupted. The threads that
keep leases, hear aborts and sweep go on until the last run has ended. What was sent to a worker that takes no more
turns is handed on to the others.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celery import Celery, signals

from shared import clock, collector, logs, task_names
from shared import settings as portal_settings
from shared.database import make_engine, make_session_factory
from shared.relay.connection import connect
from shared.relay.event_log import EventLog
from shared.relay.keys import Keys
from shared.relay.presence import Presence
from shared.settings import Settings
from worker import heartbeat
from worker.backends.registry import Backends
from worker.context import SAVER_THREADS, WorkerContext
from worker.identity import new_worker_id
from worker.runs import interrupts
from worker.runs.janitor import Janitor
from worker.runs.leases import LeaseKeeper
from worker.runs.revoked import cancel_revoked
from worker.ticker import Ticker
from worker.watchdog import Watchdog

HAND_ON_EVERY_S = 1.0  # while draining: who had not heard of it yet may still send

log = logs.get(__name__)


class Process:
    """The context of this process and its threads. `is_worker` False: beat, which only sweeps."""

    def __init__(self, context: WorkerContext, *, is_worker: bool) -> None:
        self.context = context
        self.started_at = clock.now()
        self.janitor = Janitor(context)
        self.watchdog: Watchdog | None = None
        self._tickers = [Ticker("janitor", context.settings.janitor_every_s, self.janitor.sweep)]
        self._mailbox: interrupts.MailboxThread | None = None
        self._interrupt: threading.Timer | None = None
        self._heartbeat = Ticker("heartbeat", context.settings.lease_renew_s, self._beat)
        self._hand_on = Ticker("hand-on", HAND_ON_EVERY_S, self._hand_on_queue)
        if is_worker:
            settings = context.settings
            self._mailbox = interrupts.MailboxThread(context)
            self._tickers += [
                Ticker("leases", settings.lease_renew_s, LeaseKeeper(context).renew),
                Ticker("looks", settings.database_look_s, self._look),
                Ticker("served", settings.lease_renew_s, self._look_what_is_served),
                self._heartbeat,
                self._hand_on,
            ]

    def start(self) -> None:
        for ticker in self._tickers:
            ticker.start()
        if self._mailbox is not None:
            self._mailbox.start()

    def watch(self, consumer: Any) -> None:
        """Have a consumer watched that may hang on its broker connection."""
        self.watchdog = Watchdog(self.context, consumer)
        ticker = Ticker("watchdog", self.context.settings.janitor_every_s, self.watchdog.look)
        self._tickers.append(ticker)
        ticker.start()

    def drain(self, on: bool) -> None:
        """Take no more turns, or take them again. Whoever sends turns hears of it at once; returns at once."""
        if on:
            self.context.draining.set()
        else:
            self.context.draining.clear()
        self._heartbeat.wake()
        self._hand_on.wake()

    def shut_down(self, *, at_once: bool) -> None:
        """No new claims; the runs get their grace. Called in a signal handler: it only starts a thread."""
        if self._interrupt is None:
            self.drain(True)
            grace_s = 0.0 if at_once else self.context.settings.shutdown_grace_s
            self._interrupt = threading.Timer(grace_s, self._interrupt_runs)
            self._interrupt.daemon = True
            self._interrupt.start()

    def close(self) -> None:
        """The last run has ended."""
        if self._interrupt is not None:
            self._interrupt.cancel()
        for ticker in self._tickers:
            ticker.stop()
        if self._mailbox is not None:
            self._mailbox.stop()
        self.context.saver.shutdown()
        self.context.backends.close()
        try:
            heartbeat.sign_off(self.context, self.context.worker_id)
        except Exception as error:  # noqa: BLE001 - the end of the process: its heartbeat ends anyway
            log.warning("worker.not_signed_off", error=type(error).__name__)
        self.context.engine.dispose()

    def _interrupt_runs(self) -> None:
        for live in self.context.live_runs.all():
            live.shut_down()

    def _look(self) -> None:
        interrupts.look(self.context, self.context.live_runs.all())

    def _look_what_is_served(self) -> None:
        if self.context.served.look():
            self._heartbeat.wake()

    def _beat(self) -> None:
        heartbeat.beat(self.context, self.started_at)

    def _hand_on_queue(self) -> None:
        if self.context.draining.is_set():
            heartbeat.hand_on_queue(self.context, self.context.worker_id)


_process: Process | None = None


def current() -> WorkerContext:
    """The context of this process, for its tasks and control commands."""
    return process().context


def process() -> Process:
    if _process is None:
        raise RuntimeError("this process is no worker")
    return _process


def make_context(settings: Settings, app: Celery, worker_id: str) -> WorkerContext:
    """Opens no connection yet."""
    engine = make_engine(settings)
    factory = make_session_factory(engine)
    redis = connect(settings)
    keys = Keys(settings.redis_prefix)

    def send_task(run_id: str, queue: str, labels: dict[str, str]) -> None:
        app.send_task(
            task_names.RUN_TURN, args=[run_id], kwargs=labels, task_id=run_id, queue=queue, retry=False,
            ignore_result=True,
        )  # fmt: skip

    return WorkerContext(
        settings=settings,
        engine=engine,
        factory=factory,
        redis=redis,
        keys=keys,
        log=EventLog(redis, keys, max_events=settings.log_max_events, ttl_s=settings.log_ttl_s),
        presence=Presence(redis, keys, ttl_s=3 * settings.lease_renew_s),
        worker_id=worker_id,
        backends=Backends(settings, factory),
        send_task=send_task,
        saver=ThreadPoolExecutor(max_workers=SAVER_THREADS, thread_name_prefix="saver"),
    )


# ---- Celery's signals


@signals.setup_logging.connect  # type: ignore[untyped-decorator]
def _log_lines(**_: Any) -> None:
    logs.configure(portal_settings.load(), process="beat" if "beat" in sys.argv else "worker")


@signals.worker_init.connect  # type: ignore[untyped-decorator]
def _worker_init(sender: Any, **_: Any) -> None:
    global _process
    _process = Process(make_context(portal_settings.load(), sender.app, new_worker_id()), is_worker=True)


@signals.celeryd_after_setup.connect  # type: ignore[untyped-decorator]
def _own_queue(instance: Any, **_: Any) -> None:
    """The worker also takes what was sent to it alone: turns of sessions whose warm agent it holds."""
    instance.app.amqp.queues.select_add(task_names.worker_queue(current().worker_id))


@signals.worker_ready.connect  # type: ignore[untyped-decorator]
def _worker_ready(sender: Any, **_: Any) -> None:
    process().start()
    process().watch(sender)
    collector.set_aside()
    log.info("worker.ready", worker_id=current().worker_id)


@signals.worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _worker_shutting_down(how: str, **_: Any) -> None:
    if _process is not None:
        _process.shut_down(at_once=how != "Warm")


@signals.worker_shutdown.connect  # type: ignore[untyped-decorator]
def _worker_shutdown(**_: Any) -> None:
    global _process
    if _process is not None:
        _process.close()
        _process = None


@signals.beat_init.connect  # type: ignore[untyped-decorator]
def _beat_init(sender: Any, **_: Any) -> None:
    global _process
    _process = Process(make_context(portal_settings.load(), sender.app, new_worker_id()), is_worker=False)
    _process.start()
    log.info("beat.ready", worker_id=current().worker_id)


@signals.task_revoked.connect  # type: ignore[untyped-decorator]
def _task_revoked(request: Any, expired: bool, **_: Any) -> None:
    if _process is not None and not expired and request.task_name == task_names.RUN_TURN:
        cancel_revoked(request.id, _process.context)
