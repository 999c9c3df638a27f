"""What the demo agent plays, and how it chooses from what the user asks (English or Chinese)."""

import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import time_ns
from typing import Any

from worker.backends.demo import texts
from worker.backends.demo.play import (
    AskApproval,
    AskQuestion,
    Call,
    Fail,
    News,
    Plan,
    Rest,
    Return,
    Say,
    Scene,
    Show,
    Think,
)

HAN = re.compile(r"[\u3400-\u9fff]")


@dataclass(frozen=True)
class Heard:
    """What a request says. `rich`: the endpoint can carry thinking, questions and live status."""

    text: str
    earlier: tuple[str, ...]  # the user's messages before, oldest first
    instructions: str
    chars: int
    rich: bool = True

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> "Heard":
        """Read `input` (a string or a list of messages) and `conversation_history`. ValueError without any input."""
        given = body.get("input")
        history = [m for m in body.get("conversation_history") or [] if isinstance(m, dict)]
        if isinstance(given, list):
            *before, last = given or [""]
            history += [m for m in before if isinstance(m, dict)]
            given = last.get("content") if isinstance(last, dict) else last
        text = _flat(given)
        if not text.strip():
            raise ValueError("Missing 'input'")
        earlier = tuple(_flat(m.get("content")) for m in history if m.get("role") == "user")
        instructions = str(body.get("instructions") or "")
        chars = len(text) + len(instructions) + sum(len(_flat(m.get("content"))) for m in history)
        return cls(text, earlier, instructions, chars)

    @property
    def words(self) -> texts.Texts:
        return texts.CHINESE if HAN.search(self.text) else texts.ENGLISH


def choose(heard: Heard, *, rich: bool) -> Scene:
    """The scene for a request: the first rule whose words it holds, else a plain answer."""
    heard = Heard(heard.text, heard.earlier, heard.instructions, heard.chars, rich)
    for pattern, scene in RULES:
        if match := pattern.search(heard.text):
            return scene(heard, match)
    return plain(heard)


# ---- scenes


def plain(heard: Heard) -> Scene:
    """The portal explained at first; later turns show that the whole history was there."""
    words = heard.words
    if not heard.earlier:
        yield Think(words.plain_thought)
        yield Say(words.welcome)
        return
    yield Say(words.remembers.format(count=len(heard.earlier), last=_cut(heard.earlier[-1]), now=_cut(heard.text)))


def explain(heard: Heard, _: re.Match[str]) -> Scene:
    yield Say(heard.words.welcome)


def thinking(heard: Heard, _: re.Match[str]) -> Scene:
    yield Show(heard.words.thinking_status)
    yield Think(heard.words.long_thought)
    yield Show("")
    yield Say(heard.words.after_thought)


def question(heard: Heard, _: re.Match[str]) -> Scene:
    words = heard.words
    if not heard.rich:
        yield Say(words.no_questions)
        return
    yield Say(words.before_question)
    answer = yield AskQuestion(_id("clarify"), words.question, list(words.question_choices))
    yield Say("\n\n" + (words.answered.format(answer=answer) if answer else words.unanswered))


def approval(heard: Heard, _: re.Match[str]) -> Scene:
    words, call = heard.words, _id("call")
    command = 'rm -r build/reports && python make_reports.py --month 2026-10 --out "build/reports"'
    yield Think(words.approval_thought)
    yield Say(words.before_approval)
    yield Call(call, "terminal", {"command": command})
    choice = yield AskApproval(_id("approval"), command, words.approval_reason)
    if choice == "deny" or choice is None:
        yield Return(call, "BLOCKED: the command was not approved", ok=False)
        yield Say("\n\n" + words.denied)
        return
    yield News(call, "removing 31 files")
    yield Rest(0.6)
    yield News(call, "writing 2026-10.html")
    yield Rest(0.6)
    yield Return(call, "removed 31 files\nwrote build/reports/2026-10.html (84 KB)")
    yield Say("\n\n" + words.approved.format(choice=words.choices[choice]))


def tools_in_order(heard: Heard, _: re.Match[str]) -> Scene:
    yield Say(heard.words.before_tools)
    for name, arguments, rest, result in texts.TOOLS:
        call = _id("call")
        yield Call(call, name, arguments)
        yield Rest(rest)
        yield Return(call, result)
    yield Say("\n\n" + heard.words.after_tools)


def tools_at_once(heard: Heard, _: re.Match[str]) -> Scene:
    yield Say(heard.words.before_parallel)
    calls = [(_id("call"), *tool) for tool in texts.TOOLS]
    for call, name, arguments, _rest, _result in calls:
        yield Call(call, name, arguments)
    for call, _name, _arguments, rest, result in reversed(calls):
        yield News(call, heard.words.reading)
        yield Rest(rest)
        yield Return(call, result)
    yield Say("\n\n" + heard.words.after_parallel)


def todos(heard: Heard, _: re.Match[str]) -> Scene:
    items = heard.words.todos
    yield Say(heard.words.before_todos)
    for done in range(len(items) + 1):
        states = ["completed"] * done + ["in_progress"] + ["pending"] * len(items)
        rows = [{"id": str(n + 1), "text": text, "status": states[n]} for n, text in enumerate(items)]
        if heard.rich:
            yield Plan(rows)
        yield Rest(0.7)
    yield Say("\n\n" + heard.words.after_todos)


def long_answer(heard: Heard, _: re.Match[str]) -> Scene:
    yield Say(heard.words.long_answer, every_s=0.012)


def slow(heard: Heard, _: re.Match[str]) -> Scene:
    yield Show(heard.words.slow_status)
    yield Rest(2)
    yield Say(heard.words.slow_answer, every_s=0.6)


def error(heard: Heard, _: re.Match[str]) -> Scene:
    yield Rest(0.4)
    yield Fail("API call failed after 3 retries: HTTP 503: the demo model is out of order, as you asked")


def huge(heard: Heard, _: re.Match[str]) -> Scene:
    call = _id("call")
    yield Say(heard.words.before_huge)
    yield Call(call, "terminal", {"command": "cat access.log"})
    yield Rest(0.3)
    line = "2026-10-31T23:59:59Z GET /invoices/{n:07d} 200 1834 12ms\n"
    rows = 5 * 1024 * 1024 // len(line.format(n=0))
    yield Return(call, "".join(line.format(n=n) for n in range(rows + 1)))
    yield Say("\n\n" + heard.words.after_huge)


def stream(heard: Heard, match: re.Match[str]) -> Scene:
    """N pieces at a fixed rate, each `number:nanoseconds `, so that a bench can tell when it was said."""
    count, every_ms = min(int(match["count"]), 100_000), min(int(match["ms"]), 60_000)

    def stamped() -> Iterator[str]:
        for number in range(count):
            yield f"{number}:{time_ns()} "

    yield Say("", every_ms / 1000, stamped())


def text_of_size(heard: Heard, match: re.Match[str]) -> Scene:
    """An answer of N KB in pieces of 10 characters, at a fixed rate or as fast as they are taken."""
    kilobytes, every_ms = min(int(match["kb"]), 2_000), min(int(match["ms"] or 0), 1_000)
    paragraph = heard.words.paragraph + "\n\n"
    whole = paragraph * (kilobytes * 1024 // len(paragraph) + 1)
    size = 10

    def pieces() -> Iterator[str]:
        for at in range(0, kilobytes * 1024, size):
            yield whole[at : at + size]

    yield Say("", every_ms / 1000, pieces())


def pong(heard: Heard, _: re.Match[str]) -> Scene:
    yield Say("PONG", 0)


def summary(heard: Heard, _: re.Match[str]) -> Scene:
    """A summary, as the portal asks for when a history outgrows its budget."""
    lines = [line for line in heard.text.splitlines() if line.strip()][:40]
    yield Say("Summary of the earlier turns: " + " / ".join(_cut(line, 60) for line in lines), 0)


def everything(heard: Heard, match: re.Match[str]) -> Scene:
    words = heard.words
    yield Think(words.plain_thought)
    yield Say(words.tour)
    for part in (todos, tools_in_order, tools_at_once, question, approval, long_answer):
        yield Say("\n\n")
        yield from part(heard, match)


SceneMaker = Callable[[Heard, re.Match[str]], Scene]


def _rule(pattern: str, scene: SceneMaker) -> tuple[re.Pattern[str], SceneMaker]:
    return re.compile(pattern, re.IGNORECASE), scene


RULES = (
    _rule(r"^\s*Reply with exactly PONG", pong),
    _rule(r"\bsummar(?:y|ise|ize)\b.{0,200}\b(?:conversation|earlier turns|history)\b", summary),
    _rule(r"\bstream (?P<count>\d{1,6}) (?:pieces )?every (?P<ms>\d{1,5}) ?ms\b", stream),
    _rule(r"\b(?P<kb>\d{1,4}) ?KB of text\b(?: every (?P<ms>\d{1,4}) ?ms)?", text_of_size),
    _rule(r"\beverything\b|\btour\b|全部|演示一遍", everything),
    _rule(r"\b5 ?MB\b|\bhuge\b|\bbig output\b|大输出", huge),
    _rule(r"\berror\b|\bfail(?:ure)?\b|出错|失败", error),
    _rule(r"\bapprov(?:al|e)\b|\bdanger|审批|批准", approval),
    _rule(r"\bquestion\b|\bask me\b|\bclarif|提问|问我", question),
    _rule(r"\b(?:parallel|at once|same time)\b|并行|同时", tools_at_once),
    _rule(r"\btools?\b|工具", tools_in_order),
    _rule(r"\bto-?dos?\b|\bplan\b|待办|计划", todos),
    _rule(r"\bthink(?:ing)?\b|\breason|思考", thinking),
    _rule(r"\bslow(?:ly)?\b|慢", slow),
    _rule(r"\blong\b|\bcode\b|\btable\b|代码|表格|长", long_answer),
    _rule(r"\bportal\b|\bhelp\b|\bwhat can you\b|帮助|门户|你能", explain),
)


def _id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(8)}"


def _flat(content: Any) -> str:
    """The text of a message's content: a string, or blocks of which those with text count."""
    if isinstance(content, list):
        return "\n".join(str(b.get("text", "")) for b in content if isinstance(b, dict) and "text" in b)
    return content if isinstance(content, str) else ""


def _cut(text: str, length: int = 80) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"
