"""From a snapshot to the session page: side, turns, queue, composer, and the words of the tab's title."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from shared.database import db_time, transaction
from shared.models import ChatMessage, ChatSession, Run
from shared.protocol.events import Usage as TokensUsed
from shared.run_state import WAITING, RunState
from shared.store import pauses
from shared.store.chat_sessions import SessionRow
from shared.transcript import Transcript
from webapp import render, rights
from webapp.actions.names import DEFAULT_PROFILE
from webapp.auth import Principal
from webapp.context import WebContext
from webapp.live.snapshot import Snapshot
from webapp.render import _, counted
from webapp.view_pauses import Viewer
from webapp.view_turns import Facts, agent_turn, transcript_of, turns_of, user_turn
from webapp.views import (
    Agent,
    AgentTurn,
    Chat,
    Composer,
    Cursor,
    Mark,
    Option,
    Pickers,
    Queue,
    QueueItem,
    SessionGroup,
    SessionItem,
    Turn,
    Usage,
    agent_of,
    mark_of,
)

QUEUE_TEXT_CHARS = 300
HIGH_USE = 80  # percent of the context window


@dataclass(frozen=True)
class Settled:
    """What the portal as a whole says of a page: whether the demo agent answers, and what a turn may choose from: the
    names of models and profiles. `default_model`: what answers where nobody chooses one, if that is known."""

    is_demo: bool = False
    models: tuple[str, ...] = ()
    default_model: str | None = None
    profiles: tuple[str, ...] = ()
    has_skills: bool = False


def settled_of(web: WebContext) -> Settled:
    """From the settings of the process."""
    return Settled(is_demo=web.settings.is_demo)


def viewer_of(principal: Principal, session: ChatSession) -> Viewer:
    return Viewer(principal.user_id, session.owner_id, rights.may(principal, "send", session))


# ---- reading what stands beside the messages


def facts_for(
    factory: sessionmaker[Session],
    session: ChatSession,
    messages: Sequence[ChatMessage],
    viewer: Viewer,
    settled: Settled,
    *,
    more: Sequence[Run] = (),
) -> Facts:
    """The runs of these messages, those in `more`, and their retries. Raises Unavailable."""
    run_ids = {message.run_id for message in messages if message.run_id}
    with transaction(factory, write=False) as db:
        viewer = Viewer(viewer.user_id, viewer.owner_id, viewer.may_send, db_time(db) - time.time())
        runs = {run.id: run for run in more}
        runs |= {run.id: run for run in db.scalars(select(Run).where(Run.id.in_(run_ids)))}
        origins = {run.retry_of for run in runs.values() if run.retry_of} - runs.keys()
        runs |= {run.id: run for run in db.scalars(select(Run).where(Run.id.in_(origins)))} if origins else {}
        again = select(Run).where(Run.session_id == session.id, Run.retry_of.in_(run_ids)).order_by(Run.position)
        retries = {run.retry_of: run for run in db.scalars(again) if run.retry_of} if run_ids else {}
        late = pauses.late_answers(db, run_ids)
    return Facts(
        session.id,
        viewer,
        runs,
        retries,
        is_demo=settled.is_demo and session.source == "api_server",
        profile=session.profile,
        skill_folder=session.skill_folder,
        late=late,
    )


# ---- the session


def chat_of(view: Snapshot, facts: Facts, settled: Settled) -> Chat:
    """The session page as of the snapshot's cursor."""
    session = view.session
    turns = shown_turns(view, facts)
    agent = agent_of(session.source, is_demo=facts.is_demo)
    active = next((turn for turn in reversed(turns) if isinstance(turn, AgentTurn) and turn.is_live), None)
    at = view.cursor
    return Chat(
        id=session.id,
        title=title_of(session.title),
        has_title=bool(session.title),
        agent=agent,
        turns=tuple(turns),
        has_older=view.has_older,
        oldest_id=view.messages[0].id if view.messages else None,
        queue=queue_of(view, turns),
        composer=composer_of(view, agent, facts, settled),
        usage=usage_of(view),
        cursor=Cursor(
            epoch="" if at is None else at.epoch,
            first=0 if at is None else at.seq + 1,
            last=0 if at is None else at.seq,
            run_id="" if view.active is None else view.active.id,
            fence=0 if view.active is None else view.active.fence,
        ),
        is_archived=session.status == "ARCHIVED" and session.deleted_at is None,
        relay_up=view.relay_up,
        signal=signal_of(active),
    )


def shown_turns(view: Snapshot, facts: Facts) -> list[Turn]:
    """The turns that stand in the column: not those that wait behind another, which stand in the queue."""
    waiting = frozenset(run.id for run in behind(view))
    turns = turns_of(view.messages, facts, waiting=waiting)
    for run in [view.active, *(run for run in view.queue if run.id not in waiting)]:
        if run is not None and not any(isinstance(turn, AgentTurn) and turn.run_id == run.id for turn in turns):
            turns.append(agent_turn(Transcript(run_id=run.id), facts, run=run))  # it has not begun
    return turns


def behind(view: Snapshot) -> list[Run]:
    """The queued runs that stand in the queue: all of them, but the one that may start at once."""
    is_first_due = view.active is None and view.session.held_reason is None
    return list(view.queue[1:] if is_first_due else view.queue)


def with_turns(chat: Chat, turns: tuple[Turn, ...]) -> Chat:
    """The same page with other turns: older ones."""
    return replace(chat, turns=turns)


def title_of(title: str) -> str:
    return title or _("New chat")


def signal_of(turn: AgentTurn | None) -> str:
    """What the tab's title says of the run: needs, running, or nothing."""
    if turn is None:
        return ""
    return "needs" if turn.mark.state == "needs" else "running"


def queue_of(view: Snapshot, turns: Sequence[Turn] = ()) -> Queue:
    waiting = behind(view)
    session = view.session
    is_held = session.held_reason is not None and bool(waiting)
    items = tuple(
        QueueItem(run.queue_id, run.position, place, _first_line(run.input), run.user_name)
        for place, run in enumerate(waiting, 1)
    )
    word = counted("%(num)s held", "%(num)s held", len(items)) if is_held else ""
    mark = Mark("queued", word or counted("%(num)s queued", "%(num)s queued", len(items)))
    return Queue(items, mark, _why(view, items, is_held), is_held, failure_options(session.on_failure))


def _why(view: Snapshot, items: tuple[QueueItem, ...], is_held: bool) -> str:
    if not items:
        return ""
    if is_held:
        held_by = view.session.held_reason
        if held_by == "failed":
            return _("The turn before failed. The queue waits for you.")
        return _("The turn before was interrupted. The queue waits for you.")
    if view.active is not None:
        return _("#%(n)s waits for turn %(m)s", n=items[0].number, m=view.active.position)
    return _("#%(n)s waits for the turn before it", n=items[0].number)


def failure_options(chosen: str) -> tuple[Option, ...]:
    labels = {
        "hold": _("hold the queue"),
        "continue": _("go on with the queue"),
        "cancel": _("cancel the queue"),
    }
    return tuple(Option(value, label, value == chosen) for value, label in labels.items())


def _first_line(text: str) -> str:
    return " ".join(text[: QUEUE_TEXT_CHARS * 2].split())[:QUEUE_TEXT_CHARS]


def composer_of(view: Snapshot, agent: Agent, facts: Facts, settled: Settled) -> Composer:
    session, active = view.session, view.active
    waits = active is not None or bool(view.queue)
    if session.deleted_at is not None:
        may_send, why_not = False, _("This chat was deleted.")
    elif session.status == "ARCHIVED":
        may_send, why_not = False, _("This chat is archived. Bring it back to go on with it.")
    elif not facts.viewer.may_send:
        may_send, why_not = False, _("You may read this session, not write in it.")
    else:
        may_send, why_not = True, ""
    if waits:
        placeholder = _("Message %(agent)s. It will be turn %(n)s.", agent=agent.name, n=session.next_position)
    else:
        placeholder = _("Message %(agent)s", agent=agent.name)
    run = active or next((run for run in view.queue if run not in behind(view)), None)
    return Composer(
        placeholder=placeholder,
        is_working=run is not None,
        will_wait=waits,
        is_stopping=active is not None and active.state == RunState.ABORTING,
        run_id=None if run is None else run.id,
        pickers=pickers_of(
            settled, model=session.model, profile=session.profile, skill=session.skill_folder, source=session.source
        ),
        may_send=may_send,
        why_not=why_not,
    )


def pickers_of(settled: Settled, *, model: str | None, profile: str | None, skill: str | None, source: str) -> Pickers:
    """What a turn of that source may choose from, with what is chosen now."""
    usual = settled.default_model if source == "cli" else None  # a gateway has a model of its own
    any_model = _("Default model") if usual is None else _("Default: %(model)s", model=usual)
    return Pickers(
        models=_options(settled.models, model, Option("", any_model), "%(name)s"),
        profiles=_options(
            settled.profiles, profile, Option(DEFAULT_PROFILE, _("Default profile")), _("%(name)s (gone)")
        ),
        skill=(skill or "") if settled.has_skills or skill else None,
    )


def _options(offered: tuple[str, ...], chosen: str | None, none: Option, unlisted: str) -> tuple[Option, ...]:
    """A picker's options, `none` first; empty when there is nothing to choose from. What was chosen stays, also when it
    is not offered: then with the words `unlisted`."""
    if not offered and not chosen:
        return ()
    more = () if not chosen or chosen in offered else (Option(chosen, unlisted % {"name": chosen}, True),)
    return (replace(none, chosen=not chosen), *(Option(name, name, name == chosen) for name in offered), *more)


def usage_of(view: Snapshot) -> Usage:
    """The usage that the last answer tells."""
    last = next((message for message in reversed(view.messages) if message.role == "ASSISTANT"), None)
    return usage_now(None if last is None else transcript_of(last).usage, view.session)


def usage_now(used: TokensUsed | None, session: ChatSession) -> Usage:
    """How full the context is by the last request, and the session's total."""
    total = session.total_input_tokens + session.total_output_tokens
    percent = None
    if used is not None and used.context_used is not None and used.context_window:
        percent = min(100, round(100 * used.context_used / used.context_window))
    level = "high" if percent is not None and percent >= HIGH_USE else "normal"
    return Usage(percent, _("%(n)s tokens", n=render.tokens(total)) if total else "", level)


# ---- one run by itself, for live frames


def run_turns(
    factory: sessionmaker[Session], run_id: str, view: Snapshot, viewer: Viewer, settled: Settled
) -> tuple[Turn | None, ChatMessage | None, Facts]:
    """The question of a run as a turn, its answer's row, and the facts to show it with. Raises Unavailable."""
    with transaction(factory, write=False) as db:
        rows = list(db.scalars(select(ChatMessage).where(ChatMessage.run_id == run_id)))
    facts = facts_for(factory, view.session, rows, viewer, settled)
    question = next((row for row in rows if row.role == "USER"), None)
    answer = next((row for row in rows if row.role == "ASSISTANT"), None)
    return (None if question is None else user_turn(question, facts)), answer, facts


# ---- the list of sessions


def groups_of(
    rows: Sequence[SessionRow], *, current: str | None, db_now_s: float, is_demo: bool
) -> tuple[SessionGroup, ...]:
    """The list by day in the reader's zone, last activity first."""
    groups: list[tuple[str, list[SessionItem]]] = []
    for row in rows:
        heading = render.day_group(row.last_message_at)
        if not groups or groups[-1][0] != heading:
            groups.append((heading, []))
        groups[-1][1].append(item_of(row, current=current, db_now_s=db_now_s, is_demo=is_demo))
    return tuple(SessionGroup(heading, tuple(items)) for heading, items in groups)


def item_of(row: SessionRow, *, current: str | None, db_now_s: float, is_demo: bool) -> SessionItem:
    """One chat in the list; the first that holds of: needs, failed, interrupted, running, queued."""
    left_s = None
    if row.pause_kind is not None and row.pause_deadline_db is not None:
        left_s = max(0.0, row.pause_deadline_db - db_now_s)
    mark, fact = _say(row)
    return SessionItem(
        id=row.id,
        title=title_of(row.title),
        agent=agent_of(row.source, is_demo=is_demo),
        at=row.last_message_at,
        mark=mark,
        fact=fact,
        left_s=left_s if mark is not None and mark.state == "needs" else None,
        queued=row.queue_length if row.state != RunState.QUEUED else max(0, row.queue_length - 1),
        is_current=row.id == current,
    )


def _say(row: SessionRow) -> tuple[Mark | None, str]:
    state = row.state
    if row.held_reason is not None and row.queue_length:
        return Mark("needs", _("Queue held")), ""
    if state is None or state in (RunState.COMPLETED, RunState.CANCELLED, RunState.ABORTED):
        return (mark_of(RunState.QUEUED), "") if row.queue_length else (None, "")
    if state in WAITING or row.pause_kind is not None:
        word = _("Question") if row.pause_kind == "clarification" else _("Approval")
        return Mark("needs", word), "" if row.pause_deadline_db is not None else _("waits for you")
    return mark_of(state), ""
