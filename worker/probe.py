"""`python -m worker.probe <source> [--no-ping]`: asks one backend for its PONG and prints what came, as one JSON line.

A process of its own, so that the web side and the shell can test a backend without knowing one (`portal provider`).
"""

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from shared import settings as portal_settings
from shared.database import make_engine, make_session_factory
from shared.errors import PlatformError
from shared.settings import Settings
from worker.backends import offered
from worker.backends.base import Backend
from worker.backends.registry import Backends, HoldsAgents


def probe(backend: Backend, source: str, *, ping: bool) -> dict[str, Any]:
    """`source, name, ok, version, capabilities`; with a ping also `latency_ms`, `answer` and `error`."""
    found: dict[str, Any] = {"source": source, "name": backend.name, "ok": True}
    if ping:
        result = backend.ping()
        found |= {"ok": result.ok, "latency_ms": result.latency_ms, "answer": result.got, "error": result.error or ""}
    return found | {"version": backend.version, "capabilities": asdict(backend.capabilities)}


def fault_of(backend: Backend, source: str, settings: Settings) -> str | None:
    """Why the backend cannot be had on this machine; None: nothing that is seen without asking it."""
    fault = offered.fault_of(source, settings, ()) if source in offered.FAULTS else None
    if fault is None and isinstance(backend, HoldsAgents):
        return offered.home_fault(settings.hermes_home)
    return fault


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m worker.probe", description=__doc__)
    parser.add_argument("source", help="the source of a session: api_server, cli")
    parser.add_argument("--no-ping", action="store_true", help="only tell what it is and can")
    arguments = parser.parse_args()
    settings = portal_settings.load()
    engine = make_engine(settings)
    backends = Backends(settings, make_session_factory(engine))
    try:
        backend = backends.backend_for(arguments.source, None)
        fault = fault_of(backend, arguments.source, settings)
        if fault is None:
            found = probe(backend, arguments.source, ping=not arguments.no_ping)
        else:
            found = {"source": arguments.source, "name": backend.name, "ok": False, "error": fault}
    except PlatformError as error:
        found = {"source": arguments.source, "name": arguments.source, "ok": False, "error": error.message}
    finally:
        backends.close()
        engine.dispose()
    print(json.dumps(found))  # noqa: T201 - the answer
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
