"""The Redis client of a process: one pool, timeouts on everything, and no silent retries.

redis-py repeats a command after a lost connection by default; an append repeated so would double its events. So
retries are off for every command, and whoever may safely ask again does it where it knows that it may.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from shared import errors
from shared.settings import Settings

Client: TypeAlias = Any
"""A `redis.Redis`. Its own annotations say of every answer that it may be awaitable, which helps nobody here."""

SOCKET_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 5.0
HEALTH_CHECK_S = 30  # a connection idle for longer is asked for a PONG before it is used
MAX_CONNECTIONS = 4_096  # above the threads of any process; the default of redis-py is 100


class RelayDown(errors.Unavailable):
    """Redis did not answer or refused: what was asked has not been done, unless a subclass says otherwise."""

    code = "relay_down"


class AppendUnknown(RelayDown):
    """An append was sent and no answer came: it may stand in the log or not. Never append the same again."""

    code = "append_unknown"


def connect(settings: Settings) -> Client:
    """A client for the Redis of the settings. It connects on first use; raises SettingsError without an address."""
    if settings.redis_url is None:
        raise errors.SettingsError("REDIS_URL: is not set; `portal up` starts a Redis of its own and gives it")
    return connect_url(settings.redis_url.get_secret_value())


def connect_url(url: str, *, timeout_s: float = SOCKET_TIMEOUT_S) -> Client:
    """A client for `redis://`, `rediss://`, `unix://` or Celery's `redis+socket://`. Answers are bytes."""
    pool = redis.ConnectionPool.from_url(
        client_url(url),
        max_connections=MAX_CONNECTIONS,
        socket_timeout=timeout_s,
        socket_connect_timeout=min(timeout_s, CONNECT_TIMEOUT_S),
        health_check_interval=HEALTH_CHECK_S,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        driver_info=None,  # saves a round trip a connection, and asks for no right to CLIENT SETINFO
        **({} if _is_socket(url) else {"socket_keepalive": True}),
    )
    return redis.Redis(connection_pool=pool)


def client_url(url: str) -> str:
    """The address as redis-py wants it: Celery writes a Unix socket as `redis+socket://`."""
    return "unix://" + url.removeprefix("redis+socket://") if url.startswith("redis+socket://") else url


def celery_url(url: str) -> str:
    """The same address as Celery wants it."""
    return "redis+socket://" + url.removeprefix("unix://") if url.startswith("unix://") else url


@contextmanager
def relay_errors() -> Iterator[None]:
    """Turns every error of redis-py inside the block into RelayDown."""
    try:
        yield
    except (redis.RedisError, OSError) as error:
        raise relay_down(error) from error


def relay_down(error: BaseException) -> RelayDown:
    """RelayDown for an error of redis-py, with its first line: server errors hold names and sizes, never contents."""
    lines = str(error).splitlines() or [type(error).__name__]
    return RelayDown(f"Redis does not answer as it should: {lines[0][:200]}")


def _is_socket(url: str) -> bool:
    return url.startswith(("unix://", "redis+socket://"))
