"""`portal token`: API tokens for programs. A token is shown once; only its hash is stored (S9)."""

from datetime import timedelta

import click

from shared import clock
from shared.store import audit, users
from shared.tokens import new_token, token_hash
from webapp.cli.command_database import command_database, user_by_login

SCOPES = ("read", "write")
VIA = "command line"


@click.group()
def token() -> None:
    """Add, list and revoke API tokens.

    \b
    Example:
      portal token add ada@example.com --name nightly-report
    """


@token.command()
@click.argument("login")
@click.option("--name", required=True, help="What it is for.")
@click.option("--scope", "scopes", type=click.Choice(SCOPES), multiple=True, help="[both]")
@click.option("--days", type=click.IntRange(1, 3650), help="How long it is good for. [for ever]")
def add(login: str, name: str, scopes: tuple[str, ...], days: int | None) -> None:
    """Make a token that acts as a user, and print it: it is not shown again.

    \b
    Example: one that only reads, for a month
      portal token add ada@example.com --name dashboard --scope read --days 30
    """
    secret = new_token()
    with command_database() as db:
        found = user_by_login(db, login)
        made = users.create_api_token(
            db,
            user=found,
            name=name,
            token_hash=token_hash(secret),
            scopes=scopes or SCOPES,
            expires_at=None if days is None else clock.now() + timedelta(days=days),
        )
        audit.record(db, "token_created", user=found, token=made.id, scopes=made.scopes, via=VIA)
    click.echo(secret)


@token.command(name="list")
@click.option("--user", "login", help="Only this user's.")
def list_tokens(login: str | None) -> None:
    """List the tokens that are not revoked: id, user, scopes, last use, end, name.

    \b
    Example:
      portal token list --user ada@example.com
    """
    with command_database(write=False) as db:
        logins = {each.id: each.login for each in users.all_users(db)}
        for each in users.list_api_tokens(db, user_by_login(db, login).id if login else None):
            used = f"{each.last_used_at:%Y-%m-%d}" if each.last_used_at else "never used"
            ends = f"until {each.expires_at:%Y-%m-%d}" if each.expires_at else "for ever"
            scopes = "+".join(each.scopes)
            click.echo(f"{each.id}  {logins[each.user_id]:<28} {scopes:<11} {used:<11} {ends:<17} {each.name}")


@token.command()
@click.argument("token_id")
def revoke(token_id: str) -> None:
    """End a token, by the id that `portal token list` shows.

    \b
    Example:
      portal token revoke 4f2c9d8e7b6a5f4e3d2c1b0a99887766
    """
    with command_database() as db:
        ended = users.revoke_api_token(db, token_id)
        owner = users.get(db, ended.user_id)
        audit.record(db, "token_revoked", user=owner, token=ended.id, via=VIA)
    click.echo(f"The token {ended.name!r} has ended.")
