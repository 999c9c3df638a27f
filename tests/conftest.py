"""Fixtures for all tests. The heavy ones (a server, a portal) live in tests/rig and start once a run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.postgres_server import PostgresRig
from tests.rig.redis_server import RedisServer


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


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database: the test runs once on each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'portal.db'}"
    rig: PostgresRig = request.getfixturevalue("postgres")
    return rig.new_database()
