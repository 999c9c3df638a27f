"""gunicorn's settings for the web process (STACK 3): one worker, a thread a socket, sockets closed on stop."""

import os
import signal
import threading
from types import FrameType
from typing import Any

from gunicorn.arbiter import Arbiter
from gunicorn.workers.base import Worker

from shared.settings import load
from webapp.cli.launch import die_with_parent

_settings = load()

LISTEN_FD = "PORTAL_LISTEN_FD"
"""The number of the listening socket that `portal up` hands down: a restart of the web process refuses nobody."""

SPARE_THREADS = 64  # for pages and API while every socket is taken (RELIABILITY 3, Capacity)

bind = [f"fd://{os.environ[LISTEN_FD]}" if LISTEN_FD in os.environ else f"{_settings.host}:{_settings.port}"]
worker_class = "webapp.gunicorn_worker.PatientWorker"
workers = 1
threads = _settings.max_sockets + SPARE_THREADS
worker_connections = threads + 500  # kept-alive connections without a request beside the sockets
backlog = 2048
timeout = 60
graceful_timeout = 10
keepalive = 5
limit_request_line = 8190
limit_request_fields = 100
limit_request_field_size = 16_380
forwarded_allow_ips = ""  # X-Forwarded-* is judged by ProxyFix alone, by PORTAL_TRUSTED_PROXIES (S51)
control_socket_disable = True  # its fixed path in the home directory would be shared by two portals
loglevel = "warning"
accesslog = None


def post_fork(server: Arbiter, worker: Worker) -> None:
    """The worker dies with its master, which dies with `portal up`; it makes its own database connections."""
    die_with_parent(server.pid)
    if server.cfg.preload_app:
        server.app.wsgi().extensions["portal"].engine.dispose(close=False)


def post_worker_init(worker: Worker) -> None:
    """On SIGTERM every socket and stream is asked at once to come back; gunicorn itself would leave them open until
    graceful_timeout, and then cut them."""
    from webapp import warm_up  # here alone: above, the master would hold the whole app too, 40 MB

    warm_up.begin(worker.wsgi.extensions["portal"])
    live: Any = worker.wsgi.extensions["portal_live"]
    stop: Any = signal.getsignal(signal.SIGTERM)

    def close_sockets_first(number: int, frame: FrameType | None) -> None:
        threading.Thread(target=live.close_all, daemon=True).start()  # no lock may be taken in a signal's frame
        stop(number, frame)

    signal.signal(signal.SIGTERM, close_sockets_first)
