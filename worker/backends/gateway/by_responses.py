"""One turn through `POST /v1/responses`, streamed."""

from collections.abc import Iterator, Mapping
from typing import Any

from shared.errors import BackendError, BackendProtocolError, BackendRefused, StreamCut
from shared.settings import Settings
from worker.backends import base
from worker.backends.gateway import aside, extension, faults, frames
from worker.backends.gateway.client import ConnectionCut, EventStream, GatewayClient, Wire
from worker.backends.gateway.patience import Patience
from worker.backends.gateway.responses import Answers, ResponseReader
from worker.backends.gateway.sse import Comment, SseEvent
from worker.backends.gateway.stopper import Stopper

LOOK_TIMEOUT_S = 10.0  # the one look at a response whose stream was cut (RELIABILITY C13)
ENDS = {"completed": "response.completed", "failed": "response.failed"}
"""States of a stored response in which it is over. `incomplete` is what Hermes makes of one whose client left."""


def stream_response(
    client: GatewayClient,
    body: Mapping[str, Any],
    controls: base.Controls,
    settings: Settings,
    extended: extension.Announcement,
) -> Iterator[base.Item]:
    """`extended`: the requests that the gateway serves beside the stream. Ends without a last item after an abort that
    was not confirmed; raises as Backend.stream."""
    turn = _ResponseTurn(client, controls, settings, extended)
    return turn.stream(body)


class _ResponseTurn:
    def __init__(
        self,
        client: GatewayClient,
        controls: base.Controls,
        settings: Settings,
        extended: extension.Announcement,
    ) -> None:
        self._client = client
        self._controls = controls
        self._extended = extended
        self._patience_s = settings.run_keepalive_timeout_s
        self._wire = Wire()
        self._stopper = Stopper(self._wire, self._stop if extended.stop else None, grace_s=settings.abort_grace_s)
        self._reader = ResponseReader(Answers(self._approve, self._clarify))

    def stream(self, body: Mapping[str, Any]) -> Iterator[base.Item]:
        self._controls.on_abort(self._stopper.begin)
        try:
            with self._client.stream("POST", "/v1/responses", body, wire=self._wire) as answer:
                self._reader.session_id = answer.headers.get("x-hermes-session-id")
                if answer.kind in ("text/event-stream", ""):
                    yield from self._events(answer.events())
                else:
                    yield from self._whole(answer)
            cause = "the stream ended without its last event"
        except ConnectionCut as cut:
            cause = cut.cause
        except BackendRefused:
            if not (self._controls.aborted and self._reader.ended):
                raise
            yield base.Stopped()  # the answer ended unfinished because we asked for it
            return
        finally:
            self._stopper.over()
        if not self._reader.ended and not self._controls.aborted:
            yield from self._look(cause)

    def _events(self, events: Iterator[SseEvent | Comment]) -> Iterator[base.Item]:
        patience = Patience(self._patience_s)
        for event in events:
            has_content = False
            for item in self._items(event):
                has_content = True
                yield item
            if self._reader.ended:
                return
            if has_content:
                patience.renew()
            else:
                patience.spend(waits=self._reader.waits_for_a_person)
                yield base.Keepalive()

    def _items(self, event: SseEvent | Comment) -> Iterator[base.Item]:
        if isinstance(event, Comment):
            return
        try:
            frame = frames.parse_response_frame(event)
        except BackendProtocolError:
            if event.is_whole:
                raise
            return  # the stream was cut in the middle of an event
        if isinstance(frame, frames.ResponseBegun) and frame.response.id:
            self._stopper.known(frame.response.id)
        yield from self._reader.read(frame)

    def _whole(self, answer: EventStream) -> Iterator[base.Item]:
        """A peer that does not stream: the whole response at once, or something else."""
        body = answer.body()
        response = response_of(answer.headers, body)
        yield base.TurnBegun(response.id or None, self._reader.session_id, response.model)
        yield from self._reader.end(f"response.{response.status or 'completed'}", response)

    def _look(self, cause: str) -> Iterator[base.Item]:
        """The stream was cut: has the answer been finished all the same?"""
        response = self._stored()
        if response is None or response.status not in ENDS:
            if self._reader.response_id is None and cause.startswith("the stream ended"):
                raise BackendProtocolError("The gateway answered with nothing at all.", detail=cause)
            yield from self._reader.rest()
            raise StreamCut("The connection to the gateway broke in the middle of the answer.", detail=cause)
        yield from self._reader.end(ENDS[response.status], response)

    def _stored(self) -> frames.ResponseBody | None:
        """`GET /v1/responses/{id}`, once; None when it cannot be had."""
        if self._reader.response_id is None:
            return None
        path = f"/v1/responses/{aside.quoted(self._reader.response_id)}"
        try:
            reply = self._client.call("GET", path, timeout_s=LOOK_TIMEOUT_S)
            return frames.parse_body(frames.ResponseBody, reply.body)
        except BackendError:
            return None

    # ---- what goes the other way

    def _stop(self, response_id: str) -> None:
        aside.tell(self._client, self._extended.stop or "", response_id)

    def _approve(self, approval_id: str, choice: base.Choice) -> None:
        body = extension.ApprovalAnswer(approval_id=approval_id, choice=choice)
        aside.tell(self._client, self._extended.approval or "", self._reader.response_id or "", body.model_dump())

    def _clarify(self, clarify_id: str, answer: str | None) -> None:
        body = extension.ClarifyAnswer(clarify_id=clarify_id, answer=answer)
        aside.tell(self._client, self._extended.clarify or "", self._reader.response_id or "", body.model_dump())


def response_of(headers: Mapping[str, str], body: bytes) -> frames.ResponseBody:
    """A whole response from a 2xx body. Raises a BackendError for what is none (`faults.wrong_content`)."""
    fault = faults.wrong_content(headers, body)
    try:
        response = frames.parse_body(frames.ResponseBody, body)
    except BackendProtocolError as error:
        raise fault from error
    if not response.id and not response.output and response.status is None:
        raise fault
    return response
