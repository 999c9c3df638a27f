"""`portal migrate`."""

import sys

import click
from sqlalchemy import make_url

from shared.database import is_current, make_engine
from shared.database import migrate as migrate_database
from shared.errors import PlatformError
from webapp.cli.configured import settings_or_exit
from webapp.cli.data_dir import make_private


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit code 1 if there is something to do.")
def migrate(check: bool) -> None:
    """Bring the database to this version's tables. Several at once do no harm. `portal up` does it by itself.

    \b
    Example:
      DATABASE_URL=postgresql://portal@db.example/portal portal migrate
    """
    settings = settings_or_exit()
    name = make_url(settings.resolved_database_url).render_as_string(hide_password=True)
    engine = make_engine(settings)
    try:
        make_private(settings.data_dir)
        if is_current(engine):
            click.echo(f"{name} is at this version.")
            return
        if check:
            click.echo(f"{name} is not at this version: run `portal migrate`.")
            sys.exit(1)
        migrate_database(settings)
        click.echo(f"{name} was brought to this version.")
    except PlatformError as error:
        sys.exit(f"portal: {error.message}")
    finally:
        engine.dispose()
