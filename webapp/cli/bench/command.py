"""`portal bench`: measures, prints a table, writes JSON."""

import json
import platform
from pathlib import Path
from typing import Any

import click

from shared import clock
from webapp.cli.bench.rows import ROWS, Row
from webapp.cli.bench.stage import BenchError, Stage


@click.command(epilog="Example: portal bench --only one-stream --json bench.json")
@click.option("--only", multiple=True, type=click.Choice(list(ROWS)), help="Only this row; may be given several times.")
@click.option(
    "--database-url",
    envvar="PORTAL_BENCH_DATABASE_URL",
    help="Measure on this empty database instead of SQLite in a folder that is thrown away.",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures to this file too.")
def bench(only: tuple[str, ...], database_url: str | None, json_file: Path | None) -> None:
    """Measure the portal on this machine, each figure beside its floor in the same run (DESIGN 11).

    Starts a portal and a demo gateway of its own; nothing of yours is touched. A figure over its reach is marked; the
    exit code is 0 all the same, since a busy machine is no fault of the portal.
    """
    results: list[dict[str, Any]] = []
    with Stage(database_url) as stage:
        for name in only or ROWS:
            try:
                row = ROWS[name](stage)
            except BenchError as error:
                click.echo(f"{name}: not measured: {error.message}", err=True)
                results.append({"row": name, "error": error.message})
                continue
            _print(row)
            results.append(_as_json(name, row))
    report = {
        "at": clock.iso_ms(clock.now()),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "database": database_url.split(":", 1)[0] if database_url else "sqlite",
        "rows": results,
    }
    text = json.dumps(report, indent=2)
    if json_file is not None:
        json_file.write_text(text + "\n", encoding="utf-8")
    click.echo(json.dumps(report))
    if any("error" in row for row in results):
        raise SystemExit(1)


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
