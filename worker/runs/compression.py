"""Older turns of a session as one summary, made by the backend itself. Shown history is never altered by it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shared.errors import BackendError
from worker.backends.base import Backend, Provider, Turn
from worker.runs.tokens import estimate_tokens

MAX_PARTS = 8  # summarised one after another, where the older turns do not fit into one request


@dataclass(frozen=True)
class PastTurn:
    """A turn that ended, as it is told to a backend."""

    position: int
    question: str
    answer: str
    tokens: int


def past_turn(position: int, question: str, answer: str, ratio: float | None, *, tokens: int) -> PastTurn:
    """A turn of at most about `tokens`: question and answer lose their middles beyond half of it each."""
    question, answer = clipped(question, tokens // 2, ratio), clipped(answer, tokens // 2, ratio)
    return PastTurn(position, question, answer, estimate_tokens(question + answer, ratio))


class NoSummary(Exception):
    """The backend failed or gave nothing that is shorter; `cause` for the log."""


def split(turns: Sequence[PastTurn], kept_tokens: int) -> tuple[list[PastTurn], list[PastTurn]]:
    """The older turns, and the newest that fit into `kept_tokens`."""
    first_kept = len(turns)
    room = kept_tokens
    while first_kept > 0 and turns[first_kept - 1].tokens <= room:
        room -= turns[first_kept - 1].tokens
        first_kept -= 1
    return list(turns[:first_kept]), list(turns[first_kept:])


def summarise(
    backend: Backend,
    run_id: str,
    before: str | None,
    turns: Sequence[PastTurn],
    *,
    part_tokens: int,
    summary_tokens: int,
    tokens_per_char: float | None,
    model: str | None = None,
    provider: Provider | None = None,
) -> str:
    """The summary of `before` (an earlier one) and `turns`, at most about `summary_tokens` long. Asks the backend, and
    waits for it. Raises NoSummary."""
    summary = before
    for part in _parts(turns, part_tokens, tokens_per_char):
        request = Turn(
            run_id=run_id,
            session_id=f"summary-{run_id}",  # no session of anybody: the agent's own memory stays out of it
            input=_request(summary, part, words=max(100, summary_tokens // 2)),
            model=model,
            provider=provider,
        )
        try:
            summary = backend.execute(request).text.strip()
        except BackendError as error:
            raise NoSummary(f"{error.code}: {error.detail or error.message}") from error
        if not summary:
            raise NoSummary("empty")
    if summary is None:
        raise NoSummary("nothing to summarise")
    return clipped(summary, summary_tokens, tokens_per_char)


def _parts(turns: Sequence[PastTurn], part_tokens: int, tokens_per_char: float | None) -> Iterable[str]:
    """The turns as text, in parts of about `part_tokens`; the newest MAX_PARTS of them."""
    parts: list[list[str]] = [[]]
    room = part_tokens
    for turn in turns:
        if turn.tokens > room and parts[-1]:
            parts.append([])
            room = part_tokens
        room -= turn.tokens
        text = f"<user>\n{turn.question}\n</user>\n<assistant>\n{turn.answer}\n</assistant>"
        parts[-1].append(clipped(text, part_tokens, tokens_per_char))
    return ["\n".join(part) for part in parts[-MAX_PARTS:]]


def _request(before: str | None, conversation: str, *, words: int) -> str:
    earlier = f"\n\n<earlier-summary>\n{before}\n</earlier-summary>" if before else ""
    return (
        "Summarise the conversation below, so that you can go on with it later without seeing it again. Keep facts, "
        "names, numbers, file paths, decisions and their reasons, what is done, what is open, and what the user wants "
        f"and how. Write at most {words} words, in the language of the conversation. Only the summary: do not answer "
        f"what is asked in it, and use no tools.{earlier}\n\n<conversation>\n{conversation}\n</conversation>"
    )


def clipped(text: str, tokens: int, tokens_per_char: float | None) -> str:
    """`text`, its middle left out (and said so) where it is longer than `tokens`."""
    total = estimate_tokens(text, tokens_per_char)
    if total <= tokens:
        return text
    kept_chars = max(0, int(len(text) * tokens / total) - 40)
    head, tail = kept_chars * 2 // 3, kept_chars // 3
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[… {left_out} characters left out …]\n{text[len(text) - tail :]}"
