"""`portal web`, `portal worker`, `portal beat`: one process each, as the Procfile starts it, on any machine.

What `portal up` sees to for its children is looked at here: settings, Redis, tables. Then this process becomes gunicorn
or celery, with the arguments that were added.
"""

import os
import shutil
from pathlib import Path

import click

from shared.database import is_current, make_engine
from shared.errors import PlatformError
from shared.relay import fitness
from shared.relay.connection import connect
from shared.settings import Settings
from webapp.cli.configured import end_with_faults, settings_of_running
from webapp.cli.data_dir import make_private, secret_key_file
from webapp.cli.procfile import command_of, search_path

TAKES_MORE = {"ignore_unknown_options": True}


@click.command(context_settings=TAKES_MORE)
@click.option("--port", type=click.IntRange(0, 65_535), help="Port to listen on. [8080]")
@click.option("--host", help="Address to listen on. [127.0.0.1]")
@click.argument("gunicorn_arguments", nargs=-1, type=click.UNPROCESSED)
def web(port: int | None, host: str | None, gunicorn_arguments: tuple[str, ...]) -> None:
    """Start one web process: pages, REST and sockets. More arguments go to gunicorn.

    \b
    Example: a second one on the same machine
      portal web --port 8081
    """
    settings = settings_of_running(port=port, host=host)
    os.environ |= {"PORTAL_PORT": str(settings.port), "PORTAL_HOST": settings.host}
    _become("web", settings, gunicorn_arguments)


@click.command(context_settings=TAKES_MORE)
@click.argument("celery_arguments", nargs=-1, type=click.UNPROCESSED)
def worker(celery_arguments: tuple[str, ...]) -> None:
    """Start one worker process. More arguments go to `celery worker`.

    \b
    Examples: a worker more on this machine; one on another machine
      portal worker --concurrency 10
      REDIS_URL=rediss://... DATABASE_URL=postgresql://... portal worker
    """
    if not any(argument.startswith(("-n", "--hostname")) for argument in celery_arguments):
        celery_arguments = (f"--hostname=worker-{os.getpid()}@%h", *celery_arguments)  # two on a host need two names
    _become("worker", settings_of_running(), celery_arguments)


@click.command(context_settings=TAKES_MORE)
@click.argument("celery_arguments", nargs=-1, type=click.UNPROCESSED)
def beat(celery_arguments: tuple[str, ...]) -> None:
    """Start the process that sends periodic tasks. More arguments go to `celery beat`. A second one does no harm.

    \b
    Example:
      portal beat --loglevel warning
    """
    _become("beat", settings_of_running(), celery_arguments)


def _become(role: str, settings: Settings, more: tuple[str, ...]) -> None:
    try:
        command = [*command_of(role), *more]
        make_private(settings.data_dir)
        _check_parts(settings)
    except PlatformError as error:
        end_with_faults(error.message)
    if settings.secret_key is None:
        os.environ["PORTAL_SECRET_KEY_FILE"] = str(secret_key_file(settings.data_dir))
    os.environ |= {"PORTAL_DATA_DIR": str(settings.data_dir), "PATH": search_path()}
    program = shutil.which(command[0])
    if program is None:
        end_with_faults(f"{command[0]} is not installed in {Path(search_path().split(os.pathsep)[0])}")
    os.execv(program, command)  # noqa: S606 (no shell: that is the point)


def _check_parts(settings: Settings) -> None:
    """Raises PlatformError when Redis or the database is not as this process needs it."""
    url = settings.redis_url
    found = fitness.faults(connect(settings), "" if url is None else url.get_secret_value())
    engine = make_engine(settings)
    try:
        if not is_current(engine):
            found.append("The database is not at this version: run `portal migrate`")
    finally:
        engine.dispose()
    if found:
        raise PlatformError("\n".join(found))
