"""What a backend is told of the earlier turns: all that was said, no errors, within the budget; shown history stays."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.orm import Session, sessionmaker

from shared.database import make_engine, make_session_factory, transaction
from shared.models import ChatSession, Run
from shared.run_state import RunState
from shared.store import compressions, messages
from tests.factories import a_queued_run, a_run, a_session
from tests.peers.gateway import FakeGateway, Frames, json_answer
from tests.rig.backend_turns import some_settings
from tests.rig.gateway_turns import TURNS, a_backend
from worker.backends.base import CompressionBegun, CompressionEnded, HistoryMessage
from worker.runs.compression import clipped
from worker.runs.history import SUMMARY_OPENS, SUMMARY_TAKEN, build_compressed_history
from worker.runs.tokens import estimate_tokens

Factory = sessionmaker[Session]
BUDGET = 1_000  # tokens: about 4,000 characters


class Told:
    """Asks for the history of a new turn in a session, and keeps what came."""

    def __init__(self, factory: Factory) -> None:
        self.factory = factory
        with transaction(factory) as db:
            self.session_id = a_session(db).id
        self.gateway = FakeGateway({TURNS: [summary("A short summary.")]})
        self.emitted: list[CompressionBegun | CompressionEnded] = []

    def past(self, question: str, answer: str, state: RunState = RunState.COMPLETED, **columns: Any) -> str:
        with transaction(self.factory) as db:
            session = db.get_one(ChatSession, self.session_id)
            return a_run(db, session, state=state, text=question, answer=answer, **columns).id

    def history(self, *, retry_of: str | None = None, text: str = "now") -> tuple[HistoryMessage, ...]:
        with transaction(self.factory) as db:
            run = a_queued_run(db, db.get_one(ChatSession, self.session_id), text=text)
            run.retry_of = retry_of
            db.flush()
            db.refresh(run)
            db.expunge(run)
        self.emitted.clear()
        settings = some_settings(context_budget_tokens=BUDGET)
        backend = a_backend(self.gateway)
        told = build_compressed_history(self.factory, settings, run, backend, self.emitted.append)
        with transaction(self.factory) as db:  # the turn itself plays no part in what follows
            db.get_one(Run, run.id).state = RunState.CANCELLED.value
        return told

    def lines(self, **given: Any) -> list[str]:
        return [f"{message.role}: {message.content}" for message in self.history(**given)]


def summary(text: str) -> Any:
    message = {"type": "message", "content": [{"type": "output_text", "text": text}]}
    return json_answer(Frames().body("completed") | {"output": [message]})


@pytest.fixture
def told(sqlite_url: str) -> Iterator[Told]:
    engine = make_engine(sqlite_url)
    told = Told(make_session_factory(engine))
    with told.gateway:
        yield told
    engine.dispose()


@pytest.fixture
def told_by_both(factory: Factory) -> Iterator[Told]:
    """On each kind of database."""
    told = Told(factory)
    with told.gateway:
        yield told


def test_a_first_turn_has_no_history(told: Told):
    assert told.history() == ()


def test_earlier_turns_come_in_order_and_the_new_one_is_not_among_them(told_by_both: Told):
    told = told_by_both
    told.past("My name is Ada.", "Hello Ada 世界.")
    told.past("What is it?", "Ada.")
    assert told.lines() == [
        "user: My name is Ada.", "assistant: Hello Ada 世界.", "user: What is it?", "assistant: Ada.",
    ]  # fmt: skip
    assert told.emitted == []
    assert told.gateway.requests == []


def test_the_text_of_a_failed_turn_is_never_told(told: Told):
    told.past("Do it", "API call failed after 3 retries: HTTP 429", RunState.FAILED)
    lines = told.lines()
    assert lines[0] == "user: Do it"
    assert "429" not in "".join(lines)
    assert "failed" in lines[1]


def test_stopped_and_interrupted_answers_are_told_as_far_as_they_came(told: Told):
    told.past("Count", "1 2 3", RunState.ABORTED)
    told.past("Go on", "4 5", RunState.INTERRUPTED)
    lines = told.lines()
    assert lines[1].startswith("assistant: 1 2 3\n\n[The user stopped")
    assert lines[3].startswith("assistant: 4 5\n\n[This answer was cut off")


def test_cancelled_turns_are_not_told(told: Told):
    told.past("never mind", "", RunState.CANCELLED)
    assert told.history() == ()


def test_a_turn_that_was_tried_again_is_told_once(told: Told):
    first = told.past("Do it", "half", RunState.INTERRUPTED)
    assert told.history(retry_of=first) == ()  # the retry repeats the question itself
    told.past("Do it", "done", retry_of=first)
    assert told.lines() == ["user: Do it", "assistant: done"]


def test_other_sessions_are_never_told(told: Told):
    with transaction(told.factory) as db:
        a_run(db, state=RunState.COMPLETED, text="secret of another", answer="canary")
    assert told.history() == ()


def fill(told: Told, turns: int, *, size: int = 400) -> None:
    for number in range(turns):
        told.past(f"question {number} ".ljust(size, "q"), f"answer {number} ".ljust(size, "a"))


def test_beyond_the_budget_older_turns_become_a_summary_made_by_the_backend(told: Told):
    fill(told, 6)
    history = told.history()
    assert history[0].content == f"{SUMMARY_OPENS}\n\nA short summary."
    assert history[1] == HistoryMessage("assistant", SUMMARY_TAKEN)
    assert history[-1].content.startswith("answer 5 ")
    assert [m.role for m in history] == ["user", "assistant"] * (len(history) // 2)
    assert sum(estimate_tokens(m.content, None) for m in history) <= BUDGET
    (asked,) = told.gateway.turns
    sent = asked.json["input"][-1]["content"]
    assert "question 0 " in sent
    assert "question 5 " not in sent
    begun, ended = told.emitted
    assert isinstance(begun, CompressionBegun)
    assert isinstance(ended, CompressionEnded)
    assert ended.changed
    assert ended.before_tokens == begun.before_tokens > BUDGET > ended.after_tokens > ended.summary_tokens


def test_a_summary_is_kept_and_used_again(told_by_both: Told):
    told = told_by_both
    fill(told, 6)
    first = told.history()
    assert told.history() == first
    assert len(told.gateway.turns) == 1
    assert told.emitted == []
    told.past("one more", "and its answer")
    assert told.history()[:-2] == first
    assert len(told.gateway.turns) == 1


def test_a_later_summary_holds_the_earlier_one(told: Told):
    fill(told, 6)
    told.history()
    told.gateway.script[TURNS] = [summary("The second summary.")]
    fill(told, 6)
    history = told.history()
    assert "The second summary." in history[0].content
    assert any("A short summary." in asked.json["input"][-1]["content"] for asked in told.gateway.turns[1:])
    with transaction(told.factory) as db:
        row = compressions.latest(db, told.session_id)
        assert row is not None
        assert row.summary == "The second summary."
        assert row.before_tokens > row.after_tokens


def test_shown_history_is_not_altered(told: Told):
    fill(told, 6)
    with transaction(told.factory, write=False) as db:
        before = [(m.id, m.content, m.status) for m in messages.page(db, told.session_id)]
    told.history()
    with transaction(told.factory, write=False) as db:
        after = [(m.id, m.content, m.status) for m in messages.page(db, told.session_id)]
    assert after[: len(before)] == before
    assert len(before) == 12


@pytest.mark.parametrize(
    "answer",
    [json_answer({"error": {"message": "down"}}, status=500), summary(""), summary("long " * 5_000)],
    ids=["fails", "says nothing", "no gain"],
)
def test_without_a_useful_summary_the_newest_turns_are_told(told: Told, answer: Any):
    told.gateway.script[TURNS] = [answer]
    fill(told, 6)
    history = told.history()
    assert history[-1].content.startswith("answer 5 ")
    assert sum(estimate_tokens(m.content, None) for m in history) <= BUDGET
    ended = told.emitted[-1]
    assert isinstance(ended, CompressionEnded)
    if not ended.changed:
        assert not history[0].content.startswith(SUMMARY_OPENS)
    with transaction(told.factory, write=False) as db:
        assert (compressions.latest(db, told.session_id) is not None) == ended.changed


def test_a_long_turn_that_fits_is_told_whole(told: Told):
    told.past("q" * 100, "a" * 3_500)
    assert told.lines() == ["user: " + "q" * 100, "assistant: " + "a" * 3_500]


def test_one_giant_turn_loses_its_middle_and_says_so(told: Told):
    told.past("Read this: " + "x" * 400_000 + " end of question", "y" * 400_000 + " end of answer")
    history = told.history()
    joined = "".join(m.content for m in history)
    assert len(joined) < BUDGET * 5
    assert "left out" in joined or joined.startswith(SUMMARY_OPENS)


def test_many_turns_are_read_only_as_far_as_they_can_matter(told: Told):
    fill(told, 40, size=1_000)
    assert "A short summary." in told.history()[0].content
    assert len(told.gateway.turns) <= 8


def test_tokens_a_character_are_measured_by_the_usage_last_reported(told: Told):
    told.past("q", "z" * 1_000, usage={"input_tokens": 9_000, "output_tokens": 900})
    told.history()
    with transaction(told.factory, write=False) as db:
        assert db.get_one(ChatSession, told.session_id).tokens_per_char == pytest.approx(0.9)
    told.past("q", "short", usage={"input_tokens": 9_000, "output_tokens": 500})  # too short to tell
    told.history()
    with transaction(told.factory, write=False) as db:
        assert db.get_one(ChatSession, told.session_id).tokens_per_char == pytest.approx(0.9)
    fill(told, 2, size=600)
    told.history()
    assert told.emitted  # 3,400 characters at 0.9 are over the budget; by the first guess they would not be


def test_an_answer_with_tools_does_not_tell_tokens_a_character(told: Told):
    run_id = told.past("q", "z" * 1_000, usage={"input_tokens": 9_000, "output_tokens": 9_000})
    with transaction(told.factory) as db:
        answer = messages.answer_of(db, run_id)
        assert answer is not None
        messages.put_transcript(answer, {"v": 1, "items": [{"type": "tool", "tool_id": "t", "name": "n"}]})
    told.history()
    with transaction(told.factory, write=False) as db:
        assert db.get_one(ChatSession, told.session_id).tokens_per_char is None


def test_a_clipped_text_keeps_its_ends():
    text = "begin " + "x" * 10_000 + " end"
    short = clipped(text, 100, None)
    assert short.startswith("begin ")
    assert short.endswith(" end")
    assert "characters left out" in short
    assert estimate_tokens(short, None) <= 110
    assert clipped("short", 100, None) == "short"


def test_chinese_counts_for_more_than_english():
    assert estimate_tokens("你好世界" * 100, None) > 2 * estimate_tokens("word" * 100, None)
    assert estimate_tokens("word" * 100, 0.5) == 201
