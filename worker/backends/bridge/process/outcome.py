"""How a turn ended, read from what `run_conversation` gave or raised. Pure."""

import re
from dataclasses import dataclass
from typing import Any

from .think import without_thoughts
from .wire import MAX_ERROR_CHARS, FailureCode

INTERRUPTED_NOTE = "[The user stopped this answer here.]"
FAILED_NOTE = "[This turn failed; it has no answer.]"
BY_REASON: dict[str, tuple[FailureCode, bool]] = {
    "auth": ("auth_failed", False),
    "auth_permanent": ("auth_failed", False),
    "billing": ("quota_exceeded", False),
    "rate_limit": ("rate_limited", True),
    "upstream_rate_limit": ("rate_limited", True),
    "context_overflow": ("context_overflow", False),
    "payload_too_large": ("context_overflow", False),
    "model_not_found": ("model_not_found", False),
    "provider_policy_blocked": ("content_filtered", False),
    "content_policy_blocked": ("content_filtered", False),
}
BY_STATUS: dict[int, tuple[FailureCode, bool]] = {
    401: ("auth_failed", False),
    402: ("quota_exceeded", False),
    403: ("auth_failed", False),
    404: ("model_not_found", False),
    413: ("context_overflow", False),
    429: ("rate_limited", True),
}
BY_EXIT: dict[str, tuple[FailureCode, bool]] = {
    "empty_response_exhausted": ("empty_answer", True),
    "all_retries_exhausted_no_response": ("model_error", True),
    "interrupted_during_api_call": ("model_error", True),
    "ollama_runtime_context_too_small": ("context_overflow", False),
    "local_processing_error": ("agent_failed", False),
    "error_near_max_iterations": ("agent_failed", True),
}
FINISHED = {
    "max_iterations_reached": "max_iterations",
    "budget_exhausted": "max_iterations",
    "guardrail_halt": "guardrail",
    "partial_stream_recovery": "partial",
}

_STATUS = re.compile(r"\bHTTP (\d{3})\b")
_FINISH = re.compile(r"finish_reason=(\w+)")
_CONTEXT = re.compile(r"context (length|window)|too many tokens|maximum context", re.IGNORECASE)
_TRUNCATED = "Response remained truncated"


@dataclass(frozen=True)
class Completed:
    text: str
    finish_reason: str


@dataclass(frozen=True)
class Failed:
    code: FailureCode
    message: str
    retryable: bool
    text: str = ""  # what Hermes would have shown


@dataclass(frozen=True)
class Interrupted:
    pass


Outcome = Completed | Failed | Interrupted


def outcome_of(result: dict[str, Any], *, was_interrupted: bool) -> Outcome:
    """`was_interrupted`: we asked for it. A turn that was complete before Hermes noticed is complete."""
    text = result.get("final_response")
    text = text if isinstance(text, str) else ""
    reason = str(result.get("turn_exit_reason") or "")
    kind = reason.partition("(")[0]
    if result.get("interrupted") or (was_interrupted and (result.get("failed") or kind not in ("text_response", ""))):
        return Interrupted()
    if result.get("failed") or (result.get("error") and not result.get("completed")):
        return _failure(result, text)
    if kind in BY_EXIT:
        code, retryable = BY_EXIT[kind]
        return Failed(code, (text or reason)[:MAX_ERROR_CHARS], retryable, text)
    finish = _FINISH.search(reason)
    return Completed(text, FINISHED.get(kind) or (finish.group(1) if finish else "stop"))


def _failure(result: dict[str, Any], text: str) -> Outcome:
    error = str(result.get("error") or text or "The agent gave no reason.")
    if error.startswith(_TRUNCATED) and text:
        return Completed(text, "length")
    code, retryable = _code_of(str(result.get("failure_reason") or ""), error)
    return Failed(code, error[:MAX_ERROR_CHARS], retryable, text)


def _code_of(reason: str, error: str) -> tuple[FailureCode, bool]:
    if reason in BY_REASON:
        return BY_REASON[reason]
    prefix = error.partition(":")[0]
    if prefix in BY_REASON:
        return BY_REASON[prefix]
    status = _STATUS.search(error)
    number = int(status.group(1)) if status else 0
    if number == 400 and _CONTEXT.search(error):
        return "context_overflow", False
    if number in BY_STATUS:
        return BY_STATUS[number]
    return "model_error", not 400 <= number < 500


def missing_text(final: str, streamed: str, last_streamed: str) -> str:
    """What of the final text was not streamed: all of it, its end (Hermes adds to it), or nothing. `last_streamed`: the
    text since the last tool. White space does not count: Hermes joins and strips. Nor do think tags: it cuts them out
    of code, too."""
    streamed, last_streamed = without_thoughts(streamed), without_thoughts(last_streamed)
    wanted = _squeezed(final)
    if not wanted or _squeezed(streamed).endswith(wanted):
        return ""
    begin = _squeezed(last_streamed)
    if begin and wanted.startswith(begin):
        return final[_place_after(final, len(begin)) :]
    if wanted in _squeezed(streamed):
        return ""
    return ("\n\n" if streamed.strip() else "") + final


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _place_after(text: str, count: int) -> int:
    """Where in the text `count` characters that are no white space have passed."""
    for place, char in enumerate(text):
        if count == 0:
            return place
        if not char.isspace():
            count -= 1
    return len(text)


def conversation_after(
    before: list[dict[str, Any]], message: Any, result: dict[str, Any] | None, outcome: Outcome, streamed: str
) -> list[dict[str, Any]]:
    """What the agent is told with its next turn. It always ends with an answer, if only a note, so that nothing is
    answered twice."""
    messages = (result or {}).get("messages")
    known = list(messages) if isinstance(messages, list) and messages else []
    if not known:
        known = [*before, {"role": "user", "content": message}]
    last = known[-1] if isinstance(known[-1], dict) else {}
    if isinstance(outcome, Completed) or (last.get("role") == "assistant" and not last.get("tool_calls")):
        return known
    if isinstance(outcome, Interrupted):
        note = f"{streamed.strip()}\n\n{INTERRUPTED_NOTE}" if streamed.strip() else INTERRUPTED_NOTE
    else:
        note = FAILED_NOTE
    while known and isinstance(known[-1], dict) and known[-1].get("tool_calls"):
        known.pop()  # calls without results are refused by models
    return [*known, {"role": "assistant", "content": note}]
