"""`portal up`."""

import asyncio
import os
import sys
from pathlib import Path

import click

from shared.errors import PlatformError
from webapp.cli.configured import settings_or_exit
from webapp.cli.console import Console
from webapp.cli.data_dir import DataDirLock, make_private
from webapp.cli.listener import open_listener
from webapp.cli.supervisor import Supervisor


@click.command()
@click.option("--port", type=click.IntRange(0, 65_535), help="Port to listen on; 0 takes any free one. [8080]")
@click.option("--host", help="Address to listen on. [127.0.0.1]")
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Where everything is kept.")
@click.option("--log", type=click.Choice(["plain", "json"]), default="plain", help="How lines are printed. [plain]")
def up(port: int | None, host: str | None, data_dir: Path | None, log: str) -> None:
    """Start the whole portal on this machine: web, worker, beat and, where none is configured, a Redis and a demo
    agent. Processes that die are started again. Ctrl-C stops all of it.

    \b
    Examples:
      portal up
      portal up --port 9000 --data-dir ./portal-data
      HERMES_GATEWAY_URL=http://127.0.0.1:8642 HERMES_GATEWAY_KEY=... portal up
    """
    settings = settings_or_exit(port=port, host=host, data_dir=data_dir)
    os.umask(0o077)  # whatever a child writes is its owner's alone
    try:
        make_private(settings.data_dir)
        with DataDirLock(settings.data_dir), open_listener(settings.host, settings.port) as listener:
            console = Console(sys.stdout, as_json=log == "json")
            try:
                sys.exit(asyncio.run(Supervisor(settings, listener, console).run()))
            finally:
                console.close()
    except PlatformError as error:
        print(f"portal: {error.message}", file=sys.stderr)
        sys.exit(1)
