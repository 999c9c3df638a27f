"""All interleavings of `run_model.py`, each safeguard taken away in turn, and the product beside the model."""

import random
from collections.abc import Iterator

import pytest
from sqlalchemy.orm import Session

from shared.errors import LeaseLost
from shared.run_state import RunState
from shared.store import pauses, run_upkeep, runs
from tests.factories import a_queued_run, a_session
from tests.shared.run_model import MAX_STARTS, Action, Model, Rules, Step, Violation, World, stuck, walk

S = RunState


@pytest.mark.parametrize("on_failure", ["hold", "continue"])
def test_no_interleaving_breaks_a_promise(on_failure: str) -> None:
    graph = walk(Model(Rules(), on_failure))
    assert len(graph) > 10_000, "the model has become too small to mean anything"
    seen = {row.state for world in graph for row in world.runs}
    assert seen == set(RunState) - {S.AWAITING_CLARIFICATION}
    assert not stuck(graph), "P3, P7: a run can be left for ever"


@pytest.mark.parametrize(
    ("without", "finds"),
    [
        ("has_fence", "P2"),
        ("claims_queued_only", "P2"),
        ("claims_alone", "P4"),
        ("claims_in_order", "P4"),
        ("holds_queue", "P4"),
        ("never_retries", "P2"),
    ],
)
def test_without_a_safeguard_a_promise_breaks(without: str, finds: str) -> None:
    with pytest.raises(Violation, match=f"^{finds}"):
        walk(Model(Rules(**{without: False}), "hold"))


def test_a_queue_that_nobody_dispatches_again_is_found_to_be_stuck() -> None:
    """The check for P3 can fail: without the janitor's messages a lost one leaves its run queued for ever."""

    class Forgetful(Model):
        def _messages(self, world: World, run: int) -> Iterator[Step]:
            yield from (step for step in super()._messages(world, run) if step[0].kind == "lose")

    model = Forgetful(Rules(), "continue")
    graph: dict[World, list[Step]] = {}
    todo = [World(messages=(1, 1))]
    while todo:
        world = todo.pop()
        if world not in graph:
            graph[world] = list(model.steps(world))
            todo.extend(after for _, after in graph[world])
    assert stuck(graph)


# ---- and the product does what the model does


class Product:
    """The same steps in a real database, by the functions that the portal uses."""

    def __init__(self, db: Session, on_failure: str) -> None:
        self.db = db
        self.session = a_session(db, on_failure=on_failure)
        self.runs = [a_queued_run(db, self.session) for _ in range(2)]

    def do(self, action: Action, world: World) -> None:
        """Take a step of the model that was possible in `world`, the world before it."""
        if action.kind in ("send", "lose", "kill"):
            return  # nothing of it is in the database
        if action.kind == "go on":
            assert runs.release_queue(self.db, self.session.id)
            return
        assert action.run is not None
        run_id, state = self.runs[action.run].id, world.runs[action.run].state
        if action.kind == "deliver":
            runs.claim(self.db, run_id, worker_id=f"w{action.worker}", lease_s=90)
        elif action.kind == "abort":
            runs.request_abort(self.db, run_id, by_name="Ann")
        elif action.kind == "expire":
            self._expire(run_id, state, world.runs[action.run].fence)
        else:
            assert action.worker is not None
            driver = world.workers[action.worker]
            assert driver is not None
            self._drive(action.kind, run_id, state, driver.fence)

    def _expire(self, run_id: str, state: RunState, fence: int) -> None:
        if state == S.STARTING:
            runs.back_to_queue(self.db, run_id, fence)
            return
        end = S.ABORTED if state == S.ABORTING else S.INTERRUPTED
        runs.finish(self.db, run_id, state, end, fence=fence, raise_fence=True, content=None, transcript=None)

    def _drive(self, kind: str, run_id: str, state: RunState, fence: int) -> None:
        if kind == "lost":
            with pytest.raises(LeaseLost):
                runs.save_progress(self.db, run_id, fence=fence, content="late", transcript={}, epoch="e", seq=1)
        elif kind == "begin":
            runs.begin(self.db, run_id, fence=fence)
        elif kind == "start fails":
            runs.back_to_queue(self.db, run_id, fence)
        elif kind == "ask":
            pauses.open(
                self.db, run_id=run_id, fence=fence, session_id=self.session.id, kind="approval", tool="t",
                request={}, timeout_s=None,
            )  # fmt: skip
        elif kind == "answered":
            for pause in pauses.open_pauses(self.db, self.session.id):
                pauses.answer(self.db, pause.id, user=None, choice="once")
            assert pauses.resume_run(self.db, run_id, fence)
        else:
            runs.finish(self.db, run_id, state, RunState(kind), fence=fence, content="all", transcript=None)

    def check(self, world: World) -> None:
        self.db.expire_all()
        rows = [(r.state, r.fence, r.attempt, r.begun_at is not None) for r in self.runs]
        assert rows == [(r.state, r.fence, r.attempt, r.begun > 0) for r in world.runs]
        assert (self.session.held_reason is not None) == world.held


OFTEN = {"send", "deliver", "begin", "ask", "answered", "lost"}  # else hardly a walk gets far


@pytest.mark.parametrize("on_failure", ["hold", "continue"])
def test_the_product_goes_the_ways_of_the_model(db: Session, on_failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random walks, each step taken by the model and by the store; after each step both hold the same."""
    monkeypatch.setattr(run_upkeep, "MAX_STARTS", MAX_STARTS)
    model, chance = Model(Rules(), on_failure), random.Random(2026)
    taken: set[str] = set()
    for _ in range(20):
        world, product = World(), Product(db, on_failure)
        for _ in range(30):
            steps = [step for step in model.steps(world) if step[0].kind != "lose"]
            weights = [6 if action.kind in OFTEN else 1 for action, _ in steps]
            ((action, after),) = chance.choices(steps, weights)
            product.do(action, world)
            product.check(after)
            taken.add(action.kind)
            world = after
    assert taken >= {
        "deliver", "abort", "expire", "kill", "begin", "start fails", "ask", "answered", "lost",
        "completed", "failed", "interrupted", "aborted",
    }  # fmt: skip
