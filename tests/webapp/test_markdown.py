"""Markdown: safe whatever is written, the same streamed as whole, and linear in its length."""

import re
import time
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.webapp.hostile import HOSTILE
from webapp.markdown import Patch, StreamingMarkdown, render_markdown
from webapp.markdown_html import ATTRIBUTES, BOX_TAGS, CLASSES, TEXT_TAGS, colour, lexer_of

OURS = re.compile(r'<button class="btn btn--bare" type="button" data-copy="code">.*?</button>', re.DOTALL)
MARKS = (
    "# ",
    "#",
    "===\n",
    "---\n",
    "> ",
    "- ",
    "* ",
    "1. ",
    "2) ",
    "```",
    "~~~",
    "```py\n",
    "`",
    "**",
    "*",
    "_",
    "~~",
)
TABLES = ("|", "| a | b |\n", "|---|--:|\n", "| 1 | 2 |\n")
LINKS = ("[x](http://a.example)", "![i](http://a.example/i.png)", "[r]: http://a.example\n", "[r]", "<b>", "<script>")
PLAIN = ("a", "word ", "\n", "\n\n", "\r\n", "\r", "  ", "    ", "\t", "&lt;", "\\", "你好", "\0")
PIECES = st.sampled_from((*MARKS, *TABLES, *LINKS, *PLAIN))
SOURCES = st.lists(PIECES, max_size=40).map("".join)


def streamed(source: str, sizes: list[int]) -> str:
    """The finished blocks after feeding `source` in chunks of these sizes, flushing after each."""
    stream, at, n = StreamingMarkdown("p"), 0, 0
    finished = ""
    while at < len(source):
        size = sizes[n % len(sizes)]
        stream.feed(source[at : at + size])
        finished += stream.flush().finished
        at, n = at + size, n + 1
    finished += stream.close().finished
    assert finished == stream.finished_html()
    return finished


@settings(max_examples=400, deadline=None)
@given(SOURCES, st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_streamed_in_any_pieces_it_ends_as_the_whole_text_rendered_at_once(source: str, sizes: list[int]) -> None:
    assert streamed(source, sizes) == str(render_markdown(source))


@settings(max_examples=150, deadline=None)
@given(SOURCES, st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_a_page_that_applies_every_patch_shows_the_text(source: str, sizes: list[int]) -> None:
    page, stream, at, n = Page(), StreamingMarkdown("p"), 0, 0
    while at < len(source):
        stream.feed(source[at : at + sizes[n % len(sizes)]])
        page.apply(stream.flush())
        assert words(page.html()) == words(stream.html())
        at, n = at + sizes[n % len(sizes)], n + 1
    page.apply(stream.close())
    assert words(page.html()) == words(render_markdown(source))


class Page:
    """What the patches do to a page, as in patch_html and the page's swaps."""

    def __init__(self) -> None:
        self.done, self.open, self.grown, self.tail = "", "", "", ""

    def apply(self, patch: Patch) -> None:
        self.done += patch.finished
        if patch.open_html is not None:
            self.open, self.grown, self.tail = patch.open_html, "", ""
        self.grown += patch.grow
        if patch.tail is not None:
            self.tail = patch.tail
            self.open = re.sub(r'(<span id="p-tail">).*?(</span>)', r"\1\2", self.open, flags=re.DOTALL)
        self.tail += patch.tail_added

    def html(self) -> str:
        before, mark, after = self.open.partition('<span id="p-tail">')
        return self.done + before + self.grown + mark + self.tail + after


def words(html: str) -> str:
    """The text alone, without white space and without what our boxes add."""
    return "".join(re.sub(r"<[^>]*>", "", OURS.sub("", str(html))).split())


LONG = {
    "paragraphs": "The quick **brown** fox `jumps` over the lazy dog, again and again. " * 6 + "\n\n",
    "one paragraph": "word **b** and `c` ",
    "code": "def f(x):\n    return x + 1  # c\n",
    "a table": "| 12345 | foo bar |\n",
    "a list": "- item of a **list** number\n",
    "one line of code": "x" * 97,
}
HEADS = {"code": "```python\n", "a table": "| a | b |\n|---|---|\n", "one line of code": "```\n"}


@pytest.mark.parametrize("kind", LONG)
def test_the_cost_of_a_delta_does_not_grow_with_the_answer(kind: str) -> None:
    """A cost that grew with the text would make the last quarter 7 times as dear as the first. A machine that has other
    things to do makes one of them dearer too, but not the same one again and again."""
    assert any(last <= 1.5 * first + 0.05 for first, last in (cost_of_quarters(kind) for _ in range(5)))


def cost_of_quarters(kind: str) -> tuple[float, float]:
    """The seconds of this thread for the first and the last quarter of a long answer."""
    length = 80_000 if kind in ("a list", "one paragraph") else 200_000
    source = (HEADS.get(kind, "") + LONG[kind] * (length // len(LONG[kind]) + 1))[:length]
    stream = StreamingMarkdown("p")
    first = last = 0.0
    size = 10 if kind == "paragraphs" else 50  # 20,000 deltas; 4,000 where rendering the open block costs most
    for at in range(0, len(source), size):
        started = time.thread_time()
        stream.feed(source[at : at + size])
        stream.flush()
        took = time.thread_time() - started
        if at < length / 4:
            first += took
        elif at >= length * 3 / 4:
            last += took
    return first, last


@pytest.mark.parametrize("text", HOSTILE)
def test_what_people_write_never_becomes_more_than_text(text: str) -> None:
    """S25, S28: whole, and character by character."""
    for source in (text, f"# {text}", f"- {text}", f"> {text}", f"| a |\n|---|\n| {text} |", f"```{text}\n{text}\n```"):
        assert_safe(str(render_markdown(source)))
        stream = StreamingMarkdown("p")
        for character in source:
            stream.feed(character)
            patch = stream.flush()
            assert_safe(patch.finished + patch.grow + (patch.tail or "") + patch.tail_added)


def assert_safe(html: str) -> None:
    """Only our tags, attributes and classes; only addresses that lead out by a click."""
    parser = _Allowed()
    parser.feed(OURS.sub("", html))
    parser.close()


class _Allowed(HTMLParser):
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TEXT_TAGS | BOX_TAGS, tag
        for name, value in attrs:
            if name == "class":
                assert set((value or "").split()) <= CLASSES.get(tag, set()), (tag, value)
            elif (tag, name) != ("a", "rel"):
                assert name in ATTRIBUTES.get(tag, set()), (tag, name)
            if name == "href":
                assert not re.match(r"\s*(javascript|data|vbscript|file):", value or "", re.IGNORECASE), value


def test_links_say_where_they_lead_and_give_nothing_away() -> None:
    """S26."""
    html = str(render_markdown("[your bank](https://evil.example/x) and [evil.example](https://evil.example)"))
    assert 'rel="noopener noreferrer nofollow"' in html
    assert html.count('<span class="host">(evil.example)</span>') == 1


def test_pictures_from_elsewhere_become_links() -> None:
    """S27."""
    html = str(render_markdown("![look](https://evil.example/pixel.png)"))
    assert "<img" not in html
    assert '<a class="image" href="https://evil.example/pixel.png"' in html


def test_an_unfinished_fence_stays_in_its_own_box() -> None:
    stream = StreamingMarkdown("p")
    for character in "before\n\n```py\nx = 1\n\n# no heading":
        stream.feed(character)
        stream.flush()
    assert "<h2>" not in stream.html()
    assert stream.close().finished.count('<div class="code">') == 1


def test_lines_of_open_code_and_rows_of_an_open_table_are_sent_once() -> None:
    stream = StreamingMarkdown("p")
    for source in ("```\n" + "line\n" * 200, "```\n\n| a | b |\n|--|--|\n" + "| 1 | 2 |\n" * 200):
        sent = 0
        for line in source.splitlines(keepends=True):
            stream.feed(line)
            patch = stream.flush()
            sent += len(patch.finished) + len(patch.open_html or "") + len(patch.grow)
        assert sent < 12 * len(source)


def test_a_finished_block_is_never_sent_again() -> None:
    stream = StreamingMarkdown("p")
    sent = ""
    for n in range(50):
        stream.feed(f"Paragraph number {n}.\n\n")
        sent += stream.flush().finished
    sent += stream.close().finished
    assert [sent.count(f"number {n}.") for n in range(50)] == [1] * 50


def test_code_is_coloured_by_our_five_classes_only() -> None:
    code = 'def f(x: int) -> str:\n    """Doc."""\n    return "s" + str(x * 0x1F)  # why\n'
    html = colour(code, lexer_of("python"))
    assert set(re.findall(r'class="([^"]*)"', html)) <= {"k", "s", "m", "f", "c"}
    assert re.sub(r"<[^>]+>", "", html).replace("&#34;", '"').replace("&gt;", ">") == code


@pytest.mark.parametrize("code", ["(" * 60_000, '"' * 60_000, "a\\" * 30_000, "/*" * 30_000, "<" * 60_000])
@pytest.mark.parametrize("language", ["python", "html", "c", "perl", "markdown"])
def test_no_code_keeps_the_lexer_busy(code: str, language: str) -> None:
    started = time.thread_time()
    render_markdown(f"```{language}\n{code}\n```")
    assert time.thread_time() - started < 5


def test_words_that_look_like_our_page_get_none_of_its_powers() -> None:
    text = '<section class="ask" id="approval-1"><form action="/logout"><button>Allow once</button></form></section>'
    html = str(render_markdown(text))
    assert "<section" not in html
    assert "<form" not in html
    assert "&lt;section" in html
