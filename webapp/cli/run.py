"""`portal run`: one turn from the shell, its answer on stdout as it comes, everything else on stderr."""

import json
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import click

from shared import clock
from shared.errors import NotFound, PlatformError
from shared.settings import Settings
from shared.store import users
from shared.tokens import new_token, token_hash
from webapp.cli.command_database import command_database, user_by_login
from webapp.cli.configured import settings_of_running
from webapp.cli.console import printable
from webapp.cli.data_dir import read_running
from webapp.cli.portal_client import ENDS, PortalClient, PortalFault

TOKEN_LIFE = timedelta(days=1)  # of the one made for a single `portal run`; it ends with it
EXIT_CODES = {"run.completed": 0, "abort.completed": 3}
FAILED = 1


@click.command()
@click.argument("text", required=False)
@click.option("--url", envvar="PORTAL_URL", help="Address of a portal elsewhere; its token stands in PORTAL_TOKEN.")
@click.option("--session", "session_id", help="Go on with this session. [a new one]")
@click.option("--as", "login", help="On this machine: who sends it. [the only administrator]")
@click.option("--model", help="Model to ask for.")
@click.option("--instructions", help="Instructions for this turn.")
@click.option("--background", is_flag=True, help="Approvals wait a day instead of a minute.")
@click.option("--json", "as_json", is_flag=True, help="Print every event as one JSON line.")
def run(
    text: str | None,
    url: str | None,
    session_id: str | None,
    login: str | None,
    model: str | None,
    instructions: str | None,
    background: bool,
    as_json: bool,
) -> None:
    """Send TEXT, or what comes on standard input, as one turn and print the answer as it comes. Approvals and questions
    are asked in the terminal. Ctrl-C stops the turn. Exit code: 0 completed, 1 failed, 3 stopped.

    \b
    Examples:
      portal run "What is in this folder?"
      git diff | portal run --session 1f0c... --json
      PORTAL_TOKEN=... portal run --url https://portal.example "Hello"
    """
    words = text if text is not None else sys.stdin.read()
    try:
        with _client(url, login) as client:
            session = session_id or client.new_session()
            if session_id is None and not as_json:
                _aside(f"session {session}")
            turn = client.submit(
                session,
                secrets.token_hex(16),
                message=words,
                modelId=model,
                instructions=instructions,
                background=background or None,
            )
            view = JsonView() if as_json else WordsView(client, turn)
            sys.exit(_follow(client, turn, view))
    except PlatformError as error:
        sys.exit(f"portal: {error.message}")


@contextmanager
def _client(url: str | None, login: str | None) -> Iterator[PortalClient]:
    """The portal at `url`, or the one that runs on this machine's data directory. Who can write there needs no token:
    one is made for this turn alone."""
    if url is not None:
        with PortalClient(url, os.environ.get("PORTAL_TOKEN")) as client:
            yield client
        return
    settings = settings_of_running()
    running = read_running(settings.data_dir)
    if running is None:
        raise NotFound(f"No portal runs on {settings.data_dir}: `portal up`, or give --url and PORTAL_TOKEN")
    token_id, token = _token_for_one_turn(settings, login)
    try:
        with PortalClient(running.address, token) as client:
            yield client
    finally:
        with command_database(settings) as db:
            users.revoke_api_token(db, token_id)


def _token_for_one_turn(settings: Settings, login: str | None) -> tuple[str, str]:
    """Id and token, of the user `login`, else of the only administrator. Raises NotFound."""
    token = new_token()
    with command_database(settings) as db:
        if settings.auth_disabled:
            user = users.local_administrator(db)
        elif login is not None:
            user = user_by_login(db, login)
        else:
            found = [each for each in users.all_users(db) if each.role == "administrator" and not each.disabled]
            if len(found) != 1:
                raise NotFound("There is not exactly one administrator: say who sends it, with --as LOGIN")
            user = found[0]
        made = users.create_api_token(
            db,
            user=user,
            name="portal run",
            token_hash=token_hash(token),
            scopes=("read", "write"),
            expires_at=clock.now() + TOKEN_LIFE,
        )
        return made.id, token


def _follow(client: PortalClient, run_id: str, view: "JsonView | WordsView") -> int:
    """Show the events to the end of the run; its exit code. The first Ctrl-C stops the run, the second leaves it."""
    cursor, stopped, code = "", False, FAILED
    while True:
        try:
            for place, event in client.follow(run_id, cursor):
                view.show(event)
                cursor = place
                code = EXIT_CODES.get(event["event"], FAILED)
            return code
        except KeyboardInterrupt:
            if stopped:
                raise
            stopped = True
            _aside("stopping the turn; Ctrl-C again leaves it running")
            client.abort(run_id)


class JsonView:
    """Every event as it came, one line each."""

    def show(self, event: dict[str, Any]) -> None:
        print(json.dumps(event, ensure_ascii=False), flush=True)


class WordsView:
    """The answer on stdout, what the agent does and asks on stderr."""

    def __init__(self, client: PortalClient, run_id: str) -> None:
        self._client = client
        self._run_id = run_id
        self._lengths: dict[int, int] = {}  # of each text part, in code points

    def show(self, event: dict[str, Any]) -> None:
        name, data = event["event"], event.get("data", {})
        if name == "message.delta":
            self._text(data)
        elif name == "approval.requested":
            self._approval(data)
        elif name == "clarify.requested":
            self._question(data)
        elif (line := _line(name, data)) is not None:
            _aside(line)
        if name in ENDS:
            print(flush=True)

    def _text(self, data: dict[str, Any]) -> None:
        known = self._lengths.get(data["part"], 0)
        if known == 0 and self._lengths and data["part"] not in self._lengths:
            print("\n")
        fresh = data["text"][max(0, known - data["offset"]) :]
        self._lengths[data["part"]] = known + len(fresh)
        print("\n".join(printable(line) for line in fresh.split("\n")), end="", flush=True)

    def _approval(self, data: dict[str, Any]) -> None:
        _aside(f"\nMay this run ({data['kind']})? {data['description']}\n  {data['command']}")
        if sys.stdin.isatty():
            choice = click.prompt("Answer", type=click.Choice(data["choices"]), default="deny", err=True)
            self._answer(approvalId=data["approval_id"], choice=choice)

    def _question(self, data: dict[str, Any]) -> None:
        _aside(f"\n{data['question']}" + "".join(f"\n  - {each}" for each in data.get("choices", [])))
        if sys.stdin.isatty():
            self._answer(clarifyId=data["clarify_id"], answer=click.prompt("Answer", err=True))

    def _answer(self, **fields: str) -> None:
        try:
            self._client.answer(self._run_id, **fields)
        except PortalFault as error:  # too late, or answered on a page
            _aside(error.message)


def _line(name: str, data: dict[str, Any]) -> str | None:
    """What is said of the other events; None: nothing."""
    if name == "run.queued" and data.get("position"):
        return f"waiting: {data['position']} before it"
    if name == "tool.started":
        return f"> {data['name']} {data.get('summary', '')}".rstrip()
    if name == "tool.completed" and data.get("ok") is False:
        return f"> {data['name']} failed: {data.get('error') or ''}".rstrip(": ")
    if name in ("run.failed", "run.interrupted"):
        return f"\n{data.get('message') or data.get('reason')}"
    if name in ("run.cancelled", "abort.completed"):
        return "\nstopped"
    if name in ("approval.resolved", "clarify.resolved") and data["reason"] != "answered":
        return f"{data['reason']}: counts as no"
    if name == "resumed":
        return "(some events were lost; the whole answer stands on the page)"
    return None


def _aside(text: str) -> None:
    print("\n".join(printable(line) for line in text.split("\n")), file=sys.stderr, flush=True)
