"""The web app in this process, against a real Redis and a real database, with people and programs that use it."""

import re
import shutil
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker
from werkzeug.test import TestResponse

from shared.database import make_engine, make_session_factory, migrate, transaction
from shared.models import Base, User
from shared.settings import Settings, load
from shared.store import users
from shared.tokens import new_token, token_hash
from tests.rig.redis_server import RedisServer
from webapp import passwords
from webapp.app import create_app
from webapp.context import WebContext

PASSWORD = "violet tractor humming"
ADDRESS = "http://127.0.0.1:8080"
_TOKEN = re.compile(r'name="csrf_token"[^>]*value="([^"]+)"')


@lru_cache(maxsize=1)
def password_hash() -> str:
    """Of PASSWORD; made once, since it is slow on purpose."""
    return passwords.hash_password(PASSWORD)


class Web:
    """One app with its database. `admin` is there from the start, unless made with `set_up=False`."""

    def __init__(
        self, redis_url: str, database_url: str, data_dir: Path, *, set_up: bool = True, **environ: str
    ) -> None:
        self.settings: Settings = load(
            {
                "PORTAL_DATA_DIR": str(data_dir),
                "REDIS_URL": redis_url,
                "DATABASE_URL": database_url,
                "PORTAL_SECRET_KEY": "a key for tests, long enough to be one",
                **environ,
            }
        )
        self.app: Flask = create_app(self.settings, testing=True)
        self.context: WebContext = self.app.extensions["portal"]
        self.factory: sessionmaker[Session] = self.context.factory
        self.admin: User | None = self.user("admin", role="administrator") if set_up else None

    def user(self, login: str, *, role: str = "member", **columns: Any) -> User:
        """Somebody whose password is PASSWORD."""
        with transaction(self.factory) as db:
            user = users.create_user(db, login=login, name=login.title(), role=role, password_hash=password_hash())
            for name, value in columns.items():
                setattr(user, name, value)
        return user

    def browser(self, user: User | None = None, *, address: str = ADDRESS, ip: str = "127.0.0.1") -> "Browser":
        """A browser; with `user` one that is signed in already."""
        browser = Browser(self, address, ip)
        if user is not None:
            value = new_token()
            with transaction(self.factory) as db:
                users.create_sign_in(db, user=users.get(db, user.id), id_hash=token_hash(value))
            browser.put_sign_in(value)
        return browser

    def program(self, user: User, *scopes: str) -> "Program":
        """A program with an API token of the user."""
        secret = new_token()
        with transaction(self.factory) as db:
            users.create_api_token(
                db,
                user=users.get(db, user.id),
                name="test",
                token_hash=token_hash(secret),
                scopes=scopes or ("read", "write"),
            )
        return Program(self, secret)

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Everything the database holds, to compare."""
        with transaction(self.factory, write=False) as db:
            return {
                table.name: sorted((tuple(row) for row in db.execute(select(table))), key=repr)
                for table in Base.metadata.sorted_tables
            }

    def close(self) -> None:
        self.app.extensions["portal_live"].close()
        self.context.engine.dispose()


class Browser:
    """Keeps cookies; `post` and `send` carry the CSRF token of a page of ours, as forms and scripts do."""

    def __init__(self, web: Web, address: str, ip: str) -> None:
        self.web = web
        self.address = address
        self.client: FlaskClient = web.app.test_client()
        self.environ = {"REMOTE_ADDR": ip}
        self._csrf: str | None = None

    def get(self, path: str, **given: Any) -> TestResponse:
        return self.open(path, method="GET", **given)

    def post(self, path: str, form: dict[str, Any] | None = None, **given: Any) -> TestResponse:
        """A form, with its CSRF token."""
        return self.open(path, method="POST", data={"csrf_token": self.csrf(), **(form or {})}, **given)

    def send(self, method: str, path: str, json: Any = None, **given: Any) -> TestResponse:
        """What a script of a page sends: JSON, with the token in a header."""
        headers = {"X-CSRF-Token": self.csrf(), **given.pop("headers", {})}
        body = {} if json is None else {"json": json}
        return self.open(path, method=method, headers=headers, **body, **given)

    def open(self, path: str, **given: Any) -> TestResponse:
        environ = {**self.environ, **given.pop("environ_overrides", {})}
        return self.client.open(path, base_url=self.address, environ_overrides=environ, **given)

    def csrf(self) -> str:
        if self._csrf is None:
            for path in ("/login", "/settings", "/setup"):
                found = _TOKEN.search(self.get(path).get_data(as_text=True))
                if found is not None:
                    self._csrf = found[1]
                    break
        assert self._csrf is not None, "no page gave a CSRF token"
        return self._csrf

    def sign_in(self, login: str, password: str = PASSWORD, **form: str) -> TestResponse:
        """By the sign-in page."""
        answer = self.post("/login", {"login": login, "password": password, **form})
        self._csrf = None
        return answer

    def put_sign_in(self, value: str) -> None:
        secure = self.address.startswith("https")
        parts = urlsplit(self.address)
        name = "__Host-portal-sign-in" if secure else f"portal-{parts.port or 80}-sign-in"
        self.client.set_cookie(name, value, domain=parts.hostname or "", secure=secure)


class Program:
    """Speaks the API with a Bearer token and keeps no cookie."""

    def __init__(self, web: Web, secret: str) -> None:
        self.web = web
        self.secret = secret

    def send(self, method: str, path: str, json: Any = None, **given: Any) -> TestResponse:
        headers = {"Authorization": f"Bearer {self.secret}", **given.pop("headers", {})}
        body = {} if json is None else {"json": json}
        client = self.web.app.test_client(use_cookies=False)
        return client.open(path, method=method, base_url=ADDRESS, headers=headers, **body, **given)

    def get(self, path: str, **given: Any) -> TestResponse:
        return self.send("GET", path, **given)

    def new_session(self, **fields: Any) -> str:
        return str(self.send("POST", "/api/chat/sessions", fields).json["sessionId"])

    def submit(self, session_id: str, message: Any = "Hello", *, key: str | None = None, **fields: Any) -> TestResponse:
        headers = {} if key is None else {"Idempotency-Key": key}
        path = f"/api/chat/sessions/{session_id}/runs"
        return self.send("POST", path, {"message": message, **fields}, headers=headers)


# ---- fixtures


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty SQLite database with all tables, to copy: migrating takes longer than most tests."""
    path = tmp_path_factory.mktemp("migrated") / "portal.db"
    migrate(f"sqlite:///{path}")
    engine = make_engine(f"sqlite:///{path}")
    with transaction(make_session_factory(engine)) as db:
        db.connection().exec_driver_sql("SELECT 1")
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    engine.dispose()
    return path


class WebMaker:
    """Makes apps for one test, each on a fresh database, and closes them."""

    def __init__(self, redis: RedisServer, template: Path, folder: Path) -> None:
        self._redis = redis
        self._template = template
        self._folder = folder
        self._made: list[Web] = []

    def __call__(
        self, *, database_url: str | None = None, redis_url: str | None = None, set_up: bool = True, **environ: str
    ) -> Web:
        if database_url is None:
            path = self._folder / f"portal-{len(self._made)}.db"
            shutil.copy(self._template, path)
            database_url = f"sqlite:///{path}"
        web = Web(redis_url or self._redis.url, database_url, self._folder / "data", set_up=set_up, **environ)
        self._made.append(web)
        return web

    def close(self) -> None:
        for web in self._made:
            web.close()


@pytest.fixture
def make_web(redis_server: RedisServer, migrated_sqlite: Path, tmp_path: Path) -> Iterator[WebMaker]:
    maker = WebMaker(redis_server, migrated_sqlite, tmp_path)
    yield maker
    maker.close()


@pytest.fixture
def web(make_web: WebMaker) -> Web:
    """The app on SQLite, set up, with an administrator."""
    return make_web()


@pytest.fixture
def web_on_each(make_web: WebMaker, database_url: str) -> Web:
    """The same on SQLite and on PostgreSQL."""
    migrate(database_url)
    return make_web(database_url=database_url)
