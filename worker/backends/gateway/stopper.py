"""Ends a stream when its turn is aborted: asks the gateway first where it can be asked, cuts the connection at last."""

import threading
from collections.abc import Callable

from shared.errors import BackendError
from worker.backends.gateway.aside import NO_LONGER_OPEN
from worker.backends.gateway.client import Wire


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
        """Returns when the gateway took the stop. Raises BackendError when it did not. In any case the connection is
        cut where the stream does not end within the grace."""
        self._begun.set()
        if self._send is None:
            self._wire.cut()
            return
        threading.Thread(target=self._cut_after_grace, name="gateway-stop", daemon=True).start()
        self._known.wait(self._grace_s)
        if self._peer_id is None or (self._over.is_set() and not self._wire.is_cut):
            return  # over, or never begun there; what we have cut ourselves may go on there
        try:
            self._send(self._peer_id)
        except BackendError as error:
            if error.code != NO_LONGER_OPEN:  # it had just ended by itself; the stream tells how
                raise

    def _cut_after_grace(self) -> None:
        if not self._over.wait(self._grace_s):
            self._wire.cut()
