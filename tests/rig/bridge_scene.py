"""A session of a `cli` backend with one page on it, as journeys play their turns there."""

import json
from typing import Any

from shared.transcript import Transcript
from tests.rig.bridge_journey import BridgeJourney, Heard
from tests.rig.journey import Tab

BESIDE = frozenset({"run.queued", "queue.updated", "run.dequeued", "status.updated", "usage.updated"})
"""Events that come at any time."""


class Scene:
    """A session with one page on it, and what that page heard."""

    def __init__(self, bridge: BridgeJourney, **given: Any) -> None:
        self.bridge = bridge
        self.session_id = bridge.new_session(**given)
        self.tab: Tab = bridge.open(self.session_id)
        self.heard = Heard(self.tab)

    def begin(self, wish: str, **given: Any) -> str:
        return self.tab.say(self.bridge.wish(wish), **given)

    def play(self, wish: str, **given: Any) -> str:
        """One turn to its end."""
        run_id = self.begin(wish, **given)
        self.tab.wait_end(run_id)
        return run_id

    def names(self, run_id: str) -> list[str]:
        """What was told of a run, without what may come at any time. A decision counts once: a worker that finds it
        before it hears of it tells it too, which changes nothing on a page."""
        names: list[str] = []
        decided: set[str] = set()
        for frame in self.heard.of(run_id):
            name, data = frame["event"], frame["data"]
            pause_id = data.get("approval_id") or data.get("clarify_id")
            if name in BESIDE or (name.endswith(".resolved") and pause_id in decided):
                continue
            if name.endswith(".resolved"):
                decided.add(pause_id)
            names.append(name)
        return [name for n, name in enumerate(names) if n == 0 or names[n - 1] != name]

    def shown(self, run_id: str) -> Transcript:
        return self.tab.runs[run_id]

    def answer(self, run_id: str, choice: str, **more: Any) -> None:
        """Decide on the approval that is open."""
        pause = self.tab.wait_pause(run_id)
        reply = self.tab.ask(event="approval.respond", approval_id=pause.approval_id, choice=choice, **more)
        assert reply["event"] == "ack", reply

    def abort(self, run_id: str) -> None:
        reply = self.tab.ask(event="abort", run_id=run_id)
        assert reply["event"] == "ack", reply

    def check(self, **said: str) -> None:
        self.bridge.check(self.session_id, self.tab, said=said)


def terminal(command: str) -> str:
    return f"[[tool:terminal:{json.dumps({'command': command})}]]"


def thoughts_of(shown: Transcript) -> str:
    return "".join(part.text for part in shown.thinking)
