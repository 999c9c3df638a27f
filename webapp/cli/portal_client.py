"""A program's way into a portal: REST and the event stream of a run (DESIGN 6), with one API token or none."""

import time
from collections.abc import Iterator
from typing import Any, Self

import httpx
import httpx_sse
from pydantic import TypeAdapter, ValidationError

from shared.errors import PlatformError

TIMEOUT_S = 30.0
SILENCE_S = 60.0  # the server pings an event stream every 20 s
TRIES = 5
FIRST_WAIT_S = 0.5
ENDS = frozenset({"run.completed", "run.failed", "run.cancelled", "run.interrupted", "abort.completed"})
OBJECT: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


class PortalFault(PlatformError):
    """The portal does not answer, or answered no; `message` is its own sentence."""

    code = "portal_fault"


class PortalClient:
    """Raises PortalFault from every method. Use it with `with`."""

    def __init__(self, address: str, token: str | None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(base_url=address, headers=headers, timeout=TIMEOUT_S, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def new_session(self, **fields: Any) -> str:
        """Its id. Fields that are None are left out, here and in `submit`."""
        return str(self._ask("POST", "/api/chat/sessions", fields)["sessionId"])

    def submit(self, session_id: str, queue_id: str, **fields: Any) -> str:
        """Send a turn; the run's id. With the same `queue_id` it may be sent again without harm."""
        path = f"/api/chat/sessions/{session_id}/runs"
        return str(self._ask("POST", path, fields, headers={"Idempotency-Key": queue_id})["runId"])

    def answer(self, run_id: str, **fields: Any) -> None:
        """`approvalId` and `choice`, or `clarifyId` and `answer`."""
        self._ask("POST", f"/api/chat/runs/{run_id}/resume", fields)

    def abort(self, run_id: str) -> None:
        self._ask("POST", f"/api/chat/runs/{run_id}/abort", {})

    def follow(self, run_id: str, after: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
        """The run's events to its end, each with its cursor; those after the cursor `after`. It mends cuts itself."""
        cursor, tries, wait_s = after, 0, FIRST_WAIT_S
        while True:
            try:
                for frame in self._stream(run_id, cursor):
                    cursor, tries, wait_s = frame.id or cursor, 0, FIRST_WAIT_S
                    event = _object(frame.data)
                    yield cursor, event
                    if event.get("event") in ENDS:
                        return
            except httpx.HTTPError as error:
                if tries == TRIES:
                    raise PortalFault(f"The stream was cut and does not come back ({error})") from error
            tries += 1
            if tries > TRIES:
                raise PortalFault("The stream ends before the run does")
            time.sleep(wait_s)
            wait_s *= 2

    def _stream(self, run_id: str, cursor: str) -> Iterator[httpx_sse.ServerSentEvent]:
        headers = {"Last-Event-ID": cursor} if cursor else {}
        timeout = httpx.Timeout(TIMEOUT_S, read=SILENCE_S)
        path = f"/api/chat/runs/{run_id}/stream"
        with httpx_sse.connect_sse(self._http, "GET", path, headers=headers, timeout=timeout) as source:
            if source.response.status_code != 200:
                source.response.read()
                raise PortalFault(_sentence(source.response))
            for frame in source.iter_sse():
                if frame.data:
                    yield frame

    def _ask(self, method: str, path: str, fields: dict[str, Any], headers: dict[str, str] | None = None) -> Any:
        body = {name: value for name, value in fields.items() if value is not None}
        try:
            response = self._http.request(method, path, json=body, headers=headers)
        except httpx.HTTPError as error:
            raise PortalFault(f"{self._http.base_url} does not answer ({error})") from error
        if response.is_error:
            raise PortalFault(_sentence(response))
        return _object(response.text) if response.content else {}


def _object(text: str) -> dict[str, Any]:
    try:
        return OBJECT.validate_json(text)
    except ValidationError:
        raise PortalFault("The portal answered with something that is not a JSON object") from None


def _sentence(response: httpx.Response) -> str:
    """The words of a problem document (RFC 9457), else the status."""
    try:
        problem = OBJECT.validate_json(response.text)
    except ValidationError:
        problem = {}
    return str(problem.get("detail") or problem.get("title") or f"The portal answered {response.status_code}")
