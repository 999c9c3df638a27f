"""create_app(settings): builds the parts of a web process, wires and registers them; holds no behaviour of its own."""

from pathlib import Path
from threading import BoundedSemaphore

from flask import Flask
from sqlalchemy import Engine
from werkzeug.middleware.proxy_fix import ProxyFix

from shared import logs
from shared.database import connections_of, make_engine, make_session_factory
from shared.relay.connection import connect
from shared.relay.event_log import EventLog
from shared.relay.keys import Keys
from shared.settings import Settings, load
from webapp import context, errors, gate, headers, json_input, render, request_log
from webapp.api import catalogue as api_catalogue
from webapp.api import chat_sessions as api_chat_sessions
from webapp.api import openapi
from webapp.api import runs as api_runs
from webapp.clean_request import CleanRequest
from webapp.cli.data_dir import secret_key_file
from webapp.context import WebContext
from webapp.cookies import PortalCookie
from webapp.dispatch import make_celery
from webapp.live import socket, sse
from webapp.live.hub import Hub
from webapp.living_workers import LivingWorkers
from webapp.pages import account, catalogue, chat, operations
from webapp.relay_breaker import RelayBreaker
from webapp.throttle import Throttle

STATIC_FOLDER = Path(__file__).with_name("static")
FORM_OVERHEAD = 5  # a character of three bytes is nine in a form
HEADROOM_BYTES = 1 << 16


def create_app(settings: Settings | None = None, *, testing: bool = False) -> Flask:
    """The web process's app. Opens no connection yet. Raises SettingsError."""
    settings = settings or load()
    if not testing:
        logs.configure(settings, "web")
    app = Flask(__name__, static_folder=str(STATIC_FOLDER), static_url_path="/static")
    app.testing = testing
    app.request_class = CleanRequest
    _configure(app, settings)
    made = make_context(settings)
    context.init(app, made)
    render.install(app)
    request_log.init(app)
    gate.init(app)
    headers.init(app)
    errors.register(app)
    _register_routes(app, made)
    if settings.trusted_proxies:
        hops = settings.trusted_proxies
        app.wsgi_app = ProxyFix(  # type: ignore[method-assign]
            app.wsgi_app, x_for=hops, x_proto=hops, x_host=hops, x_port=hops, x_prefix=hops
        )
    return app


def make_context(settings: Settings) -> WebContext:
    """The long-lived parts. Raises SettingsError without a Redis."""
    engine: Engine = make_engine(settings)
    client = connect(settings)
    breaker = RelayBreaker()
    keys = Keys(settings.redis_prefix)
    return WebContext(
        settings=settings,
        engine=engine,
        factory=make_session_factory(engine),
        redis=client,
        keys=keys,
        log=EventLog(client, keys, max_events=settings.log_max_events, ttl_s=settings.log_ttl_s),
        hub=Hub(settings, client=client, keys=keys),
        celery=make_celery(settings),
        throttle=Throttle(client, settings.redis_prefix, breaker),
        breaker=breaker,
        workers=LivingWorkers(client, keys, breaker),
        readers=BoundedSemaphore(connections_of(engine) // 2),
    )


def _configure(app: Flask, settings: Settings) -> None:
    message_bytes = settings.max_message_kb * 1024
    app.session_interface = PortalCookie()
    app.config.update(
        SECRET_KEY=_secret_key(settings),
        MAX_CONTENT_LENGTH=max(2 * json_input.MAX_BYTES, FORM_OVERHEAD * message_bytes) + HEADROOM_BYTES,
        MAX_FORM_MEMORY_SIZE=FORM_OVERHEAD * message_bytes + HEADROOM_BYTES,
        MAX_FORM_PARTS=200,
        PROPAGATE_EXCEPTIONS=False,
        TRAP_HTTP_EXCEPTIONS=False,
        SEND_FILE_MAX_AGE_DEFAULT=None,
    )


def _secret_key(settings: Settings) -> str:
    """It signs the cookie that holds the CSRF token. On several machines it has to be given."""
    if settings.secret_key is not None:
        return settings.secret_key.get_secret_value()
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return secret_key_file(settings.data_dir).read_text(encoding="utf-8").strip()


def _register_routes(app: Flask, made: WebContext) -> None:
    for blueprint in (
        account.bp,
        chat.bp,
        catalogue.bp,
        operations.bp,
        api_chat_sessions.bp,
        api_runs.bp,
        api_catalogue.bp,
        openapi.bp,
    ):
        app.register_blueprint(blueprint)
    socket.register(app, made)
    sse.register(app)
