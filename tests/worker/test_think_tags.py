"""Think tags in an answer become reasoning, however they are cut; tags that are written about stay."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.backends.base import Reasoning, Text
from worker.backends.think_tags import ThinkTags


def read(*pieces: str) -> tuple[str, str]:
    """(thinking, answer)"""
    tags = ThinkTags()
    items = [item for piece in pieces for item in tags.feed(piece)] + tags.end()
    thinking = "".join(item.text for item in items if isinstance(item, Reasoning))
    return thinking, "".join(item.text for item in items if isinstance(item, Text))


@pytest.mark.parametrize(
    ("text", "thinking", "answer"),
    [
        ("<think>x</think>y", "x", "y"),
        ("\n <think>\nx < y\n</think>\n\n y </think>", "\nx < y\n", "y </think>"),
        ("<thinking>x</think></thinking>y", "x</think>", "y"),
        ("<think>a</think><think>b</think>c", "ab", "c"),
        ("<think>never closed", "never closed", ""),
        ("<think></think>", "", ""),
        ("<think>x</think> \n", "x", ""),
        ("<thin ice", "", "<thin ice"),
        ("<thi", "", "<thi"),
        ("  plain", "", "  plain"),
        ("\n\n", "", "\n\n"),
        ("Use `<think>` so: <think>x</think>", "", "Use `<think>` so: <think>x</think>"),
        ("```\n<think>x</think>\n```", "", "```\n<think>x</think>\n```"),
    ],
)
def test_every_cut_tells_thinking_and_answer_apart(text: str, thinking: str, answer: str):
    assert read(text) == (thinking, answer)
    assert read(*text) == (thinking, answer)
    for place in range(len(text)):
        assert read(text[:place], text[place:]) == (thinking, answer)


@given(st.text(alphabet="<>/think \nx", max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_cuts_never_matter(text: str, places: list[int]):
    edges = [0, *sorted(place for place in places if place < len(text)), len(text)]
    assert read(*(text[a:b] for a, b in itertools.pairwise(edges))) == read(text)


def test_plain_text_is_not_held_back():
    tags = ThinkTags()
    assert tags.feed("Hello") == [Text("Hello")]
    assert tags.feed(" <") == [Text(" <")]


def test_a_new_text_after_a_tool_may_begin_with_thinking_again():
    tags = ThinkTags()
    assert tags.feed("Look.") == [Text("Look.")]
    assert tags.end() == []
    assert tags.feed("\n\n<think>now") == [Reasoning("now")]
