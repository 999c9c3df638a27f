"""`portal doctor`: looks at every part and says of each fault what to do about it."""

import json
import os
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click
from sqlalchemy import make_url

from shared import settings as settings_module
from shared.database import is_current, make_engine, make_session_factory, transaction
from shared.errors import PlatformError, SettingsError
from shared.relay import fitness
from shared.relay.connection import RelayDown, connect
from shared.relay.keys import Keys
from shared.relay.presence import Presence, WorkerFacts
from shared.settings import Settings
from shared.store import users
from webapp.cli.configured import settings_of_running
from webapp.cli.console import printable
from webapp.cli.data_dir import DataDirFault, make_private, read_running
from webapp.cli.probe import probe
from webapp.cli.provider import BRIDGE, GATEWAY, sentence
from webapp.found import can_bridge, facts_of

LEAST_FREE_MB = 200
WEB_TIMEOUT_S = 5.0
NONE_INSTALLED = "No Hermes was found"  # as a worker says it; whatever else it says is about a setting
START_IT = "start the portal: `portal up`, or `portal {}` on a machine of its own"

Status = Literal["ok", "warning", "fault"]


@dataclass(frozen=True)
class Finding:
    """`detail`: what was found; `remedy`: what to do, for a warning or a fault."""

    part: str
    status: Status
    detail: str
    remedy: str = ""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--no-gateway", is_flag=True, help="Do not ask the gateway's agent for a PONG.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="That of the portal to look at. [PORTAL_DATA_DIR]",
)
def doctor(as_json: bool, no_gateway: bool, data_dir: Path | None) -> None:
    """Check settings, data directory, database, Redis, web, workers, bridge and gateway; say what to do about faults.

    Exit code 1 if there is a fault; warnings do not count.

    \b
    Example:
      portal doctor --json
      portal doctor --data-dir ./portal-data
    """
    if data_dir is not None:
        os.environ["PORTAL_DATA_DIR"] = str(data_dir)  # the probe is a process of its own
    findings = []
    for finding in examine(ask_gateway=not no_gateway):
        findings.append(finding)
        if not as_json:
            _print(finding)
    if as_json:
        click.echo(json.dumps([asdict(each) for each in findings], indent=2))
    sys.exit(1 if any(each.status == "fault" for each in findings) else 0)


def examine(*, ask_gateway: bool = True) -> Iterator[Finding]:
    """Every finding, as it is made. Without settings there is nothing else to look at."""
    try:
        settings_module.load()
    except SettingsError as error:
        for line in error.message.splitlines():
            yield Finding("settings", "fault", line, "correct it in the environment or portal.toml")
        return
    settings = settings_of_running()
    yield Finding("settings", "ok", "read")
    parts: list[tuple[str, Callable[[Settings], Iterator[Finding]]]] = [
        ("data directory", _data_dir), ("database", _database), ("redis", _redis), ("web", _web), ("workers", _workers),
        ("bridge", _bridge),
    ]  # fmt: skip
    if ask_gateway:
        parts.append(("gateway", _gateway))
    for name, look in parts:
        try:
            yield from look(settings)
        except PlatformError as error:
            yield Finding(name, "fault", error.message, _remedy(name, settings))


def _remedy(part: str, settings: Settings) -> str:
    own_redis = settings.redis_url is None or settings.redis_url.get_secret_value().startswith("unix://")
    return {
        "data directory": "give another one with PORTAL_DATA_DIR",
        "database": "start the database, or correct DATABASE_URL",
        "redis": START_IT.format("worker") if own_redis else "start Redis, or correct REDIS_URL",
        "workers": "see redis",
        "bridge": "see redis",
        "gateway": "start the gateway, or correct HERMES_GATEWAY_URL and HERMES_GATEWAY_KEY",
    }.get(part, "")


def _data_dir(settings: Settings) -> Iterator[Finding]:
    folder = settings.data_dir
    if not folder.exists():
        remedy = "`portal up` makes it; for one elsewhere: --data-dir or PORTAL_DATA_DIR"
        yield Finding("data directory", "warning", f"{folder} is not there yet", remedy)
        return
    try:
        make_private(folder)
    except DataDirFault as error:
        yield Finding("data directory", "fault", error.message, "choose another one with PORTAL_DATA_DIR")
        return
    free_mb = shutil.disk_usage(folder).free // 1_000_000
    if free_mb < LEAST_FREE_MB:
        yield Finding("data directory", "fault", f"{folder}: only {free_mb} MB are free", "free some space on its disk")
    else:
        yield Finding("data directory", "ok", f"{folder}, {free_mb} MB free")


def _database(settings: Settings) -> Iterator[Finding]:
    url = make_url(settings.resolved_database_url)
    name = url.render_as_string(hide_password=True)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():  # connecting would make it
        yield Finding("database", "fault", f"{name} is not there yet", "run `portal migrate`, or `portal up`")
        return
    engine = make_engine(settings)
    try:
        if not is_current(engine):
            yield Finding("database", "fault", f"{name} is not at this version", "run `portal migrate`")
            return
        with transaction(make_session_factory(engine), write=False) as db:
            has_administrator = settings.auth_disabled or users.any_administrator(db)
    finally:
        engine.dispose()
    yield Finding("database", "ok", name)
    if not has_administrator:
        yield Finding(
            "users",
            "warning",
            "there is no administrator: only the set-up page answers",
            "open the one-time link that `portal up` prints, or `portal user add LOGIN --role administrator`",
        )


def _redis(settings: Settings) -> Iterator[Finding]:
    if settings.redis_url is None:
        detail = f"none is set, and no `portal up` runs on {settings.data_dir}"
        yield Finding("redis", "fault", detail, START_IT.format("worker"))
        return
    client = connect(settings)
    try:
        found = fitness.faults(client, settings.redis_url.get_secret_value())
    finally:
        client.close()
    for fault in found:
        problem, _, remedy = fault.partition(": ")
        yield Finding("redis", "fault", problem, remedy)
    if not found:
        yield Finding("redis", "ok", "answers, keeps what it is given")


def _web(settings: Settings) -> Iterator[Finding]:
    running = read_running(settings.data_dir)
    if running is None and settings.public_url is None:
        yield Finding("web", "warning", f"no `portal up` runs on {settings.data_dir}", START_IT.format("web"))
        return
    address = running.address if running is not None else settings.public_url
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{address}/readyz", timeout=WEB_TIMEOUT_S):
            yield Finding("web", "ok", f"{address} is ready")
    except urllib.error.HTTPError as error:
        body = error.read(500).decode("utf-8", "replace").strip()
        yield Finding("web", "fault", f"{address} is not ready ({error.code}): {body}", "mend what it names")
    except OSError as error:
        yield Finding("web", "fault", f"{address} does not answer ({error})", START_IT.format("web"))


def _workers(settings: Settings) -> Iterator[Finding]:
    if settings.redis_url is None:
        return
    workers = _living(settings)
    if not workers:
        yield Finding("workers", "fault", "none is alive: turns wait in their queues", START_IT.format("worker"))
    for each in workers:
        status: Status = "warning" if each.draining else "ok"
        detail = f"{each.host}, process {each.pid}: {len(each.runs)} of {each.concurrency} turns"
        yield Finding("workers", status, detail, "it takes no new turns: it is being stopped" if each.draining else "")


def _living(settings: Settings) -> list[WorkerFacts]:
    client = connect(settings)
    try:
        return Presence(client, Keys(settings.redis_prefix)).workers()
    finally:
        client.close()


def _bridge(settings: Settings) -> Iterator[Finding]:
    """What the workers have found of an installed Hermes and its profiles. Several on a machine say the same once."""
    if settings.redis_url is None:
        return
    told = [finding for worker in _living(settings) for finding in _bridge_of(worker, settings)]
    yield from dict.fromkeys(told)


def _bridge_of(worker: WorkerFacts, settings: Settings) -> Iterator[Finding]:
    host = printable(worker.host)
    hermes = next((source for source in worker.sources if source.source == BRIDGE), None)
    if hermes is None:
        yield Finding("bridge", "warning", f"{host}: not looked for Hermes yet", "ask again in a moment")
        return
    if not hermes.ok:
        yield _no_hermes(host, printable(hermes.why), has_gateway=settings.hermes_gateway_url is not None)
        return
    version = next((f" {printable(each.version)}" for each in worker.profiles if each.version), "")
    warm = sum(each.sessions for each in worker.profiles)
    yield Finding("bridge", "ok", f"{host}: Hermes{version} is installed, {warm} chats are warm")
    for each in worker.profiles:
        whose = "the default profile" if each.profile is None else f"profile {printable(each.profile)}"
        why = printable(each.why)
        if each.state == "failed":
            remedy = "mend that; it is tried again with the next turn"
            yield Finding("bridge", "fault", f"{host}: the agent of {whose} cannot start: {why}", remedy)
        elif each.state == "missing":
            set_up = "run `hermes setup` as the user of the worker, or set HERMES_HOME"
            remedy = set_up if each.profile is None else "give its right path on the page of profiles"
            yield Finding("bridge", "warning", f"{host}: {whose} cannot be used: {why}", remedy)


def _no_hermes(host: str, why: str, *, has_gateway: bool) -> Finding:
    problem, _, remedy = why.partition(". ")
    if not problem.startswith(NONE_INSTALLED):  # a setting leads nowhere
        return Finding("bridge", "fault", f"{host}: {problem}", remedy)
    if has_gateway:
        return Finding("bridge", "ok", f"{host}: no Hermes is installed, chats go to the gateway")
    return Finding("bridge", "warning", f"{host}: no Hermes is installed", remedy)


def _gateway(settings: Settings) -> Iterator[Finding]:
    if settings.hermes_gateway_url is None:
        yield _no_gateway(settings)
        if settings.demo_url is None:
            return
    found = probe(GATEWAY)
    remedy = "" if found.ok else "look at the gateway's own log; check HERMES_GATEWAY_URL and HERMES_GATEWAY_KEY"
    yield Finding("gateway", "ok" if found.ok else "fault", sentence(found), remedy)


def _no_gateway(settings: Settings) -> Finding:
    try:
        living = [] if settings.redis_url is None else _living(settings)
    except RelayDown:  # told of Redis already; the agent of the API can be asked without it
        living = []
    has_demo = settings.demo_url is not None
    if any(facts_of(worker, BRIDGE) for worker in living) and can_bridge(living):
        by_api = "the demo agent answers chats by API" if has_demo else "nothing answers chats by API"
        return Finding("gateway", "ok", f"none is configured: new chats go to the installed Hermes, {by_api}")
    who = "the demo agent answers" if has_demo else "nothing answers"
    remedy = "set HERMES_GATEWAY_URL, or install Hermes for the user that runs the worker"
    return Finding("gateway", "warning", f"none is configured: {who}", remedy)


def _print(finding: Finding) -> None:
    mark = {"ok": "ok", "warning": "warning", "fault": "FAULT"}[finding.status]
    click.echo(f"{mark:<8} {finding.part:<15} {finding.detail}")
    if finding.remedy:
        click.echo(f"{'':<8} {'':<15} -> {finding.remedy}")
