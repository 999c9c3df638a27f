"""The answer of a turn, part by part, as HTML: of a turn that has ended, and while it streams."""

from functools import lru_cache
from typing import Final

from markupsafe import Markup

from shared.transcript import TextPart, ToolCall, Transcript
from webapp.markdown import StreamingMarkdown, render_markdown
from webapp.render import _
from webapp.views import AnswerPart

CACHED_CHARS: Final = 32_000


class Streams:
    """The text parts of one run as they stream: each fed once, by what is new in the transcript."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._parts: dict[int, StreamingMarkdown] = {}
        self._fed: dict[int, int] = {}

    def take(self, part: TextPart) -> tuple[StreamingMarkdown, bool]:
        """The stream of a part with all of its text fed, and whether it is new. The caller flushes it."""
        stream = self._parts.get(part.part)
        is_new = stream is None
        if stream is None:
            stream = StreamingMarkdown(part_id(self._run_id, part), copy_label=_("Copy"))
            self._parts[part.part] = stream
        stream.feed(part.since(self._fed.get(part.part, 0)))
        self._fed[part.part] = part.length
        return stream, is_new


def part_id(run_id: str, part: TextPart) -> str:
    return f"run-{run_id}-p{part.part}"


def answer_parts(transcript: Transcript, *, streams: Streams | None) -> tuple[AnswerPart, ...]:
    """The answer, part by part, with the tools that ran in between; open while it streams into `streams`."""
    found: list[AnswerPart] = []
    tools: list[str] = []
    last = next((part for part in reversed(transcript.answer_parts) if part.length), None)
    for item in transcript.items:
        if isinstance(item, ToolCall):
            tools.append(item.name)
        elif isinstance(item, TextPart) and item.kind == "message" and item.length:
            after = tuple(dict.fromkeys(tools)) if found else ()
            found.append(_answer_part(transcript.run_id, item, after, streams, is_last=item is last))
            tools = []
    return tuple(found)


def _answer_part(
    run_id: str, part: TextPart, after: tuple[str, ...], streams: Streams | None, *, is_last: bool
) -> AnswerPart:
    if streams is None:
        return AnswerPart(part_id(run_id, part), markdown(part.text), after=after)
    stream, _new = streams.take(part)
    if not is_last:
        stream.close()
        return AnswerPart(part_id(run_id, part), Markup(stream.finished_html()), after=after)  # noqa: S704  (sanitised)
    stream.flush()
    return open_part(run_id, part, stream, after)


def open_part(run_id: str, part: TextPart, stream: StreamingMarkdown, after: tuple[str, ...]) -> AnswerPart:
    """A part that streams, as it stands at the stream's last flush."""
    done, still_open = Markup(stream.finished_html()), Markup(stream.open_html())  # noqa: S704  (sanitised)
    return AnswerPart(part_id(run_id, part), done, still_open, after)


def markdown(text: str) -> Markup:
    """A finished text as HTML; what was rendered lately is not rendered again."""
    return _cached(text, _("Copy")) if len(text) <= CACHED_CHARS else render_markdown(text, copy_label=_("Copy"))


@lru_cache(maxsize=512)
def _cached(text: str, copy_label: str) -> Markup:
    return render_markdown(text, copy_label=copy_label)
