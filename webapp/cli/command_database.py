"""One transaction for a command; what goes wrong in it ends the command with one line and exit code 1."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session

from shared.database import is_current, make_engine, make_session_factory, transaction
from shared.errors import NotFound, PlatformError
from shared.models import User
from shared.settings import Settings
from shared.store import users
from webapp.cli.configured import settings_or_exit
from webapp.cli.data_dir import make_private


@contextmanager
def command_database(settings: Settings | None = None, *, write: bool = True) -> Iterator[Session]:
    """Commits at the end of the block. The tables must be those of this version."""
    settings = settings or settings_or_exit()
    engine = make_engine(settings)
    try:
        make_private(settings.data_dir)
        if not is_current(engine):
            sys.exit("portal: the database is not at this version: run `portal migrate`")
        with transaction(make_session_factory(engine), write=write) as db:
            yield db
    except PlatformError as error:
        sys.exit(f"portal: {error.message}")
    finally:
        engine.dispose()


def user_by_login(db: Session, login: str) -> User:
    """Raises NotFound."""
    user = users.by_login(db, login)
    if user is None:
        raise NotFound(f"There is no user {login!r}: `portal user list` shows them all")
    return user
