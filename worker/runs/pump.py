"""The thread that reads a backend's stream into the inbox of its run, and asks again where that is allowed.

Asking again is allowed only when the turn was surely not accepted (BackendUnavailable before any item but a status): at
most three times in all (RELIABILITY 2.2). Anything else means that the turn may have begun, and is never sent twice.
"""

import threading
from collections.abc import Callable, Generator

from shared.errors import BackendLost, BackendUnavailable, StartFailed
from worker.backends.base import Backend, Finished, Status, Stopped, Turn
from worker.runs.inbox import RunOver, StreamEnded
from worker.runs.live_run import LiveRun
from worker.runs.start import patiently

PAUSES_S = (0.5, 2.0)  # between the three tries
LONGEST_PAUSE_S = 30.0


def start_pump(backend: Backend, make_turn: Callable[[], Turn], live: LiveRun) -> None:
    """Put the turn together and read its stream, in a thread of its own. The last thing that comes into the inbox is
    Finished, Stopped or StreamEnded."""
    threading.Thread(target=_pump, args=(backend, make_turn, live), name=f"pump-{live.run_id[:8]}", daemon=True).start()


def _pump(backend: Backend, make_turn: Callable[[], Turn], live: LiveRun) -> None:
    try:
        turn = patiently(make_turn, live)
        if live.aborted:
            raise BackendLost("The turn was stopped before it was sent.")
        for pause_s in (*PAUSES_S, None):
            refused = _read(backend, turn, live)
            if refused is None:
                return
            if pause_s is None or live.aborted or isinstance(refused, StartFailed):
                raise refused
            pause_s = min(refused.retry_after_s or pause_s, LONGEST_PAUSE_S)
            live.inbox.put(Status(f"{refused.message} Asking again in {pause_s:.0f} s."))
            if live.wait_for_stop(pause_s):
                raise refused
    except RunOver:
        return
    except BaseException as error:  # noqa: BLE001 - the top of a thread; the run logs it and ends
        live.signal(StreamEnded(error))


def _read(backend: Backend, turn: Turn, live: LiveRun) -> BackendUnavailable | None:
    """Read one stream to its end. Returns the refusal when the turn was surely not accepted."""
    put = live.inbox.put
    accepted = False
    stream = backend.stream(turn, live)
    try:
        for item in stream:
            accepted = accepted or type(item) is not Status
            put(item)
            if type(item) is Finished or type(item) is Stopped:
                return None
    except BackendUnavailable as error:
        if accepted:
            raise BackendLost(error.message, detail=error.detail) from error
        return error
    finally:
        if isinstance(stream, Generator):
            stream.close()
    live.signal(StreamEnded())
    return None
