"""`portal`: the one command. Sub-commands are imported when they are used, so `portal --help` is there at once."""

import importlib
from typing import Any

import click

COMMANDS = {
    "up": ("webapp.cli.up:up", "Start the whole portal on this machine."),
    "web": ("webapp.cli.processes:web", "Start one web process."),
    "worker": ("webapp.cli.processes:worker", "Start one worker process."),
    "beat": ("webapp.cli.processes:beat", "Start the process that sends periodic tasks."),
    "flower": ("webapp.cli.flower:flower", "Start Flower, Celery's own web page, behind a login."),
    "migrate": ("webapp.cli.migrate:migrate", "Bring the database to this version's tables."),
    "doctor": ("webapp.cli.doctor:doctor", "Check every part and say what to do about each fault."),
    "provider": ("webapp.cli.provider:provider", "List and test the agents that answer."),
    "run": ("webapp.cli.run:run", "Send one turn and print the answer as it comes."),
    "user": ("webapp.cli.user:user", "Add, list, disable users; reset a password."),
    "token": ("webapp.cli.token:token", "Add, list, revoke API tokens."),
    "openapi": ("webapp.cli.openapi:openapi", "Print the description of the REST API."),
    "bench": ("webapp.cli.bench.command:bench", "Measure this machine's portal against its goals."),
}
"""name -> (module:attribute, help in one line)."""


class LazyGroup(click.Group):
    """A group whose sub-commands are modules that are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="hermes-portal", prog_name="portal")
def portal(**_: Any) -> None:
    """Hermes Portal: a team web portal for Hermes and other agents.

    \b
    Example: start everything on this machine, then open the printed address
      portal up
    """


if __name__ == "__main__":
    portal(prog_name="portal")
