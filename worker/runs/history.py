"""What a backend is told of a session with a new turn: its earlier turns, from our own database, under a token budget.

Told are answered turns, and those that were stopped or cut off with as much as there was. Of a failed turn only the
question is told: its text may be an error, which the model would repeat. Cancelled turns and those that were tried
again are not told.
"""

from collections.abc import Callable, Iterator

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session, aliased, sessionmaker

from shared.database import transaction
from shared.models import ChatMessage, ChatSession, Run
from shared.protocol.events import Usage
from shared.run_state import FINAL, RunState
from shared.settings import Settings
from shared.store import compressions, messages
from worker.backends.base import Backend, CompressionBegun, CompressionEnded, HistoryMessage
from worker.runs.compression import NoSummary, PastTurn, clipped, split, summarise
from worker.runs.tokens import estimate_tokens, measured_ratio

log = structlog.get_logger(__name__)

READ_BUDGETS = 4  # of the past, at most so many budgets are read; what is older is left out
SAMPLE_TURNS = 5  # the newest turns, among which one is looked for that tells tokens per character
SUMMARY_OPENS = "Summary of our conversation up to here, in place of its older part:"
SUMMARY_TAKEN = "I have read the summary and go on from there."
NOTES = {
    RunState.ABORTED: "[The user stopped this answer here.]",
    RunState.INTERRUPTED: "[This answer was cut off here.]",
    RunState.FAILED: "[This turn failed; it has no answer.]",
}


def build_compressed_history(
    factory: sessionmaker[Session],
    settings: Settings,
    run: Run,
    backend: Backend,
    emit: Callable[[CompressionBegun | CompressionEnded], None],
) -> tuple[HistoryMessage, ...]:
    """The history to send with `run` (which may be detached), oldest first, without the run's own input.

    When it is over the budget the backend is asked for a summary of the older turns, which can take minutes: call it
    after `running` was committed, on the thread that then reads the stream. `emit` gets the two items that mark it
    (the inbox takes them). When the backend cannot, older turns are left out instead: `changed` is False then.
    """
    with transaction(factory, write=False) as db:
        ratio = _tokens_per_char(db, run)
        summary = compressions.latest(db, run.session_id, before_position=run.position)
        earlier = summary.summary if summary is not None else None
        after_position = summary.upto_position if summary is not None else -1
        asked_tokens = estimate_tokens(run.input + (run.instructions or ""), ratio)
        budget = max(settings.context_budget_tokens - asked_tokens, settings.context_budget_tokens // 4)
        turns = _past_turns(db, run, after_position, ratio, limit_tokens=READ_BUDGETS * budget, turn_tokens=budget // 2)
    _remember_ratio(factory, run, ratio)
    before_tokens = _tokens_of(earlier, ratio) + sum(turn.tokens for turn in turns)
    if before_tokens <= budget:
        return _told(earlier, turns)

    emit(CompressionBegun(before_tokens))
    old, kept = split(turns, budget // 2)
    try:
        made = summarise(
            backend,
            run.id,
            earlier,
            old,
            part_tokens=budget // 2,
            summary_tokens=budget // 4,
            tokens_per_char=ratio,
            model=run.model,
        )
        after_tokens = _tokens_of(made, ratio) + sum(turn.tokens for turn in kept)
        if after_tokens >= before_tokens:
            raise NoSummary(f"no gain: {before_tokens} tokens before, {after_tokens} after")
    except NoSummary as fault:
        log.warning("history.not_compressed", run_id=run.id, cause=str(fault))
        return _shortened(earlier, turns, ratio, budget, before_tokens, emit)
    with transaction(factory) as db:
        compressions.add(
            db,
            session_id=run.session_id,
            run_id=run.id,
            upto_position=old[-1].position if old else after_position,
            summary=made,
            before_tokens=before_tokens,
            after_tokens=after_tokens,
        )
    emit(CompressionEnded(before_tokens, after_tokens, _tokens_of(made, ratio)))
    return _told(made, kept)


def _shortened(
    earlier: str | None,
    turns: list[PastTurn],
    ratio: float | None,
    budget: int,
    before_tokens: int,
    emit: Callable[[CompressionBegun | CompressionEnded], None],
) -> tuple[HistoryMessage, ...]:
    """Without a new summary: the newest turns that fit, beside the summary there was."""
    earlier_tokens = _tokens_of(earlier, ratio)
    _, kept = split(turns, budget - earlier_tokens)
    after_tokens = earlier_tokens + sum(turn.tokens for turn in kept)
    emit(CompressionEnded(before_tokens, after_tokens, earlier_tokens, changed=False))
    return _told(earlier, kept)


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


def _past_turns(
    db: Session, run: Run, after_position: int, ratio: float | None, *, limit_tokens: int, turn_tokens: int
) -> list[PastTurn]:
    """Turns after `after_position` and before the run, oldest first; the newest of them up to `limit_tokens`. One of
    more than `turn_tokens` loses its middle."""
    found: list[PastTurn] = []
    tokens = 0
    for position, question, answer in _newest_first(db, run, after_position):
        question = clipped(question, turn_tokens // 2, ratio)
        answer = clipped(answer, turn_tokens // 2, ratio)
        turn = PastTurn(position, question, answer, estimate_tokens(question + answer, ratio))
        tokens += turn.tokens
        if tokens > limit_tokens and found:
            break
        found.append(turn)
    return found[::-1]


def _newest_first(db: Session, run: Run, after_position: int) -> Iterator[tuple[int, str, str]]:
    """Position, question and answer of each turn that is told."""
    question, answer = aliased(ChatMessage), aliased(ChatMessage)
    rows = db.execute(
        select(Run.id, Run.position, Run.state, Run.retry_of, question.content, answer.content)
        .join(question, (question.run_id == Run.id) & (question.role == "USER"))
        .outerjoin(answer, (answer.run_id == Run.id) & (answer.role == "ASSISTANT"))
        .where(
            Run.session_id == run.session_id,
            Run.position < run.position,
            Run.position > after_position,
            Run.state.in_([state.value for state in FINAL - {RunState.CANCELLED}]),
        )
        .order_by(Run.position.desc())
        .execution_options(yield_per=50)
    )
    tried_again = {run.retry_of}
    for run_id, position, state, retry_of, asked, said in rows:
        if retry_of is not None:
            tried_again.add(retry_of)
        if run_id not in tried_again and (told := _answer_told(RunState(state), said)):
            yield position, asked, told


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


def _tokens_per_char(db: Session, run: Run) -> float | None:
    """By the newest answer whose usage tells it, else what the session knew before."""
    rows = db.execute(
        select(ChatMessage, Run.usage)
        .join(Run, Run.id == ChatMessage.run_id)
        .where(
            Run.session_id == run.session_id,
            Run.position < run.position,
            Run.state == RunState.COMPLETED.value,
            ChatMessage.role == "ASSISTANT",
        )
        .order_by(Run.position.desc())
        .limit(SAMPLE_TURNS)
    )
    for answer, usage in rows:
        if usage is not None and not _has_tools(answer):
            ratio = measured_ratio(answer.content, Usage.model_validate(usage))
            if ratio is not None:
                return ratio
    session = db.get(ChatSession, run.session_id)
    return session.tokens_per_char if session is not None else None


def _remember_ratio(factory: sessionmaker[Session], run: Run, ratio: float | None) -> None:
    """Kept for the time when no recent answer tells it."""
    if ratio is None:
        return
    with transaction(factory) as db:
        session = db.get(ChatSession, run.session_id)
        if session is not None and session.tokens_per_char != ratio:
            session.tokens_per_char = ratio


def _has_tools(answer: ChatMessage) -> bool:
    items = (messages.transcript_of(answer) or {}).get("items", ())
    return any(item.get("type") == "tool" for item in items)
