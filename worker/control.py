"""What operators ask of workers with Celery's own tools: `celery --app worker.celery_app inspect portal_status`.

A command reads, or drains, ends or revokes what its name says, and nothing else (S47); who may give it is decided by
Redis' access rules. No command tells contents.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import click
from celery.utils.serialization import strtobool
from celery.worker import control as celery_control
from celery.worker.control import control_command, inspect_command

from shared import clock, task_names
from shared.database import transaction
from shared.store import catalogue
from worker import lifecycle
from worker.backends.registry import DEFAULT_PROFILE, Backends
from worker.heartbeat import facts_of
from worker.runs.revoked import cancel_revoked


def _flag(name: str) -> Callable[[str], bool]:
    """How Celery's command line reads `true`, `false`, or `<name>=true`; `bool` would take every word for a yes."""

    def read(typed: str) -> bool:
        try:
            return bool(strtobool(typed.removeprefix(f"{name}=")))
        except TypeError:
            raise click.BadParameter(f"{name} is true or false, not {typed!r}.") from None

    return read


@inspect_command()  # type: ignore[untyped-decorator]
def portal_status(state: Any) -> dict[str, Any]:
    """What this worker is and how it does."""
    process = lifecycle.process()
    context = process.context
    now = time.monotonic()
    swept_at = process.janitor.swept_at
    hung_since = None if process.watchdog is None else process.watchdog.hung_since
    return {
        **facts_of(context, process.started_at).model_dump(mode="json", exclude={"runs"}),
        "runs": len(context.live_runs),
        "uptime_s": round((clock.now() - process.started_at).total_seconds()),
        "last_sweep_s_ago": None if swept_at is None else round(now - swept_at, 1),
        "hung_for_s": 0 if hung_since is None else round(now - hung_since, 1),
        "holes": len(context.holes.all()),
        "load": os.getloadavg()[0],
    }


@inspect_command()  # type: ignore[untyped-decorator]
def portal_runs(state: Any) -> list[dict[str, Any]]:
    """The runs that this worker drives, by age."""
    now = time.monotonic()
    runs = [
        {
            "run_id": live.run_id,
            "session_id": live.session_id,
            "user": live.user_name,
            "source": live.source,
            "fence": live.fence,
            "age_s": round(now - live.began_at, 1),
            "lease_renewed_s_ago": round(now - live.renewed_at, 1),
            "waits_for_people": len(live.open_pauses),
            "stopping": live.aborted,
        }
        for live in lifecycle.current().live_runs.all()
    ]
    return sorted(runs, key=lambda run: -float(run["age_s"]))


@control_command(args=[("on", _flag("on"))], signature="[on=true|false]")  # type: ignore[untyped-decorator]
def portal_drain(state: Any, on: bool = True) -> dict[str, str]:
    """Take no more turns (those that run go on), or take them again."""
    process = lifecycle.process()
    context = process.context
    for queue in (task_names.RUNS_QUEUE, task_names.worker_queue(context.worker_id)):
        if on:
            state.consumer.call_soon(state.consumer.cancel_task_queue, queue)
        else:
            state.consumer.call_soon(state.consumer.add_task_queue, queue)
    process.drain(on)
    return {"ok": f"draining: {len(context.live_runs)} runs go on" if on else "takes turns again"}


@inspect_command()  # type: ignore[untyped-decorator]
def portal_bridge(state: Any) -> list[dict[str, Any]]:
    """The agent processes of this worker: what each is, and how many sessions it holds."""
    return [facts for backend in lifecycle.current().backends.holding_agents() for facts in backend.describe()]


@control_command(  # type: ignore[untyped-decorator]
    args=[("profile", str), ("at_once", _flag("at_once"))], signature="[profile [at_once=true|false]]"
)
def portal_bridge_restart(state: Any, profile: str | None = None, at_once: bool = False) -> dict[str, str]:
    """Start the agent processes again, of one profile (`default`: that of HERMES_HOME), or of all without one. Turns
    that run there go on to their end in the old process, unless it is to be `at_once`."""
    backends = lifecycle.current().backends
    found = backends.holding_agents(profile)
    if profile is not None and not found:
        known = _profile_names(backends)
        if profile not in known:
            return {"error": f"There is no profile {profile!r}. There are: {', '.join(known)}"}
    runs = sum(backend.restart(at_once=at_once) for backend in found)
    return {"ok": f"{len(found)} started again; {runs} turns {'are ended' if at_once else 'go on to their end'}"}


def _profile_names(backends: Backends) -> list[str]:
    with transaction(backends.factory, write=False) as db:
        return [DEFAULT_PROFILE, *(row.name for row in catalogue.profiles(db))]


@control_command(args=[("session_id", str)], signature="<session_id>")  # type: ignore[untyped-decorator]
def portal_drop_session(state: Any, session_id: str) -> dict[str, str]:
    """Have the agent processes forget a session: its next turn is told the history anew. A turn that runs goes on."""
    found = [backend.drop_session(session_id) for backend in lifecycle.current().backends.holding_agents()]
    return {"ok": "dropped" if any(found) else "nothing of it is held here"}


_celery_revoke = celery_control.Panel.data["revoke"]


@control_command(name="revoke", variadic="task_id", signature="[id1 [id2 [... [idN]]]]")  # type: ignore[untyped-decorator]
def revoke(state: Any, task_id: Any, terminate: bool = False, signal: str | None = None, **kwargs: Any) -> Any:
    """Revoke tasks; a run that still waits is cancelled at once, also when no task of it is under way."""
    for run_id in [task_id] if isinstance(task_id, str) else list(task_id or ()):
        cancel_revoked(str(run_id), lifecycle.current())
    return _celery_revoke(state, task_id, terminate=terminate, signal=signal, **kwargs)
