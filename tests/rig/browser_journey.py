"""A person at a browser on a journey's portal: what they see and click, and whether the page shows what is stored.

with browser_at(chromium, journey, session_id) as person:
    run_id = person.say("Hello")
    person.wait_end(run_id)
    journey.check(session_id)
    person.check()
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Page

from shared.database import transaction
from shared.store import messages as message_store
from shared.transcript import from_json
from tests.rig.chromium import Chromium, Watched
from tests.rig.journey import END_S, Journey
from tests.rig.portal import wait_until
from webapp.markdown import render_markdown

END_MS = END_S * 1000
SHOWN_S = 30.0
LOST_CONNECTION = re.compile(
    r"WebSocket connection to|net::ERR_|Failed to load resource: the server responded with a status of 50[234]"
)
"""What Chromium itself writes to the console while the portal is away."""
TEXTS_OF = """htmls => htmls.map(html => new DOMParser().parseFromString(html, 'text/html').body.textContent)"""
TURNS = """() => [...document.querySelectorAll('#turns > article.turn')].map(turn => ({
    id: turn.id, order: Number(turn.dataset.order),
    says: turn.querySelector('.says')?.textContent ?? null,
    parts: [...turn.querySelectorAll('.answer .prose')].map(part => part.textContent)}))"""


class Person:
    """One page. `loses_connection`: the portal goes away in this journey, and Chromium says so on its console."""

    def __init__(self, watched: Watched, journey: Journey, session_id: str, *, loses_connection: bool) -> None:
        self.page: Page = watched.page
        self.journey = journey
        self.session_id = session_id
        self._watched = watched
        self._loses_connection = loses_connection
        self.page.set_default_timeout(END_MS)
        self.page.goto(f"{journey.portal.address}/chat/{session_id}")
        self.wait_live()

    # ---- looking

    def wait_live(self) -> None:
        self.page.wait_for_selector('#connection[data-conn="live"]')

    def text(self, run_id: str) -> str:
        """The answer as it stands on the page; empty where there is none."""
        return str(self.page.evaluate("id => document.getElementById(id)?.textContent ?? ''", f"run-{run_id}-answer"))

    def wait_text(self, run_id: str, chars: int = 1) -> str:
        has_chars = "([id, n]) => (document.getElementById(id)?.textContent.length ?? 0) >= n"
        self.page.wait_for_function(has_chars, arg=[f"run-{run_id}-answer", chars])
        return self.text(run_id)

    def has_ended(self, run_id: str) -> bool:
        return self.page.locator(f"#run-{run_id} .fold, #run-{run_id}-end .ending").count() > 0

    def wait_end(self, *run_ids: str) -> None:
        for run_id in run_ids:
            self.page.wait_for_selector(f"#run-{run_id} .fold, #run-{run_id}-end .ending", state="attached")

    def queue(self) -> list[str]:
        """The texts of the turns that wait, in their order."""
        found: list[str] = self.page.locator("#queue .q > .cut.grow").all_text_contents()
        return found

    # ---- doing

    def say(self, text: str, *, by: str = "Enter") -> str:
        """Type and send, and wait until the portal has taken it; the run's id."""
        known = {run.id for run in self.journey.runs_of(self.session_id)}
        self.page.fill("#text", text)
        if by == "Enter":
            self.page.press("#text", "Enter")
        else:
            self.page.click("#send")
        run_id = self.new_run(known)
        self.page.wait_for_function("() => document.getElementById('text').value === ''")
        self.journey.accepted[run_id] = text
        return run_id

    def new_run(self, known: set[str]) -> str:
        """The one run of this session that is not among `known`, as soon as it is there."""

        def look() -> str | None:
            self.page.wait_for_timeout(20)  # lets the browser work
            return next((run.id for run in self.journey.runs_of(self.session_id) if run.id not in known), None)

        return str(wait_until(look, END_S, "a new turn"))

    def reload(self) -> None:
        self.page.reload(wait_until="domcontentloaded")

    # ---- the end of every journey

    def check(self) -> None:
        """Each message once, in order, its text the stored one; no violation, no error, nothing asked of strangers."""
        with transaction(self.journey.factory, write=False) as db:
            rows = message_store.page(db, self.session_id, limit=50)
            wanted = [self._wanted(row) for row in rows]
        give_up_at = time.monotonic() + SHOWN_S  # another page may have it a moment before this one
        while (shown := self._shown()) != wanted and time.monotonic() < give_up_at:
            self.page.wait_for_timeout(50)
        assert shown == wanted
        orders = [turn["order"] for turn in self.page.evaluate(TURNS)]
        assert orders == sorted(orders)
        self.check_quiet()

    def check_quiet(self) -> None:
        assert self._watched.violations() == []
        assert self._watched.foreign(self.journey.portal.address) == []
        unexpected = [e for e in self._watched.errors if not (self._loses_connection and LOST_CONNECTION.search(e))]
        assert unexpected == []

    def _shown(self) -> list[dict[str, Any]]:
        turns = self.page.evaluate(TURNS)
        return [{"id": turn["id"], "says": turn["says"], "parts": _words(turn["parts"])} for turn in turns]

    def _wanted(self, row: Any) -> dict[str, Any]:
        if row.role == "USER":
            return {"id": f"message-{row.id}", "says": row.content, "parts": []}
        saved = message_store.transcript_of(row)
        parts = [] if saved is None else [part.text for part in from_json(saved).answer_parts if part.text]
        assert "".join(parts) == row.content
        texts = self.page.evaluate(TEXTS_OF, [str(render_markdown(part)) for part in parts])
        return {"id": f"run-{row.run_id}", "says": None, "parts": _words(texts)}


@contextmanager
def browser_at(
    chromium: Chromium, journey: Journey, session_id: str, *, loses_connection: bool = False, **context: Any
) -> Iterator[Person]:
    """A fresh browser on a session; at the end it must have been quiet."""
    with chromium.page(**context) as watched:
        person = Person(watched, journey, session_id, loses_connection=loses_connection)
        yield person
        person.check_quiet()


def _words(texts: list[str]) -> list[str]:
    return [re.sub(r"\s+", " ", text).strip() for text in texts]
