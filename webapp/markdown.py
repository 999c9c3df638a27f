"""Markdown of people and agents as safe HTML: whole, or while it streams in (DESIGN 7).

A finished top-level block never changes, so it is rendered and sent once. The open one is rendered again at each
flush, an open code block or table only by its new lines, a long paragraph or list only when it has grown by a share of
itself: the cost stays linear. A streamed answer ends as the same HTML as the whole text rendered at once.
"""

import re
from dataclasses import dataclass, field
from typing import Final

from markdown_it.token import Token as Piece
from markupsafe import Markup, escape
from pygments.lexer import Lexer

from webapp import markdown_html as html_of

SMALL_BLOCK: Final = 4_096  # an open block up to this size is rendered again at each flush
GROWTH: Final = 1.1  # a longer one only when it has grown by this factor: the cost of all of them stays linear
CARET: Final = '<span class="caret" aria-hidden="true"></span>'
TAIL_CHARS: Final = 1_000  # of an unfinished line of code that is shown
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})([^\n]*)$")
_BLANK_LINES = re.compile(r"^(?:[ \t]*\n)+")
_ENDS_BLANK = re.compile(r"(?:^|\n)[ \t]*\n$")
_ENDED_BY_BLANK = frozenset({"paragraph_open", "heading_open", "hr", "table_open", "blockquote_open"})
_NOT_A_ROW = re.compile(r"^(?: {4}|\t| {0,3}(?:>|#|```|~~~|[-*+](?:\s|$)|\d{1,9}[.)](?:\s|$)))")


def render_markdown(text: str, *, copy_label: str = "Copy") -> Markup:
    """The whole text as HTML: the blocks of `StreamingMarkdown`, all at once."""
    return Markup(html_of.html(html_of.top_level(html_of.normal(text)), copy_label))  # noqa: S704  (sanitised)


@dataclass(frozen=True)
class Patch:
    """What one flush changes on the page, in this order: blocks that are now finished, put before the open one; the
    open one anew; what is added to its growing part; what is added to or put in place of its tail."""

    finished: str = ""
    open_html: str | None = None
    grow: str = ""  # lines of code, or a `<tbody>` with rows
    grow_rows: bool = False
    tail: str | None = None
    tail_added: str = ""

    @property
    def empty(self) -> bool:
        return not (self.finished or self.grow or self.tail_added) and self.open_html is None and self.tail is None


class StreamingMarkdown:
    """One text part that grows. `dom_id` is the id of its element; the open block stands in `<dom_id>-open`, whose
    growing part is `<dom_id>-grow` and whose tail is `<dom_id>-tail`."""

    def __init__(self, dom_id: str, *, copy_label: str = "Copy") -> None:
        self._id = dom_id
        self._copy = copy_label
        self._finished: list[str] = []
        self._chunks: list[str] = []  # source of the open block, from the start of its first line
        self._size = 0
        self._news: list[str] = []  # fed since the last flush
        self._return_held = False  # a \r at the end of a chunk may be half of \r\n
        self._mode: _Open = _Open()
        self._closed = False

    def feed(self, text: str) -> None:
        if self._return_held:
            text = "\r" + text
        self._return_held = text.endswith("\r")
        text = html_of.normal(text[:-1] if self._return_held else text)
        if text:
            self._news.append(text)

    def flush(self) -> Patch:
        """What changed since the last flush."""
        news = "".join(self._news)
        self._news.clear()
        if not news:
            return Patch()
        if self._mode.fence is not None:
            return self._flush_code(news)
        if self._mode.head is not None:
            return self._flush_table(news)
        return self._flush_general(news)

    def close(self) -> Patch:
        """No more text will come: the open block is finished too. Nothing changes the second time."""
        if self._closed:
            return Patch()
        self._closed = True
        if self._return_held:
            self._return_held = False
            self._news.append("\n")
        source = self._source() + "".join(self._news)
        self._news.clear()
        finished = html_of.html(html_of.top_level(source), self._copy)
        self._restart("")
        self._finished.append(finished)
        return Patch(finished=finished, open_html="")

    def html(self) -> Markup:
        """All of it as it stands on the page now, without ids: finished blocks and the open one."""
        return Markup(self.finished_html() + self.open_html())  # noqa: S704  (sanitised)

    def finished_html(self) -> str:
        return "".join(self._finished)

    def open_html(self) -> str:
        """The inside of the open block's element, as of the last flush."""
        if self._mode.fence is not None:
            return self._code_frame()
        if self._mode.head is not None:
            return self._table_frame()
        return self._general_frame(html_of.html(html_of.top_level(self._source()), self._copy))

    # ---- general: rendered anew, seldom when long

    def _flush_general(self, news: str) -> Patch:
        mode, had = self._mode, self._size
        self._chunks.append(news)
        self._size += len(news)
        ends = mode.kind == "paragraph_open" and ("\n\n" in news or (mode.last == "\n" and news[0] == "\n"))
        if had > SMALL_BLOCK and self._size < mode.rendered * GROWTH and not ends:
            mode.last = news[-1]
            return Patch(tail_added=str(escape(news)))
        return self._advance()

    def _advance(self) -> Patch:
        """Finish what no later line can change, and render the rest anew.

        Judged by whole lines only: a line may still become another kind of block while it grows (`#` to `#tag`)."""
        source = _BLANK_LINES.sub("", self._source())
        blocks = html_of.top_level(source)
        finished = ""
        if len(blocks) > 1 or _ENDS_BLANK.search(source):
            finished, source = self._settle(source)
            blocks = html_of.top_level(source)
        self._restart(source)
        first, newline, rest = source.partition("\n")
        fence = _FENCE.match(first) if newline else None
        if fence is not None and not (fence[1][0] == "`" and "`" in fence[2]):
            return self._open_code(finished, fence, first, rest)
        return self._open_general(finished, source, blocks)

    def _settle(self, source: str) -> tuple[str, str]:
        """The HTML of the blocks that are finished, and the source that is left."""
        whole_lines = source[: source.rfind("\n") + 1]
        settled = html_of.top_level(whole_lines)
        if settled and settled[-1][0].type in _ENDED_BY_BLANK and _ENDS_BLANK.search(whole_lines):
            finished, rest = html_of.html(settled, self._copy), source[len(whole_lines) :]
        elif len(settled) > 1:
            finished = html_of.html(settled[:-1], self._copy)
            rest = html_of.from_line(source, html_of.first_line(settled[-1]))
        else:
            return "", source
        self._finished.append(finished)
        return finished, rest

    def _open_general(self, finished: str, source: str, blocks: list[list[Piece]]) -> Patch:
        mode = self._mode
        kinds = [block[0].type for block in blocks]
        *lines, partial = source.split("\n")
        if kinds == ["table_open"] and len(lines) >= 2:
            mode.head, mode.rows, mode.partial = _with_ends(lines[:2]), [line + "\n" for line in lines[2:]], [partial]
            return Patch(finished=finished, open_html=self.open_html())
        mode.kind = kinds[-1] if kinds else ""
        mode.rendered = max(len(source), 1)
        mode.last = source[-1:]
        return Patch(finished=finished, open_html=self._general_frame(html_of.html(blocks, self._copy)))

    def _general_frame(self, inner: str) -> str:
        return f'{_with_caret(inner)}<span id="{self._id}-tail"></span>'

    # ---- an open fence: only its new lines

    def _open_code(self, finished: str, fence: re.Match[str], first: str, rest: str) -> Patch:
        mode = self._mode
        mode.fence, mode.indent = fence[1], len(first) - len(first.lstrip(" "))
        mode.language = html_of.language_of(fence[2])
        mode.lexer = html_of.lexer_of(mode.language)
        self._chunks = [first + "\n"]
        patch = self._flush_code(rest)
        shown = patch.open_html if patch.open_html is not None else self.open_html()
        return Patch(finished=finished + patch.finished, open_html=shown)

    def _flush_code(self, news: str) -> Patch:
        mode = self._mode
        mode.partial.append(news)
        if "\n" not in news:
            return Patch(tail=mode.tail())
        *lines, partial = "".join(mode.partial).split("\n")
        for n, line in enumerate(lines):
            self._chunks.append(line + "\n")
            if mode.closes(line):
                finished = html_of.html(html_of.top_level("".join(self._chunks)), self._copy)
                self._finished.append(finished)
                self._restart("\n".join([*lines[n + 1 :], partial]))
                after = self._advance()
                return Patch(finished=finished + after.finished, open_html=after.open_html)
        mode.partial = [partial]
        fresh = [html_of.without_indent(line, mode.indent) + "\n" for line in lines]
        mode.lines.extend(fresh)
        return Patch(grow=html_of.colour("".join(fresh), mode.lexer), tail=mode.tail())

    def _code_frame(self) -> str:
        mode = self._mode
        grown = html_of.colour("".join(mode.lines), mode.lexer)
        inside = f'<span id="{self._id}-grow">{grown}</span><span id="{self._id}-tail">{mode.tail()}</span>{CARET}'
        return html_of.code_box(mode.language, inside, self._copy)

    # ---- an open table: only its new rows

    def _flush_table(self, news: str) -> Patch:
        mode = self._mode
        if "\n" not in news:
            mode.partial.append(news)
            return Patch()
        *lines, partial = "".join([*mode.partial, news]).split("\n")
        if any("|" not in line or _NOT_A_ROW.match(line) for line in lines):
            self._restart(self._source() + news)
            return self._advance()
        mode.partial = [partial]
        mode.rows.extend(line + "\n" for line in lines)
        rows = "".join(html_of.row(mode.head or "", line) for line in lines)
        return Patch(grow=f"<tbody>{rows}</tbody>", grow_rows=True)

    def _table_frame(self) -> str:
        table = html_of.html(html_of.top_level((self._mode.head or "") + "".join(self._mode.rows)), self._copy)
        return self._general_frame(table.replace("<table>", f'<table id="{self._id}-grow">', 1))

    # ----

    def _source(self) -> str:
        """The open block's text, from the start of its first line."""
        mode = self._mode
        if mode.head is not None:
            return "".join([mode.head, *mode.rows, *mode.partial])
        return "".join([*self._chunks, *mode.partial])

    def _restart(self, source: str) -> None:
        self._mode = _Open()
        self._chunks = [source] if source else []
        self._size = len(source)


@dataclass
class _Open:
    """What is known of the open block: general, a fence (`fence` and `lines` are set) or a table (`head`, `rows`)."""

    kind: str = ""
    rendered: int = 1  # size of the source when it was last rendered
    last: str = ""  # last character fed
    fence: str | None = None
    indent: int = 0
    language: str = ""
    lexer: Lexer | None = None
    lines: list[str] = field(default_factory=list)
    head: str | None = None
    rows: list[str] = field(default_factory=list)
    partial: list[str] = field(default_factory=list)  # of a fence or table: the line that has no end yet

    def closes(self, line: str) -> bool:
        found = _FENCE.match(line)
        if found is None or self.fence is None:
            return False
        return found[1][0] == self.fence[0] and len(found[1]) >= len(self.fence) and not found[2].strip(" \t")

    def tail(self) -> str:
        """The end of the unfinished line, escaped."""
        kept: list[str] = []
        missing = TAIL_CHARS
        for piece in reversed(self.partial):
            kept.append(piece)
            missing -= len(piece)
            if missing <= 0:
                break
        return str(escape("".join(reversed(kept))[-TAIL_CHARS:]))


def _with_caret(html: str) -> str:
    """The caret at the end of the last paragraph or list item."""
    end = html.rfind("</p>" if html.endswith("</p>\n") else "</li>")
    is_text = end >= 0 and html.endswith(("</p>\n", "</ul>\n", "</ol>\n"))
    return html[:end] + CARET + html[end:] if is_text else html


def _with_ends(lines: list[str]) -> str:
    return "".join(line + "\n" for line in lines)
