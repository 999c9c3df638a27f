"""A process that stands still, and holds no lock of the database while it does: such a lock would be held until it goes
on, and everybody else would wait for it."""

import os
import signal

from sqlalchemy import Engine, NullPool, create_engine, text
from sqlalchemy.exc import OperationalError

from tests.rig.portal import wait_until

SOON_S = 0.1  # long before any lease is over
OPEN_TRANSACTIONS = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
    "AND backend_type = 'client backend' AND state <> 'idle'"
)


def stop_between_writes(pid: int, engine: Engine) -> None:
    """SIGSTOP at a moment in which nobody writes to this database. The caller lets it go on, or kills it."""
    given = {"timeout": SOON_S} if engine.dialect.name == "sqlite" else {}
    own = create_engine(engine.url, poolclass=NullPool, connect_args=given)

    def is_free() -> bool:
        os.kill(pid, signal.SIGSTOP)
        if _nobody_writes(own):
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    wait_until(is_free, 60, "a moment in which it writes nothing")


def _nobody_writes(engine: Engine) -> bool:
    with engine.connect() as connection:
        if engine.dialect.name != "sqlite":
            return connection.scalar(OPEN_TRANSACTIONS) == 0
        try:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        except OperationalError:
            return False
        connection.rollback()
        return True
