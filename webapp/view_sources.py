"""What a new chat can be begun with: what answers, what it can do, and why something cannot be had here."""

from collections.abc import Sequence

from shared.relay.presence import WorkerFacts
from webapp import rights
from webapp.auth import Principal
from webapp.context import WebContext
from webapp.errors import told
from webapp.found import API, BRIDGE, fault_of, has_no_home, usual_source
from webapp.render import _
from webapp.views import Source, agent_of

NOTHING_SPECIAL = ("No Hermes was found", "No gateway is configured")
WHY_CHARS = 1_000  # what Redis holds is not to be trusted with our pages


def sources_of(web: WebContext, principal: Principal) -> tuple[Source, ...]:
    """The one to begin with first; empty for who may not begin any."""
    if not rights.may_create(principal):
        return ()
    living = web.workers.now() or []
    api, bridge = _api(web, principal, living), _bridge(principal, living)
    return (bridge, api) if usual_source(web) == BRIDGE else (api, bridge)


def source_of(sources: Sequence[Source], wanted: str | None) -> Source | None:
    """The wanted one if it is offered, else the first that is."""
    offered = [source for source in sources if source.is_offered]
    return next((source for source in offered if source.value == wanted), offered[0] if offered else None)


def _api(web: WebContext, principal: Principal, living: Sequence[WorkerFacts]) -> Source:
    agent = agent_of(API, is_demo=web.settings.is_demo)
    if web.settings.is_demo:
        return Source(API, agent, _("API (demo)"), _("The built-in demo agent: nothing real is run"))
    fault = fault_of(living, API)
    return Source(
        API,
        agent,
        _("API"),
        _("A Hermes gateway: text and tools"),
        why_not="" if fault is None else _("No gateway is connected."),
        connect="" if fault is None else _how(principal, fault, _("Set HERMES_GATEWAY_URL for the workers.")),
    )


def _bridge(principal: Principal, living: Sequence[WorkerFacts]) -> Source:
    fault, why_not = fault_of(living, BRIDGE), ""
    connect = ""
    if fault is not None:
        why_not = _("No installed Hermes was found.")
        connect = _how(principal, fault, _("Install hermes-agent where the workers run, as their user."))
    elif has_no_home(living):
        why_not = _("Hermes is installed, but has no home yet.")
        connect = _how(
            principal, "", _("Run `hermes setup` as the user of the workers, or add a profile with its home.")
        )
    return Source(
        BRIDGE,
        agent_of(BRIDGE),
        _("Bridge (Hermes)"),
        _("Hermes itself: thinking, tools, approvals, questions"),
        why_not=why_not,
        connect=connect,
    )


def _how(principal: Principal, fault: str, usual: str) -> str:
    """How to connect it: who can do it hears what a worker found wrong, if that is more than `usual`."""
    if not rights.may_configure(principal):
        return _("An operator can connect it.")
    return usual if fault.startswith(NOTHING_SPECIAL) or not fault else told(fault[:WHY_CHARS])
