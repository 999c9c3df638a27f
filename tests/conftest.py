"""Fixtures for all tests. The heavy ones (a server, a portal) live in tests/rig and start once a run."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from sqlalchemy import Engine, make_url
from sqlalchemy.orm import Session, sessionmaker

from shared.database import make_engine, make_session_factory, migrate, transaction
from tests.rig.bridge import HermesHome
from tests.rig.chromium import Chromium
from tests.rig.hermes import HermesGateway, ScriptedModel, hermes_venv
from tests.rig.postgres_server import PostgresRig
from tests.rig.redis_server import RedisServer

settings.load_profile("ci")  # Hypothesis' own: no deadline of 200 ms for each example, and the same ones each time


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[RedisServer]:
    """One Redis for the whole run. Never kill it: tests that do start their own RedisServer."""
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture
def redis_server(shared_redis: RedisServer) -> RedisServer:
    """The shared Redis, emptied."""
    shared_redis.client.flushall()
    return shared_redis


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresRig]:
    rig = PostgresRig()
    yield rig
    rig.close()


@pytest.fixture
def empty_postgres_url(postgres: PostgresRig) -> Iterator[str]:
    url = postgres.new_database()
    yield url
    postgres.drop(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database: the test runs once on each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'portal.db'}"
    return str(request.getfixturevalue("empty_postgres_url"))


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the newest tables and no rows, made once a run: copying it is faster than migrating."""
    path = tmp_path_factory.mktemp("template") / "portal.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """The address of an SQLite database with the newest tables, for tests to which the kind of database is nothing."""
    shutil.copyfile(sqlite_template, tmp_path / "portal.db")
    return f"sqlite:///{tmp_path / 'portal.db'}"


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresRig) -> str:
    """The name of a PostgreSQL database with the newest tables and no rows."""
    url = postgres.new_database()
    migrate(url)
    return str(make_url(url).database)


@pytest.fixture
def postgres_url(postgres: PostgresRig, postgres_template: str) -> Iterator[str]:
    """The address of a PostgreSQL database with the newest tables."""
    url = postgres.new_database(template=postgres_template)
    yield url
    postgres.drop(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def migrated_url(request: pytest.FixtureRequest) -> str:
    """The address of a database with the newest tables: the test runs once on each kind."""
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))


@pytest.fixture
def engine(migrated_url: str) -> Iterator[Engine]:
    engine = make_engine(migrated_url)
    yield engine
    engine.dispose()


@pytest.fixture
def factory(engine: Engine) -> sessionmaker[Session]:
    return make_session_factory(engine)


@pytest.fixture(scope="session")
def sqlite_for_all(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("shared") / "portal.db"
    shutil.copyfile(sqlite_template, path)
    engine = make_engine(f"sqlite:///{path}")
    yield engine
    engine.dispose()


@pytest.fixture(scope="session")
def postgres_for_all(postgres: PostgresRig, postgres_template: str) -> Iterator[Engine]:
    engine = make_engine(postgres.new_database(template=postgres_template))
    yield engine
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def db(request: pytest.FixtureRequest) -> Iterator[Session]:
    """One writing transaction, undone after the test. Its rows are seen by nobody else: threads need `factory`."""
    shared: Engine = request.getfixturevalue("sqlite_for_all" if request.param == "sqlite" else "postgres_for_all")
    with transaction(make_session_factory(shared)) as db:
        yield db
        db.rollback()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test that needs hermes-agent may have to build its venv."""
    for item in items:
        if {"hermes_gateway", "hermes_python", "hermes_home"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.timeout(1200))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    made = Chromium()
    yield made
    made.close()


@pytest.fixture(scope="session")
def hermes_python() -> Path:
    """The interpreter of the real hermes-agent."""
    return hermes_venv() / "bin" / "python"


@pytest.fixture(scope="session")
def hermes_model(hermes_python: Path) -> Iterator[ScriptedModel]:
    """The scripted model behind bridge children of the real hermes-agent, one for the whole run."""
    model = ScriptedModel()
    yield model
    model.close()


@pytest.fixture
def hermes_home(hermes_model: ScriptedModel) -> Iterator[HermesHome]:
    """A home of the real hermes-agent."""
    home = HermesHome(hermes_model)
    yield home
    home.close()


@pytest.fixture(scope="session")
def hermes_gateway() -> Iterator[HermesGateway]:
    """The real hermes-agent gateway with a scripted model behind it, one for the whole run."""
    gateway = HermesGateway()
    yield gateway
    gateway.close()
