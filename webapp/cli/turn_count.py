"""`python -m webapp.cli.turn_count`: how many turns are being worked on, told while `portal up` waits for them."""

import sys

from sqlalchemy import func, select

from shared.database import make_engine, make_session_factory, transaction
from shared.errors import PlatformError
from shared.models.run import Run
from shared.run_state import ACTIVE
from shared.settings import Settings, load


def count_turns(settings: Settings) -> int:
    """Active runs in the database, on all machines. Raises Unavailable."""
    engine = make_engine(settings)
    try:
        with transaction(make_session_factory(engine), write=False) as db:
            return db.scalar(select(func.count()).select_from(Run).where(Run.state.in_(ACTIVE))) or 0
    finally:
        engine.dispose()


if __name__ == "__main__":
    try:
        print(count_turns(load()))
    except PlatformError as error:
        sys.exit(error.message)
