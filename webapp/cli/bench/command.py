"""`portal bench`: measures, prints a table, writes JSON."""

import json
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from shared import clock, collector
from webapp.cli.bench import bridge_rows, rows
from webapp.cli.bench.bridge_stage import BridgeStage
from webapp.cli.bench.row import Row
from webapp.cli.bench.stage import BenchError, Stage

NAMES = {"gateway": list(rows.ROWS), "bridge": list(bridge_rows.ROWS)}
"""Of the rows of each backend."""


@click.command()
@click.option("--backend", type=click.Choice(list(NAMES)), default="gateway", help="What answers. [gateway]")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice([name for names in NAMES.values() for name in names]),
    help="Only this row of the backend; may be given several times.",
)
@click.option(
    "--hermes-python",
    envvar="HERMES_AGENT_BRIDGE_PYTHON",
    metavar="PATH",
    help="For the bridge: the Python in which hermes-agent is installed.",
)
@click.option(
    "--database-url",
    envvar="PORTAL_BENCH_DATABASE_URL",
    help="Measure on this empty database instead of SQLite in a folder that is thrown away.",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures to this file too.")
def bench(
    backend: str, only: tuple[str, ...], hermes_python: str | None, database_url: str | None, json_file: Path | None
) -> None:
    """Measure the portal on this machine, each figure beside its floor in the same run (DESIGN 11).

    Starts a portal of its own, and a demo gateway or a hermes-agent with a model that only streams; nothing of yours
    is touched. A figure over its reach is marked; the exit code is 0 all the same, since a busy machine is no fault of
    the portal.

    \b
    Examples:
      portal bench --only one-stream --json bench.json
      portal bench --backend bridge --hermes-python ~/hermes/venv/bin/python
    """
    if strange := [name for name in only if name not in NAMES[backend]]:
        raise click.UsageError(f"{strange[0]} is no row of the {backend}: those are {', '.join(NAMES[backend])}")
    results: list[dict[str, Any]] = []
    collector.set_aside()  # the clocks that start and stop here are not to wait for a round of its own
    try:
        with _measures(backend, hermes_python, database_url) as measures:
            for name in only or NAMES[backend]:
                try:
                    row = measures[name]()
                except BenchError as error:
                    click.echo(f"{name}: not measured: {error.message}", err=True)
                    results.append({"row": name, "error": error.message})
                    continue
                _print(row)
                results.append(_as_json(name, row))
    except BenchError as error:
        click.echo(f"portal: {error.message}", err=True)
        raise SystemExit(1) from None
    report = {
        "at": clock.iso_ms(clock.now()),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "backend": backend,
        "database": database_url.split(":", 1)[0] if database_url else "sqlite",
        "rows": results,
    }
    text = json.dumps(report, indent=2)
    if json_file is not None:
        json_file.write_text(text + "\n", encoding="utf-8")
    click.echo(json.dumps(report))
    if any("error" in row for row in results):
        raise SystemExit(1)


@contextmanager
def _measures(
    backend: str, hermes_python: str | None, database_url: str | None
) -> Iterator[dict[str, Callable[[], Row]]]:
    """What takes each row, while the stage stands. Raises BenchError when it cannot be set up."""
    if backend == "bridge":
        with BridgeStage(hermes_python, database_url) as bridge:
            yield {name: partial(row, bridge) for name, row in bridge_rows.ROWS.items()}
    else:
        with Stage(database_url) as stage:
            yield {name: partial(row, stage) for name, row in rows.ROWS.items()}


def _print(row: Row) -> None:
    click.echo(row.name)
    for name, value in row.figures.items():
        reach = f"   reach {row.reach[name]:g}" if name in row.reach else ""
        mark = "   MISSED" if name in row.missed else ""
        floor = f"   floor {row.floor[name]:.2f}, x{value / row.floor[name]:.1f}" if row.floor.get(name) else ""
        click.echo(f"  {name:<28}{value:>10.2f}{reach}{floor}{mark}")
    for note in row.notes:
        click.echo(f"  {note}")


def _as_json(name: str, row: Row) -> dict[str, Any]:
    return {
        "row": name,
        "title": row.name,
        "figures": {k: round(v, 4) for k, v in row.figures.items()},
        "reach": row.reach,
        "floor": {k: round(v, 4) for k, v in row.floor.items()},
        "missed": row.missed,
    }
