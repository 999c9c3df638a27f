"""`portal provider`: what answers, and whether it does."""

import json
import sys

import click

from shared.errors import PlatformError
from webapp.cli.configured import settings_of_running
from webapp.cli.probe import Probe, probe

GATEWAY = "api_server"
BRIDGE = "cli"
NAMES = {"gateway": GATEWAY, "demo": GATEWAY, GATEWAY: GATEWAY, "bridge": BRIDGE, BRIDGE: BRIDGE}
"""The names people use -> the source of DESIGN 3. The demo agent is a gateway: the one there is when none is set. The
bridge is an installed Hermes."""


@click.group()
def provider() -> None:
    """List the agents that answer, and test one.

    \b
    Example:
      portal provider test gateway
    """


@provider.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_providers(as_json: bool) -> None:
    """List the agents: name, what it is, what it can do, or why it cannot be had on this machine. None is asked
    anything.

    \b
    Example:
      portal provider list
    """
    found = [_probe(source, ask=False) for source in (GATEWAY, BRIDGE)]
    if as_json:
        click.echo(json.dumps([each.model_dump() for each in found]))
        return
    for each in found:
        who = f"{each.name} {each.version}".strip()
        can = ", ".join(name for name, value in each.capabilities.items() if value) or "nothing that is known"
        click.echo(f"{each.source:<12} {who}  " + (f"can: {can}" if each.ok else f"cannot be used here: {each.error}"))


@provider.command()
@click.argument("name", type=click.Choice(list(NAMES)))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def test(name: str, as_json: bool) -> None:
    """Ask one agent to reply with exactly PONG: without a session, without tools. Exit code 1 if it does not.

    \b
    Example:
      HERMES_GATEWAY_URL=http://127.0.0.1:8642 HERMES_GATEWAY_KEY=... portal provider test gateway
    """
    found = _probe(NAMES[name], ask=True)
    if as_json:
        click.echo(found.model_dump_json())
    else:
        click.echo(sentence(found))
    sys.exit(0 if found.ok else 1)


def sentence(found: Probe) -> str:
    """The result for people."""
    who = f"{found.name} {found.version}".strip()
    if found.ok:
        return f"{who} answered PONG in {found.latency_ms or 0:.0f} ms."
    return f"{who} did not answer as asked: {found.error or repr(found.answer[:200])}"


def _probe(source: str, *, ask: bool) -> Probe:
    settings_of_running()
    try:
        return probe(source, ask=ask)
    except PlatformError as error:
        sys.exit(f"portal: {error.message}")
