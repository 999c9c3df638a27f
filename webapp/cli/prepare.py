"""`python -m webapp.cli.prepare`: what `portal up` needs done in the database before the first page.

It looks whether a Redis that was given is fit (F21, S46), migrates, and while no administrator exists makes a one-time
token for the set-up page (S1). The answer is one JSON line on stdout, read by the supervisor alone: the token never
stands in an argument or a log.
"""

import json
import sys
from dataclasses import asdict, dataclass
from datetime import timedelta

from shared import clock
from shared.errors import PlatformError

SETUP_TOKEN_MINUTES = 30


@dataclass(frozen=True)
class Prepared:
    """`setup_token`: None once there is an administrator, or under AUTH_DISABLED. `error`: for people."""

    setup_token: str | None = None
    error: str | None = None


def read_prepared(line: str) -> Prepared:
    """Raises ValueError for a line that is not an answer."""
    try:
        return Prepared(**json.loads(line))
    except TypeError as error:
        raise ValueError(line) from error


def prepare() -> Prepared:
    # imported here, so that the supervisor reads the answer without 60 MB of database code
    from shared.database import make_engine, make_session_factory, migrate, transaction
    from shared.relay import fitness
    from shared.relay.connection import connect
    from shared.settings import load
    from shared.store import users
    from shared.tokens import new_token, token_hash

    settings = load()
    if settings.redis_url is not None:
        found = fitness.faults(connect(settings), settings.redis_url.get_secret_value())
        if found:
            return Prepared(error="\n".join(found))
    migrate(settings)
    if settings.auth_disabled:
        return Prepared()
    engine = make_engine(settings)
    try:
        with transaction(make_session_factory(engine)) as db:
            if users.any_administrator(db):
                return Prepared()
            token = new_token()
            ends = clock.now() + timedelta(minutes=SETUP_TOKEN_MINUTES)
            users.create_setup_token(db, token_hash=token_hash(token), expires_at=ends)
            return Prepared(setup_token=token)
    finally:
        engine.dispose()


def main() -> None:
    try:
        answer = prepare()
    except PlatformError as error:
        answer = Prepared(error=error.message)
    print(json.dumps(asdict(answer)))
    sys.exit(0 if answer.error is None else 1)


if __name__ == "__main__":
    main()
