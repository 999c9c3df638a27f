"""How the agents of profiles do, and whether keys of models are set: from what the workers said of themselves.

Who may not configure hears the state in a word; reasons may name paths and machines, so they are for operators.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from shared.relay.presence import ProfileFacts, WorkerFacts
from webapp.errors import told as told_to_people
from webapp.render import _, counted
from webapp.views import Mark

WHY_CHARS = 1_000  # what Redis holds is not to be trusted with our pages
NAME_CHARS = 60
WORST_FIRST = ("absent", "failed", "missing", "starting", "ready", "idle")


@dataclass(frozen=True)
class WorkerHealth:
    """The agent of a profile in one worker. `facts`: what it is and holds; `why`: the end of what went wrong."""

    worker: str
    mark: Mark
    facts: tuple[str, ...]
    why: str
    looked_at: datetime | None


@dataclass(frozen=True)
class Health:
    """`state`: one of WORST_FIRST, or unknown. `note`: what that means, for everybody."""

    state: str
    mark: Mark
    note: str
    workers: tuple[WorkerHealth, ...] = ()


@dataclass(frozen=True)
class KeyState:
    """Of the variable that holds a model's key: `set`, `part` (in some workers), `missing`, or unknown."""

    state: str
    mark: Mark


def health_of(living: Sequence[WorkerFacts] | None, profile: str | None) -> Health:
    """Of a profile (None: the default one): the worst of what the workers say, since any of them may get a turn."""
    told = [
        (worker, _with_hermes(worker, facts))
        for worker in living or ()
        for facts in worker.profiles
        if facts.profile == profile
    ]
    if not told:
        why = _("No worker answers now.") if not living else _("No worker has looked at it yet.")
        return Health("unknown", Mark("stopped", _("Not known")), why)
    states = [facts.state for _worker, facts in told]
    state = min(states, key=_rank)
    bad = sum(1 for each in states if each == state)
    mark = mark_of_state(state)
    if mark.state == "failed" and bad < len(states):
        mark = Mark(mark.state, _("%(what)s, %(n)s of %(of)s workers", what=mark.word, n=bad, of=len(states)))
    return Health(state, mark, _note(state), tuple(_of_worker(worker, facts) for worker, facts in told))


def key_state_of(living: Sequence[WorkerFacts] | None, name: str | None) -> KeyState | None:
    """None for a model that needs no key."""
    if name is None:
        return None
    told = [worker.keys[name] for worker in living or () if name in worker.keys]
    if not told:
        return KeyState("unknown", Mark("stopped", _("Key not known")))
    if all(told):
        return KeyState("set", Mark("done", _("Key set")))
    if not any(told):
        return KeyState("missing", Mark("failed", _("Key not set")))
    return KeyState("part", Mark("failed", _("Key set in %(n)s of %(of)s workers", n=sum(told), of=len(told))))


def mark_of_state(state: str) -> Mark:
    """The mark of a profile's agent; what a newer worker may call a state is shown as not known."""
    known = {
        "ready": Mark("done", _("Ready")),
        "starting": Mark("running", _("Starting")),
        "idle": Mark("queued", _("Not started")),
        "failed": Mark("failed", _("Cannot start")),
        "missing": Mark("failed", _("No home")),
        "absent": Mark("failed", _("No Hermes")),
    }
    return known.get(state, Mark("stopped", _("Not known")))


def _note(state: str) -> str:
    return {
        "ready": _("Its process runs."),
        "starting": _("Its agent is being started."),
        "idle": _("Its agent starts with the first turn."),
        "failed": _("Its agent did not start. It is tried again with the next turn."),
        "missing": _("Its home is not there, or cannot be read or written: turns fail."),
        "absent": _("No installed Hermes was found where the workers run."),
    }.get(state, "")


def _with_hermes(worker: WorkerFacts, facts: ProfileFacts) -> ProfileFacts:
    """Where there is no Hermes, no profile can start whatever its home is like."""
    lacks = next((source for source in worker.sources if source.source == "cli" and not source.ok), None)
    return facts if lacks is None else facts.model_copy(update={"state": "absent", "why": lacks.why})


def _rank(state: str) -> int:
    return WORST_FIRST.index(state) if state in WORST_FIRST else len(WORST_FIRST)


def _of_worker(worker: WorkerFacts, facts: ProfileFacts) -> WorkerHealth:
    said = [_("process %(pid)s", pid=worker.pid)]
    if facts.version:
        said.append(_("Hermes %(version)s", version=facts.version[:NAME_CHARS]))
    if facts.state == "ready":
        said.append(counted("%(num)s chat warm", "%(num)s chats warm", facts.sessions))
        said.append(_("%(n)s at work", n=facts.busy))
    if facts.memory_mb is not None:
        said.append(_("%(n)s MB", n=round(facts.memory_mb)))
    return WorkerHealth(
        worker.host[:NAME_CHARS],
        mark_of_state(facts.state),
        tuple(said),
        told_to_people(facts.why[-WHY_CHARS:]),
        worker.looked_at,
    )
