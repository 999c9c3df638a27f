"""Alembic's environment. `shared.database.migrate` hands over an open connection; the `alembic` command makes its own
from the settings (`[tool.alembic]` in pyproject.toml), for those who write a new version."""

from typing import Any, Literal

from alembic import context
from sqlalchemy import Connection

from shared import settings
from shared.database import make_engine
from shared.models import Base
from shared.models.base import UtcDateTime


def render_item(kind: str, item: Any, _context: Any) -> str | Literal[False]:
    """A version names the database's types, not ours: ours may change after it."""
    return "sa.DateTime(timezone=True)" if kind == "type" and isinstance(item, UtcDateTime) else False


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_item=render_item,
        render_as_batch=connection.dialect.name == "sqlite",  # SQLite cannot alter most of a table in place
    )
    with context.begin_transaction():
        context.run_migrations()


given: Connection | None = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    engine = make_engine(settings.load(), statement_timeout_s=None)
    with engine.connect() as own, own.begin():
        run(own)
    engine.dispose()
