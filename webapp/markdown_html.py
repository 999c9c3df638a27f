"""One step of Markdown: a source to its top-level blocks, each as safe HTML (RELIABILITY S19, S25-S28).

markdown-it-py with raw HTML off, then nh3 with our own list of tags and classes; Pygments for code. Reference
definitions are off: one at the end of an answer would change blocks long shown.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, cast
from urllib.parse import urlsplit

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token as Piece
from markupsafe import escape
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Literal, Name, Number, Operator, String, _TokenType
from pygments.util import ClassNotFound

SCHEMES = frozenset({"http", "https", "mailto"})
MAX_COLOURED_CHARS: Final = 64_000  # lexers are regular expressions: longer code stays plain (S50)
MAX_COLOURED_LINE: Final = 2_000

COLOURS: tuple[tuple[_TokenType, str], ...] = (
    (Comment, "c"),
    (String, "s"),
    (Number, "m"),
    (Literal, "m"),
    (Keyword, "k"),
    (Operator.Word, "k"),
    (Name.Builtin.Pseudo, "k"),
    (Name.Tag, "k"),
    (Name.Function, "f"),
    (Name.Class, "f"),
    (Name.Builtin, "f"),
    (Name.Decorator, "f"),
    (Name.Attribute, "f"),
)
CLASSES: dict[str, set[str]] = {
    "div": {"code", "tablebox"},
    "span": {"c", "s", "m", "k", "f", "host", "lang"},
    "a": {"image"},
    "th": {"n", "mid"},
    "td": {"n", "mid"},
}
ATTRIBUTES: dict[str, set[str]] = {
    "a": {"href", "title"},
    "ol": {"start"},
    "div": {"tabindex"},
    "pre": {"tabindex"},
}
TEXT_TAGS = frozenset(("p", "h2", "h3", "h4", "ul", "ol", "li", "blockquote", "em", "strong", "s", "br", "hr", "a"))
BOX_TAGS = frozenset(("pre", "code", "div", "header", "span", "table", "thead", "tbody", "tr", "th", "td"))
_CLEANER = nh3.Cleaner(
    tags=set(TEXT_TAGS | BOX_TAGS),
    clean_content_tags={"script", "style"},
    attributes=ATTRIBUTES,
    allowed_classes=CLASSES,
    url_schemes=set(SCHEMES),
    link_rel="noopener noreferrer nofollow",
    strip_comments=True,
)
_HEADING = {"h1": "h2", "h2": "h3"}


def top_level(source: str) -> list[list[Piece]]:
    """The pieces of each top-level block of a source whose line ends are `\\n`."""
    found: list[list[Piece]] = []
    depth = 0
    for piece in _md().parse(source):
        if depth == 0:
            found.append([])
        found[-1].append(piece)
        depth += piece.nesting
    return found


def first_line(block: list[Piece]) -> int:
    """The line of the source that the block begins at."""
    return block[0].map[0] if block[0].map else 0


def html(found: Sequence[list[Piece]], copy_label: str) -> str:
    """Blocks as safe HTML, each cleaned by itself, so that many at once give the same as one by one."""
    button = _copy_button(copy_label) + "</header>"
    parts = [_CLEANER.clean(_md().renderer.render(block, _md().options, {})) for block in found]
    return "".join(part.replace(_COPY_PLACE, button) for part in parts)


def row(head: str, line: str) -> str:
    """The `<tr>` of one line of a table; `head` is its first two lines."""
    table = html(top_level(f"{head}{line}\n"), "")
    return table.partition("<tbody>")[2].partition("</tbody>")[0]


def from_line(source: str, line: int) -> str:
    at = 0
    for _ in range(line):
        at = source.index("\n", at) + 1
    return source[at:]


def normal(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")


def without_indent(line: str, indent: int) -> str:
    """The line without the indentation of the fence it stands in."""
    taken = 0
    while taken < indent and line[taken : taken + 1] == " ":
        taken += 1
    return line[taken:]


# ---- the renderer


@lru_cache(maxsize=1)
def _md() -> MarkdownIt:
    md = MarkdownIt("commonmark", {"html": False, "linkify": False, "typographer": False, "maxNesting": 40})
    md.enable(["table", "strikethrough"]).disable(["reference", "html_block", "html_inline"])
    md.validateLink = _is_safe_link  # type: ignore[method-assign,assignment]
    rules: dict[str, Any] = cast(Any, md.renderer).rules
    rules["fence"] = _fence
    rules["code_block"] = _fence
    rules["image"] = _image
    rules["link_open"] = _link_open
    rules["link_close"] = _link_close
    rules["table_open"] = lambda *_: '<div class="tablebox" tabindex="0"><table>\n'
    rules["table_close"] = lambda *_: "</table></div>\n"
    rules["heading_open"] = rules["heading_close"] = _heading
    rules["th_open"] = rules["td_open"] = _cell
    return md


def _is_safe_link(address: str) -> bool:
    scheme, colon, _ = address.strip().partition(":")
    return not colon or scheme.lower() in SCHEMES or "/" in scheme or "?" in scheme or "#" in scheme


def _fence(pieces: Sequence[Piece], at: int, _options: Any, _env: Any) -> str:
    piece = pieces[at]
    language = language_of(piece.info)
    body = colour(piece.content, lexer_of(language))
    return code_box(language, body, copy_label=None)


def code_box(language: str, body: str, copy_label: str | None) -> str:
    button = _copy_button(copy_label) if copy_label is not None else ""
    label = escape(language or "text")
    return (
        f'<div class="code"><header><span class="lang">{label}</span>{button}</header>'
        f'<pre tabindex="0"><code>{body}</code></pre></div>\n'
    )


_COPY_PLACE: Final = "</header>"
"""Only a code box has a header: people's text cannot make one. The button goes in after the sanitiser."""


def _copy_button(label: str) -> str:
    return (
        '<button class="btn btn--bare" type="button" data-copy="code"><svg class="i" aria-hidden="true">'
        f'<use href="#i-copy"></use></svg>{escape(label)}</button>'
    )


def _image(pieces: Sequence[Piece], at: int, _options: Any, _env: Any) -> str:
    piece = pieces[at]
    address = str(piece.attrs.get("src", ""))
    text = piece.content or address
    return f'<a class="image" href="{escape(address)}">{escape(text)}</a>{_host(address, text)}'


def _link_open(pieces: Sequence[Piece], at: int, _options: Any, _env: Any) -> str:
    piece = pieces[at]
    title = piece.attrs.get("title")
    extra = f' title="{escape(str(title))}"' if title else ""
    return f'<a href="{escape(str(piece.attrs.get("href", "")))}"{extra}>'


def _link_close(pieces: Sequence[Piece], at: int, _options: Any, _env: Any) -> str:
    depth, start = 0, at
    for start in range(at, -1, -1):
        depth += {"link_close": 1, "link_open": -1}.get(pieces[start].type, 0)
        if depth == 0:
            break
    text = "".join(piece.content for piece in pieces[start + 1 : at])
    return "</a>" + _host(str(pieces[start].attrs.get("href", "")), text)


def _host(address: str, text: str) -> str:
    """The host beside a link whose text does not name it (S26)."""
    try:
        host = urlsplit(address).hostname or ""
    except ValueError:
        return ""
    return "" if not host or host in text.lower() else f' <span class="host">({escape(host)})</span>'


def _heading(pieces: Sequence[Piece], at: int, _options: Any, _env: Any) -> str:
    piece = pieces[at]
    tag = _HEADING.get(piece.tag, "h4")
    return f"<{tag}>" if piece.nesting == 1 else f"</{tag}>\n"


def _cell(pieces: Sequence[Piece], at: int, _options: Any, _env: Any) -> str:
    piece = pieces[at]
    align = str(piece.attrs.get("style", "")).removeprefix("text-align:")
    name = {"right": ' class="n"', "center": ' class="mid"'}.get(align, "")
    return f"<{piece.tag}{name}>"


# ---- code


def language_of(info: str) -> str:
    words = info.split()
    return words[0][:40] if words else ""


@lru_cache(maxsize=200)
def lexer_of(language: str) -> Lexer | None:
    if not language:
        return None
    try:
        return get_lexer_by_name(language.lower(), stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


def colour(code: str, lexer: Lexer | None) -> str:
    """Escaped code with spans of our five colours; neighbours of one colour share a span."""
    too_long = len(code) > MAX_COLOURED_CHARS or any(len(line) > MAX_COLOURED_LINE for line in code.split("\n"))
    if lexer is None or too_long:
        return str(escape(code))
    out: list[str] = []
    current, text = "", ""
    for kind, value in [*lexer.get_tokens(code), (None, "")]:
        new = "" if kind is None else next((name for parent, name in COLOURS if kind in parent), "")
        if kind is not None and (new == current or not value.strip()):
            text += value
            continue
        if text:
            out.append(f'<span class="{current}">{escape(text)}</span>' if current else str(escape(text)))
        current, text = new, value
    return "".join(out)
