"""A small exhaustive model of RELIABILITY 4: one session, two runs, two workers, and everything that may go wrong.

Task messages are doubled and lost, workers are killed or lose their lease although they live, a person aborts at any
moment. Every interleaving is walked; P2, P3 and P4 are checked in every state and at every step. The moves come from
`shared.run_state.MOVES`. Each safeguard in turn is taken away, and the walk must then find what it was for.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from shared.run_state import ACTIVE, FINAL, MOVES, WAITING, RunState

S = RunState
T = TypeVar("T")
MAX_STARTS = 2  # 3 in the product: two show the same and keep the model small
MAX_MESSAGES = 2


class Violation(Exception):
    """A promise was broken. The text begins with its name."""


@dataclass(frozen=True)
class Rules:
    """The safeguards. The product has them all."""

    has_fence: bool = True  # a worker's writes name the fence of its claim
    claims_queued_only: bool = True  # the claim: state still queued
    claims_alone: bool = True  # the claim: no active run in the session
    claims_in_order: bool = True  # the claim: no earlier run queued
    holds_queue: bool = True  # the claim: the queue is not held
    never_retries: bool = True  # a begun run whose worker is gone becomes interrupted, not queued

    @property
    def moves(self) -> Mapping[RunState, frozenset[RunState]]:
        if self.never_retries:
            return MOVES
        return {**MOVES, S.RUNNING: MOVES[S.RUNNING] | {S.QUEUED}}


@dataclass(frozen=True)
class RunRow:
    """What the database holds of a run, and `begun`: how often its turn was sent to a backend."""

    state: RunState = S.QUEUED
    fence: int = 0
    owner: int | None = None
    attempt: int = 0
    begun: int = 0


@dataclass(frozen=True)
class Driver:
    """What a worker believes: it drives this run under this fence, and has sent the turn or not yet."""

    run: int
    fence: int
    has_sent: bool = False


@dataclass(frozen=True)
class World:
    runs: tuple[RunRow, ...] = (RunRow(), RunRow())
    workers: tuple[Driver | None, ...] = (None, None)
    messages: tuple[int, ...] = (0, 0)  # tasks under way, of each run
    held: bool = False


@dataclass(frozen=True)
class Action:
    """What happens: `kind`, to which run, by which worker."""

    kind: str
    run: int | None = None
    worker: int | None = None

    def __str__(self) -> str:
        by = "" if self.worker is None else f" by worker {self.worker}"
        return f"{self.kind} {'' if self.run is None else self.run}{by}"


Step = tuple[Action, World]


class Model:
    """The steps that are possible in a world."""

    def __init__(self, rules: Rules, on_failure: str) -> None:
        self.rules = rules
        self.on_failure = on_failure

    def steps(self, world: World) -> Iterator[Step]:
        for run in range(len(world.runs)):
            yield from self._messages(world, run)
            yield from self._person(world, run)
            yield from self._janitor(world, run)
        if world.held:
            yield Action("go on"), replace(world, held=False)
        for worker, driver in enumerate(world.workers):
            if driver is None:
                yield from self._deliveries(world, worker)
            else:
                yield Action("kill", worker=worker), self._idle(world, worker)
                yield from self._drive(world, worker, driver)

    # -- messages: sent by web and janitor, doubled by the broker, found again after a restore, lost

    def _messages(self, world: World, run: int) -> Iterator[Step]:
        under_way = world.messages[run]
        if under_way < MAX_MESSAGES:
            yield Action("send", run), self._put_messages(world, run, under_way + 1)
        if under_way:
            yield Action("lose", run), self._put_messages(world, run, under_way - 1)

    def _deliveries(self, world: World, worker: int) -> Iterator[Step]:
        for run, under_way in enumerate(world.messages):
            if under_way:
                after = self._put_messages(world, run, under_way - 1)
                yield Action("deliver", run, worker), self._claim(after, run, worker)

    def _claim(self, world: World, run: int, worker: int) -> World:
        row, others = world.runs[run], [r for n, r in enumerate(world.runs) if n != run]
        earlier = world.runs[:run]
        refused = (
            (self.rules.claims_queued_only and row.state != S.QUEUED)
            or (self.rules.claims_alone and any(r.state in ACTIVE for r in others))
            or (self.rules.claims_in_order and any(r.state == S.QUEUED for r in earlier))
            or (self.rules.holds_queue and world.held)
        )
        if refused:
            return world
        if row.state in FINAL:
            raise Violation(f"P2 run {run} has ended and was claimed again")
        if any(r.state not in FINAL for r in earlier):
            raise Violation(f"P4 run {run} starts before an earlier one has ended")
        if world.held:
            raise Violation(f"P4 run {run} starts though the queue is held")
        claimed = replace(row, state=S.STARTING, fence=row.fence + 1, owner=worker)
        return self._put_worker(self._put_run(world, run, claimed), worker, Driver(run, claimed.fence))

    # -- a person

    def _person(self, world: World, run: int) -> Iterator[Step]:
        state = world.runs[run].state
        if state == S.QUEUED:
            yield Action("abort", run), self._move(world, run, S.CANCELLED)
        elif state in ACTIVE and state != S.ABORTING:
            yield Action("abort", run), self._move(world, run, S.ABORTING)

    # -- the janitor: it may end the lease of a worker that lives (a stopped process, a partition)

    def _janitor(self, world: World, run: int) -> Iterator[Step]:
        row = world.runs[run]
        if row.state == S.STARTING:
            yield Action("expire", run), self._back_to_queue(world, run)
        elif row.state == S.ABORTING:
            yield Action("expire", run), self._end(world, run, S.ABORTED, raise_fence=True)
        elif row.state in ACTIVE:
            if self.rules.never_retries:
                yield Action("expire", run), self._end(world, run, S.INTERRUPTED, raise_fence=True)
            elif row.state == S.RUNNING:
                yield Action("retry", run), self._move(world, run, S.QUEUED, raise_fence=True)

    def _back_to_queue(self, world: World, run: int) -> World:
        attempt = world.runs[run].attempt + 1
        after = self._move(world, run, S.QUEUED, raise_fence=True, attempt=attempt)
        return self._end(after, run, S.FAILED) if attempt >= MAX_STARTS else after

    # -- a worker: each step is one statement of the product, refused when state or fence are not what it knew

    def _drive(self, world: World, worker: int, driver: Driver) -> Iterator[Step]:
        row = world.runs[driver.run]
        if self.rules.has_fence and row.fence != driver.fence:
            yield Action("lost", driver.run, worker), self._idle(world, worker)
            return
        if row.state in FINAL or row.state == S.QUEUED:
            yield Action("lost", driver.run, worker), self._idle(world, worker)
            return
        run = driver.run
        if not driver.has_sent:
            if row.state == S.STARTING:
                self._check_owner(row, worker, driver)
                begun = self._move(world, run, S.RUNNING, begun=row.begun + 1)
                yield Action("begin", run, worker), self._put_worker(begun, worker, replace(driver, has_sent=True))
                yield Action("start fails", run, worker), self._idle(self._back_to_queue(world, run), worker)
            elif row.state == S.ABORTING:
                yield Action("aborted", run, worker), self._idle(self._end(world, run, S.ABORTED), worker)
            else:
                yield Action("lost", run, worker), self._idle(world, worker)
            return
        self._check_owner(row, worker, driver)
        if row.state == S.RUNNING:
            yield Action("ask", run, worker), self._move(world, run, S.AWAITING_APPROVAL)
        if row.state in WAITING:
            yield Action("answered", run, worker), self._move(world, run, S.RUNNING)
        ends = (S.ABORTED, S.COMPLETED) if row.state == S.ABORTING else (S.COMPLETED, S.FAILED, S.INTERRUPTED)
        for end in ends:
            if row.state in self.rules.moves and end in self.rules.moves[row.state]:
                yield Action(end.value, run, worker), self._idle(self._end(world, run, end), worker)

    @staticmethod
    def _check_owner(row: RunRow, worker: int, driver: Driver) -> None:
        if row.fence != driver.fence or row.owner != worker:
            raise Violation(f"P2 worker {worker} writes to run {driver.run}, which was taken away from it")

    # -- writing

    def _move(self, world: World, run: int, target: RunState, *, raise_fence: bool = False, **columns: int) -> World:
        row = world.runs[run]
        assert target in self.rules.moves.get(row.state, ()), f"the model itself is wrong: {row.state} -> {target}"
        after = replace(row, state=target, fence=row.fence + raise_fence, **columns)
        if target not in ACTIVE:
            after = replace(after, owner=None)
        return self._put_run(world, run, after)

    def _end(self, world: World, run: int, target: RunState, *, raise_fence: bool = False) -> World:
        after = self._move(world, run, target, raise_fence=raise_fence)
        waits = any(row.state == S.QUEUED for row in after.runs)
        if target in (S.FAILED, S.INTERRUPTED) and self.on_failure == "hold" and waits:
            after = replace(after, held=True)
        return after

    def _put_run(self, world: World, run: int, row: RunRow) -> World:
        return replace(world, runs=_with(world.runs, run, row))

    def _put_worker(self, world: World, worker: int, driver: Driver | None) -> World:
        return replace(world, workers=_with(world.workers, worker, driver))

    def _put_messages(self, world: World, run: int, number: int) -> World:
        return replace(world, messages=_with(world.messages, run, number))

    def _idle(self, world: World, worker: int) -> World:
        return self._put_worker(world, worker, None)


def _with(values: tuple[T, ...], place: int, value: T) -> tuple[T, ...]:
    return (*values[:place], value, *values[place + 1 :])


# ---- what must hold


def check(world: World) -> None:
    """P2, P3 and P4 in one state of the world."""
    for number, row in enumerate(world.runs):
        if row.begun > 1:
            raise Violation(f"P2 run {number} was begun twice")
        if row.begun and row.state in (S.QUEUED, S.STARTING):
            raise Violation(f"P2 run {number} is to begin again")
        if row.begun and row.state == S.CANCELLED:
            raise Violation(f"P6 run {number} is cancelled, with effects")
        if not row.begun and row.state in (S.COMPLETED, S.INTERRUPTED):
            raise Violation(f"P3 run {number} is {row.state} and never began")
        if not row.begun and row.state == S.FAILED and row.attempt < MAX_STARTS:
            raise Violation(f"P3 run {number} was given up after {row.attempt} starts")
    if sum(row.state in ACTIVE for row in world.runs) > 1:
        raise Violation("P4 two runs of the session are active")
    sent = [d for d in world.workers if d is not None and d.has_sent and d.fence == world.runs[d.run].fence]
    if len(sent) > 1:
        raise Violation("P4 two workers rightly drive a turn of the session")


def check_step(before: World, after: World) -> None:
    for number, (old, new) in enumerate(zip(before.runs, after.runs, strict=True)):
        if old.state in FINAL and old != new:
            raise Violation(f"P2 run {number} had ended, and changed")
        if new.fence < old.fence:
            raise Violation(f"P2 the fence of run {number} fell")


def walk(model: Model) -> dict[World, list[Step]]:
    """Every state that can be reached, with its steps. Raises Violation with the way to it."""
    start = World()
    ways: dict[World, tuple[World, Action] | None] = {start: None}
    graph: dict[World, list[Step]] = {}
    todo = deque([start])
    while todo:
        world = todo.popleft()
        try:
            graph[world] = list(model.steps(world))
            for action, after in graph[world]:
                if after not in ways:
                    ways[after] = (world, action)
                    todo.append(after)
                check_step(world, after)
                check(after)
        except Violation as violation:
            raise Violation(f"{violation}: {' / '.join(_way(ways, world))}") from None
    return graph


def _way(ways: dict[World, tuple[World, Action] | None], world: World) -> list[str]:
    names = []
    while (step := ways[world]) is not None:
        world, action = step
        names.append(str(action))
    return names[::-1]


def stuck(graph: dict[World, list[Step]]) -> set[World]:
    """States from which no luck and no person other than one who says "go on" brings all runs to an end."""
    helpful = {"send", "deliver", "expire", "begin", "completed", "aborted", "go on", "answered", "lost"}
    before: dict[World, list[World]] = {world: [] for world in graph}
    for world, steps in graph.items():
        for action, after in steps:
            if action.kind in helpful:
                before[after].append(world)
    good = {world for world in graph if all(row.state in FINAL for row in world.runs)}
    todo = deque(good)
    while todo:
        for world in before[todo.popleft()]:
            if world not in good:
                good.add(world)
                todo.append(world)
    return set(graph) - good
