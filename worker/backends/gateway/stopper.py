"""Ends a stream when its turn is aborted: asks the gateway first where it can be asked, cuts the connection at last."""

import threading
import time
from collections.abc import Callable

import structlog

from shared.errors import BackendError
from worker.backends.gateway.client import Wire

log = structlog.get_logger(__name__)


class Stopper:
    """`begin` is for Controls.on_abort. `send(peer_id)` asks the peer to stop and raises BackendError; None: it cannot
    be asked. `known(peer_id)` when the peer's own id of the turn is told, `over` when the stream has ended."""

    def __init__(self, wire: Wire, send: Callable[[str], None] | None, *, grace_s: float) -> None:
        self._wire = wire
        self._send = send
        self._grace_s = grace_s
        self._peer_id: str | None = None
        self._known = threading.Event()
        self._over = threading.Event()
        self._begun = threading.Event()

    def known(self, peer_id: str) -> None:
        self._peer_id = peer_id
        self._known.set()

    def over(self) -> None:
        self._over.set()
        self._known.set()

    def wait_begun(self, timeout_s: float) -> bool:
        """True as soon as the abort has begun; False after `timeout_s`."""
        return self._begun.wait(timeout_s)

    def begin(self) -> None:
        """Returns at once; the rest happens in a thread that ends with the stream, or after the grace."""
        self._begun.set()
        if self._send is None:
            self._wire.cut()
        else:
            threading.Thread(target=self._stop, args=(self._send,), name="gateway-stop", daemon=True).start()

    def _stop(self, send: Callable[[str], None]) -> None:
        deadline = time.monotonic() + self._grace_s
        self._known.wait(self._grace_s)
        if self._peer_id is not None and not self._over.is_set():
            try:
                send(self._peer_id)
            except BackendError as error:  # the run may just have ended; what comes of it the stream tells
                log.info("gateway.stop_refused", code=error.code, detail=error.detail)
        if not self._over.wait(max(0.0, deadline - time.monotonic())):
            self._wire.cut()
