"""Settings for a command: each fault on one line, exit code 2. What a running `portal up` has of its own is found."""

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


def settings_of_running(**overrides: Any) -> Settings:
    """As `settings_or_exit`, and what is not configured is taken from the `portal up` that runs on the same data
    directory: its Redis, its demo agent. For this process and, by the environment, for the programs it becomes."""
    settings = settings_or_exit(**overrides)
    running = read_running(settings.data_dir)
    if running is None:
        return settings
    if not redis_was_given() and running.redis_url is not None:
        os.environ["REDIS_URL"] = running.redis_url
    if settings.hermes_gateway_url is None and settings.demo_url is None and running.demo_url and running.demo_key:
        os.environ |= {"PORTAL_DEMO_URL": running.demo_url, "PORTAL_DEMO_KEY": running.demo_key}
    return settings_or_exit(**overrides)


def end_with_faults(message: str) -> NoReturn:
    """Print the faults to stderr, a line each, and end with exit code 2."""
    for line in message.splitlines():
        print(f"portal: {line}", file=sys.stderr)
    sys.exit(FAULT_EXIT_CODE)
