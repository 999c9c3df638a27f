"""`portal user`: people who may sign in. A password never stands on the command line: it is asked for, or read."""

import sys

import click
from sqlalchemy.orm import Session

from shared.errors import Conflict, InvalidCommand
from shared.models import User
from shared.store import audit, runs, users
from webapp import passwords
from webapp.cli.command_database import command_database, user_by_login

ROLES = ("administrator", "operator", "member", "viewer")
VIA = "command line"

password_stdin = click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")


@click.group()
def user() -> None:
    """Add, list and disable users, or give one a new password.

    \b
    Example:
      portal user add ada@example.com --role administrator
    """


@user.command()
@click.argument("login")
@click.option("--name", help="The name others see. [the login]")
@click.option("--role", type=click.Choice(ROLES), default="member", show_default=True)
@password_stdin
def add(login: str, name: str | None, role: str, password_stdin: bool) -> None:
    """Add a user; the password is asked for.

    \b
    Example:
      portal user add ada@example.com --name "Ada L." --role operator
    """
    with command_database() as db:
        if not login.strip():
            raise InvalidCommand("The login is empty")
        if users.by_login(db, login) is not None:
            raise Conflict(f"There is a user {login!r} already")
        hashed = _new_password(password_stdin, login, name or "")
        made = users.create_user(db, login=login, name=name or login, role=role, password_hash=hashed)
        audit.record(db, "user_created", user=made, role=role, via=VIA)
    click.echo(f"{made.login} was added as {role}.")


@user.command(name="list")
def list_users() -> None:
    """List all users.

    \b
    Example:
      portal user list
    """
    with command_database(write=False) as db:
        for each in users.all_users(db):
            click.echo(f"{each.login:<32} {each.role:<14} {'disabled' if each.disabled else '-':<9} {each.name}")


@user.command()
@click.argument("login")
@click.option("--undo", is_flag=True, help="Let the user in again.")
def disable(login: str, undo: bool) -> None:
    """Shut a user out: ends every sign-in, refuses every token, withdraws turns of theirs that wait and stops those
    that run. Nothing of theirs is deleted.

    \b
    Example:
      portal user disable ada@example.com
    """
    stopped = ""
    with command_database() as db:
        found = user_by_login(db, login)
        if not undo:
            _keep_an_administrator(db, found)
            users.end_all_of_user(db, found)
            waited, ran = runs.stop_all_of_user(db, found.id, by_name=VIA)
            stopped = f" Turns of theirs: {waited} withdrawn, {ran} being stopped." if waited or ran else ""
        found.disabled = not undo
        audit.record(db, "user_enabled" if undo else "user_disabled", user=found, via=VIA)
    click.echo(f"{found.login} {'may sign in again' if undo else 'is shut out'}.{stopped}")


@user.command()
@click.argument("login")
@password_stdin
def reset(login: str, password_stdin: bool) -> None:
    """Give a user a new password, which is asked for; ends every sign-in of theirs.

    \b
    Example:
      portal user reset ada@example.com
    """
    with command_database() as db:
        found = user_by_login(db, login)
        found.password_hash = _new_password(password_stdin, found.login, found.name)
        users.end_all_of_user(db, found)
        audit.record(db, "password_reset", user=found, via=VIA)
    click.echo(f"{found.login} has a new password; every sign-in of theirs has ended.")


def _new_password(from_stdin: bool, login: str, name: str) -> str:
    """Its hash. Raises InvalidCommand with what is wrong with it."""
    if from_stdin:
        password = sys.stdin.readline().rstrip("\n")
    else:
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return passwords.hash_password(passwords.check_new(password, login=login, name=name))


def _keep_an_administrator(db: Session, found: User) -> None:
    if found.role == "administrator" and not found.disabled and users.administrators(db) == 1:
        raise Conflict(f"{found.login} is the only administrator: add another one first")
