"""What models say that is made to break the child: long, odd and endless texts, commands that nobody could read."""

import time

import pytest

from worker.backends.bridge.process import outcome
from worker.backends.bridge.process.think import ThinkSplitter, without_thoughts

FAR_S = 10.0  # what takes a tenth of a second when it grows as the text does, and half a minute when as its square


def split(*pieces: str) -> tuple[str, str]:
    """Thinking and answer of a text that comes in these pieces."""
    thinking: list[str] = []
    splitter = ThinkSplitter(thinking.append)
    shown = "".join(splitter.feed(piece) for piece in pieces) + splitter.flush()
    return "".join(thinking), shown


def test_letters_that_grow_in_lower_case_do_not_move_the_end_of_thinking() -> None:
    text = "<think>\u0130\u0130\u0130 stanbul</think>answer"
    assert split(text) == split(*text) == ("\u0130\u0130\u0130 stanbul", "answer")


@pytest.mark.parametrize("line", ["x" * 40 + "\n", "\n", "<think>a</think>\n", "   <", "`\n"])
def test_a_long_text_that_comes_at_once_is_split_in_time(line: str) -> None:
    text = line * (2_000_000 // len(line))
    begun = time.monotonic()
    split(text)
    assert time.monotonic() - begun < FAR_S


def test_tags_that_are_opened_by_the_thousand_and_never_closed_take_no_longer() -> None:
    text = "a <think> b <reasoning> c" * 10_000
    begun = time.monotonic()
    assert outcome.missing_text("the end", text, text) == "\n\nthe end"
    assert time.monotonic() - begun < FAR_S


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("a<think>b</think>c", "ac"),
        ("a<THINK>b</Think>c<thought>d</thought>", "ac"),
        ("a<think>b</thinking>c", "a<think>b</thinking>c"),
        ("<think>a<thought>b</thought>", "<think>a"),
        ("<think>a<think>b</think>c</think>", "c</think>"),
        ("", ""),
    ],
)
def test_thoughts_are_cut_out_wherever_they_are(text: str, rest: str) -> None:
    assert without_thoughts(text) == rest
