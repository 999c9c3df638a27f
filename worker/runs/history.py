"""What a backend is told of a session with a new turn: its earlier turns, from our own database, under a token budget.

Told are answered turns, and those that were stopped or cut off with as much as there was. Of a failed turn only the
question is told: its text may be an error, which the model would repeat. Cancelled turns and those that were tried
again are not told.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session, aliased, sessionmaker

from shared import logs
from shared.database import transaction
from shared.errors import Unavailable
from shared.models import ChatMessage, ChatSession, Run
from shared.protocol.events import Usage
from shared.run_state import FINAL, RunState
from shared.settings import Settings
from shared.store import compressions, messages
from worker.backends.base import Backend, CompressionBegun, CompressionEnded, HistoryMessage, Provider
from worker.runs.compression import NoSummary, PastTurn, past_turn, split, summarise
from worker.runs.tokens import estimate_tokens, measured_ratio

log = logs.get(__name__)

READ_BUDGETS = 4  # of the past, at most so many budgets are read; what is older is left out
SAMPLE_TURNS = 5  # the newest turns, among which one is looked for that tells tokens per character
RATIO_DRIFT = 0.1  # from which on a new ratio is worth a write
DATABASE_WAIT_S = 60.0
DATABASE_RETRY_S = 0.5
SUMMARY_OPENS = "Summary of our conversation up to here, in place of its older part:"
SUMMARY_TAKEN = "I have read the summary and go on from there."
NOTES = {
    RunState.ABORTED: "[The user stopped this answer here.]",
    RunState.INTERRUPTED: "[This answer was cut off here.]",
    RunState.FAILED: "[This turn failed; it has no answer.]",
}


@dataclass(frozen=True)
class _Past:
    """What may be told: an earlier summary, which reaches to `upto_position`, and the turns after it, oldest first."""

    summary: str | None
    upto_position: int
    turns: list[PastTurn]
    tokens: int
    ratio: float | None  # tokens per character
    budget: int  # tokens


def build_compressed_history(
    factory: sessionmaker[Session],
    settings: Settings,
    run: Run,
    backend: Backend,
    emit: Callable[[CompressionBegun | CompressionEnded], None],
    *,
    model: str | None = None,
    provider: Provider | None = None,
) -> tuple[HistoryMessage, ...]:
    """The history to send with `run` (which may be detached), oldest first, without the run's own input.

    When it is over the budget the backend is asked for a summary of the older turns, by `model` of `provider`, which
    can take minutes: call it after `running` was committed, on the thread that then reads the stream. `emit` gets the
    two items that mark it (the inbox takes them). When the backend cannot, older turns are left out instead: `changed`
    is False. Raises Unavailable when the database stays away.
    """
    past = _read(factory, settings.context_budget_tokens, run)
    if past.tokens <= past.budget:
        return _told(past.summary, past.turns)
    emit(CompressionBegun(past.tokens))
    past = replace(past, turns=[_shorter(turn, past) for turn in past.turns])
    old, kept = split(past.turns, past.budget // 2)
    try:
        made = summarise(
            backend,
            run.id,
            past.summary,
            old,
            part_tokens=past.budget,
            summary_tokens=past.budget // 4,
            tokens_per_char=past.ratio,
            model=model,
            provider=provider,
        )
        after_tokens = _tokens_of(made, past.ratio) + sum(turn.tokens for turn in kept)
        if after_tokens >= past.tokens:
            raise NoSummary(f"no gain: {past.tokens} tokens before, {after_tokens} after")
    except NoSummary as fault:
        log.warning("history.not_compressed", run_id=run.id, cause=str(fault))
        return _shortened(past, emit)
    upto_position = old[-1].position if old else past.upto_position
    _keep(factory, run, upto_position, made, before_tokens=past.tokens, after_tokens=after_tokens)
    emit(CompressionEnded(past.tokens, after_tokens, _tokens_of(made, past.ratio)))
    return _told(made, kept)


def _shorter(turn: PastTurn, past: _Past) -> PastTurn:
    """No turn alone may take the room of all."""
    return past_turn(turn.position, turn.question, turn.answer, past.ratio, tokens=past.budget // 2)


def _shortened(past: _Past, emit: Callable[[CompressionEnded], None]) -> tuple[HistoryMessage, ...]:
    """Without a new summary: the newest turns that fit, beside the summary there was."""
    summary_tokens = _tokens_of(past.summary, past.ratio)
    _, kept = split(past.turns, past.budget - summary_tokens)
    after_tokens = summary_tokens + sum(turn.tokens for turn in kept)
    emit(CompressionEnded(past.tokens, after_tokens, summary_tokens, changed=False))
    return _told(past.summary, kept)


def _keep(
    factory: sessionmaker[Session], run: Run, upto_position: int, summary: str, *, before_tokens: int, after_tokens: int
) -> None:
    """For the turns that follow. Without a database this turn goes on all the same; a later one asks again."""
    try:
        with transaction(factory) as db:
            compressions.add(
                db,
                session_id=run.session_id,
                run_id=run.id,
                upto_position=upto_position,
                summary=summary,
                before_tokens=before_tokens,
                after_tokens=after_tokens,
            )
    except Unavailable as error:
        log.warning("history.summary_not_kept", run_id=run.id, code=error.code)


def _told(summary: str | None, turns: list[PastTurn]) -> tuple[HistoryMessage, ...]:
    told: list[HistoryMessage] = []
    if summary:
        told.append(HistoryMessage("user", f"{SUMMARY_OPENS}\n\n{summary}"))
        told.append(HistoryMessage("assistant", SUMMARY_TAKEN))
    for turn in turns:
        told.append(HistoryMessage("user", turn.question))
        told.append(HistoryMessage("assistant", turn.answer))
    return tuple(told)


def _tokens_of(summary: str | None, ratio: float | None) -> int:
    return estimate_tokens(SUMMARY_OPENS + summary + SUMMARY_TAKEN, ratio) if summary else 0


# ---- the turns of the past


def _read(factory: sessionmaker[Session], budget_tokens: int, run: Run) -> _Past:
    """What the database holds for `run`. Waits up to DATABASE_WAIT_S for a database that is away; then Unavailable."""
    give_up_at = time.monotonic() + DATABASE_WAIT_S
    while True:
        try:
            with transaction(factory, write=False) as db:
                past, known_ratio = _read_once(db, budget_tokens, run)
            break
        except Unavailable:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(DATABASE_RETRY_S)
    if past.ratio is not None and (known_ratio is None or abs(past.ratio / known_ratio - 1) > RATIO_DRIFT):
        _remember_ratio(factory, run, past.ratio)
    return past


def _read_once(db: Session, budget_tokens: int, run: Run) -> tuple[_Past, float | None]:
    known_ratio = db.scalars(_KNOWN_RATIO, {"session_id": run.session_id}).one_or_none()
    row = compressions.latest(db, run.session_id, before_position=run.position)
    summary, upto_position = (row.summary, row.upto_position) if row is not None else (None, -1)
    newest_first = _newest_first(db, run, upto_position)
    newest = list(islice(newest_first, SAMPLE_TURNS))
    ratio = _measured(db, newest) or known_ratio
    asked_tokens = estimate_tokens(run.input + (run.instructions or ""), ratio)
    budget = max(budget_tokens - asked_tokens, budget_tokens // 4)
    turns = _past_turns(chain(newest, newest_first), ratio, budget)
    tokens = _tokens_of(summary, ratio) + sum(turn.tokens for turn in turns)
    return _Past(summary, upto_position, turns, tokens, ratio, budget), known_ratio


class _Told(NamedTuple):
    """A turn that is told. `answer_id`: of the message by which tokens may be measured; None when it tells nothing."""

    position: int
    question: str
    answer: str
    usage: Mapping[str, Any] | None = None
    answer_id: str | None = None


def _past_turns(newest_first: Iterable[_Told], ratio: float | None, budget: int) -> list[PastTurn]:
    """The newest turns, up to READ_BUDGETS, oldest first."""
    found: list[PastTurn] = []
    tokens = 0
    for told in newest_first:
        turn = past_turn(told.position, told.question, told.answer, ratio, tokens=2 * budget)
        tokens += turn.tokens
        if tokens > READ_BUDGETS * budget and found:
            break
        found.append(turn)
    return found[::-1]


# Both are asked with every turn, before its first byte goes out: put together once, SQLAlchemy knows them again.
_KNOWN_RATIO: Final = select(ChatSession.tokens_per_char).where(ChatSession.id == bindparam("session_id"))
_QUESTION, _ANSWER = aliased(ChatMessage), aliased(ChatMessage)
_NEWEST_FIRST: Final = (
    select(Run.id, Run.position, Run.state, Run.retry_of, Run.usage, _QUESTION.content, _ANSWER.content, _ANSWER.id)
    .join(_QUESTION, (_QUESTION.run_id == Run.id) & (_QUESTION.role == "USER"))
    .outerjoin(_ANSWER, (_ANSWER.run_id == Run.id) & (_ANSWER.role == "ASSISTANT"))
    .where(
        Run.session_id == bindparam("session_id"),
        Run.position < bindparam("before"),
        Run.position > bindparam("after"),
        Run.state.in_([state.value for state in FINAL - {RunState.CANCELLED}]),
    )
    .order_by(Run.position.desc())
    .execution_options(yield_per=50)
)


def _newest_first(db: Session, run: Run, after_position: int) -> Iterator[_Told]:
    """The turns after `after_position` and before the run that are told."""
    tried_again = {run.retry_of}
    asked = {"session_id": run.session_id, "before": run.position, "after": after_position}
    for run_id, position, state, retry_of, usage, question, said, answer_id in db.execute(_NEWEST_FIRST, asked):
        if retry_of is not None:
            tried_again.add(retry_of)
        if run_id not in tried_again and (told := _answer_told(RunState(state), said)):
            is_whole = state == RunState.COMPLETED.value
            yield _Told(position, question, told, usage, answer_id if is_whole else None)


def _answer_told(state: RunState, said: str | None) -> str:
    """What stands for the answer; empty for a turn that never began and so is not told."""
    text = (said or "").strip()
    if state is RunState.COMPLETED:
        return text or "[The answer had no text.]"
    if state is RunState.FAILED:
        return NOTES[state]
    if said is None:
        return ""
    return f"{text}\n\n{NOTES[state]}" if text else NOTES[state]


# ---- tokens per character


def _measured(db: Session, newest: Sequence[_Told]) -> float | None:
    """By the newest answer whose usage tells it."""
    for told in newest:
        if told.answer_id is None or told.usage is None:
            continue
        ratio = measured_ratio(told.answer, Usage.model_validate(told.usage))
        if ratio is not None and not _has_tools(db.get_one(ChatMessage, told.answer_id)):
            return ratio
    return None


def _remember_ratio(factory: sessionmaker[Session], run: Run, ratio: float) -> None:
    """Kept for the time when no recent answer tells it."""
    try:
        with transaction(factory) as db:
            db.execute(update(ChatSession).where(ChatSession.id == run.session_id).values(tokens_per_char=ratio))
    except Unavailable as error:
        log.info("history.ratio_not_kept", run_id=run.id, code=error.code)


def _has_tools(answer: ChatMessage) -> bool:
    items = (messages.transcript_of(answer) or {}).get("items", ())
    return any(item.get("type") == "tool" for item in items)
