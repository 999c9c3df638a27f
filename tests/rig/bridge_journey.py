"""A journey whose sessions are answered by the real hermes-agent in a bridge child, with the scripted model behind it.

    with BridgeJourney(hermes_model) as journey:
        session_id = journey.new_session()              # of the kind `cli`
        tab = journey.open(session_id)
        run_id = tab.say(journey.wish("[[say:Hello]]"))
        tab.wait_end(run_id)
        journey.check(session_id, tab)                  # page text = database text = what the model sent, and P1-P7

What the model sent is known to the tap between it and the agents. A wish has a mark of its own, by which the requests
of its turn are told from those of all others; the model does not heed it.
"""

import itertools
import os
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from shared import settings as portal_settings
from shared.database import transaction
from shared.models import Run
from shared.run_state import RunState
from shared.store import catalogue
from tests.rig import operator
from tests.rig.bridge import HermesHome
from tests.rig.hermes import ScriptedModel, hermes_venv
from tests.rig.journey import Journey, Tab
from tests.rig.model_tap import Exchange, ModelTap
from tests.rig.portal import wait_until
from tests.rig.redis_server import RedisServer
from webapp.dispatch import make_celery

NO_GATEWAY = "http://127.0.0.1:9"
"""A gateway that is not there, so that no demo agent is started."""
REVIEW = "Review the conversation above"
"""How Hermes begins what it asks itself after every tenth turn or so, in the background."""
GONE_S = 60.0
LOGGED_AT = "%Y-%m-%d %H:%M:%S,%f"
"""In Hermes' log, by the clock of this machine."""


class BridgeJourney(Journey):
    """`home` serves sessions without a profile, `add_profile` makes others; `tap` knows what the model was asked."""

    def __init__(
        self,
        model: ScriptedModel,
        *,
        redis: RedisServer | None = None,
        gateway_url: str | None = NO_GATEWAY,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`gateway_url` None: nothing is configured, so a demo agent is started too."""
        self.model = model
        self.tap = ModelTap(model.base_url)
        self.home = HermesHome(self.tap)
        self.homes: dict[str, HermesHome] = {}
        self._numbers = itertools.count(1)
        self._wishes: set[str] = set()
        self._user_home = tempfile.TemporaryDirectory(prefix="portal-user-")
        own = {
            "HERMES_HOME": str(self.home.path),
            "HERMES_AGENT_BRIDGE_PYTHON": str(hermes_venv() / "bin" / "python"),
            "HOME": self._user_home.name,  # no shell of a tool reads the developer's .bashrc
        }
        super().__init__(redis=redis, gateway_url=gateway_url, environ={**own, **(environ or {})})

    def close(self) -> None:
        """All processes of agents, and what their tools started, are gone with the portal."""
        super().close()
        try:
            wait_until(lambda: not self.processes(), GONE_S, lambda: f"the end of {self.processes()}")
        finally:
            self.tap.close()
            self._user_home.cleanup()
            for home in (self.home, *self.homes.values()):
                home.close()

    def processes(self) -> list[str]:
        """What belongs to the portal, its agents and their tools, wherever they were moved to: by command line,
        folder or environment."""
        places = [str(self.portal.data_dir), *(str(home.path) for home in (self.home, *self.homes.values()))]
        found = []
        for each in psutil.process_iter(["pid", "cmdline", "cwd", "environ", "status"]):
            environ = each.info["environ"] or {}
            facts = [*(each.info["cmdline"] or ()), each.info["cwd"] or "", environ.get("HERMES_HOME", "")]
            is_ours = each.pid != os.getpid() and each.info["status"] != psutil.STATUS_ZOMBIE
            if is_ours and any(place in fact for place in places for fact in facts):
                found.append(f"{each.pid} {facts}"[:300])
        return found

    # ---- what a test does

    def wish(self, text: str) -> str:
        """The text of a turn that no other turn has."""
        wish = f"{text} (wish {next(self._numbers)})"
        self._wishes.add(wish)
        return wish

    def new_session(self, headers: Mapping[str, str] | None = None, *, profile: str | None = None, **given: Any) -> str:
        asked = {"source": "cli", **({"profile": profile} if profile else {})}
        answer = self.post("/api/chat/sessions", asked, headers=headers)
        assert answer.status_code == 201, answer.text
        session_id = str(answer.json()["sessionId"])
        if given:
            changed = self._web.patch(f"/api/chat/sessions/{session_id}", json=given, headers=headers)
            assert changed.status_code == 200, changed.text
        return session_id

    def add_profile(self, name: str) -> HermesHome:
        """A profile with a home of its own."""
        home = self.homes[name] = HermesHome(self.tap)
        with transaction(self.factory) as db:
            catalogue.put_profile(db, name=name, hermes_home=str(home.path))
        return home

    def agents(self) -> list[dict[str, Any]]:
        """What `inspect portal_bridge` tells of each agent process of each worker."""
        environ = psutil.Process(self.portal.pid("worker")).environ()
        with make_celery(portal_settings.load(environ, cwd=self.portal.data_dir)) as celery:
            told = operator.asked(celery.control, "portal_bridge")
        return [process for processes in told for process in processes]

    def workspace(self, session_id: str) -> Path:
        return Path(self.portal.data_dir or "") / "workspaces" / session_id

    # ---- what the model was asked and said

    def asked_for(self, run_id: str) -> list[Exchange]:
        """The requests of the run's own agent, oldest first. A turn that is tried again has the same wish."""
        run = self.run(run_id)
        assert run.input in self._wishes, "say what journey.wish gives"
        if run.begun_at is None:
            return []
        tries = [each.begun_at for each in self.runs_of(run.session_id) if each.input == run.input and each.begun_at]
        until = min((at.timestamp() for at in tries if at > run.begun_at), default=float("inf"))
        own = [each for each in self.tap.exchanges() if self._wish_of(each) == run.input]
        return [each for each in own if run.begun_at.timestamp() <= each.at < until]

    def _wish_of(self, exchange: Exchange) -> str | None:
        """The newest wish among its user messages: later ones may be the agent's own. None of its work beside the
        conversation: a summary only quotes wishes, and now and then it reviews a turn that is over."""
        if exchange.user_texts and exchange.user_texts[-1].startswith(REVIEW):
            return None
        return next((text for text in reversed(exchange.user_texts) if text in self._wishes), None)

    def said_in(self, run_id: str) -> str:
        """All texts of the run, as a page shows them: one after the other with an empty line between."""
        texts = [each.text for each in self.asked_for(run_id)]
        return "\n\n".join(text for text in texts if text)

    # ---- the end of every journey

    def check(self, session_id: str, *tabs: Tab, said: Mapping[str, str] | None = None) -> None:
        """As Journey.check. `said` for turns where the agent itself changes what the model said."""
        runs = self.runs_of(session_id)
        told = {run.id: self.said_in(run.id) for run in runs if run.begun_at is not None}
        super().check(session_id, *tabs, said={**told, **(said or {})})
        for run in self.runs_of(session_id):
            self.check_asked_once(run)

    def check_asked_once(self, run: Run) -> None:
        """P2 as the model saw it: a turn is answered at most once. What brought nothing at all the agent may ask
        again; Hermes in a bridge child also does where a stream broke in its middle, and writes that down."""
        asked = [e for e in self.asked_for(run.id) if e.is_first_of_turn and e.user_texts[-1] == run.input]
        answered = [each for each in asked if each.text or each.reasoning or each.calls]
        told = [(e.at, e.roles, e.user_texts[-1], e.text, e.reasoning, e.calls) for e in answered]
        assert len(answered) <= 1 + len(self.stream_drops(run)), (run.id, told)
        if run.state == RunState.COMPLETED:
            assert answered, run.id

    def stream_drops(self, run: Run) -> list[str]:
        """What Hermes wrote down, while the run went on, of answers that broke off and that it asked for once more."""
        logs = [home.path / "logs" / "errors.log" for home in (self.home, *self.homes.values())]
        lines = [line for log in logs if log.exists() for line in log.read_text("utf-8", "replace").splitlines()]
        if run.begun_at is None:
            return []
        assert run.ended_at is not None
        begun, ended = run.begun_at.timestamp(), run.ended_at.timestamp()
        drops = [line for line in lines if "Stream drop on attempt" in line]
        return [line for line in drops if begun <= datetime.strptime(line[:23], LOGGED_AT).timestamp() <= ended]


class Heard:
    """Writes down the events of a page as they come."""

    def __init__(self, tab: Tab) -> None:
        self.frames: list[dict[str, Any]] = []
        tab.hooks.append(self.frames.append)

    def of(self, run_id: str) -> list[dict[str, Any]]:
        return [frame for frame in list(self.frames) if frame.get("run_id") == run_id and "seq" in frame]

    def names(self, run_id: str) -> list[str]:
        """In their order, neighbours that are equal counted once."""
        return [name for name, _ in itertools.groupby(frame["event"] for frame in self.of(run_id))]

    def data(self, run_id: str, name: str) -> list[dict[str, Any]]:
        return [frame["data"] for frame in self.of(run_id) if frame["event"] == name]
