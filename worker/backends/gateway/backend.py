"""Hermes Gateway as a Backend: one turn through `/v1/responses` or `/v1/runs` (DESIGN 8, hermes/SURFACES.md 1).

After an abort that the gateway did not confirm (it cannot be asked, or does not answer), `stream` just ends, without a
last item: our side is over, what goes on over there is ignored.
"""

import math
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from shared.errors import BackendError, BackendProtocolError, BackendRefused, BackendUnavailable
from shared.settings import Settings
from worker.backends import base
from worker.backends.gateway import extension, frames
from worker.backends.gateway.by_responses import response_of, stream_response
from worker.backends.gateway.by_runs import stream_run
from worker.backends.gateway.client import GatewayClient
from worker.backends.gateway.responses import Answers, ResponseReader, usage_of

Api = Literal["responses", "runs"]

DISCOVERY_TIMEOUT_S = 5.0
DISCOVERY_TTL_S = 600.0
RETRY_DISCOVERY_S = 5.0
PING_TIMEOUT_S = 120.0  # the first agent of a Hermes process takes long
PING_TEXT = "Reply with exactly PONG."
RUNS_APPROVAL_LIMIT_S = 60.0  # Hermes' default for `approvals.timeout`
NOTHING_MORE = extension.Announcement(events=(), approval=None, clarify=None, stop=None)


class GatewayBackend:
    """One gateway address. Thread-safe; holds nothing open between turns.

    `profile`: served by a multiplexing gateway below `/p/<profile>`. `is_typed`: the address comes from a page."""

    def __init__(
        self,
        url: str,
        key: str | None,
        *,
        api: Api = "responses",
        name: str = "Hermes",
        agent: str = "gateway",
        settings: Settings,
        profile: str | None = None,
        is_typed: bool = False,
    ) -> None:
        self.name = name
        self.agent = agent
        self._api = api
        self._settings = settings
        self._client = GatewayClient(
            url.rstrip("/") + (f"/p/{profile}" if profile else ""),
            key,
            connect_timeout_s=settings.connect_timeout_s,
            read_timeout_s=settings.run_keepalive_timeout_s,
            is_typed=is_typed,
            allow_private=settings.allow_private_addresses,
        )
        self._lock = threading.Lock()
        self._abilities: frames.GatewayAbilities | None = None
        self._asked_at = self._failed_at = -math.inf  # monotonic
        self._version = ""

    # ---- what the gateway can do

    @property
    def version(self) -> str:
        """Of the gateway; empty while it does not tell."""
        if not self._version:
            try:
                reply = self._client.call("GET", "/health", timeout_s=DISCOVERY_TIMEOUT_S)
                self._version = frames.parse_body(frames.GatewayHealth, reply.body).version or ""
            except BackendError:
                return ""
        return self._version

    @property
    def capabilities(self) -> base.Capabilities:
        """By what the gateway announces; the least when it does not answer."""
        if self._api == "runs":
            return base.Capabilities(
                tools=True,
                system_messages=True,
                approvals=True,
                approval_limit_s=RUNS_APPROVAL_LIMIT_S,
                stop=True,
            )
        extended = self._extension()
        return base.Capabilities(
            tools=True,
            system_messages=True,
            todos=True,
            attachments=True,
            approvals=extended.approval is not None and extension.APPROVAL_REQUEST in extended.events,
            approval_limit_s=extended.approval_limit_s,
            clarify=extended.clarify is not None and extension.CLARIFY_REQUEST in extended.events,
            stop=extended.stop is not None,
        )

    def _extension(self, *, max_age_s: float = math.inf) -> extension.Announcement:
        return self._announced(max_age_s).portal_extensions or NOTHING_MORE

    def _announced(self, max_age_s: float) -> frames.GatewayAbilities:
        """Asked once, again for a new turn when it is old, and after the gateway was away. One that does not answer is
        not asked again for RETRY_DISCOVERY_S."""
        now = time.monotonic()
        with self._lock:
            known, asked_at, failed_at = self._abilities, self._asked_at, self._failed_at
        if known is not None and now - asked_at < max_age_s:
            return known
        if now - failed_at < RETRY_DISCOVERY_S:
            return known or frames.GatewayAbilities()
        abilities = self._ask_abilities()
        with self._lock:
            if abilities is None:
                self._failed_at = now
            else:
                self._abilities, self._asked_at = abilities, now
        return abilities or known or frames.GatewayAbilities()

    def _ask_abilities(self) -> frames.GatewayAbilities | None:
        """None when there was no answer that says anything; an older gateway says that there is no such page."""
        try:
            reply = self._client.request("GET", "/v1/capabilities", timeout_s=DISCOVERY_TIMEOUT_S)
            if reply.status == 200:
                return frames.parse_body(frames.GatewayAbilities, reply.body)
        except BackendProtocolError:
            return frames.GatewayAbilities()
        except BackendError:
            return None
        return frames.GatewayAbilities() if reply.status in (404, 405, 501) else None

    def _forget(self) -> None:
        """The gateway was away: another one may come back."""
        with self._lock:
            self._abilities, self._version, self._failed_at = None, "", -math.inf

    # ---- a turn

    def stream(self, turn: base.Turn, controls: base.Controls) -> Iterator[base.Item]:
        try:
            if self._api == "runs":
                yield from stream_run(self._client, self._run_body(turn), controls, self._settings)
            else:
                body = self._response_body(turn, stream=True)
                extended = self._extension(max_age_s=DISCOVERY_TTL_S)
                yield from stream_response(self._client, body, controls, self._settings, extended)
        except BackendUnavailable:
            self._forget()
            raise

    def execute(self, turn: base.Turn) -> base.Result:
        """The whole answer at once, by `/v1/responses` whatever the API of turns. Raises a BackendError."""
        return self._ask(self._response_body(turn, stream=False), timeout_s=self._settings.run_quiet_timeout_s)

    def ping(self) -> base.PingResult:
        begun = time.monotonic()
        body = {"input": PING_TEXT, "stream": False, "store": False}
        try:
            got = self._ask(body, timeout_s=PING_TIMEOUT_S).text
        except BackendError as error:
            return base.PingResult(False, _ms_since(begun), error=error.message)
        return base.PingResult(got.strip().strip(".").upper() == "PONG", _ms_since(begun), got=got)

    def _ask(self, body: Mapping[str, Any], *, timeout_s: float) -> base.Result:
        reply = self._client.call("POST", "/v1/responses", body, timeout_s=timeout_s)
        response = response_of(reply.headers, reply.body)
        reader = ResponseReader(Answers(_nobody_answers, _nobody_answers))
        for _ in reader.end(f"response.{response.status or 'completed'}", response):
            pass  # raises what makes the answer none
        return base.Result(response.text(), usage_of(response.usage))

    def _response_body(self, turn: base.Turn, *, stream: bool) -> dict[str, Any]:
        content: str | list[Mapping[str, Any]] = list(turn.blocks) if turn.blocks else turn.input
        body: dict[str, Any] = {
            "input": [*_messages(turn), {"role": "user", "content": content}],
            "stream": stream,
            "store": stream,  # a cut stream is looked up once
        }
        return body | self._common(turn)

    def _run_body(self, turn: base.Turn) -> dict[str, Any]:
        # The session id keeps the tools' workspace over turns; it loads no history.
        body: dict[str, Any] = {
            "input": turn.input,
            "conversation_history": _messages(turn),
            "session_id": turn.backend_session_id or turn.session_id,
        }
        return body | self._common(turn)

    def _common(self, turn: base.Turn) -> dict[str, Any]:
        told = {"instructions": turn.instructions, "model": turn.model or self._settings.gateway_model}
        return {name: value for name, value in told.items() if value}


def _messages(turn: base.Turn) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in turn.history]


def _nobody_answers(pause_id: str, answer: str | None) -> None:
    raise BackendRefused("Nobody can answer in an answer that is not streamed.", detail=pause_id)


def _ms_since(begun: float) -> float:
    return (time.monotonic() - begun) * 1000
