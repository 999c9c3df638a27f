"""The frames of one `/v1/responses` stream, folded into the items of the backend seam. No I/O: the same frames give the
same items however they were cut.

What is known of the peer (hermes/SURFACES.md 1.1): a failed model looks like a completed answer whose usage is 0 and
whose text is the error; item ids may change between two frames of one item, so tools are matched by call, else by
place; the last frame repeats the tool outputs cut, so they are taken from the frames before.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from shared.errors import BackendProtocolError, BackendRefused
from shared.protocol.events import Usage
from worker.backends import base
from worker.backends.gateway import extension, faults, frames, tools
from worker.backends.think_tags import ThinkTags

ERROR_TEXT = re.compile(r"HTTP [45]\d\d\b|API call failed after \d+ retr")
"""How Hermes begins the text that it puts in place of an answer when a later model call failed. Usage is not 0 then;
the text comes as one piece, and without the blank line with which all text after a tool begins."""


@dataclass(frozen=True)
class Answers:
    """How a person's decision goes back: by the extension's requests, with the id of the approval or question."""

    approve: Callable[[str, base.Choice], None]
    clarify: Callable[[str, str | None], None]


@dataclass
class _Tool:
    tool_id: str
    name: str
    place: int | None
    told: bool = False  # ToolBegun went out
    ended: bool = False
    arguments: str | dict[str, object] | None = None
    other_ids: set[str] = field(default_factory=set)  # call ids that the same tool had in later frames


class ResponseReader:
    """`read` each frame; afterwards `ended` is true when it was the last. Raises BackendRefused for an answer that
    failed, BackendProtocolError for frames that cannot be of this response."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.session_id: str | None = None  # the gateway's own, from the head of its answer
        self._tools: list[_Tool] = []
        self._pauses: set[str] = set()  # open, and not answered by us
        self._text: list[str] = []  # as it came
        self._tags = ThinkTags()
        self._text_since_tool = False
        self._last_number: int | None = None
        self.response_id: str | None = None
        self.ended = False

    @property
    def waits_for_a_person(self) -> bool:
        return bool(self._pauses)

    def read(self, frame: frames.ResponseFrame) -> Iterator[base.Item]:
        if self._is_repeated(frame.sequence_number):
            return
        match frame:
            case frames.TextDelta():
                yield from self._say(frame.delta)
            case frames.ResponseBegun():
                self.response_id = frame.response.id or None
                yield base.TurnBegun(
                    backend_run_id=self.response_id,
                    backend_session_id=self.session_id,
                    model=frame.response.model,
                )
            case frames.ItemAdded() | frames.ItemDone():
                yield from self._item(frame.item, frame.output_index, done=isinstance(frame, frames.ItemDone))
            case frames.ThoughtDelta() | extension.ReasoningDelta() if frame.delta:
                yield base.Reasoning(frame.delta)
            case frames.ResponseEnded():
                yield from self.end(frame.type, frame.response)
            case frames.StreamError():
                raise _refused(_words(frame.error) or frame.message, code="backend_refused")
            case extension.ExtensionFrame():
                yield from self._extension(frame)

    def _is_repeated(self, number: int | None) -> bool:
        """True for a frame that was here before. Raises for one that jumps: what it jumped over is missing."""
        if number is None:
            return False
        last, self._last_number = self._last_number, number
        if last is None or number == last + 1:
            return False
        if number > last:
            raise BackendProtocolError(
                f"The gateway left out a part of its answer (event {last + 1} is missing).",
                detail=f"sequence_number {number} after {last}",
            )
        self._last_number = last
        return True

    def _say(self, text: str | None) -> Iterator[base.Item]:
        if text:
            self._text.append(text)
            self._text_since_tool = self._text_since_tool or bool(text.strip())
            yield from self._tags.feed(text)

    def rest(self) -> Iterator[base.Item]:
        """What was held back of the text, when the stream ended before its end."""
        yield from self._tags.end()

    # ---- tools

    def _item(self, item: frames.OutputItem, place: int | None, *, done: bool) -> Iterator[base.Item]:
        if item.type == "function_call":
            yield from self._call(item, place, done=done)
        elif item.type == "function_call_output":
            # Some peers open the output before it is there; Hermes sends it whole twice.
            if done or (item.status == "completed" and item.output):
                yield from self._output(item)
        elif item.type == "error" and done:
            raise _refused(item.message or item.text(), code="backend_refused")

    def _call(self, item: frames.OutputItem, place: int | None, *, done: bool) -> Iterator[base.Item]:
        tool = self._find(item.call_id, place)
        if tool is None:
            yield from self._tags.end()
            tool = _Tool(item.call_id or item.id or f"call-{len(self._tools) + 1}", item.name or "tool", place)
            self._tools.append(tool)
            self._text_since_tool = False
        if item.call_id is not None:
            tool.other_ids.add(item.call_id)
        tool.arguments = item.arguments or tool.arguments
        # Arguments may still be on their way where they are empty at first.
        if not tool.told and (done or tool.arguments):
            yield self._tell(tool)

    def _tell(self, tool: _Tool) -> base.ToolBegun:
        tool.told = True
        return base.ToolBegun(tool.tool_id, tool.name, tools.arguments_of(tool.arguments))

    def _output(self, item: frames.OutputItem) -> Iterator[base.Item]:
        tool = self._find(item.call_id, None) or next((t for t in self._tools if not t.ended), None)
        if tool is None:
            if item.call_id is None and self._tools:
                return  # a second copy without an id
            tool = _Tool(item.call_id or item.id or "call-1", item.name or "tool", None)
            self._tools.append(tool)
        if tool.ended:
            return
        if not tool.told:
            yield self._tell(tool)
        tool.ended = True
        self._text_since_tool = False
        result = item.result()
        ok, error = tools.outcome_of(result)
        if item.status in ("failed", "incomplete"):
            ok = False
        yield base.ToolEnded(tool.tool_id, tool.name, ok=ok, result=result, error=error)
        todos = tools.todos_of(result) if tool.name == tools.TODO_TOOL else None
        if todos is not None:
            yield base.Todos(todos)

    def _find(self, call_id: str | None, place: int | None) -> _Tool | None:
        by_call = next((t for t in self._tools if call_id is not None and call_id in (t.tool_id, *t.other_ids)), None)
        return by_call or next((t for t in self._tools if place is not None and t.place == place), None)

    # ---- the extension

    def _extension(self, frame: extension.ExtensionFrame) -> Iterator[base.Item]:
        match frame:
            case extension.StatusLine():
                yield base.Status(frame.text)
            case extension.ToolProgress():
                yield base.ToolNews(frame.call_id, frame.text)
            case extension.TodoList():
                yield base.Todos(frame.todos)
            case extension.UsageNow():
                yield base.UsageNews(frame.usage)
            case extension.ApprovalRequest():
                self._pauses.add(frame.approval_id)
                yield base.ApprovalAsked(
                    key=frame.approval_id,
                    kind=frame.kind,
                    command=frame.command,
                    description=frame.description,
                    choices=frame.choices,
                    respond=lambda choice: self._approve(frame.approval_id, choice),
                )
            case extension.ClarifyRequest():
                self._pauses.add(frame.clarify_id)
                yield base.ClarifyAsked(
                    key=frame.clarify_id,
                    question=frame.question,
                    choices=frame.choices,
                    respond=lambda answer: self._clarify(frame.clarify_id, answer),
                )
            case extension.ApprovalResolved():
                yield from self._resolved(frame.approval_id)
            case extension.ClarifyResolved():
                yield from self._resolved(frame.clarify_id)

    def _approve(self, approval_id: str, choice: base.Choice) -> None:
        self._pauses.discard(approval_id)
        self._answers.approve(approval_id, choice)

    def _clarify(self, clarify_id: str, answer: str | None) -> None:
        self._pauses.discard(clarify_id)
        self._answers.clarify(clarify_id, answer)

    def _resolved(self, key: str) -> Iterator[base.Item]:
        if key in self._pauses:  # not by us: it timed out there, or somebody else answered
            self._pauses.discard(key)
            yield base.PauseWithdrawn(key)

    # ---- the end

    def end(self, kind: str, response: frames.ResponseBody) -> Iterator[base.Item]:
        """The last frame, or what `GET /v1/responses/{id}` says of a finished response after the stream was cut."""
        if self.response_id and response.id and response.id != self.response_id:
            raise BackendProtocolError(
                "The gateway ended another answer than ours.", detail=f"{response.id} is not {self.response_id}"
            )
        self.ended = True
        yield from self._missing(response)
        yield from self._tags.end()
        for key in sorted(self._pauses):
            yield base.PauseWithdrawn(key)
        self._pauses.clear()
        self._check(kind, response)
        yield base.Finished("stop", usage_of(response.usage), self.session_id)

    def _missing(self, response: frames.ResponseBody) -> Iterator[base.Item]:
        """What the last frame has and the stream had not: a part after a cut, all from a peer that streams nothing."""
        for item in response.output:
            if item.type == "function_call" and self._find(item.call_id, None) is None:
                yield from self._call(item, None, done=True)
            elif item.type == "function_call_output":
                tool = self._find(item.call_id, None)
                if tool is None or not tool.ended:
                    yield from self._output(item)
        whole, so_far = response.text(), "".join(self._text)
        if len(whole) > len(so_far) and whole.startswith(so_far):
            yield from self._say(whole[len(so_far) :])

    def _check(self, kind: str, response: frames.ResponseBody) -> None:
        """Raises BackendRefused when the answer is none."""
        last_words = self._text[-1] if self._text else response.text()
        if kind == "response.failed" or response.error:
            raise _refused(_words(response.error) or last_words, code="backend_refused")
        if kind == "response.incomplete":
            reason = response.incomplete_details.reason if response.incomplete_details else None
            raise BackendRefused(
                f"The answer is incomplete: {faults.shown(reason)}." if reason else "The answer is incomplete.",
                code="incomplete_answer",
                detail=kind,
            )
        broken = next((item for item in response.output if item.type == "error"), None)
        if broken is not None:
            raise _refused(broken.message or broken.text(), code="backend_refused")
        if response.usage is not None and not (response.usage.input_tokens or response.usage.output_tokens):
            raise _refused("".join(self._text), code="model_failed")
        if self._tools and len(self._text) == 1 and ERROR_TEXT.match(self._text[0]):
            raise _refused(self._text[0], code="model_failed")
        if any(t.ended for t in self._tools) and not self._text_since_tool:
            # Hermes drops the error text of a later model call when the turn had said something before.
            raise BackendRefused(
                "The agent ended after a tool without an answer: the model probably failed there. "
                "The gateway's log says why.",
                code="no_answer",
                detail=kind,
            )


def _refused(cause: str | None, *, code: Literal["backend_refused", "model_failed"]) -> BackendRefused:
    said = faults.shown(cause or "")
    subject = "The model failed" if code == "model_failed" else "The gateway gave up"
    return BackendRefused(f"{subject}: {said}" if said else f"{subject} and does not say why.", code=code, detail=said)


def _words(error: frames.ErrorShape | str | None) -> str | None:
    return error if error is None or isinstance(error, str) else error.message


def usage_of(usage: frames.TokenUsage | None) -> Usage | None:
    """Summed over all model calls of the turn; so it does not tell how full the context is."""
    if usage is None:
        return None
    cached = usage.input_tokens_details.cached_tokens if usage.input_tokens_details else None
    reasoning = usage.output_tokens_details.reasoning_tokens if usage.output_tokens_details else None
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=cached or 0,
        reasoning_tokens=reasoning or 0,
    )
