"""What an action told: the events in the session's log, the tasks in the broker, the notes in a worker's mailbox."""

import base64
import json
from typing import Any

from shared.relay.event_log import Cursor, event_of
from tests.rig.web import Web


def events(web: Web, session_id: str) -> list[Any]:
    """All events of the session's log, in order."""
    head = web.context.log.head(session_id)
    if head is None:
        return []
    entries = web.context.log.read_after(session_id, Cursor(head.epoch, 0))
    assert entries is not None
    found = [event_of(entry, session_id) for entry in entries]
    assert all(found), "an event that no client can read"
    return found


def names(web: Web, session_id: str) -> list[str]:
    return [event.event for event in events(web, session_id)]


def tasks(web: Web, queue: str = "runs") -> list[dict[str, Any]]:
    """The messages that wait in a Celery queue, oldest first: `id`, `task`, `args`, `labels`."""
    raw = web.context.redis.lrange(f"{web.settings.redis_prefix}{queue}", 0, -1)
    return [_task(json.loads(message)) for message in reversed(raw)]


def task_ids(web: Web, queue: str = "runs") -> list[str]:
    return [task["id"] for task in tasks(web, queue)]


def notes(web: Web, worker_id: str) -> list[dict[str, Any]]:
    """What was left for a worker."""
    return [json.loads(raw) for raw in web.context.redis.lrange(web.context.keys.mailbox(worker_id), 0, -1)]


def _task(message: dict[str, Any]) -> dict[str, Any]:
    args, labels, _ = json.loads(base64.b64decode(message["body"]))
    headers = message["headers"]
    return {"id": headers["id"], "task": headers["task"], "args": args, "labels": labels}
