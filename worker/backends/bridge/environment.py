"""The environment of a bridge child: that of the worker without what is the portal's alone (RELIABILITY S40, S41)."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from shared.settings import Settings, is_portals

OURS_PREFIXES = ("CELERY_", "FLASK_", "GUNICORN_")
OURS = frozenset({"AUTH_DISABLED", "HERMES_GATEWAY_URL", "HERMES_AGENT_BRIDGE_ENDPOINT"})
PYTHONS_NAMES = frozenset(
    {
        *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONSAFEPATH", "PYTHONNOUSERSITE", "PYTHONOPTIMIZE"),
        *("VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "__PYVENV_LAUNCHER__"),
    }
)
"""Of the portal's interpreter: in Hermes' own they would let the portal's packages in."""


def child_environment(
    settings: Settings, home: Path, key_names: Iterable[str], environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """`key_names`: the variables that hold the keys of the models which operators have listed; a turn brings its key
    itself. What a variable of the source document says may also stand in `portal.toml`."""
    environ = os.environ if environ is None else environ
    hidden = OURS | PYTHONS_NAMES | frozenset(key_names)
    clean = {
        name: value
        for name, value in environ.items()
        if not (is_portals(name) or name.startswith(OURS_PREFIXES) or name in hidden)
    }
    clean["PATH"] = _without_own_venv(environ.get("PATH", os.defpath), environ.get("VIRTUAL_ENV"))
    clean |= {
        "HERMES_HOME": str(home),
        "HERMES_AGENT_BRIDGE_PLATFORM": settings.bridge_platform,
        "HERMES_BRIDGE_MAX_TURNS": str(settings.bridge_max_turns),
        "HERMES_BRIDGE_MAX_AGENTS": str(settings.bridge_max_agents),
        "HERMES_BRIDGE_IDLE_MINUTES": str(settings.bridge_idle_minutes),
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8",
    }
    if settings.bridge_provider is not None:
        clean["HERMES_BRIDGE_PROVIDER"] = settings.bridge_provider
    return clean


def _without_own_venv(path: str, venv: str | None) -> str:
    """The tools of an agent shall not find the portal's `python` first, where a venv was activated."""
    if not venv:
        return path
    own = {str(Path(venv) / folder) for folder in ("bin", "Scripts")}
    return os.pathsep.join(folder for folder in path.split(os.pathsep) if folder not in own)
