"""Settings for a command: each fault on one line and exit code 2; the own Redis of a running portal is found."""

import os
import sys
from typing import Any, NoReturn

from shared import settings as settings_module
from shared.errors import SettingsError
from shared.settings import Settings
from webapp.cli.data_dir import read_running

FAULT_EXIT_CODE = 2


def redis_was_given() -> bool:
    return bool(os.environ.get("REDIS_URL") or os.environ.get("REDIS_URL_FILE"))


def settings_or_exit(**overrides: Any) -> Settings:
    """As `shared.settings.load`; ends the command with one line a fault."""
    try:
        return settings_module.load(**overrides)
    except SettingsError as error:
        end_with_faults(error.message)


def with_running_redis(settings: Settings) -> Settings:
    """Without REDIS_URL: the Redis of the `portal up` that runs on the same data directory, for this process and for
    the programs it starts."""
    running = read_running(settings.data_dir)
    if redis_was_given() or running is None or running.redis_url is None:
        return settings
    os.environ["REDIS_URL"] = running.redis_url
    return settings_or_exit(data_dir=settings.data_dir, host=settings.host, port=settings.port)


def end_with_faults(message: str) -> NoReturn:
    """Print the faults to stderr, a line each, and end with exit code 2."""
    for line in message.splitlines():
        print(f"portal: {line}", file=sys.stderr)
    sys.exit(FAULT_EXIT_CODE)
