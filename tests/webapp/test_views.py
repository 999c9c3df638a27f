"""What the templates read: words, marks, counts and the exact text of what somebody is asked to allow."""

from datetime import timedelta
from typing import Any

import pytest

from shared import clock
from shared.run_state import RunState
from shared.transcript import Transcript, fold
from tests.webapp.page_rig import event, text, tool, tool_done
from webapp import render, view_process, view_turns
from webapp.render import Reader, reading_as
from webapp.view_pauses import Viewer, visible
from webapp.view_turns import Facts, agent_turn
from webapp.views import AgentTurn, agent_of, mark_of

OWNER = Viewer("u1", "u1")
FACTS = Facts("s1", OWNER)
END = {"message_id": "m1", "duration_ms": 102_000}


def folded(*steps: tuple[str, dict[str, Any]], began_s: float = 60) -> Transcript:
    """A transcript of these steps, a second apart, the first a minute ago."""
    t = Transcript(run_id="r1", number=3)
    start = clock.now() - timedelta(seconds=began_s)
    begun = ("run.started", {"source": "api_server", "agent": "Hermes", "number": 3, "model": "m-1"})
    for n, (name, data) in enumerate((begun, *steps)):
        fold(t, event("s1", "r1", name, data, at=start + timedelta(seconds=n)))
    return t


def turn(*steps: tuple[str, dict[str, Any]], facts: Facts = FACTS) -> AgentTurn:
    return agent_turn(folded(*steps), facts)


# ---- states


def test_every_state_has_a_colour_an_icon_and_a_word_in_both_languages() -> None:
    for locale in render.LOCALES:
        with reading_as(Reader(locale)):
            marks = {state: mark_of(state) for state in RunState}
        assert all(mark.word and f'id="i-{mark.state}"' in sprite() for mark in marks.values())
    assert marks[RunState.INTERRUPTED].word == "已中断"


def sprite() -> str:
    return render.render("components/sprite.html")


def test_an_unknown_agent_keeps_its_own_name_and_gets_the_neutral_glyph() -> None:
    assert (agent_of("acp:zed").glyph, agent_of("acp:zed").name) == ("other", "zed")
    assert (agent_of("acp:claude").glyph, agent_of("acp:claude").name) == ("claude", "Claude")
    assert agent_of("api_server", is_demo=True).glyph == "demo"
    assert agent_of("cli").glyph == "bridge"


# ---- the process


def test_calls_that_ran_side_by_side_stand_together() -> None:
    shown = turn(
        tool("a", "shell"), tool_done("a", "shell"), tool("b", "read"), tool("c", "write"), tool_done("b", "read")
    )
    assert [[t.name for t in group.tools] for group in shown.tools] == [["shell"], ["read", "write"]]
    assert [[t.is_open for t in group.tools] for group in shown.tools] == [[False], [False, True]]


def test_a_call_without_an_outcome_may_have_run() -> None:
    shown = turn(tool("a", "shell", "make deploy"), ("run.interrupted", {"reason": "worker_lost"}))
    assert shown.tools[0].tools[0].mark.state == "interrupted"
    assert shown.tools[0].tools[0].took == "may have run"
    assert shown.ending is not None
    assert [(ran.name, ran.effect) for ran in shown.ending.ran] == [("shell", "may have run")]


def test_a_failed_call_tells_its_error_first() -> None:
    shown = turn(tool("a", "http", arguments={"url": "x"}), tool_done("a", "http", ok=False, error="timed out"))
    assert [well.label for well in shown.tools[0].tools[0].wells][:2] == ["Error", "Arguments"]


def test_a_cut_result_says_how_much_it_is_of_and_where_the_whole_is() -> None:
    done = tool_done("a", "shell", result="x" * 16_384, truncated=True, full_size=5_452_595)
    call = turn(tool("a", "shell"), done).tools[0].tools[0]
    assert call.more == "First 16 KB of 5.2 MB"
    assert call.output_url == "/chat/s1/runs/r1/output/0"


def test_a_unified_diff_shows_as_lines_with_numbers_and_signs() -> None:
    rows = view_process.diff_rows("--- a\n+++ b\n@@ -41,2 +41,3 @@ f\n same\n-old\n+new\n+more\n")
    shown = [(row.kind, row.line, row.sign) for row in rows if row.text]
    assert shown == [
        ("hunk", "", ""), ("same", "41", " "), ("del", "42", "\u2212"), ("add", "42", "+"), ("add", "43", "+")
    ]  # fmt: skip


def test_thoughts_are_open_while_it_thinks_and_fold_afterwards() -> None:
    thinking = turn(text(0, 0, "I wonder", "reasoning")).thinking
    assert thinking is not None
    assert thinking.is_open
    folded_up = turn(text(0, 0, "I wonder", "reasoning"), text(1, 0, "Answer")).thinking
    assert folded_up is not None
    assert not folded_up.is_open


def test_text_before_and_after_a_tool_keeps_its_order() -> None:
    shown = turn(text(0, 0, "Plan:"), tool("a", "shell"), tool_done("a", "shell"), text(1, 0, "Done"))
    assert [("Plan" in part.html, part.after) for part in shown.parts] == [(True, ()), (False, ("shell",))]


def test_bars_of_the_timeline_stay_inside_it() -> None:
    t = folded(text(0, 0, "hm", "reasoning"), tool("a", "shell"), tool_done("a", "shell"), ("run.completed", END))
    line = view_process.timeline(t, clock.now())
    assert line is not None
    bars = [bar for span in line.spans for bar in span.bars]
    assert bars
    assert all(x >= 0 and width > 0 and x + width <= 1_000 for _kind, x, width in bars)


# ---- approvals and questions


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("rm -rf /tmp/x  &&  ls", "rm -rf /tmp/x  &amp;&amp;  ls"),
        ("a\u202eb", 'a<span class="odd">U+202E</span>b'),
        ("a\u200bb\u2066c", 'a<span class="odd">U+200B</span>b<span class="odd">U+2066</span>c'),
        ("a\rb\x1b[2K", 'a<span class="odd">U+000D</span>b<span class="odd">U+001B</span>[2K'),
        ("a\u00a0b\ue000", 'a<span class="odd">U+00A0</span>b<span class="odd">U+E000</span>'),
        ("l\u0336s\ufe0f", 'l\u0336s<span class="odd">U+FE0F</span>'),
        ("<b>&", "&lt;b&gt;&amp;"),
        ("一二\u3000三\n\tx", "一二\u3000三\n\tx"),
    ],
)
def test_a_command_is_shown_exactly_with_what_has_no_shape_made_visible(command: str, shown: str) -> None:
    """S18."""
    assert str(visible(command)) == shown


def asked(**data: Any) -> tuple[str, dict[str, Any]]:
    given = {"approval_id": "a1", "kind": "shell", "command": "ls", "choices": ["once", "always", "deny"], **data}
    return "approval.requested", given


def test_an_approval_offers_what_the_backend_takes_and_deny_apart() -> None:
    ask = turn(asked()).asks[0]
    assert [choice.value for choice in ask.choices] == ["once", "always"]
    assert ask.left_s is None


def test_time_left_is_told_by_the_database_clock() -> None:
    deadline = clock.now() + timedelta(seconds=660)
    facts = Facts("s1", Viewer("u1", "u1", skew_s=600.0))
    left_s = turn(asked(deadline=deadline), facts=facts).asks[0].left_s
    assert left_s is not None
    assert 0 < left_s < 61


def test_only_who_may_decide_gets_buttons() -> None:
    for viewer, may in ((Viewer("u1", "u1"), True), (Viewer("u2", "u1"), False), (Viewer("u1", "u1", False), False)):
        assert turn(asked(), facts=Facts("s1", viewer)).asks[0].may_answer is may
    assert turn(asked(may_answer=["u2"]), facts=Facts("s1", Viewer("u2", "u1"))).asks[0].may_answer


@pytest.mark.parametrize(
    ("resolved", "words"),
    [
        ({"reason": "answered", "choice": "once", "by": "Mara"}, "Allowed once by Mara"),
        ({"reason": "answered", "choice": "deny", "by": "Mara"}, "Denied by Mara"),
        ({"reason": "answered", "choice": "deny"}, "Denied by rule"),
        ({"reason": "expired"}, "Expired, so denied: nobody decided in time"),
        ({"reason": "withdrawn"}, "Withdrawn: the agent no longer waits for it"),
    ],
)
def test_denied_expired_and_denied_by_rule_are_different_words(resolved: dict[str, Any], words: str) -> None:
    shown = turn(asked(), ("approval.resolved", {"approval_id": "a1", **resolved}))
    assert [done.text for done in shown.decisions] == [words]
    assert shown.asks == ()


# ---- ends


def test_a_finished_turn_folds_to_its_facts() -> None:
    used = {"input_tokens": 11_800, "output_tokens": 620}
    shown = turn(tool("a", "shell"), tool_done("a", "shell"), ("usage.updated", used), ("run.completed", END))
    assert shown.fold is not None
    assert shown.fold.facts == ("1 min 42 s", "1 tool", "12.4k tokens")
    assert shown.ending is None


def test_each_bad_end_says_what_happened_what_is_kept_and_the_way_on() -> None:
    failed = turn(("run.failed", {"code": "backend_refused", "message": "The model refused.", "detail_id": "d1"}))
    assert failed.ending is not None
    assert failed.ending.sentence == "The model refused. No tool had run."
    assert (failed.ending.may_retry, failed.ending.detail_id) == (True, "d1")
    cut = turn(text(0, 0, "half a"), ("run.interrupted", {"reason": "backend_lost"}))
    assert cut.ending is not None
    assert cut.ending.where.startswith("the agent's process or connection ended")
    assert cut.ending.sentence.startswith("The text above is kept.")
    steps = [("abort.started", {"stage": "requested", "by": "Mara", "duration_ms": 0})]
    stopped = turn(*steps, ("abort.completed", {"stage": "acknowledged", "by": "Mara", "duration_ms": 400}))
    assert stopped.ending is not None
    assert stopped.ending.ladder == ("requested 0.0 s", "acknowledged by the agent 0.4 s")


def test_a_long_process_is_left_out_until_its_line_is_opened() -> None:
    steps = [tool("a", "shell"), tool_done("a", "shell", result="x" * 16_000), ("run.completed", END)]
    shown = turn(*steps)
    assert (shown.is_lazy, shown.tools) == (True, ())
    assert agent_turn(folded(*steps), FACTS, whole=True).tools


@pytest.mark.parametrize("reason", ["worker_lost", "backend_lost", "stream_cut", "protocol_error", "shutdown"])
def test_every_reason_of_an_interruption_has_words(reason: str) -> None:
    assert view_turns.interruption(reason)


# ---- numbers


def test_durations_sizes_and_tokens_read_well() -> None:
    assert [render.duration(s) for s in (0.4, 21.44, 102, 120, 7_500, 200_000)] == [
        "0.4 s", "21.4 s", "1 min 42 s", "2 min", "2 h 5 min", "2 d"
    ]  # fmt: skip
    assert [render.running_clock(s) for s in (5, 86, 7_509)] == ["0:05", "1:26", "2:05:09"]
    assert [render.size(n) for n in (90, 16_384, 5_452_595)] == ["90 B", "16 KB", "5.2 MB"]
    with reading_as(Reader("zh_Hans")):
        assert (render.tokens(12_400), render.duration(102)) == ("1.24 万", "1 分 42 秒")


def test_days_are_those_of_the_readers_zone() -> None:
    late = clock.now().replace(hour=23, minute=30) - timedelta(days=3)
    with reading_as(Reader(zone="UTC")):
        here = render.day_id(late)
    with reading_as(Reader(zone="Asia/Shanghai")):
        there = render.day_id(late)
    with reading_as(Reader(zone="America/St_Johns")):
        behind = render.day_id(late)
    assert behind == here < there
