"""The small requests beside a running stream: stop, approval, answer."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from shared.errors import BackendError, BackendLost
from worker.backends.gateway.client import GatewayClient

TIMEOUT_S = 10.0
NO_LONGER_OPEN = "no_longer_open"  # the code of the error for what is already decided or over there


def quoted(peer_id: str) -> str:
    """A peer's id as one segment of a path."""
    return quote(peer_id, safe="")


def tell(client: GatewayClient, path: str, peer_id: str, body: Mapping[str, Any] | None = None) -> None:
    """POST to `path`, in which `{id}` is the peer's id of the turn. Raises BackendError when it is not taken."""
    reply = client.request("POST", path.replace("{id}", quoted(peer_id)), body or {}, timeout_s=TIMEOUT_S)
    if 200 <= reply.status < 300:
        return
    detail = f"HTTP {reply.status}"
    if reply.status in (404, 409, 410):
        raise BackendError("The gateway no longer waits for that.", code=NO_LONGER_OPEN, detail=detail)
    raise BackendLost("The gateway did not take the answer.", detail=detail)
