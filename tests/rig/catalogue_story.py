"""A portal with profiles, models, permissions and workers that tell of them: what the pages about them have to show."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session, sessionmaker

from shared import clock
from shared.database import transaction
from shared.models import ApprovalGrant, User
from shared.relay.connection import connect_url
from shared.relay.keys import Keys
from shared.relay.presence import Presence, ProfileFacts, SourceFacts, WorkerFacts
from shared.store import approval_grants, catalogue

CRASH = (
    "The agent's process ended (exit code 1) before it was ready. It said last: Traceback (most recent call last):\n"
    '  File "/srv/hermes/hermes-agent/run_agent.py", line 41, in <module>\n    import tools\n'
    "ModuleNotFoundError: No module named 'tools'"
)
COMMAND = "psql staging -1 -c \"delete from invoice_daily where month = '2026-10'\"  &&  rm -rf /var/tmp/exports/*"


def worker_facts(worker_id: str = "hel-1", **given: Any) -> WorkerFacts:
    """Of a worker that has Hermes; `profiles` and the rest may be given."""
    facts: dict[str, Any] = {
        "worker_id": worker_id,
        "host": worker_id,
        "pid": 7,
        "started_at": clock.now().replace(microsecond=0),
        "sources": [SourceFacts(source="api_server", ok=True), SourceFacts(source="cli", ok=True)],
        "looked_at": clock.now().replace(microsecond=0),
        **given,
    }
    return WorkerFacts(**facts)


def without_hermes(worker_id: str = "hel-1", why: str = "No Hermes was found on this machine.") -> WorkerFacts:
    sources = [SourceFacts(source="api_server", ok=True), SourceFacts(source="cli", ok=False, why=why)]
    return worker_facts(worker_id, sources=sources)


def story_facts() -> list[WorkerFacts]:
    now = clock.now().replace(microsecond=0)
    ready = {"state": "ready", "version": "0.19.0", "sessions": 4, "busy": 1, "memory_mb": 212.4}
    keys = {"OPENROUTER_API_KEY": True, "NOUS_API_KEY": False}
    one = [
        ProfileFacts(profile=None, **ready),
        ProfileFacts(profile="finance-ops", state="idle"),
        ProfileFacts(profile="research", state="failed", why=CRASH),
        ProfileFacts(profile="legal", state="missing", why="Its home is not there."),
    ]
    other = [ProfileFacts(profile=None, state="idle"), ProfileFacts(profile="research", state="starting")]
    return [
        worker_facts(name, profiles=profiles, keys=keys, looked_at=now)
        for name, profiles in (("hel-1", one), ("hel-2", other))
    ]


def tell_story(factory: sessionmaker[Session], owner: User, folder: Path) -> None:
    """The rows, and skills in both places below `folder` (the data directory)."""
    with transaction(factory) as db:
        for name in ("finance-ops", "research", "legal"):
            catalogue.put_profile(db, name=name, hermes_home=f"/srv/hermes/profiles/{name}")
        catalogue.choose_profile(db, catalogue.profile(db, "finance-ops"))
        catalogue.put_language_model(
            db, name="hermes-4", model="nousresearch/hermes-4-405b", provider="openrouter",
            key_ref="OPENROUTER_API_KEY", context_window=131_072, is_default=True,
        )  # fmt: skip
        catalogue.put_language_model(
            db, name="local-qwen", model="qwen3:32b", provider="custom", base_url="http://10.0.4.17:11434/v1",
            context_window=32_768,
        )  # fmt: skip
        catalogue.put_language_model(db, name="nous-preview", model="hermes-5-preview", key_ref="NOUS_API_KEY")
        for pattern, what, command in (
            ("SQL DELETE without a limit", "deletes rows in a database", COMMAND),
            ("recursive delete", "deletes a folder and all in it", "rm -r build/\u202e dist/"),
        ):
            approval_grants.add(
                db, profile="finance-ops", pattern_key=pattern, user=owner, description=what, command=command,
                reason="the staging copy, made anew each night",
            )  # fmt: skip
        old = approval_grants.add(db, profile="finance-ops", pattern_key="git force push", user=owner)
        approval_grants.revoke(db, old.id, user=owner)
        db.get_one(ApprovalGrant, old.id).granted_at = clock.now() - timedelta(days=3)
    for name, words in SKILLS:
        path = folder / "skills" / name / "SKILL.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"---\nname: {name}\ndescription: {words}\n---\n# {name}\n", encoding="utf-8")


SKILLS = (
    (
        "close-the-month",
        "Reconciles invoices, payments and exports at the end of a month, and lists what does not fit.",
    ),
    ("code-review", "Reads a diff for faults, risks and what is missing, in the order of weight."),
    ("contracts", "Finds notice periods, prices and renewals in contracts, with the page of each."),
    ("release-notes", "整理版本说明：合并提交记录，按影响分组。"),
    ("sql", "Writes and explains queries for the warehouse; never changes data."),
)


@contextmanager
def telling(redis_url: str, facts: list[WorkerFacts]) -> Iterator[None]:
    """Have the workers of these facts live as long as the block."""
    presence, is_over = Presence(connect_url(redis_url), Keys()), threading.Event()

    def beat() -> None:
        for each in facts:
            presence.beat_worker(each)

    def beat_on() -> None:
        while not is_over.wait(10):
            beat()

    beat()
    thread = threading.Thread(target=beat_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        for each in facts:
            presence.leave_worker(each.worker_id)
