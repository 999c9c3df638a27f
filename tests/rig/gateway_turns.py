"""A turn against a scripted gateway."""

from tests.peers.gateway import RESPONSE_ID, Answer, FakeGateway
from tests.rig.backend_turns import Played, play, some_settings
from worker.backends import base
from worker.backends.gateway.backend import GatewayBackend

TURNS = "POST /v1/responses"
STORED = f"GET /v1/responses/{RESPONSE_ID}"


def a_backend(gateway: FakeGateway, **limits: float) -> GatewayBackend:
    return GatewayBackend(gateway.url, "a-key", settings=some_settings(**limits))


def played(*answers: Answer, stored: Answer | None = None, turn: base.Turn | None = None, **limits: float) -> Played:
    """A turn against a gateway that answers so. Whatever happened, the turn was sent at most once (P2)."""
    script = {TURNS: list(answers)} | ({STORED: [stored]} if stored else {})
    with FakeGateway(script) as gateway:
        result = play(a_backend(gateway, **limits), turn)
        assert len(gateway.turns) == 1
    return result
