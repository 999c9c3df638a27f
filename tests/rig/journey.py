"""A journey: a whole real portal with short times, pages that follow its sessions, and one check of all promises.

    with Journey() as journey:                  # `portal up` with the demo gateway; its parts may be given
        session_id = journey.new_session()
        tab = journey.open(session_id)
        run_id = tab.say("stream 50 every 10 ms")
        tab.wait_end(run_id)
        journey.check(session_id, tab)          # page text = database text = what the backend said, and P1-P7

What the backend said is asked of the backend itself: the demo gateway keeps each answer at GET /v1/responses/{id}.
"""

import itertools
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import httpx
import psutil
from sqlalchemy import select

from shared.database import make_engine, make_session_factory, transaction
from shared.models import ChatMessage, ChatSession, Pause, Run
from shared.run_state import ACTIVE, FINAL, RunState
from shared.store import messages as message_store
from shared.store import users
from shared.tokens import new_token, token_hash
from tests.rig.portal import Portal, wait_until
from tests.rig.recorder import RecorderPage
from tests.rig.redis_server import RedisServer
from tests.rig.standstill import stop_between_writes

SHORT = {
    "PORTAL_LEASE_RENEW_S": "1",
    "PORTAL_JANITOR_EVERY_S": "1",
    "PORTAL_JANITOR_YOUNG_S": "0",
    "PORTAL_DISPATCH_AGAIN_S": "2",
    "PORTAL_DATABASE_LOOK_S": "1",
    "PORTAL_ABORT_GRACE_S": "60",
    "PORTAL_ABORT_FORCE_S": "120",
    "PORTAL_APPROVAL_TIMEOUT_S": "600",
    "PORTAL_SHUTDOWN_GRACE_S": "1",
    "PORTAL_MAX_SOCKETS_PER_USER": "0",
    "PORTAL_SUBMITS_PER_MINUTE": "0",
    "PORTAL_WORKER_CONCURRENCY": "20",
}
"""What waits for minutes in a real portal, in seconds; the patience with what is late stays longer than a machine that
is busy with other things takes to come round."""
SHORT_LEASES = {"PORTAL_LEASE_S": "8", "PORTAL_LEASE_GIVE_UP_S": "6.5"}
"""Besides, where a test kills workers: that one is lost is found out soon."""
END_S = 120.0
"""How long a test waits for the end of a turn: the machine may be busy with other things."""
QUEUE_FACTS = frozenset({"queue_id", "queued_at", "question_id", "asked_by", "number"})
WORDS_OF_END = {
    RunState.COMPLETED: "SUCCESS",
    RunState.FAILED: "FAILED",
    RunState.ABORTED: "STOPPED",
    RunState.INTERRUPTED: "INTERRUPTED",
}


class Tab(RecorderPage):
    """A page that also asks: each command is answered by `ack` or `error`."""

    _numbers = itertools.count(1)

    def __init__(self, journey: "Journey", session_id: str, headers: Mapping[str, str] | None) -> None:
        self.journey = journey
        self.given_headers = dict(headers or {})
        super().__init__(journey.socket_url, session_id, headers=headers)

    def ask(self, **command: Any) -> dict[str, Any]:
        """The answer to a command, whichever it is."""
        asked = f"ask-{next(self._numbers)}"
        self.send(id=asked, **command)
        answer: dict[str, Any] = self.wait(lambda page: next((a for a in page.answers if a.get("id") == asked), None))
        return answer

    def say(self, text: str, **given: Any) -> str:
        """Submit a turn; its run id."""
        answer = self.ask(event="run", input=text, **given)
        assert answer["event"] == "ack", answer
        self.journey.accepted[answer["run_id"]] = text
        return str(answer["run_id"])

    def abandon(self) -> None:
        """Stop without looking back: a test that fails must not wait for its pages."""
        self._stopping = True
        self.cut()

    def wait_text(self, run_id: str, chars: int = 1) -> str:
        """The answer's text as soon as it has so many characters."""
        self.wait(lambda page: len(page.text(run_id)) >= chars, timeout_s=END_S)
        return self.text(run_id)

    def wait_end(self, *run_ids: str) -> None:
        self.wait(lambda page: page.ended.issuperset(run_ids), timeout_s=END_S)

    def wait_connected(self, count: int) -> None:
        """Until it has connected so often, and was told something since."""
        self.wait(lambda page: page.connects >= count, timeout_s=END_S)
        known = len(self.seen)
        self.wait(lambda page: len(page.seen) > known, timeout_s=END_S)

    def wait_pause(self, run_id: str) -> Any:
        """The open approval or question of a run."""
        self.wait(lambda page: run_id in page.runs and page.runs[run_id].open_pauses, timeout_s=END_S)
        return self.runs[run_id].open_pauses[0]


class Journey:
    """The portal, its database, and every turn that was accepted."""

    def __init__(
        self,
        *,
        redis: RedisServer | None = None,
        gateway_url: str | None = None,
        database_url: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        given = {"AUTH_DISABLED": "1", **SHORT}
        if database_url is not None:
            given["DATABASE_URL"] = database_url
        if redis is not None:
            given["REDIS_URL"] = redis.url
        if gateway_url is not None:
            given |= {"HERMES_GATEWAY_URL": gateway_url, "HERMES_GATEWAY_KEY": "a-key-for-the-scripted-gateway"}
        self.accepted: dict[str, str] = {}
        self.tabs: list[Tab] = []
        self.portal = Portal(environ={**given, **(environ or {})})
        self.engine = make_engine(database_url or f"sqlite:///{self.portal.data_dir}/portal.db")
        self.factory = make_session_factory(self.engine)
        self._web = self.portal.client()
        self._demo: httpx.Client | None = None
        if gateway_url is None:
            self._demo = self._demo_client()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for tab in self.tabs:
            tab.abandon()
        self._web.close()
        if self._demo is not None:
            self._demo.close()
        self.engine.dispose()
        self.portal.close()

    @property
    def socket_url(self) -> str:
        return self.portal.address.replace("http", "ws", 1) + "/chat-run"

    # ---- what a test does

    def new_session(self, headers: Mapping[str, str] | None = None, **given: Any) -> str:
        answer = self._web.post("/api/chat/sessions", json={}, headers=headers)
        assert answer.status_code == 201, answer.text
        session_id = str(answer.json()["sessionId"])
        if given:
            changed = self._web.patch(f"/api/chat/sessions/{session_id}", json=given, headers=headers)
            assert changed.status_code == 200, changed.text
        return session_id

    def open(self, session_id: str, headers: Mapping[str, str] | None = None) -> Tab:
        """A page on a session, as soon as it shows it."""
        tab = Tab(self, session_id, headers)
        self.tabs.append(tab)
        tab.wait(lambda page: page.state, timeout_s=END_S)
        return tab

    def leave(self, tab: Tab) -> None:
        """Close the browser."""
        self.tabs.remove(tab)
        tab.stop()

    def add_user(self, name: str, *, role: str = "member") -> dict[str, str]:
        """A new user of a portal with sign-in, as the headers of a program that acts for them."""
        secret = new_token()
        with transaction(self.factory) as db:
            user = users.create_user(
                db, login=f"{name.lower()}@example.com", name=name, role=role, password_hash="never used"
            )
            users.create_api_token(
                db, user=user, name="journey", token_hash=token_hash(secret), scopes=("read", "write"), expires_at=None
            )
        return {"Authorization": f"Bearer {secret}"}

    def post(self, path: str, body: Mapping[str, Any] | None = None, **given: Any) -> httpx.Response:
        return self._web.post(path, json=dict(body or {}), **given)

    def get(self, path: str, **given: Any) -> httpx.Response:
        return self._web.get(path, **given)

    @contextmanager
    def worker_held(self) -> Iterator[None]:
        """The worker stands still: all that is submitted inside is there before the first of it begins."""
        worker = self.portal.pid("worker")
        stop_between_writes(worker, self.engine)
        try:
            yield
        finally:
            os.kill(worker, signal.SIGCONT)

    def retry(self, run_id: str, headers: Mapping[str, str] | None = None) -> str:
        """Press the button that tries a turn again; the new run's id."""
        answer = self.post(f"/api/chat/runs/{run_id}/retry", headers=headers)
        assert answer.status_code == 202, answer.text
        again = str(answer.json()["runId"])
        self.accepted[again] = self.run(run_id).input
        return again

    # ---- what the database holds

    def run(self, run_id: str) -> Run:
        with transaction(self.factory, write=False) as db:
            return db.get_one(Run, run_id)

    def runs_of(self, session_id: str) -> list[Run]:
        """In the order of the session."""
        with transaction(self.factory, write=False) as db:
            return list(db.scalars(select(Run).where(Run.session_id == session_id).order_by(Run.position)))

    def pauses_of(self, session_id: str) -> list[Pause]:
        with transaction(self.factory, write=False) as db:
            return list(db.scalars(select(Pause).where(Pause.session_id == session_id).order_by(Pause.created_at)))

    def wait_state(self, run_id: str, *states: RunState, timeout_s: float = END_S) -> Run:
        def reached() -> Run | None:
            run = self.run(run_id)
            return run if run.state in states else None

        found: Run = wait_until(reached, timeout_s, f"{' or '.join(states)} of {self.run(run_id).state} {run_id}")
        return found

    def text(self, run_id: str) -> str:
        """The stored answer."""
        with transaction(self.factory, write=False) as db:
            answer = message_store.answer_of(db, run_id)
            return "" if answer is None else answer.content

    # ---- what the backend said

    def _demo_client(self) -> httpx.Client:
        environ = psutil.Process(self.portal.pid("worker")).environ()
        headers = {"Authorization": f"Bearer {environ['PORTAL_DEMO_KEY']}"}
        return httpx.Client(base_url=environ["PORTAL_DEMO_URL"], headers=headers, trust_env=False, timeout=END_S)

    def plays(self) -> list[dict[str, Any]]:
        """Each turn that the demo gateway was asked for: `id`, `asked_at_ns`, `stopped_at_ns`."""
        assert self._demo is not None
        found: list[dict[str, Any]] = self._demo.get("/v1/demo/plays").json()["data"]
        return found

    def said(self, play_id: str) -> str:
        """The answer as the demo gateway keeps it."""
        assert self._demo is not None
        answer = self._demo.get(f"/v1/responses/{play_id}").json()
        return "".join(
            block["text"] for item in answer["output"] if item["type"] == "message" for block in item["content"]
        )

    # ---- the end of every journey

    def check(self, session_id: str, *tabs: Tab, said: Mapping[str, str] | None = None) -> None:
        """All seven promises of RELIABILITY 1 for a session, as its open pages, a fresh page, REST, the database and
        the backend tell it. `said`: run -> the whole of what a scripted gateway said of it."""
        fresh = self.open(session_id, headers=tabs[0].given_headers if tabs else None)
        recent = recent_runs(self, session_id)
        fresh.wait_end(*(r.id for r in self.runs_of(session_id) if r.id in recent and r.state != RunState.CANCELLED))
        runs = self.runs_of(session_id)  # who hears of an end finds it in the database
        check_kept(self, session_id, runs)
        check_begun_once(self, runs)
        check_order(runs)
        for tab in (*tabs, fresh):
            check_page(self, tab, [run for run in runs if run.id in recent or run.id in tab.runs])
        check_pauses(self, session_id)
        check_ends(runs)
        check_rest(self, session_id, fresh.given_headers)
        for run in runs:
            check_said(self, run, (said or {}).get(run.id))
        self.leave(fresh)


def recent_runs(journey: Journey, session_id: str) -> set[str]:
    """The runs that a snapshot holds: those of the last 50 messages."""
    with transaction(journey.factory, write=False) as db:
        return {message.run_id for message in message_store.page(db, session_id, limit=50) if message.run_id}


def check_kept(journey: Journey, session_id: str, runs: Sequence[Run]) -> None:
    """P1: what was accepted is there, with its text, whatever happened since."""
    known = {run.id: run for run in runs}
    with transaction(journey.factory, write=False) as db:
        questions = {
            m.run_id: m
            for m in db.scalars(
                select(ChatMessage).where(ChatMessage.session_id == session_id, ChatMessage.role == "USER")
            )
        }
    assert set(questions) == set(known)
    for run_id, text in journey.accepted.items():
        if run_id in known:
            assert questions[run_id].content == text
            withdrawn = known[run_id].state == RunState.CANCELLED
            assert questions[run_id].status == ("CANCELLED" if withdrawn else "SENT")


def check_begun_once(journey: Journey, runs: Sequence[Run]) -> None:
    """P2: the backend was asked at most once for each run that begun, and never for one that did not."""
    asked = [run.backend_run_id for run in runs if run.backend_run_id is not None]
    assert len(asked) == len(set(asked))
    for run in runs:
        if run.begun_at is None:
            assert run.backend_run_id is None
    if journey._demo is not None:
        plays = journey.plays()  # before the runs are counted: those of other sessions may begin in this moment
        with transaction(journey.factory, write=False) as db:
            begun = list(db.scalars(select(Run).where(Run.begun_at.is_not(None))))
        assert len(plays) <= len(begun)


def check_order(runs: Sequence[Run]) -> None:
    """P4: one after the other, in the order of the session."""
    started = [run for run in runs if run.starting_at is not None]
    for before, after in itertools.pairwise(started):
        assert before.ended_at is not None
        assert after.starting_at is not None
        assert before.ended_at <= after.starting_at, (before.position, after.position)


def check_page(journey: Journey, tab: Tab, runs: Sequence[Run]) -> None:
    """P5: nothing missing, nothing doubled: the page shows of each run exactly what is stored."""
    shown = [run for run in runs if run.starting_at is not None or run.ended_at is not None]
    tab.wait_end(*(run.id for run in shown if run.state != RunState.CANCELLED))
    assert not tab.problems, tab.problems
    assert len(tab.seen) == len(set(tab.seen))
    for run in shown:
        with transaction(journey.factory, write=False) as db:
            answer = message_store.answer_of(db, run.id)
            stored = None if answer is None else message_store.transcript_of(answer)
        if answer is None:
            continue
        assert tab.text(run.id) == answer.content, (run.id, tab)
        assert answer.status == WORDS_OF_END[RunState(run.state)]
        assert not (differs := difference(tab.transcript(run.id), stored or {})), (differs, run.id, tab)


def check_rest(journey: Journey, session_id: str, headers: Mapping[str, str]) -> None:
    """P5 for programs: the last messages as REST gives them are those stored, each once."""
    page = journey.get(f"/api/chat/sessions/{session_id}/messages?limit=50", headers=headers).json()["messages"]
    with transaction(journey.factory, write=False) as db:
        stored = message_store.page(db, session_id, limit=50)
    assert [(m["id"], m["status"], m["content"]) for m in page] == [(m.id, m.status, m.content) for m in stored]


def check_pauses(journey: Journey, session_id: str) -> None:
    """P6: each question was decided once, and by whom is known."""
    for pause in journey.pauses_of(session_id):
        assert pause.state in ("answered", "expired", "withdrawn")
        assert pause.decided_at is not None
        assert (pause.by_name is not None) == (pause.state == "answered")


def check_ends(runs: Sequence[Run]) -> None:
    """P3, P7: every run has come to an end, and says which."""
    for run in runs:
        assert run.state in FINAL, (run.id, run.state)
        assert run.state not in ACTIVE
        assert run.ended_at is not None


def check_said(journey: Journey, run: Run, said: str | None) -> None:
    """The stored text is what the backend said; of a turn that was cut short, the beginning of it."""
    stored = journey.text(run.id)
    if said is None:
        if journey._demo is None:
            return
        if run.backend_run_id is not None:
            said = journey.said(run.backend_run_id)
        elif stored:  # a lost worker never wrote down which play was its own
            texts = [journey.said(play["id"]) for play in journey.plays()]
            said = next((text for text in texts if text.startswith(stored)), None)
            assert said is not None, f"no play began with the {len(stored)} characters of {run.id}"
        else:
            return
    if run.state in (RunState.COMPLETED, RunState.FAILED):
        assert stored == said
    else:
        assert said.startswith(stored)


def difference(shown: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Field -> (shown, stored) where two transcripts differ, but for what only those know that saw the turn queued."""
    names = (set(shown) | set(stored)) - QUEUE_FACTS
    shown, stored = _without_request(shown), _without_request(stored)
    differs = {n: (shown.get(n), stored.get(n)) for n in sorted(names) if shown.get(n) != stored.get(n)}
    if "items" in differs:
        pairs = itertools.zip_longest(shown["items"], stored["items"])
        differs["items"] = tuple(pair for pair in pairs if pair[0] != pair[1])
    return differs


def _without_request(transcript: Mapping[str, Any]) -> dict[str, Any]:
    """Without the moment of the request to stop: the web process and the worker read it from two clocks."""
    steps = [step if step["stage"] != "requested" else {**step, "at": ""} for step in transcript.get("abort", ())]
    return {**transcript, "abort": steps}


def held_reason(journey: Journey, session_id: str) -> str | None:
    with transaction(journey.factory, write=False) as db:
        return db.get_one(ChatSession, session_id).held_reason
