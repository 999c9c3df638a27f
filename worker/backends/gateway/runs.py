"""The frames of one `/v1/runs/{id}/events` stream, folded into the items of the backend seam. No I/O.

What is known of the peer (hermes/SURFACES.md 1.3): tools have no id, no arguments and no result, so ids are made up and
a completion goes to the oldest open tool of its name; approvals have no id either, and one that times out there is seen
only by its tool going on. A run that failed says so.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shared.errors import BackendProtocolError, BackendRefused
from worker.backends import base
from worker.backends.gateway import faults, frames
from worker.backends.gateway.responses import usage_of
from worker.backends.think_tags import ThinkTags

CHOICES: tuple[base.Choice, ...] = ("once", "session", "always", "deny")


@dataclass
class _Tool:
    tool_id: str
    name: str


@dataclass
class _Approval:
    key: str
    tool: _Tool | None  # the one that waits for it
    answered: bool = False


class RunReader:
    """`read` each frame; afterwards `ended` is true when it was the last. `approve` posts a choice for the run.

    Raises BackendRefused when the run failed, BackendProtocolError for a frame of another run."""

    def __init__(self, run_id: str, approve: Callable[[base.Choice], None]) -> None:
        self._run_id = run_id
        self._approve = approve
        self._tools: list[_Tool] = []  # open ones
        self._tool_count = 0
        self._approvals: list[_Approval] = []  # not known to be over
        self._approval_count = 0
        self._text_since_tool: list[str] = []
        self._tags = ThinkTags()
        self._said_anything = False
        self.ended = False
        self.cancelled = False

    @property
    def waits_for_a_person(self) -> bool:
        return any(not approval.answered for approval in self._approvals)

    def read(self, frame: frames.RunFrame) -> Iterator[base.Item]:
        if frame.run_id and frame.run_id != self._run_id:
            raise BackendProtocolError(
                "The gateway sent an event of another run.", detail=f"{frame.run_id} is not {self._run_id}"
            )
        match frame:
            case frames.RunText():
                yield from self._say(frame.delta)
            case frames.RunToolBegun():
                yield from self._tags.end()
                yield self._begin_tool(frame)
            case frames.RunToolEnded():
                yield from self._end_tool(frame)
            case frames.RunApproval():
                yield self._ask(frame)
            case frames.RunApprovalAnswered():
                yield from self._answered(frame.resolved)
            case frames.RunCompleted():
                yield from self.complete(frame.output, frame.usage)
            case frames.RunFailed():
                yield from self.fail(frame.error)
            case frames.RunCancelled():
                yield from self.cancel()

    def _say(self, text: str | None) -> Iterator[base.Item]:
        if text:
            self._text_since_tool.append(text)
            self._said_anything = True
            yield from self._tags.feed(text)

    def _begin_tool(self, frame: frames.RunToolBegun) -> base.ToolBegun:
        self._tool_count += 1
        tool = _Tool(f"tool-{self._tool_count}", frame.tool)
        self._tools.append(tool)
        self._text_since_tool.clear()
        return base.ToolBegun(tool.tool_id, tool.name, None, summary=frame.preview or "")

    def _end_tool(self, frame: frames.RunToolEnded) -> Iterator[base.Item]:
        tool = next((t for t in self._tools if t.name == frame.tool), None)
        if tool is None:
            begun = self._begin_tool(frames.RunToolBegun(tool=frame.tool))
            yield begun
            tool = self._tools[-1]
        self._tools.remove(tool)
        yield from self._withdraw([a for a in self._approvals if a.tool is tool])
        error = frame.error if isinstance(frame.error, str) and frame.error else None
        yield base.ToolEnded(
            tool.tool_id,
            tool.name,
            ok=None if frame.error is None else not frame.error,
            duration_ms=None if frame.duration is None else round(frame.duration * 1000),
            error=error,
        )

    # ---- approvals

    def _ask(self, frame: frames.RunApproval) -> base.ApprovalAsked:
        self._approval_count += 1
        approval = _Approval(f"approval-{self._approval_count}", self._tools[-1] if self._tools else None)
        self._approvals.append(approval)
        return base.ApprovalAsked(
            key=approval.key,
            kind=frame.pattern_key or (approval.tool.name if approval.tool else "command"),
            command=frame.command,
            description=frame.description,
            choices=tuple(choice for choice in CHOICES if choice in frame.choices),
            respond=lambda choice: self._respond(approval, choice),
        )

    def _respond(self, approval: _Approval, choice: base.Choice) -> None:
        approval.answered = True
        self._approve(choice)

    def _answered(self, count: int) -> Iterator[base.Item]:
        """The oldest `count` are over; by us, or by somebody else at the gateway."""
        yield from self._withdraw(self._approvals[: max(1, count)])

    def _withdraw(self, over: list[_Approval]) -> Iterator[base.Item]:
        for approval in over:
            self._approvals.remove(approval)
            if not approval.answered:
                yield base.PauseWithdrawn(approval.key)

    # ---- the end

    def complete(self, output: str | None, usage: frames.TokenUsage | None) -> Iterator[base.Item]:
        """The run ended well; `output` is its last text, of which the stream may have had only a part."""
        so_far = "".join(self._text_since_tool)
        missing = _missing(so_far, output or "", anything_before=self._said_anything)
        yield from self._say(missing)
        yield from self._close()
        yield base.Finished("stop", usage_of(usage))

    def fail(self, error: str | None) -> Iterator[base.Item]:
        yield from self._close()
        said = faults.shown(error or "")
        raise BackendRefused(
            f"The model failed: {said}" if said else "The run failed at the gateway, which does not say why.",
            code="model_failed",
            detail=said,
        )

    def cancel(self) -> Iterator[base.Item]:
        yield from self._close()
        self.cancelled = True

    def _close(self) -> Iterator[base.Item]:
        self.ended = True
        yield from self._tags.end()
        yield from self._withdraw(list(self._approvals))


def _missing(so_far: str, output: str, *, anything_before: bool) -> str:
    """What of `output` was not streamed. Text after a tool begins with a blank line there, `output` does not."""
    said = so_far.lstrip()
    if not output or said.startswith(output):
        return ""
    if output.startswith(said):
        lead = "\n\n" if anything_before and not so_far else ""
        return lead + output[len(said) :]
    return ("\n\n" if anything_before else "") + output
