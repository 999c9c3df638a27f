"""One turn through `/v1/runs`: one request starts it, a second hears it, polls ask for it when the second is lost."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from shared.errors import BackendError, BackendProtocolError, StreamCut
from shared.settings import Settings
from worker.backends import base
from worker.backends.gateway import aside, faults, frames
from worker.backends.gateway.client import ConnectionCut, GatewayClient, Wire
from worker.backends.gateway.patience import Patience
from worker.backends.gateway.runs import RunReader
from worker.backends.gateway.sse import Comment, SseEvent
from worker.backends.gateway.stopper import Stopper

APPROVAL_PATH = "/v1/runs/{id}/approval"
STOP_PATH = "/v1/runs/{id}/stop"
POLL_TIMEOUT_S = 10.0
POLL_FIRST_S, POLL_LAST_S = 0.5, 5.0  # the gap between two polls grows
POLL_GIVE_UP_S = 60.0  # without any answer


def stream_run(
    client: GatewayClient, body: Mapping[str, Any], controls: base.Controls, settings: Settings
) -> Iterator[base.Item]:
    """Ends without a last item after an abort that was not confirmed; raises as Backend.stream."""
    return _RunTurn(client, controls, settings).stream(body)


class _RunTurn:
    def __init__(self, client: GatewayClient, controls: base.Controls, settings: Settings) -> None:
        self._client = client
        self._controls = controls
        self._patience_s = settings.run_keepalive_timeout_s
        self._wire = Wire()
        self._stopper = Stopper(
            self._wire, lambda run_id: aside.tell(client, STOP_PATH, run_id), grace_s=settings.abort_grace_s
        )

    def stream(self, body: Mapping[str, Any]) -> Iterator[base.Item]:
        self._controls.on_abort(self._stopper.begin)
        try:
            run_id = self._start(body)
            self._stopper.known(run_id)
            yield base.TurnBegun(backend_run_id=run_id)
            reader = RunReader(
                run_id,
                lambda choice: aside.tell(self._client, APPROVAL_PATH, run_id, {"choice": choice}),
            )
            yield from self._follow(run_id, reader)
            if reader.cancelled:
                yield from self._cancelled()
        except ConnectionCut as cut:  # by us, before the run's id was known; or while it was started
            if not self._controls.aborted:
                raise StreamCut(
                    "The connection to the gateway broke while the run was started.", detail=cut.cause
                ) from cut
        finally:
            self._stopper.over()

    def _start(self, body: Mapping[str, Any]) -> str:
        with self._client.stream("POST", "/v1/runs", body, wire=self._wire) as answer:
            whole = answer.body()
            try:
                return frames.parse_body(frames.RunAccepted, whole).run_id
            except BackendProtocolError as error:
                raise faults.wrong_content(answer.headers, whole) from error

    def _follow(self, run_id: str, reader: RunReader) -> Iterator[base.Item]:
        try:
            with self._client.stream("GET", f"/v1/runs/{aside.quoted(run_id)}/events", wire=self._wire) as answer:
                yield from self._events(answer.events(), reader)
        except ConnectionCut:
            pass
        except BackendProtocolError:
            raise
        except BackendError as error:
            if reader.ended or error.code == "backend_timeout":
                raise
            # The run goes on without its stream: it can be had once only, so it is polled from here.
        if not reader.ended and not self._wire.is_cut:
            yield from self._poll(run_id, reader)

    def _events(self, events: Iterator[SseEvent | Comment], reader: RunReader) -> Iterator[base.Item]:
        patience = Patience(self._patience_s)
        for event in events:
            has_content = False
            for item in _items(event, reader):
                has_content = True
                yield item
            if reader.ended:
                return
            if has_content:
                patience.renew()
            else:
                patience.spend(waits=reader.waits_for_a_person)
                yield base.Keepalive()

    def _poll(self, run_id: str, reader: RunReader) -> Iterator[base.Item]:
        """The stream was lost: wait for the end of the run, of which only the last text can still be had."""
        gap_s = POLL_FIRST_S
        heard_at = time.monotonic()
        while not self._wire.is_cut:
            status = self._status(run_id)
            if status is not None:
                heard_at = time.monotonic()
                if status.run_id and status.run_id != run_id:
                    raise BackendProtocolError("The gateway told of another run than ours.", detail=status.run_id)
                if status.status == "completed":
                    yield from reader.complete(status.output, status.usage)
                    return
                if status.status == "failed":
                    yield from reader.fail(status.error)
                if status.status == "cancelled":
                    yield from reader.cancel()
                    return
            elif time.monotonic() - heard_at > POLL_GIVE_UP_S:
                raise StreamCut("The connection to the gateway broke in the middle of the run.")
            yield base.Keepalive()
            if self._controls.aborted:
                time.sleep(POLL_FIRST_S)  # the stop was sent: its effect shows soon
            else:
                self._stopper.wait_begun(gap_s)
                gap_s = min(gap_s * 1.5, POLL_LAST_S)

    def _status(self, run_id: str) -> frames.RunStatus | None:
        """None when the gateway cannot be asked now. Raises StreamCut when it no longer knows the run."""
        reply = None
        try:
            reply = self._client.request("GET", f"/v1/runs/{aside.quoted(run_id)}", timeout_s=POLL_TIMEOUT_S)
            if reply.status == 200:
                return frames.parse_body(frames.RunStatus, reply.body)
        except BackendError:
            return None
        if reply.status in (404, 410):
            raise StreamCut("The connection to the gateway broke, and it no longer knows the run.")
        return None

    def _cancelled(self) -> Iterator[base.Item]:
        if not self._controls.aborted:
            raise BackendError("The run was cancelled at the gateway, not from here.", code="cancelled_there")
        yield base.Stopped()


def _items(event: SseEvent | Comment, reader: RunReader) -> Iterator[base.Item]:
    if isinstance(event, Comment):
        return
    try:
        frame = frames.parse_run_frame(event)
    except BackendProtocolError:
        if event.is_whole:
            raise
        return  # the stream was cut in the middle of an event
    yield from reader.read(frame)
