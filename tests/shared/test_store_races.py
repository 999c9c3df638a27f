"""Threads against one database, on both kinds: whoever comes second learns of it, and nothing is lost or doubled."""

import time
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from shared.database import in_transaction, transaction
from shared.errors import AlreadyDecided, Conflict, LeaseLost, QueueFull
from shared.models import ChatMessage, ChatSession, Run, User
from shared.run_state import ACTIVE, RunState
from shared.store import messages, pauses, runs, users
from tests.factories import a_queued_run, a_run, a_session
from tests.rig.at_once import at_once

S = RunState
Factory = sessionmaker[Session]


def submit(factory: Factory, session_id: str, text: str, queue_id: str, limit: int = 100) -> runs.Enqueued:
    def work(db: Session) -> runs.Enqueued:
        session = db.get_one(ChatSession, session_id)
        return runs.enqueue(
            db, session=session, user=users.get(db, session.owner_id), input=text, source="api_server",
            queue_id=queue_id, body_hash=runs.hash_body(input=text), limit=limit,
        )  # fmt: skip

    return in_transaction(factory, work)


def new_session(factory: Factory, **columns: object) -> str:
    with transaction(factory) as db:
        return a_session(db, **columns).id


def test_fifty_submits_of_one_queue_id_make_one_run(factory: Factory) -> None:
    """F2."""
    session_id = new_session(factory)
    made = at_once(*[lambda: submit(factory, session_id, "Hello", "q1")] * 50)
    assert {type(answer) for answer in made} == {runs.Enqueued}, made
    assert len({answer.run.id for answer in made}) == 1
    assert len({answer.message.id for answer in made}) == 1
    assert [answer.created for answer in made].count(True) == 1
    with transaction(factory, write=False) as db:
        assert db.scalar(select(func.count()).select_from(Run)) == 1
        assert db.scalar(select(func.count()).select_from(ChatMessage)) == 1


def test_one_key_with_two_texts_keeps_the_first(factory: Factory) -> None:
    """F3, at the same moment."""
    for number in range(10):
        session_id = new_session(factory)
        made = at_once(*[lambda t=text, s=session_id: submit(factory, s, t, "q") for text in ("one", "other")])
        accepted = [answer for answer in made if isinstance(answer, runs.Enqueued)]
        refused = [answer for answer in made if isinstance(answer, Conflict)]
        assert (len(accepted), len(refused)) == (1, 1), (number, made)
        assert refused[0].code == "queue_id_reused"
        with transaction(factory, write=False) as db:
            assert [run.input for run in runs.queue(db, session_id)] == [accepted[0].run.input]


def test_the_limit_of_a_queue_holds_against_many_at_once(factory: Factory) -> None:
    session_id = new_session(factory)
    made = at_once(*[lambda n=n: submit(factory, session_id, "x", f"q{n}", limit=5) for n in range(12)])
    assert sum(isinstance(answer, runs.Enqueued) for answer in made) == 5
    assert sum(isinstance(answer, QueueFull) for answer in made) == 7
    with transaction(factory, write=False) as db:
        assert [run.position for run in runs.queue(db, session_id)] == [1, 2, 3, 4, 5]


def test_a_cancel_that_races_the_claim_wins_or_loses_never_both(factory: Factory) -> None:
    """F39: 200 rounds. In every fifth the first is through before the second begins, so that each wins some of them on
    any machine: a claim is one statement and may overtake a cancel each time that they truly meet."""
    with transaction(factory) as db:
        sessions = [a_session(db) for _ in range(200)]
        queued = [a_queued_run(db, session).id for session in sessions]
    outcomes = {"cancelled": 0, "claimed": 0}

    def cancel(run_id: str) -> bool:
        return in_transaction(factory, lambda db: runs.cancel_queued(db, run_id, by="Ann"))

    def claim(run_id: str) -> int | None:
        return in_transaction(factory, lambda db: runs.claim(db, run_id, worker_id="w", lease_s=90))

    with ThreadPoolExecutor(2) as pool:
        for number, run_id in enumerate(queued):
            first, second = (cancel, claim) if number % 2 else (claim, cancel)
            answers = {first: pool.submit(first, run_id)}
            if number % 5 == 0:
                wait(answers.values())
            answers[second] = pool.submit(second, run_id)
            cancelled, fence = answers[cancel].result(), answers[claim].result()
            assert cancelled == (fence is None), f"round {number}: cancelled={cancelled}, fence={fence}"
            with transaction(factory, write=False) as db:
                state, _ = runs.state_and_fence(db, run_id)
                question = messages.question_of(db, run_id)
                assert question is not None
                assert (state, question.status) == ((S.CANCELLED, "CANCELLED") if cancelled else (S.STARTING, "SENT"))
            outcomes["cancelled" if cancelled else "claimed"] += 1
    assert min(outcomes.values()) > 0, outcomes


def test_an_abort_that_races_the_worker_is_decided_once(factory: Factory) -> None:
    with transaction(factory) as db:
        driven = [a_run(db, state=S.RUNNING).id for _ in range(40)]
    seen = set()

    def finish(run_id: str) -> str:
        with transaction(factory) as db:
            try:
                runs.finish(db, run_id, S.RUNNING, S.COMPLETED, fence=1, content="all", transcript=None)
            except LeaseLost:
                return "lost"
        return "finished"

    def abort(run_id: str) -> RunState:
        return in_transaction(factory, lambda db: runs.request_abort(db, run_id, by_name="Ann"))

    for run_id in driven:
        finished, state = at_once(lambda r=run_id: finish(r), lambda r=run_id: abort(r))
        assert (finished, state) in {("finished", S.COMPLETED), ("lost", S.ABORTING)}
        seen.add(finished)
    assert seen


def test_eight_workers_take_the_runs_of_a_session_strictly_in_order(factory: Factory) -> None:
    """P4: each worker is offered all runs, in any order; one is active at a time and they begin in their order."""
    with transaction(factory) as db:
        session = a_session(db)
        queued = [a_queued_run(db, session).id for _ in range(20)]
    begun: list[str] = []
    active_at_once: list[int] = []
    stop_at = time.monotonic() + 240

    def work(worker: int) -> None:
        offered = queued[worker:] + queued[:worker]
        while len(begun) < len(queued) and time.monotonic() < stop_at:
            for run_id in offered:
                fence = in_transaction(
                    factory, lambda db, r=run_id: runs.claim(db, r, worker_id=f"w{worker}", lease_s=90)
                )
                if fence is not None:
                    drive(run_id, fence)

    def drive(run_id: str, fence: int) -> None:
        with transaction(factory) as db:
            runs.begin(db, run_id, fence=fence)
        begun.append(run_id)
        with transaction(factory, write=False) as db:
            wanted = select(func.count()).where(Run.session_id == session.id, Run.state.in_(ACTIVE))
            active_at_once.append(db.execute(wanted).scalar_one())
        with transaction(factory) as db:
            runs.finish(db, run_id, S.RUNNING, S.COMPLETED, fence=fence, content="done", transcript=None)

    assert at_once(*[lambda n=n: work(n) for n in range(8)]) == [None] * 8
    assert begun == queued
    assert set(active_at_once) == {1}
    with transaction(factory, write=False) as db:
        page = messages.page(db, session.id, limit=100)
        assert [m.run_id for m in page] == [run_id for run_id in queued for _ in range(2)]


def test_a_move_and_a_claim_at_the_same_moment_keep_one_order(factory: Factory) -> None:
    for _ in range(25):
        with transaction(factory) as db:
            session = a_session(db)
            a, _, c = (a_queued_run(db, session, text=name) for name in "abc")
        moved, fence = at_once(
            lambda s=session, c=c: in_transaction(factory, lambda db: runs.move_queued(db, s.id, c.queue_id, 1)),
            lambda a=a: in_transaction(factory, lambda db: runs.claim(db, a.id, worker_id="w", lease_s=90)),
        )
        with transaction(factory, write=False) as db:
            waiting = [run.input for run in runs.queue(db, session.id)]
            shown = [m.content for m in messages.page(db, session.id)]
        assert isinstance(moved, list), moved
        assert waiting == (["c", "a", "b"] if fence is None else ["c", "b"])
        assert shown == (["c", "a", "b"] if fence is None else ["a", "c", "b"])


def test_a_submit_at_the_moment_of_a_failure_is_held_or_came_after_it(factory: Factory) -> None:
    """Never: held without a queue, or a failed run passed over by a turn that waited behind it."""
    for _ in range(25):
        with transaction(factory) as db:
            session = a_session(db)
            run = a_run(db, session, state=S.RUNNING)

        def fail(run_id: str = run.id) -> bool:
            with transaction(factory) as db:
                return runs.finish(db, run_id, S.RUNNING, S.FAILED, fence=1, content="", transcript=None).held

        made, held = at_once(lambda s=session: submit(factory, s.id, "next", "q"), fail)
        assert isinstance(made, runs.Enqueued), made
        assert held is (made.place == 1), "it waited behind the run, or came after its end"


def test_two_people_answer_one_approval(factory: Factory) -> None:
    """F40."""
    with transaction(factory) as db:
        session = a_session(db)
        people = [users.get(db, session.owner_id), *(users.get(db, a_session(db).owner_id) for _ in range(3))]
    for _ in range(15):
        with transaction(factory) as db:
            run = a_run(db, state=S.RUNNING)
            pause = pauses.open(
                db, run_id=run.id, fence=1, session_id=run.session_id, kind="approval", tool="shell",
                request={"command": "ls"}, timeout_s=60,
            )  # fmt: skip

        def answer(person: User, pause_id: str = pause.id) -> pauses.Pause:
            choice = "once" if person is people[0] else "deny"
            return in_transaction(factory, lambda db: pauses.answer(db, pause_id, user=person, choice=choice))

        answers = at_once(*[lambda p=person: answer(p) for person in people])
        winners = [a for a in answers if not isinstance(a, Exception)]
        assert len(winners) == 1, answers
        assert sum(isinstance(a, AlreadyDecided) for a in answers) == len(people) - 1
        with transaction(factory, write=False) as db:
            stored = pauses.get(db, pause.id)
            assert (stored.by_id, stored.choice) == (winners[0].by_id, winners[0].choice)


def test_two_janitors_and_the_worker_end_a_run_once(factory: Factory) -> None:
    """C20: of three that end it at the same moment one does; a completed run stays completed."""
    with transaction(factory) as db:
        driven = [a_run(db, state=S.RUNNING, lease_s=-1).id for _ in range(15)]

    def end(run_id: str, target: RunState, raise_fence: bool) -> RunState:
        with transaction(factory) as db:
            runs.finish(
                db, run_id, S.RUNNING, target, fence=1, raise_fence=raise_fence, content=target.value, transcript=None
            )
            return target

    for run_id in driven:
        answers = at_once(
            lambda r=run_id: end(r, S.INTERRUPTED, True),
            lambda r=run_id: end(r, S.COMPLETED, False),
            lambda r=run_id: end(r, S.INTERRUPTED, True),
        )
        winners = [a for a in answers if not isinstance(a, Exception)]
        assert len(winners) == 1, answers
        assert sum(isinstance(a, LeaseLost) for a in answers) == 2, answers
        with transaction(factory, write=False) as db:
            answer = messages.answer_of(db, run_id)
            assert answer is not None
            assert runs.state_and_fence(db, run_id)[0] == winners[0] == answer.content


def test_eight_workers_that_write_all_the_time_lose_nothing(factory: Factory) -> None:
    """Case 169: "database is locked" with several writers. Also while readers keep long transactions open. Each has its
    turn: who waited for more than 5 s would be refused."""
    with transaction(factory) as db:
        driven = [a_run(db, state=S.RUNNING).id for _ in range(8)]
    rounds = 60

    def write(place: int) -> None:
        for number in range(1, rounds + 1):
            with transaction(factory) as db:
                runs.save_progress(
                    db, driven[place], fence=1, content="x" * number * 50, transcript={"n": number},
                    epoch="e", seq=number,
                )  # fmt: skip

    def read() -> None:
        for _ in range(10):
            with transaction(factory, write=False) as db:
                before = db.scalars(select(Run.flushed_seq).order_by(Run.id)).all()
                time.sleep(0.02)
                if db.get_bind().dialect.name == "sqlite":
                    assert db.scalars(select(Run.flushed_seq).order_by(Run.id)).all() == before

    works = [lambda n=n: write(n) for n in range(len(driven))] + [read, read]
    assert at_once(*works) == [None] * len(works)
    with transaction(factory, write=False) as db:
        for run_id in driven:
            answer = messages.answer_of(db, run_id)
            assert answer is not None
            assert (runs.get(db, run_id).flushed_seq, len(answer.content)) == (rounds, rounds * 50)


@pytest.mark.parametrize("threads", [64])
def test_many_threads_share_the_connections(factory: Factory, threads: int) -> None:
    def read() -> int:
        with transaction(factory, write=False) as db:
            time.sleep(0.01)
            return db.execute(select(func.count()).select_from(Run)).scalar_one()

    assert at_once(*[read] * threads) == [0] * threads
