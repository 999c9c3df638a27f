"""One Redis list per worker: aborts and answers for its runs. A note is a nudge; what was decided stands in the
database, where the worker looks again every few seconds, so a lost or doubled note does no harm."""

from collections.abc import Iterator
from threading import Event as Stop
from typing import Literal

import redis
from pydantic import BaseModel, ConfigDict, ValidationError

from shared import logs
from shared.relay.connection import Client, relay_errors
from shared.relay.keys import MAILBOX_TTL_S, Keys

BLOCK_S = 1  # below the socket's timeout, and how long a listener may take to notice that it is to stop
FIRST_DELAY_S, LAST_DELAY_S = 0.1, 2.0

log = logs.get(__name__)


class Note(BaseModel):
    """Something to look at for a run. `fence`: of the run as the sender saw it."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    run_id: str
    kind: Literal["abort", "answer"]
    fence: int
    pause_id: str | None = None


def post(client: Client, keys: Keys, worker_id: str, note: Note) -> None:
    """Leave a note for a worker. Raises RelayDown; the decision itself must have been committed before."""
    key = keys.mailbox(worker_id)
    with relay_errors():
        pipe = client.pipeline(transaction=False)
        pipe.rpush(key, note.model_dump_json())
        pipe.expire(key, MAILBOX_TTL_S)
        pipe.execute()


class Mailbox:
    """A worker's end of its list."""

    def __init__(self, client: Client, keys: Keys, worker_id: str) -> None:
        self._client = client
        self._key = keys.mailbox(worker_id)
        self._worker_id = worker_id

    def listen(self, stop: Stop) -> Iterator[Note]:
        """Yield notes as they come, until `stop` is set. Outlives a dead, frozen or restarted Redis: the connection is
        made anew for ever, with a growing delay; the loss and the return are logged once each."""
        delay_s = 0.0
        while not stop.is_set():
            try:
                popped = self._client.blpop([self._key], timeout=BLOCK_S)
            except (redis.RedisError, OSError) as error:
                if not delay_s:
                    log.warning("mailbox.lost", worker_id=self._worker_id, error=type(error).__name__)
                delay_s = min(max(2 * delay_s, FIRST_DELAY_S), LAST_DELAY_S)
                stop.wait(delay_s)
                continue
            if delay_s:
                log.info("mailbox.back", worker_id=self._worker_id)
                delay_s = 0.0
            if popped is not None and (note := _read(popped[1])) is not None:
                yield note


def _read(raw: bytes) -> Note | None:
    try:
        return Note.model_validate_json(raw)
    except ValidationError:
        log.warning("mailbox.unreadable_note", size_bytes=len(raw))
        return None
