"""What a request works with: the app's engine, Redis, log and settings, and a database session of its own."""

from contextlib import ExitStack
from dataclasses import dataclass
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, cast

from celery import Celery
from flask import Flask, current_app, g
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from shared import errors
from shared.database import POOL_TIMEOUT_S, transaction
from shared.relay.connection import Client
from shared.relay.event_log import EventLog
from shared.relay.keys import Keys
from shared.settings import Settings
from webapp.living_workers import LivingWorkers
from webapp.relay_breaker import RelayBreaker
from webapp.throttle import Throttle

if TYPE_CHECKING:
    from webapp.live.hub import Hub

EXTENSION = "portal"


@dataclass(frozen=True)
class WebContext:
    """The long-lived parts of one web process; made once by `create_app`, and passed to every action."""

    settings: Settings
    engine: Engine
    factory: sessionmaker[Session]
    redis: Client
    keys: Keys
    log: EventLog
    hub: "Hub"
    celery: Celery  # sends tasks by name; it knows none
    throttle: Throttle
    breaker: RelayBreaker
    workers: LivingWorkers
    readers: BoundedSemaphore
    """Requests that hold a connection of their own. An action or a snapshot inside one needs a second: were all
    connections held by such requests, each would wait for another until the pool gives up."""


def web() -> WebContext:
    """The context of the app that serves this request."""
    return cast(WebContext, current_app.extensions[EXTENSION])


def db() -> Session:
    """The request's database session, for reading: one transaction, opened at the first call.

    What changes something is an action, and each action has its own transaction: it must be committed before its event
    is told.
    """
    if "db" not in g:
        with ExitStack() as stack:
            if not web().readers.acquire(timeout=POOL_TIMEOUT_S):
                raise errors.Unavailable("All database connections are busy. Try again in a moment.")
            stack.callback(web().readers.release)
            g.db = stack.enter_context(transaction(web().factory, write=False))
            g.db_stack = stack.pop_all()
    return cast(Session, g.db)


def init(app: Flask, context: WebContext) -> None:
    """Give the app its context, and close each request's database session with the request."""
    app.extensions[EXTENSION] = context

    @app.teardown_request
    def close_db(error: BaseException | None) -> None:
        stack: ExitStack | None = g.pop("db_stack", None)
        g.pop("db", None)
        if stack is not None:
            stack.close()
