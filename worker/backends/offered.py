"""What this process could serve, and what is missing where it cannot: found without starting or asking an agent.

One line for each source in FAULTS, as in `registry.SOURCES`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from shared.errors import StartFailed
from shared.models import Profile
from shared.settings import Settings
from worker.backends.bridge.interpreter import find_interpreter
from worker.backends.bridge.process.home import NotWritable, try_home


def fault_of(source: str, settings: Settings, profiles: Sequence[Profile]) -> str | None:
    """What is missing to serve sessions of the source, and what to do about it; None: nothing is."""
    return FAULTS[source](settings, profiles)


def home_of(profile: Profile | None, settings: Settings) -> Path:
    """Where the agent of the profile has its home; None: the default one."""
    given = None if profile is None else profile.hermes_home
    return settings.hermes_home if given is None else Path(given).expanduser()


def home_fault(home: Path) -> str | None:
    """Why no agent can live in that home; names no path. None: it can."""
    try:
        if len(home.resolve().parts) < 3:
            return "Its home is a folder of the system."
        try_home(home)
    except (FileNotFoundError, NotADirectoryError):
        return "Its home is not there."
    except NotWritable as error:
        return f"Its home cannot be written by the worker ({error.strerror})."
    except OSError as error:
        return f"Its home cannot be read by the worker ({error.strerror})."
    return None


def _gateway(settings: Settings, profiles: Sequence[Profile]) -> str | None:
    is_given = settings.hermes_gateway_url or settings.demo_url or any(each.gateway_url for each in profiles)
    return None if is_given else "No gateway is configured. Set HERMES_GATEWAY_URL."


def _hermes(settings: Settings, profiles: Sequence[Profile]) -> str | None:
    try:
        find_interpreter(settings)
    except StartFailed as error:
        return error.message
    return None


FAULTS: dict[str, Callable[[Settings, Sequence[Profile]], str | None]] = {
    "api_server": _gateway,
    "cli": _hermes,
}
