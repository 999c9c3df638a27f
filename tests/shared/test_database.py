"""The database seam: migrations, transactions, the clock, and errors that become ours."""

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from shared.database import alembic_config, is_current, make_engine, migrate
from shared.models import Base


def test_migrations_make_the_tables_of_the_models(database_url: str) -> None:
    engine = make_engine(database_url)
    assert not is_current(engine)
    migrate(database_url)
    assert is_current(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    engine.dispose()


def test_migrating_down_and_up_again_works(database_url: str) -> None:
    migrate(database_url)
    engine = make_engine(database_url)
    with engine.connect() as connection, connection.begin():
        command.downgrade(alembic_config(connection), "base")
    migrate(database_url)
    assert is_current(engine)
    engine.dispose()
