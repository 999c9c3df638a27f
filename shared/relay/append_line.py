"""The connection by which appends go to Redis: each is sent exactly once, and its answer may be read later.

Who sends an append without waiting need not be woken for the answer: it is there when the next one is sent. That saves
a wake-up a delta, which is most of what a delta costs (DESIGN 11).
"""

import time
from collections.abc import Sequence
from typing import Any

import redis

from shared.relay.connection import AppendUnknown, Client, relay_down
from shared.relay.scripts import APPEND

LOOK_AFTER_S = 1.0
"""A kept connection that was idle for so long is looked at first: Redis may have closed it."""


class AppendLine:
    """`send`, then `answer`, over a connection of the pool that is kept until `close`. Used by one thread at a time."""

    def __init__(self, client: Client) -> None:
        self._pool = client.connection_pool
        self._connection: Any = None
        self._arguments: Sequence[Any] | None = None  # of the append whose answer is still to come
        self._used_at = 0.0

    @property
    def waits(self) -> bool:
        """Whether an answer is still to come."""
        return self._arguments is not None

    def send(self, arguments: Sequence[Any]) -> None:
        """Send the append script with `arguments`. Raises RelayDown when it surely was not sent."""
        assert self._arguments is None
        is_kept = self._connection is not None and time.monotonic() - self._used_at < LOOK_AFTER_S
        try:
            self._send(is_kept, "EVALSHA", APPEND.sha, 2, *arguments)
        except (redis.RedisError, OSError) as error:
            # a command that could not be sent whole is not a command yet: Redis drops it with the connection
            self.close()
            if not is_kept:
                raise relay_down(error) from error
            try:
                self._send(False, "EVALSHA", APPEND.sha, 2, *arguments)
            except (redis.RedisError, OSError) as again:
                self.close()
                raise relay_down(again) from again
        self._arguments = arguments

    def answer(self) -> Any:
        """What Redis answered to the append sent last. Raises AppendUnknown when no answer came, RelayDown when Redis
        answered that it did not take it."""
        arguments, self._arguments = self._arguments, None
        assert arguments is not None
        try:
            return self._read()
        except redis.exceptions.NoScriptError:
            pass
        try:
            self._connection.send_packed_command(
                self._connection.pack_command("EVAL", APPEND.text, 2, *arguments), check_health=False
            )
        except (redis.RedisError, OSError) as error:
            self.close()
            raise relay_down(error) from error
        return self._read()

    def close(self) -> None:
        """Give the connection back; one whose answer is still to come is cut."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._arguments is not None:
            self._arguments = None
            connection.disconnect()
        self._pool.release(connection)

    def _send(self, is_kept: bool, *command: Any) -> None:
        if not is_kept:
            self.close()
            self._connection = self._pool.get_connection()  # looks whether it is still good
        connection = self._connection
        connection.send_packed_command(connection.pack_command(*command))
        self._used_at = time.monotonic()

    def _read(self) -> Any:
        try:
            return self._connection.read_response()
        except redis.exceptions.NoScriptError:
            raise
        except (redis.exceptions.ResponseError, redis.exceptions.BusyLoadingError) as error:
            raise relay_down(error) from error  # Redis answered, and the answer is no
        except (redis.RedisError, OSError) as error:
            self.close()
            raise AppendUnknown("Redis did not answer an append: it may have been kept") from error
