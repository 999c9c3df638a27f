"""The database seam: migrations, transactions, the clock, and the errors of drivers that become ours."""

import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from shared.database import (
    CROSSED_PAUSE_S,
    alembic_config,
    in_transaction,
    is_current,
    make_engine,
    make_session_factory,
    migrate,
    transaction,
)
from shared.errors import StorageFull, Unavailable
from shared.migrations import HEAD
from shared.models import Base, ChatSession, User
from shared.store import users
from tests.factories import a_session, a_user
from tests.rig.at_once import at_once

Factory = sessionmaker[Session]

# ---- migrations


def test_the_newest_version_is_the_one_that_the_portal_asks_for() -> None:
    assert ScriptDirectory.from_config(alembic_config()).get_current_head() == HEAD


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


def test_several_processes_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    # Each of 40 files is new: the change to WAL is where two of them meet (without a second try some 4 in 100 fail).
    def open_it(path: Path) -> None:
        engine = make_engine(f"sqlite:///{path}")
        with engine.connect() as connection:
            assert connection.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"
        engine.dispose()

    for number in range(40):
        path = tmp_path / f"{number}.db"
        assert at_once(*[lambda path=path: open_it(path)] * 8) == [None] * 8


def test_several_processes_may_migrate_at_once(database_url: str) -> None:
    assert at_once(*[lambda: migrate(database_url)] * 4) == [None] * 4
    engine = make_engine(database_url)
    assert is_current(engine)
    engine.dispose()


def test_the_first_migration_makes_a_private_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "portal.db"
    migrate(f"sqlite:///{path}")
    assert path.is_file()
    assert path.parent.stat().st_mode & 0o077 == 0


def test_a_migration_of_what_cannot_be_reached_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        migrate(f"postgresql://nobody@/nothing?host={tmp_path}")


# ---- transactions


def test_a_transaction_keeps_all_or_nothing(factory: Factory) -> None:
    with transaction(factory) as db:
        a_user(db, login="kept")

    def fail_half_way() -> None:
        with transaction(factory) as db:
            a_user(db, login="lost")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    with transaction(factory, write=False) as db:
        assert db.scalars(select(User.login)).all() == ["kept"]


def test_what_was_read_can_be_used_after_the_transaction(factory: Factory) -> None:
    with transaction(factory) as db:
        session = a_session(db)
    assert session.source == "api_server"
    assert session.created_at.utcoffset() is not None


def test_a_write_after_a_read_waits_for_other_writers(factory: Factory) -> None:
    """On SQLite a transaction that began with a read could not write any more once another had: each begins as a
    writer instead."""
    with transaction(factory) as db:
        session_id = a_session(db).id

    def count_up() -> None:
        for _ in range(20):
            with transaction(factory) as db:
                session = db.scalars(select(ChatSession).where(ChatSession.id == session_id).with_for_update()).one()
                session.next_position += 1

    assert at_once(*[count_up] * 6) == [None] * 6
    with transaction(factory, write=False) as db:
        assert db.get_one(ChatSession, session_id).next_position == 1 + 6 * 20


def test_a_transaction_that_promised_to_write_nothing_is_held_to_it(factory: Factory) -> None:
    with pytest.raises(DBAPIError, match=r"read-?only"), transaction(factory, write=False) as db:
        a_user(db)
    for _ in range(3):  # the connection writes again afterwards
        with transaction(factory) as db:
            a_user(db)


def test_an_open_reader_keeps_no_writer_waiting(factory: Factory) -> None:
    with transaction(factory, write=False) as reader:
        reader.scalars(select(User)).all()
        with ThreadPoolExecutor(1) as pool:  # one that had to wait for the reader would be refused in the end
            pool.submit(lambda: in_transaction(factory, lambda db: a_user(db).id)).result()


def test_a_writing_transaction_inside_another_is_a_mistake_that_shows_at_once(sqlite_url: str) -> None:
    factory = make_session_factory(make_engine(sqlite_url))

    def nest() -> None:
        with transaction(factory), transaction(factory):
            pass

    with pytest.raises(RuntimeError, match="inside another"):
        nest()
    with transaction(factory) as db:
        a_user(db)  # and the turn was given back


def test_errors_carry_nothing_of_what_people_wrote(factory: Factory) -> None:
    with pytest.raises(DBAPIError) as failed, transaction(factory) as db:
        db.execute(text("INSERT INTO chat_session (id) VALUES (:id)"), {"id": "the-canary"})
    assert "the-canary" not in str(failed.value).replace(str(failed.value.orig), "")


# ---- faults


def test_crossed_transactions_are_made_again(postgres_url: str) -> None:
    """F26: two that lock the same rows in the other order; one is refused by PostgreSQL and made again."""
    engine = make_engine(postgres_url)
    factory = make_session_factory(engine)
    with transaction(factory) as db:
        ids = [a_user(db).id, a_user(db).id]
    both_hold_one = threading.Barrier(2)
    tries: list[int] = []

    def mark(db: Session, user_id: str, number: int) -> None:
        db.execute(update(User).where(User.id == user_id).values(name=User.name + f"-{number}"))

    def rename(first: str, second: str, number: int) -> None:
        def work(db: Session) -> None:
            tries.append(number)
            mark(db, first, number)
            if tries.count(number) == 1:
                both_hold_one.wait(timeout=60)
            mark(db, second, number)

        in_transaction(factory, work)

    answers = at_once(lambda: rename(ids[0], ids[1], 1), lambda: rename(ids[1], ids[0], 2))
    assert answers == [None, None]
    assert len(tries) > 2, "one of them was refused"
    with transaction(factory, write=False) as db:
        for user_id in ids:
            name = users.get(db, user_id).name
            assert (name.count("-1"), name.count("-2")) == (1, 1), "nothing was lost or doubled"
    engine.dispose()


def test_what_crosses_every_time_is_given_up_after_three_tries(postgres_url: str) -> None:
    """Each after a longer moment, in which who it crosses with may take what it has given up."""
    engine = make_engine(postgres_url)
    tries = []

    def always_refused(db: Session) -> None:
        tries.append(time.monotonic())
        db.execute(text("DO $$ BEGIN RAISE EXCEPTION 'crossed' USING ERRCODE = 'serialization_failure'; END $$"))

    with pytest.raises(Unavailable):
        in_transaction(make_session_factory(engine), always_refused)
    assert len(tries) == 3
    assert tries[1] - tries[0] >= CROSSED_PAUSE_S / 2
    assert tries[2] - tries[1] >= 2 * CROSSED_PAUSE_S
    engine.dispose()


def test_killed_connections_cost_one_refusal_and_no_half_write(postgres_url: str) -> None:
    """F24."""
    engine = make_engine(postgres_url)
    factory = make_session_factory(engine)
    kill = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    other = make_engine(postgres_url)

    def kill_all() -> None:
        with other.connect() as connection:
            connection.execute(kill)

    def killed_half_way() -> None:
        with transaction(factory) as db:
            a_user(db, login="half")
            kill_all()
            a_user(db, login="whole")

    with pytest.raises(Unavailable):
        killed_half_way()
    with transaction(factory) as db:
        a_user(db, login="later")
    kill_all()  # those that wait in the pool are found dead and made anew
    with transaction(factory, write=False) as db:
        assert db.scalars(select(User.login)).all() == ["later"]
    for each in (engine, other):
        each.dispose()


def test_a_statement_that_takes_too_long_is_ended(postgres_url: str) -> None:
    engine = make_engine(postgres_url, statement_timeout_s=0.2)
    with pytest.raises(Unavailable), transaction(make_session_factory(engine)) as db:
        db.execute(text("SELECT pg_sleep(5)"))
    engine.dispose()


def test_a_database_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    for url in (f"sqlite:///{tmp_path}/no/folder/portal.db", f"postgresql://nobody@/nothing?host={tmp_path}"):
        engine: Engine = make_engine(url)
        with pytest.raises(Unavailable) as refused, transaction(make_session_factory(engine)):
            pass
        assert refused.value.retry_after_s > 0
        with pytest.raises(Unavailable):
            is_current(engine)


def test_a_full_disk_is_told_and_nothing_is_half_written(sqlite_url: str) -> None:
    """F27, with SQLite's own limit of pages in the place of a small disk."""
    engine = make_engine(sqlite_url)
    factory = make_session_factory(engine)
    with transaction(factory) as db:
        a_user(db, login="before")

    def fill() -> None:
        with transaction(factory) as db:
            pages = db.scalar(text("PRAGMA page_count"))
            db.execute(text(f"PRAGMA max_page_count = {pages + 3}"))
            a_user(db, login="small")
            a_user(db, login="large", name="x" * 1_000_000)

    with pytest.raises(StorageFull):
        fill()
    with transaction(factory) as db:
        db.execute(text("PRAGMA max_page_count = 1000000"))
        assert db.scalars(select(User.login)).all() == ["before"]
        a_user(db, login="after", name="x" * 1_000_000)
    engine.dispose()


@pytest.fixture
def other_writer(sqlite_url: str) -> sqlite3.Connection:
    """A connection of another process, as it were."""
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN EXCLUSIVE")
    return connection


def test_a_write_waits_for_a_writer_of_another_process(sqlite_url: str, other_writer: sqlite3.Connection) -> None:
    """F25, its first half. It waits for 5 s at most."""
    factory = make_session_factory(make_engine(sqlite_url))
    committed_at: list[float] = []

    def commit() -> None:
        committed_at.append(time.monotonic())
        other_writer.execute("COMMIT")

    timer = threading.Timer(1, commit)
    timer.start()
    with transaction(factory) as db:
        a_user(db)
        begun_at = time.monotonic()
    assert begun_at > committed_at[0]
    timer.join()
    other_writer.close()


MANY_WRITERS = """
import sys, threading, time
from sqlalchemy import text
from shared.database import make_engine, make_session_factory, transaction
factory = make_session_factory(make_engine(sys.argv[1]))
def write():
    while True:
        with transaction(factory) as db:
            db.execute(text("UPDATE written SET theirs = theirs + 1"))
            time.sleep(0.005)
for _ in range(8):
    threading.Thread(target=write, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_process_with_many_writers_does_not_starve_another(sqlite_url: str) -> None:
    """Its writers leave gaps of less than a millisecond, which SQLite's own waiting missed for seconds."""
    factory = make_session_factory(make_engine(sqlite_url))

    def theirs() -> int:
        with transaction(factory, write=False) as db:
            return int(db.execute(text("SELECT theirs FROM written")).scalar_one())

    with transaction(factory) as db:
        db.execute(text("CREATE TABLE written (ours INTEGER, theirs INTEGER)"))
        db.execute(text("INSERT INTO written VALUES (0, 0)"))
    command = [sys.executable, "-c", MANY_WRITERS, sqlite_url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        before = theirs()
        for _ in range(40):
            with transaction(factory) as db:
                db.execute(text("UPDATE written SET ours = ours + 1"))
        meanwhile = theirs() - before
        other.kill()
    assert meanwhile < 50 * 40  # who is starved comes too late for a thousand of theirs, each time


def test_a_write_that_waited_in_vain_is_unavailable_and_reads_go_on(
    sqlite_url: str, other_writer: sqlite3.Connection
) -> None:
    """F25, its second half."""
    factory = make_session_factory(make_engine(sqlite_url))

    def write() -> None:
        with transaction(factory) as db:
            a_user(db, login="lost")

    def read() -> int:
        with transaction(factory, write=False) as db:
            return len(db.scalars(select(User)).all())

    began = time.monotonic()
    written, also_written, seen = at_once(write, write, read)
    assert isinstance(written, Unavailable)
    assert isinstance(also_written, Unavailable)
    assert seen == 0
    assert 4 < time.monotonic() - began < 60
    other_writer.execute("COMMIT")
    with transaction(factory) as db:
        a_user(db, login="lost")
    other_writer.close()
