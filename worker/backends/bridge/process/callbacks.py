"""Every callback of an AIAgent, turned into events of the wire, for one run (hermes/SURFACES.md 2)."""

import functools
import threading
from collections.abc import Callable
from typing import Any

from . import wire
from .outcome import missing_text
from .pauses import Pauses
from .run_log import RunLog
from .statuses import plain
from .think import ThinkSplitter
from .tool_news import ToolNews
from .usage import TurnUsage

NO_ANSWER = "[Nobody answered this question. Go on as well as you can without an answer.]"
OFTEN_CLEARED = ("thinking", "tool")  # kinds of status that end with the next sign of life


class Callbacks:
    """`bind` before the run, `unbind` after it. The callbacks come on several threads."""

    def __init__(
        self,
        run_log: RunLog,
        pauses: Pauses,
        on_subagent: Callable[[str, bool], None],
        count_tokens: Callable[[Any, Any], int],
    ) -> None:
        """`count_tokens(agent, messages)`: about how large a request with these messages is."""
        self._log = run_log
        self._count_tokens = count_tokens
        self._pauses = pauses
        self._tools = ToolNews(run_log, on_subagent)
        self._splitter = ThinkSplitter(self._on_reasoning)
        self._usage: TurnUsage | None = None
        self._lock = threading.Lock()
        self._streamed: list[str] = []
        self._segment: list[str] = []  # of `_streamed`, since the last tool
        self._reasoned = False
        self._status = ("", "")
        self._told_usage: wire.Usage | None = None
        self._retries: set[str] = set()

    def bind(self, agent: Any, usage: TurnUsage) -> None:
        self._usage = usage
        agent.stream_delta_callback = self._on_delta
        agent.reasoning_callback = self._on_reasoning
        agent.thinking_callback = self._on_thinking
        agent.tool_gen_callback = self._on_tool_gen
        agent.tool_start_callback = self._tools.on_start
        agent.tool_complete_callback = self._tools.on_complete
        agent.tool_progress_callback = self._tools.on_progress
        agent.interim_assistant_callback = self._on_interim
        agent.step_callback = self._on_step
        agent.status_callback = self._on_status
        agent.notice_callback = self._on_notice
        agent.clarify_callback = self._on_clarify
        if hasattr(agent, "_stream_needs_break"):
            agent._stream_needs_break = False  # left from a turn that was stopped after a tool
        if hasattr(agent, "_stream_think_scrubber"):
            agent._stream_think_scrubber = self._splitter
        if hasattr(agent, "_compress_context"):
            agent._compress_context = functools.partial(self._compress, agent, type(agent)._compress_context)
        if hasattr(agent, "_buffer_status"):
            agent._buffer_status = functools.partial(self._on_retry, agent, type(agent)._buffer_status)

    def unbind(self, agent: Any) -> None:
        for name in (
            *("stream_delta", "reasoning", "thinking", "tool_gen", "tool_start", "tool_complete", "tool_progress"),
            *("interim_assistant", "step", "status", "notice", "clarify"),
        ):
            setattr(agent, f"{name}_callback", None)
        for name in ("_compress_context", "_buffer_status"):
            vars(agent).pop(name, None)

    # ---- after the run

    @property
    def last_streamed(self) -> str:
        """The text since the last tool."""
        with self._lock:
            return "".join(self._segment)

    def finish(self, final_text: str | None, last_reasoning: str | None) -> None:
        """Say what was not streamed, and close what is open. `final_text`: None when there is no answer."""
        if last_reasoning and last_reasoning.strip() and not self._reasoned:
            self._log.add("reasoning.available", text=wire.storable(last_reasoning)[: wire.PIECE_CHARS])
        if final_text:
            with self._lock:
                streamed, segment = "".join(self._streamed), "".join(self._segment)
            self._say(missing_text(final_text, streamed, segment))
        self._tools.close()
        self._set_status("lifecycle", "")
        self._tell_usage()

    # ---- text and reasoning

    def _on_delta(self, text: Any) -> None:
        if text is None:
            self._end_segment()
        elif isinstance(text, str):
            self._say(text)

    def _say(self, text: str) -> None:
        for place in range(0, len(text), wire.PIECE_CHARS):
            piece = text[place : place + wire.PIECE_CHARS]
            with self._lock:
                if not self._streamed:
                    piece = piece.lstrip("\n")  # after a tool Hermes begins so, also where no text was before
                if not piece:
                    continue
                self._streamed.append(piece)
                self._segment.append(piece)
                self._log.say(piece)

    def _end_segment(self) -> None:
        with self._lock:
            if self._segment:
                self._segment.clear()
                self._log.add("turn.boundary")

    def _on_reasoning(self, text: Any) -> None:
        if isinstance(text, str) and text:
            self._reasoned = True
            for place in range(0, len(text), wire.PIECE_CHARS):
                piece = wire.storable(text[place : place + wire.PIECE_CHARS])
                self._log.add("reasoning.delta", text=piece)

    def _on_interim(self, text: Any, *, already_streamed: bool = False) -> None:
        """Text that came with tool calls; of a model that does not stream it comes here first."""
        if isinstance(text, str) and text and not already_streamed:
            with self._lock:
                streamed, segment = "".join(self._streamed), "".join(self._segment)
            self._say(missing_text(text, streamed, segment))

    # ---- state

    def _on_thinking(self, text: Any) -> None:
        if text:
            self._set_status("thinking", plain(str(text)))
        elif self._status[0] in OFTEN_CLEARED:
            self._set_status("thinking", "")

    def _on_tool_gen(self, name: Any) -> None:
        self._set_status("tool", f"preparing {name}")

    def _on_status(self, kind: Any, text: Any = None) -> None:
        if text is not None and str(text) not in self._retries:
            self._set_status("warning" if kind == "warn" else str(kind), plain(str(text)))

    def _on_notice(self, notice: Any) -> None:
        self._set_status("notice", plain(str(getattr(notice, "text", "") or "")))

    def _on_retry(self, agent: Any, original: Callable[..., None], text: Any) -> None:
        """Hermes keeps what it says of retries until all have failed; as a live status it is of use at once."""
        self._retries.add(str(text))
        self._set_status("retry", plain(str(text)))
        original(agent, text)

    def _set_status(self, kind: str, text: str) -> None:
        with self._lock:
            if text != self._status[1]:
                self._status = (kind, text)
                self._log.add("status", kind=wire.storable(kind)[:50], text=wire.storable(text))

    def _on_step(self, number: Any, tools_before: Any = None) -> None:
        self._tools.on_step([] if number == 1 else tools_before)  # before the first are those of the last turn
        self._tell_usage()

    def _tell_usage(self) -> None:
        if self._usage is None:
            return
        usage = self._usage.read()
        if usage != self._told_usage and usage["input_tokens"] + usage["output_tokens"] > 0:
            self._told_usage = usage
            self._log.add("usage", **usage)

    # ---- questions and compression

    def _on_clarify(self, question: Any, choices: Any = None) -> str:
        offered = [str(choice) for choice in choices] if isinstance(choices, list | tuple) else []
        answer = self._pauses.ask_clarify(str(question), offered)
        return NO_ANSWER if answer is None else answer

    def _compress(
        self, agent: Any, original: Callable[..., Any], messages: Any, system_message: Any, **more: Any
    ) -> Any:
        known = more.get("approx_tokens")
        before = known if isinstance(known, int) and known > 0 else self._count_tokens(agent, messages)
        after = before
        self._log.add("compression.started", before_tokens=before)
        try:
            result = original(agent, messages, system_message, **more)
            after = self._count_tokens(agent, result[0])
            return result
        finally:
            self._log.add("compression.completed", before_tokens=before, after_tokens=after)
