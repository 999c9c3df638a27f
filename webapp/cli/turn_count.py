"""`python -m webapp.cli.turn_count <pid>`: how many turns this machine's worker of that process id is working on.

Told while `portal up` waits for them at its stop. A process of its own: the supervisor holds no database code.
"""

import socket
import sys

from sqlalchemy import func, select

from shared.database import make_engine, make_session_factory, transaction
from shared.errors import PlatformError
from shared.models.run import Run
from shared.relay.connection import connect
from shared.relay.keys import Keys
from shared.relay.presence import Presence
from shared.run_state import ACTIVE
from shared.settings import Settings, load


def count_turns(settings: Settings, worker_pid: int) -> int:
    """0 when the worker is not known. Raises Unavailable when Redis or the database does not answer."""
    workers = Presence(connect(settings), Keys(settings.redis_prefix)).workers()
    host = socket.gethostname()
    ids = [worker.worker_id for worker in workers if worker.pid == worker_pid and worker.host == host]
    engine = make_engine(settings)
    try:
        with transaction(make_session_factory(engine), write=False) as db:
            mine = select(func.count()).select_from(Run).where(Run.state.in_(ACTIVE), Run.worker_id.in_(ids))
            return db.scalar(mine) or 0
    finally:
        engine.dispose()


if __name__ == "__main__":
    try:
        print(count_turns(load(), int(sys.argv[1])))
    except PlatformError as error:
        sys.exit(error.message)
