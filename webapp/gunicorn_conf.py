"""gunicorn's settings for the web process (STACK 3): one gthread worker, a thread a socket, sockets closed on stop."""

import os

from gunicorn.arbiter import Arbiter
from gunicorn.workers.base import Worker

from shared.settings import load
from webapp.cli.launch import die_with_parent

_settings = load()

LISTEN_FD = "PORTAL_LISTEN_FD"
"""The number of the listening socket that `portal up` hands down: a restart of the web process refuses nobody."""

SPARE_THREADS = 64  # for pages and API while every socket is taken (RELIABILITY 3, Capacity)

bind = [f"fd://{os.environ[LISTEN_FD]}" if LISTEN_FD in os.environ else f"{_settings.host}:{_settings.port}"]
worker_class = "gthread"
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
    """The worker dies with its master, which dies with `portal up`."""
    die_with_parent(server.pid)
