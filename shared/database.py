"""The engine, transactions, the database's clock and migrations, for SQLite and PostgreSQL alike.

Write in `transaction(factory)`: on SQLite only such a transaction takes the write lock at its beginning (RELIABILITY
2.2), so that it waits for other writers instead of failing half-way. Driver errors leave this module as ours.
"""

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import (
    Connection,
    CursorResult,
    Delete,
    Engine,
    Float,
    Update,
    create_engine,
    event,
    exc,
    inspect,
    make_url,
    select,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from shared.errors import StorageFull, Unavailable
from shared.migrations import HEAD
from shared.settings import Settings

if TYPE_CHECKING:
    from alembic.config import Config

BUSY_TIMEOUT_S: Final = 5.0
BUSY_LOOK_S: Final = 0.001
STATEMENT_TIMEOUT_S: Final = 10.0
CROSSED_PAUSE_S: Final = 0.1  # at most before the second try; four times that before the third
POOL_TIMEOUT_S: Final = 10.0
SQLITE_CONNECTIONS: Final = 100
POSTGRES_CONNECTIONS: Final = 40  # its default limit is 100, for all processes together

_WRITE = "portal_write"  # execution option of a connection: its transaction will write, or will not
_PREPARED_FOR = "portal_prepared_for"  # the `_WRITE` that an SQLite connection was last told of
_SQLITE_FULL = 13
_SQLITE_NOT_NOW = frozenset({5, 6, 10, 14, 15})  # busy, locked, ioerr, cantopen, protocol
_DISK_FULL = "53100"
_TRY_AGAIN = frozenset({"40001", "40P01"})  # serialization_failure, deadlock_detected
_MIGRATION_LOCK = 0x706F7274616C  # "portal"
_VERSIONS = "alembic_version"  # Alembic's own table

T = TypeVar("T")


class CrossedTransactions(Unavailable):
    """A deadlock or a serialisation error: the same transaction, made again, may well succeed."""


# ---- engine and sessions


def make_engine(source: Settings | str, *, statement_timeout_s: float | None = STATEMENT_TIMEOUT_S) -> Engine:
    """An engine for the address of the settings, or for an address. Opens no connection yet."""
    url = make_url(_address(source))
    if url.get_backend_name() == "sqlite":
        engine = create_engine(
            url,
            hide_parameters=True,  # an error must not carry what people wrote into a log (S43)
            pool_size=10,
            max_overflow=SQLITE_CONNECTIONS - 10,
            pool_timeout=POOL_TIMEOUT_S,
            connect_args={"timeout": BUSY_TIMEOUT_S},
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        _turns[engine] = _WriterTurns()
        return engine
    engine = create_engine(
        url,
        hide_parameters=True,
        pool_pre_ping=True,
        pool_size=10,
        max_overflow=POSTGRES_CONNECTIONS - 10,
        pool_timeout=POOL_TIMEOUT_S,
        connect_args={
            "connect_timeout": 5,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 15_000,
        },
    )
    if statement_timeout_s is not None:
        event.listen(engine, "connect", _statement_timeout(statement_timeout_s))
    return engine


def connections_of(engine: Engine) -> int:
    """How many connections the engine opens at most."""
    return SQLITE_CONNECTIONS if engine.dialect.name == "sqlite" else POSTGRES_CONNECTIONS


def make_session_factory(engine: Engine) -> sessionmaker[Session]:
    """Sessions whose objects stay readable after the commit."""
    return sessionmaker(engine, expire_on_commit=False)


def _address(source: Settings | str) -> str:
    if isinstance(source, Settings):
        return source.resolved_database_url
    for prefix in ("postgresql://", "postgres://"):
        if source.startswith(prefix):
            return "postgresql+psycopg://" + source.removeprefix(prefix)
    return source


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver begins nothing by itself: see _begin_sqlite
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
    # The change of a new file to WAL heeds no busy timeout: of two processes that make it, one is turned away at once.
    _until_not_busy(lambda: cursor.execute("PRAGMA journal_mode = WAL"))
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA journal_size_limit = 67108864")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A reader that takes the write lock shuts out everybody; a writer that takes it late fails at once when another
    # has written since its first SELECT (SQLITE_BUSY_SNAPSHOT), however long the busy timeout.
    write: bool | None = connection.get_execution_options().get(_WRITE)
    if connection.info.get(_PREPARED_FOR) != write:
        connection.exec_driver_sql(f"PRAGMA query_only = {int(write is False)}")
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {0 if write else int(BUSY_TIMEOUT_S * 1000)}")
        connection.info[_PREPARED_FOR] = write
    if write:
        _until_not_busy(lambda: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    else:
        connection.exec_driver_sql("BEGIN")


def _until_not_busy(act: Callable[[], object]) -> None:
    """`act`, again and again for as long as another process has the file.

    SQLite would wait by itself, but it looks again only after up to 100 ms: a process with many writers leaves no gap
    that is so long, and one turn of another process once waited for a second (50 turns that began at once).
    """
    give_up = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            act()
            return
        except (sqlite3.OperationalError, exc.OperationalError) as error:
            code = getattr(getattr(error, "orig", error), "sqlite_errorcode", None)
            if code is None or code & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
        time.sleep(BUSY_LOOK_S)


def _statement_timeout(seconds: float) -> Callable[[Any, Any], None]:
    def prepare(connection: Any, _record: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET statement_timeout = {int(seconds * 1000)}")
            cursor.execute("SET idle_in_transaction_session_timeout = 60000")
        connection.commit()

    return prepare


# ---- transactions


class _WriterTurns:
    """The writers of one process take turns here rather than at SQLite's lock.

    SQLite lets a waiting writer sleep and try again, in no order: with 50 threads some waited over 4 s and the slowest
    would fail, though each transaction takes 2 ms. Writers of other processes still meet at SQLite's lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None

    @contextmanager
    def mine(self) -> Iterator[None]:
        if self._owner == threading.get_ident():
            raise RuntimeError("a writing transaction inside another one would wait for itself")
        if not self._lock.acquire(timeout=BUSY_TIMEOUT_S):
            raise Unavailable("The database is busy. Try again in a moment.")
        try:
            self._owner = threading.get_ident()
            yield
        finally:
            self._owner = None
            self._lock.release()


_turns: WeakKeyDictionary[Engine, _WriterTurns] = WeakKeyDictionary()


@contextmanager
def transaction(factory: sessionmaker[Session], *, write: bool = True) -> Iterator[Session]:
    """One transaction: committed when the block ends, rolled back when it raises.

    `write=False` promises to write nothing, and is held to it. Raises Unavailable when the database is locked, cannot
    be reached or crossed another transaction, StorageFull when its disk is full; nothing is stored then.
    """
    with translated_errors(), factory() as db:
        turns = _turns.get(db.get_bind().engine) if write else None
        with turns.mine() if turns is not None else nullcontext():
            db.connection(execution_options={_WRITE: write, "postgresql_readonly": not write})
            try:
                yield db
                db.commit()
            finally:
                db.close()  # before the next writer's turn


def in_transaction(factory: sessionmaker[Session], work: Callable[[Session], T], *, tries: int = 3) -> T:
    """`work(db)` in a writing transaction, made again after a deadlock or a serialisation error, and after a moment: at
    once it would take the row that was just given up before the other one does, and both would cross again.

    `work` may run several times, so it does nothing but database work. Raises as `transaction` does.
    """
    for left in reversed(range(tries)):
        try:
            with transaction(factory) as db:
                return work(db)
        except CrossedTransactions:
            if not left:
                raise
        time.sleep(random.uniform(0.5, 1.0) * CROSSED_PAUSE_S * 4 ** (tries - 1 - left))  # noqa: S311 - no secret
    raise AssertionError("unreachable")


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turn the errors of SQLAlchemy and of the drivers that mean "not now" into ours."""
    try:
        yield
    except exc.TimeoutError as error:
        raise Unavailable("All database connections are busy. Try again in a moment.") from error
    except exc.DBAPIError as error:
        ours = _ours(error)
        if ours is None:
            raise
        raise ours from error


def _ours(error: exc.DBAPIError) -> Unavailable | None:
    origin: Any = error.orig
    state: str | None = getattr(origin, "sqlstate", None)
    sqlite_code: int | None = getattr(origin, "sqlite_errorcode", None)
    if state == _DISK_FULL or (sqlite_code is not None and sqlite_code & 0xFF == _SQLITE_FULL):
        return StorageFull("The disk of the database is full. Nothing was saved.", retry_after_s=30)
    if state in _TRY_AGAIN:
        return CrossedTransactions("Two changes crossed. Try again.", retry_after_s=1)
    if sqlite_code is not None:
        is_passing = sqlite_code & 0xFF in _SQLITE_NOT_NOW
    else:
        is_passing = error.connection_invalidated or isinstance(error, exc.OperationalError)
    return Unavailable("The database does not answer. Try again in a moment.") if is_passing else None


# ---- the database's clock


class db_now(FunctionElement[float]):
    """SQL expression: seconds since 1970 by the database's clock. Leases and deadlines are compared with nothing else.

    `unixepoch('subsec')` is NULL before SQLite 3.42, hence the Julian day.
    """

    type = Float(53)
    inherit_cache = True
    name = "db_now"


@compiles(db_now, "sqlite")
def _sqlite_now(_element: db_now, _compiler: SQLCompiler, **_: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(db_now, "postgresql")
def _postgresql_now(_element: db_now, _compiler: SQLCompiler, **_: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"


def db_time(db: Session) -> float:
    """The database's clock, now, in seconds since 1970."""
    return float(db.execute(select(db_now())).scalar_one())


def rows_changed(db: Session, statement: Update | Delete) -> int:
    """Execute the statement; gives how many rows it changed."""
    result = db.execute(statement)
    assert isinstance(result, CursorResult)
    return result.rowcount


# ---- migrations


def alembic_config(connection: Connection | None = None) -> "Config":
    """Alembic's configuration without a file: the versions lie in the installed package."""
    from alembic.config import Config  # 11 MB that only a migration needs, not every web and worker process

    config = Config()
    config.set_main_option("script_location", "shared:migrations")
    config.attributes["connection"] = connection
    return config


def migrate(source: Settings | str, revision: str = "head") -> None:
    """Bring the database to the newest version of its tables; makes an SQLite file and its private folder.

    Two at once do no harm: the second waits for the first. Raises Unavailable when the database cannot be reached.
    """
    from alembic import command  # see alembic_config

    url = make_url(_address(source))
    if url.get_backend_name() == "sqlite" and url.database:
        Path(url.database).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    engine = make_engine(source, statement_timeout_s=None)
    try:
        with translated_errors(), engine.connect() as connection:
            connection.execution_options(**{_WRITE: True})
            with connection.begin():
                if connection.dialect.name == "postgresql":
                    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
                command.upgrade(alembic_config(connection), revision)
    finally:
        engine.dispose()


def is_current(engine: Engine) -> bool:
    """Whether the tables are those of this version of the portal. Raises Unavailable."""
    with translated_errors(), engine.connect() as connection:
        if not inspect(connection).has_table(_VERSIONS):
            return False
        return connection.execute(text(f"SELECT version_num FROM {_VERSIONS}")).scalars().all() == [HEAD]  # noqa: S608
