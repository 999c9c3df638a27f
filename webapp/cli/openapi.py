"""`portal openapi`."""

import json

import click

from webapp.api.openapi import describe
from webapp.app import create_app
from webapp.cli.configured import settings_or_exit

NOT_USED = {"redis_url": "redis://127.0.0.1:1", "secret_key": "the description is the same with any key"}
"""The app wants both and connects to nothing for its description."""


@click.command()
def openapi() -> None:
    """Print the description of the REST API (OpenAPI 3.1), as a running portal serves it at /api/openapi.json.

    \b
    Example:
      portal openapi > openapi.json
    """
    app = create_app(settings_or_exit(**NOT_USED), testing=True)
    click.echo(json.dumps(describe(app), indent=2, ensure_ascii=False))
