"""What the workers say they can serve, and what a new session is answered by when nobody has chosen (DESIGN 2).

What works is the workers' to say. While nobody can tell (no worker, no Redis), nothing is taken away: a turn waits
until somebody can run it.
"""

from collections.abc import Sequence
from typing import Final

from shared.relay.presence import SourceFacts, WorkerFacts
from webapp.context import WebContext

API: Final = "api_server"
BRIDGE: Final = "cli"


def usual_source(web: WebContext) -> str:
    """A gateway where one is configured, else Hermes where a worker has found it, else the API, where the demo agent
    answers."""
    living = web.workers.now() or []
    is_api_real = not web.settings.is_demo and fault_of(living, API) is None
    is_bridge_found = any(facts_of(worker, BRIDGE) for worker in living) and can_bridge(living)
    return BRIDGE if is_bridge_found and not is_api_real else API


def fault_of(living: Sequence[WorkerFacts], source: str) -> str | None:
    """Why no worker can serve the source; None when one can, or nobody has told."""
    facts = [each for worker in living if (each := facts_of(worker, source)) is not None]
    if not facts or any(each.ok for each in facts):
        return None
    return facts[0].why


def facts_of(worker: WorkerFacts, source: str) -> SourceFacts | None:
    return next((each for each in worker.sources if each.source == source), None)


def can_bridge(living: Sequence[WorkerFacts]) -> bool:
    return fault_of(living, BRIDGE) is None and not has_no_home(living)


def has_no_home(living: Sequence[WorkerFacts]) -> bool:
    """Whether no profile has a home that an agent could live in, where any worker has told of them."""
    states = [profile.state for worker in living for profile in worker.profiles]
    return bool(states) and all(state == "missing" for state in states)
