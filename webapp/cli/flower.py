"""`portal flower`: Celery's own web page, never without a login (S47)."""

import importlib.util
import os
import sys

import click

from webapp.cli.configured import end_with_faults, settings_of_running

LEAST_PASSWORD = 12


@click.command()
@click.option("--port", type=click.IntRange(1, 65_535), default=5555, show_default=True)
def flower(port: int) -> None:
    """Start Flower on 127.0.0.1. The login comes from FLOWER_BASIC_AUTH, `name:password`; without it Flower does not
    start. To see it from elsewhere, forward the port: `ssh -L 5555:127.0.0.1:5555 host`.

    \b
    Example:
      FLOWER_BASIC_AUTH=ops:a-long-password-of-yours portal flower
    """
    settings = settings_of_running()
    if importlib.util.find_spec("flower") is None:
        end_with_faults("Flower is not installed: pip install 'hermes-portal[ops]'")
    name, _, password = os.environ.get("FLOWER_BASIC_AUTH", "").partition(":")
    if not name or len(password) < LEAST_PASSWORD:
        end_with_faults(
            f"FLOWER_BASIC_AUTH: give name:password, the password with at least {LEAST_PASSWORD} characters; "
            "Flower can end turns and is never started without a login"
        )
    if settings.redis_url is None:
        end_with_faults("REDIS_URL: is not set, and no `portal up` runs on this data directory")
    os.environ["PORTAL_DATA_DIR"] = str(settings.data_dir)
    command = [sys.executable, "-m", "celery", "--app", "worker.celery_app", "flower"]
    os.execv(sys.executable, [*command, "--address=127.0.0.1", f"--port={port}"])  # noqa: S606 (no shell)
