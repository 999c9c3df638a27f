"""What a page socket says: events as HTML fragments with stable ids, by the templates of the first load.

`PageView` stands beside one connection and knows what its page shows. It folds the events, and sends what changed: a
region anew, a turn where it is missing (`data-into` and `data-order` say where it belongs), of a streaming answer only
what is new. Structure (queue, begin, end) is read from the database, which an event always follows. Each frame begins
with a cursor element naming the first and last `seq` in it, by which the page's script judges it before the swap.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from markupsafe import Markup, escape

from shared import logs
from shared.errors import NotFound, Unavailable
from shared.protocol import events as e
from shared.relay.connection import RelayDown
from shared.relay.event_log import Cursor as Place
from shared.relay.event_log import event_of
from shared.run_state import FINAL
from shared.transcript import Gap, Transcript, fold
from webapp import view_answer, view_page
from webapp.live import snapshot
from webapp.live.live_event import LiveEvent
from webapp.live.live_turn import LiveTurn, patch_html
from webapp.live.snapshot import Snapshot
from webapp.render import Reader, _, day_id, reading_as, render
from webapp.view_page import Settled
from webapp.view_pauses import Viewer
from webapp.view_turns import Facts, agent_turn, state_of, transcript_of
from webapp.views import AgentTurn, Cursor, UserTurn, mark_of

log = logs.get("webapp.live.fragments")

PAGE = ("title", "usage", "queue", "composer_state", "why_not", "stop")
REGIONS: dict[type[e.Event], tuple[str, ...]] = {
    e.RunQueued: ("question", *PAGE),
    e.QueueUpdated: PAGE,
    e.RunDequeued: PAGE,
    e.RunStarted: ("turn", *PAGE),
    e.MessageDelta: ("answer",),
    e.ReasoningDelta: ("thinking",),
    e.ThinkingDelta: ("thinking",),
    e.ReasoningAvailable: ("thinking",),
    e.StatusUpdated: ("status_line",),
    e.ToolStarted: ("tools", "status_line", "timeline"),
    e.ToolProgress: ("tools",),
    e.ToolCompleted: ("tools", "status_line", "timeline"),
    e.TodoUpdated: ("todos", "aside"),
    e.ApprovalRequested: ("pauses", "status_line", "rail", "timeline", "title"),
    e.ApprovalResolved: ("pauses", "status_line", "rail", "timeline", "title"),
    e.ClarifyRequested: ("pauses", "status_line", "rail", "timeline", "title"),
    e.ClarifyResolved: ("pauses", "status_line", "rail", "timeline", "title"),
    e.CompressionStarted: ("pauses",),
    e.CompressionCompleted: ("pauses",),
    e.UsageUpdated: ("usage",),
    e.AbortStarted: ("rail", "status_line", *PAGE),
    e.AbortCompleted: ("end", *PAGE),
    e.RunCompleted: ("end", *PAGE),
    e.RunFailed: ("end", *PAGE),
    e.RunInterrupted: ("end", *PAGE),
    e.RunCancelled: ("end", *PAGE),
    e.SessionUpdated: PAGE,
}
"""Event -> what of the page it changes. `turn`, `question` and `end` are whole turns; the others are fragments."""


class PageView:
    """One connection's page. Owned by one thread; `snapshot`, `resume` and `apply` give the HTML of one frame.

    Raises NotFound when the session is gone, Unavailable when a snapshot cannot be read."""

    def __init__(self, web: Any, principal: Any, session_id: str, reader: Reader) -> None:
        self.session_id = session_id
        self._web = web
        self._principal = principal
        self._reader = replace(reader, live=True)
        self._live: dict[str, LiveTurn] = {}
        self._ended: set[str] = set()
        self._fresh: set[str] = set()  # runs whose whole turn this frame brings
        self._owed: set[str] = set()  # page regions that could not be read
        self._owed_ends: set[str] = set()
        self._words = ""
        self._day = ""  # of the last question shown

    # ---- whole views

    def snapshot(self, view: Snapshot) -> str:
        """Replaces all that the page shows from the snapshot's first message on."""
        with reading_as(self._reader):
            facts = self._facts(view)
            chat = view_page.chat_of(view, facts, self._settled())
            self._live.clear()
            self._ended = {
                m.run_id for m in view.messages if m.role == "ASSISTANT" and m.status != "RUNNING" and m.run_id
            }
            turns = view_page.shown_turns(view, facts)
            parts = [self._turn_html(turn) for turn in turns if not (isinstance(turn, AgentTurn) and turn.is_live)]
            for turn in turns:
                if isinstance(turn, AgentTurn) and turn.is_live:
                    parts.append(self._adopt(turn.run_id, view, facts))
            cursor = replace(chat.cursor, kind="snapshot")
            return self._frame(cursor, parts + self._page_html(chat, PAGE) + [self._connection(view.relay_up)])

    def resume(self, at: Place, events: Sequence[LiveEvent]) -> str:
        """For a page that was drawn at `at` and has missed `events`: the turns they touched, and the one that goes on.

        The active run is folded from its saved text and the log, which may reach back before `at`."""
        with reading_as(self._reader):
            view = snapshot.take(self._web.factory, self._web.log, self.session_id, limit=2)
            facts = self._facts(view)
            active = None if view.active is None else view.active.id
            first_due = [run.id for run in view.queue if run not in view_page.behind(view)]
            touched = dict.fromkeys(ev.event.run_id for ev in events if ev.event is not None and ev.event.run_id)
            parts = [self._whole_run(run_id, view) for run_id in touched if run_id not in (active, *first_due)]
            for run_id in [active, *first_due]:
                if run_id is not None:
                    parts += [self._question(run_id, view), self._adopt(run_id, view, facts)]
            chat = view_page.chat_of(view, facts, self._settled())
            last = events[-1].seq if events else at.seq
            cursor = Cursor(at.epoch, at.seq + 1, last, "resume", active or "", chat.cursor.fence)
            return self._frame(cursor, parts + self._page_html(chat, PAGE) + [self._connection(view.relay_up)])

    def apply(self, events: Sequence[LiveEvent]) -> str:
        """The next events, in order, gathered. Raises shared.transcript.Gap when they do not fit: take a snapshot."""
        with reading_as(self._reader):
            page: set[str] = set(self._owed)
            parts: list[str] = []
            self._words = ""
            ends = set(self._owed_ends)
            self._fresh.clear()
            for live_event in events:
                if live_event.event is not None:
                    self._take(live_event.event, page, parts, ends)
            for run_id, turn in self._live.items():
                if run_id not in self._fresh:
                    parts += turn.changes(self.session_id)
                elif run_id not in ends:
                    parts.append(self._turn_html(turn.whole()))
            for run_id in ends:
                if run_id in self._fresh:
                    del self._live[run_id]  # the page has not seen it yet
                parts += self._tried(partial(self._end, run_id), self._owed_ends, {run_id})
            if page:
                parts += self._tried(partial(self._page_now, page), self._owed, page)
            if self._words:
                parts.append(render("fragments/announce.html", words=self._words, oob="true"))
            first, last = events[0], events[-1]
            fence = max((ev.event.fence or 0 for ev in events if ev.event is not None), default=0)
            run_id = next((ev.event.run_id or "" for ev in reversed(events) if ev.event is not None), "")
            cursor = Cursor(last.epoch, first.seq, last.seq, "events", run_id, fence)
            return self._frame(cursor, parts, list_changed=bool(page))

    # ---- folding

    def _take(self, event: e.AnyEvent, page: set[str], parts: list[str], ends: set[str]) -> None:
        regions = REGIONS.get(type(event), ())
        page.update(region for region in regions if region in PAGE)
        run_id = event.run_id
        if run_id is None or run_id in self._ended:
            return
        turn = self._live.get(run_id)
        if "end" in regions:
            if turn is not None:
                fold(turn.transcript, event)
            ends.add(run_id)
            return
        if "question" in regions and isinstance(event, e.RunQueued):
            if event.data.position == 0:
                parts += self._begun(run_id, event)
            if (again := event.data.retry_of) is not None:
                parts += self._tried(partial(self._tried_again, again), self._owed_ends, {again})
            return
        if turn is None and "turn" in regions:
            parts += self._begun(run_id, event)
            return
        if turn is None:
            return
        turn.take(event)
        if isinstance(event, e.ApprovalRequested | e.ClarifyRequested):
            what = _("a decision") if isinstance(event, e.ApprovalRequested) else _("an answer")
            self._words = _("Turn %(n)s waits for %(what)s.", n=turn.skeleton.number, what=what)
        if "turn" in regions:
            turn.refresh()
            self._fresh.add(run_id)
            self._words = _("Turn %(n)s has started.", n=turn.skeleton.number)
            return
        turn.dirty.update(region for region in regions if region not in PAGE)

    def _begun(self, run_id: str, event: e.AnyEvent) -> list[str]:
        """The turns of a run that is new to this page, as of this event."""
        return self._tried(partial(self._first_sight, run_id, event), self._owed_ends, {run_id})

    def _first_sight(self, run_id: str, event: e.AnyEvent) -> list[str]:
        view = self._look()
        question, answer, facts = self._read_run(run_id, view)
        run = facts.runs.get(run_id)
        if run is not None and run.state in FINAL:
            return self._end(run_id)
        t = Transcript(run_id=run_id) if answer is None else transcript_of(answer)
        if isinstance(event, e.RunStarted):
            t = Transcript(run_id=run_id, queued_at=None if run is None else run.created_at)
        fold(t, event)
        self._adopted(t, facts)
        self._fresh.add(run_id)
        return [self._turn_html(question)] if question is not None else []

    def _tried_again(self, run_id: str) -> list[str]:
        """The box of a turn that is tried again: it says as which turn."""
        _question, answer, facts = self._read_run(run_id, self._look())
        if answer is None:
            return []
        turn = agent_turn(transcript_of(answer), facts, message=answer)
        return [render("fragments/ending.html", turn=turn, oob="morph")]

    # ---- turns that go on

    def _adopt(self, run_id: str, view: Snapshot, facts: Facts) -> str:
        """The whole turn of a run that goes on, folded up to the head of the log."""
        answer = next((m for m in view.messages if m.run_id == run_id and m.role == "ASSISTANT"), None)
        t = Transcript(run_id=run_id) if answer is None else transcript_of(answer)
        for event in self._logged(view.cursor):
            try:
                fold(t, event)
            except Gap:
                break  # the follower sees it too, and brings a snapshot
        if t.end is not None:
            return self._whole_run(run_id, view)  # it has ended since the view was read
        return self._turn_html(self._adopted(t, facts).whole())

    def _adopted(self, t: Transcript, facts: Facts) -> LiveTurn:
        turn = LiveTurn.adopt(t, facts)
        self._live[t.run_id] = turn
        return turn

    def _logged(self, cursor: Place | None) -> Iterable[e.AnyEvent]:
        if cursor is None:
            return []
        try:
            entries = self._web.log.read_after(self.session_id, cursor) or []
        except RelayDown:
            return []
        return [event for event in (event_of(entry, self.session_id) for entry in entries) if event is not None]

    # ---- turns that ended, and the page around them

    def _whole_run(self, run_id: str, view: Snapshot) -> str:
        """Question and answer of a run that does not go on, as the history shows them."""
        question, answer, facts = self._read_run(run_id, view)
        html = "" if question is None or self._waits(run_id, view) else self._turn_html(question)
        if answer is not None and answer.status != "RUNNING":
            self._ended.add(run_id)
            html += self._turn_html(agent_turn(transcript_of(answer), facts, message=answer))
        return html

    def _question(self, run_id: str, view: Snapshot) -> str:
        question, _answer, _facts = self._read_run(run_id, view)
        return "" if question is None else self._turn_html(question)

    def _waits(self, run_id: str, view: Snapshot) -> bool:
        return any(run.id == run_id for run in view_page.behind(view))

    def _end(self, run_id: str) -> list[str]:
        """The end of a run: what it leaves is the same as the history shows; text that stands on the page stays."""
        view = self._look()
        question, answer, facts = self._read_run(run_id, view)
        live = self._live.pop(run_id, None)
        self._ended.add(run_id)
        if answer is None:  # withdrawn before it began
            gone = f'<article id="run-{escape(run_id)}" hx-swap-oob="delete"></article>' if live is not None else ""
            return [gone, "" if question is None else self._turn_html(question)]
        turn = agent_turn(transcript_of(answer), facts, message=answer)
        self._words = _("Turn %(n)s: %(state)s.", n=turn.number, state=turn.mark.word)
        if live is None:
            return ["" if question is None else self._turn_html(question), self._turn_html(turn)]
        parts = live.answer_changes() if "answer" in live.dirty else []
        final = transcript_of(answer)
        same = all(live.sent.get(part.part) == part.length for part in final.answer_parts if part.length)
        if same and len(final.answer_parts) == len(live.transcript.answer_parts):
            for part in live.transcript.answer_parts[-1:]:
                stream, _new = live.streams.take(part)
                parts += patch_html(view_answer.part_id(run_id, part), stream.close())
        else:
            parts.append(render("fragments/answer.html", turn=turn, oob="true"))
        for name in ("rail", "turn_head", "process", "aside", "pauses", "ending"):
            parts.append(render(f"fragments/{name}.html", turn=turn, oob="true" if name == "process" else "morph"))
        return parts

    def _page_now(self, regions: Iterable[str]) -> list[str]:
        view = self._look()
        facts = self._facts(view)
        chat = view_page.chat_of(view, facts, self._settled())
        active = next((turn for turn in self._live.values() if turn.transcript.end is None), None)
        if active is not None:
            state = state_of(active.transcript, None, view.active)
            signal = "needs" if mark_of(state).state == "needs" else "running"
            chat = replace(chat, signal=signal, usage=view_page.usage_now(active.transcript.usage, view.session))
        else:
            last = snapshot.read(self._web.factory, self.session_id, limit=2)
            chat = replace(chat, signal="", usage=view_page.usage_of(last))
        return self._page_html(chat, regions)

    def _page_html(self, chat: Any, regions: Iterable[str]) -> list[str]:
        wanted = set(regions)
        return [render(f"fragments/{name}.html", chat=chat, oob="morph") for name in PAGE if name in wanted]

    def _connection(self, relay_up: bool) -> str:
        return render("fragments/connection.html", conn="live" if relay_up else "slow", oob="true")

    def _turn_html(self, turn: AgentTurn | UserTurn) -> str:
        if isinstance(turn, AgentTurn):
            return render("fragments/assistant_message.html", turn=turn, oob="morph")
        html = render("fragments/user_message.html", turn=turn, oob="morph")
        day = day_id(turn.at)
        if day != self._day:
            html = render("fragments/day.html", turn=turn, oob="morph") + html
            self._day = day
        return html

    def _frame(self, cursor: Cursor, parts: Iterable[str], *, list_changed: bool = True) -> str:
        head = render("fragments/cursor.html", cursor=cursor, oob=True, list_changed=list_changed)
        return head + "".join(parts)

    # ---- reading

    def _look(self) -> Snapshot:
        return snapshot.read(self._web.factory, self.session_id, limit=1)

    def _read_run(self, run_id: str, view: Snapshot) -> Any:
        return view_page.run_turns(self._web.factory, run_id, view, self._viewer(view), self._settled())

    def _facts(self, view: Snapshot) -> Facts:
        return view_page.facts_for(
            self._web.factory, view.session, view.messages, self._viewer(view), self._settled(), more=view.queue
        )

    def _viewer(self, view: Snapshot) -> Viewer:
        return view_page.viewer_of(self._principal, view.session)

    def _settled(self) -> Settled:
        return view_page.settled_of(self._web)

    def _tried(self, read: Callable[[], list[str]], owed: set[str], what: set[str]) -> list[str]:
        """What was read; while the database does not answer nothing, and `what` is owed for the next frame."""
        try:
            parts = read()
        except NotFound:
            owed -= what
            return []
        except Unavailable as error:
            owed |= what
            log.warning("page_view.waits", session_id=self.session_id, code=error.code)
            return []
        owed -= what
        return parts


# ---- pieces of frames


def ack(command_id: object, **facts: object) -> str:
    """The answer to a command that was taken: `queue_id`, `run_id`, `position`, as the JSON door's `ack` has them."""
    pairs = {"id": command_id, **facts}
    attributes = Markup(" ").join(
        Markup('data-{}="{}"').format(name.replace("_", "-"), value)
        for name, value in pairs.items()
        if value is not None
    )
    return Markup('<i id="ack" hidden hx-swap-oob="true" {}></i>').format(attributes)


def notice(reader: Reader, text: str, *, state: str = "failed", command_id: object = None) -> str:
    """One problem and what to do, for the corner of the page; `command_id` is that of the command that failed."""
    with reading_as(reader):
        for_id = None if command_id is None else str(command_id)
        inner = render("fragments/notice.html", notice=(state, text), for_id=for_id)
    return f'<div hx-swap-oob="beforeend:#notices">{inner}</div>'
