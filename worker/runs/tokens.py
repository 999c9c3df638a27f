"""How many tokens a text is, by estimate: a portal that serves any model has no tokenizer of its own. Pure."""

from shared.protocol.events import Usage

ASCII_TOKENS_PER_CHAR = 0.25
OTHER_TOKENS_PER_CHAR = 0.8  # a Han character is about one token, accented Latin less
SHORTEST_SAMPLE_CHARS = 200
LOWEST, HIGHEST = 0.1, 1.5  # of a believable ratio


def estimate_tokens(text: str, tokens_per_char: float | None) -> int:
    """By the session's own ratio where it is known, else by the kind of the characters."""
    if tokens_per_char is not None:
        return int(len(text) * tokens_per_char) + 1
    others = sum(1 for character in text if character > "\x7f")
    return int((len(text) - others) * ASCII_TOKENS_PER_CHAR + others * OTHER_TOKENS_PER_CHAR) + 1


def measured_ratio(answer: str, usage: Usage) -> float | None:
    """Tokens a character by what a model reported for an answer without tools; None where that tells nothing credible.

    The answer's side, because the prompt's holds a system prompt and tools of unknown length, once for each call.
    """
    written = usage.output_tokens - usage.reasoning_tokens
    if len(answer) < SHORTEST_SAMPLE_CHARS or written <= 0:
        return None
    ratio = written / len(answer)
    return ratio if LOWEST <= ratio <= HIGHEST else None
