"""The list of sessions and the pages of a long one, in meaning and in speed (DESIGN 11)."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, func, insert, select
from sqlalchemy.orm import Session

from shared import clock, ids
from shared.errors import Conflict, NotFound
from shared.models import Base, ChatMessage, ChatSession, Run, User
from shared.run_state import RunState
from shared.store import chat_sessions, compressions, messages, pauses, run_logs, runs, tool_outputs, users
from shared.titles import title_from
from tests.factories import a_queued_run, a_run, a_session, a_user

S = RunState


def owner_of(db: Session, session: ChatSession) -> User:
    return users.get(db, session.owner_id)


# ---- one line of the list


def test_a_line_tells_what_a_session_is_doing(db: Session) -> None:
    session = a_session(db, title="Build")
    ann = owner_of(db, session)

    def line() -> chat_sessions.SessionRow:
        (row,) = chat_sessions.list_for(db, ann)
        return row

    assert (line().title, line().state, line().queue_length, line().last_message_preview) == ("Build", None, 0, "")
    first, second = a_queued_run(db, session, text="One\n  two"), a_queued_run(db, session, text="three")
    assert (line().state, line().queue_length, line().last_message_preview) == (S.QUEUED, 2, "three")
    fence = runs.claim(db, first.id, worker_id="w", lease_s=9)
    assert fence is not None
    runs.begin(db, first.id, fence=fence)
    assert (line().state, line().run_id, line().queue_length) == (S.RUNNING, first.id, 1)
    pause = pauses.open(
        db, run_id=first.id, fence=fence, session_id=session.id, kind="approval", tool="t", request={}, timeout_s=60
    )
    assert (line().state, line().pause_kind) == (S.AWAITING_APPROVAL, "approval")
    assert line().pause_deadline_db == pause.expires_at_db
    runs.finish(db, first.id, S.AWAITING_APPROVAL, S.FAILED, fence=fence, content="x" * 500, transcript=None)
    assert (line().state, line().held_reason, line().pause_kind) == (S.FAILED, "failed", None)
    runs.cancel_queued(db, second.id, by=None)
    assert (line().state, line().queue_length) == (S.FAILED, 0)
    assert line().last_message_preview == "x" * chat_sessions.PREVIEW_LENGTH, "a withdrawn message is not shown"


def test_the_list_is_by_last_activity_and_comes_in_pages(db: Session) -> None:
    ann = a_user(db)
    made = [a_session(db, owner=ann) for _ in range(7)]
    now = clock.now()
    for age, session in enumerate(made):
        session.last_message_at = now - timedelta(seconds=age // 2)  # pairs at the same moment
    db.flush()
    wanted = [s.id for s in sorted(made, key=lambda s: (s.last_message_at, s.id), reverse=True)]
    seen: list[str] = []
    while page := chat_sessions.list_for(db, ann, limit=2, before=seen[-1] if seen else None):
        seen += [row.id for row in page]
    assert seen == wanted


def test_a_submit_brings_a_session_to_the_top(db: Session) -> None:
    ann = a_user(db)
    old, new = a_session(db, owner=ann), a_session(db, owner=ann)
    assert [row.id for row in chat_sessions.list_for(db, ann)] == [new.id, old.id]
    a_queued_run(db, old)
    assert [row.id for row in chat_sessions.list_for(db, ann)] == [old.id, new.id]


def test_the_list_holds_my_sessions_archived_ones_apart_deleted_ones_never(db: Session) -> None:
    ann = a_user(db)
    kept, archived, deleted = (a_session(db, owner=ann) for _ in range(3))
    a_session(db)
    chat_sessions.set_archived(db, archived.id, True)
    chat_sessions.delete(db, deleted.id)
    assert [row.id for row in chat_sessions.list_for(db, ann)] == [kept.id]
    assert [row.id for row in chat_sessions.list_for(db, ann, archived=True)] == [archived.id]
    chat_sessions.undelete(db, deleted.id)
    assert {row.id for row in chat_sessions.list_for(db, ann)} == {kept.id, deleted.id}


@pytest.mark.parametrize(
    ("query", "found"),
    [("50%", ["50% of it"]), ("_", ["a_b"]), ("你好", ["说你好"]), ("OF", ["50% of it"]), ("%", ["50% of it"])],
)
def test_titles_are_searched_by_what_was_typed(db: Session, query: str, found: list[str]) -> None:
    ann = a_user(db)
    for title in ("50% of it", "a_b", "说你好", "plain"):
        a_session(db, owner=ann, title=title)
    assert [row.title for row in chat_sessions.list_for(db, ann, query=query)] == found


# ---- sessions


def test_a_deleted_session_is_not_found_but_can_be_brought_back(db: Session) -> None:
    session = a_session(db)
    chat_sessions.delete(db, session.id)
    with pytest.raises(NotFound):
        chat_sessions.get(db, session.id)
    assert chat_sessions.get(db, session.id, with_deleted=True) is session
    assert chat_sessions.to_purge(db) == []
    session.deleted_at = clock.now() - timedelta(days=8)
    db.flush()
    assert chat_sessions.to_purge(db) == [session]
    chat_sessions.undelete(db, session.id)
    assert chat_sessions.get(db, session.id) is session


def test_a_purged_session_leaves_nothing_behind_and_others_alone(db: Session) -> None:
    session = a_session(db)
    for run in (a_run(db, session, state=S.COMPLETED), a_run(db, session, state=S.RUNNING)):
        tool_outputs.put(db, run_id=run.id, tool_id="t", name="shell", text="x")
        run_logs.put(db, run_id=run.id, session_id=session.id, epoch="e", first_seq=1, last_seq=1, lines=["{}"])
    pauses.open(
        db, run_id=run.id, fence=1, session_id=session.id, kind="approval", tool="t", request={}, timeout_s=None
    )
    compressions.add(
        db, session_id=session.id, run_id=run.id, upto_position=1, summary="s", before_tokens=2, after_tokens=1
    )
    other = a_run(db, state=S.COMPLETED)
    chat_sessions.purge(db, session.id)
    left = {t.name: db.execute(select(func.count()).select_from(t)).scalar_one() for t in Base.metadata.tables.values()}
    assert {name: count for name, count in left.items() if count} == {
        "user": 2, "chat_session": 1, "run": 1, "chat_message": 2,
    }  # fmt: skip
    assert runs.get(db, other.id) is other


def test_an_edited_title_is_kept_and_an_emptied_one_is_made_anew(db: Session) -> None:
    session = a_session(db)
    chat_sessions.rename(db, session.id, "Mine")
    a_queued_run(db, session, text="Hello")
    assert session.title == "Mine"
    chat_sessions.rename(db, session.id, "")
    a_queued_run(db, session, text="Hello")
    assert session.title == "Hello"


def test_a_session_id_is_used_once(db: Session) -> None:
    session = a_session(db)
    owner = owner_of(db, session)
    db.expunge(session)
    with pytest.raises(Conflict):
        chat_sessions.create(db, owner=owner, source="api_server", session_id=session.id)


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("  Hello\n\n  world ", "Hello world"),
        ("x" * 31, "x" * 30),
        ("", ""),
        ("e\u0301" * 40, "e\u0301" * 30),
        ("👍🏽" * 31, "👍🏽" * 30),
        ("🇨🇭" * 31, "🇨🇭" * 30),
        ("word " * 6 + "cut", "word word word word word word"),
    ],
)
def test_a_title_is_cut_between_characters_as_people_see_them(text: str, title: str) -> None:
    assert title_from(text) == title


# ---- pages of messages


def test_a_session_is_read_backwards_page_by_page(db: Session) -> None:
    session = a_session(db)
    for number in range(7):
        a_run(db, session, state=S.COMPLETED, text=f"q{number}", answer=f"a{number}")
    pages: list[list[str]] = []
    before: str | None = None
    while page := messages.page(db, session.id, before_id=before, limit=4):
        pages.insert(0, [m.content for m in page])
        before = page[0].id
    assert [content for page in pages for content in page] == [f"{kind}{n}" for n in range(7) for kind in "qa"]
    assert [len(p) for p in pages] == [2, 4, 4, 4]


def test_a_message_of_another_session_is_no_place_to_read_from(db: Session) -> None:
    session = a_session(db)
    a_run(db, session, state=S.COMPLETED)
    other = a_run(db, state=S.COMPLETED)
    foreign = messages.question_of(db, other.id)
    assert foreign is not None
    assert messages.page(db, session.id, before_id=foreign.id) == []
    with pytest.raises(NotFound):
        messages.get(db, "nothing")


# ---- speed: a wide margin around what was measured (4 ms and 1.5 ms), so that only another order of growth fails


def can_take_less_than(limit_s: float, work: Callable[[], Any]) -> bool:
    """One try that nothing else on the machine disturbs shows it; what reads too much never does."""
    give_up_at = time.monotonic() + 60
    while time.monotonic() < give_up_at:
        began = time.perf_counter()
        work()
        if time.perf_counter() - began < limit_s:
            return True
    return False


def rows_of(session_id: str, owner: User, turns: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """`turns` finished turns as plain rows: inserting them one by one would take minutes."""
    now = clock.now()
    made, said = [], []
    for position in range(1, turns + 1):
        run_id = ids.new_id()
        of_run = {"session_id": session_id, "created_at": now}
        made.append(
            {
                **of_run, "id": run_id, "position": position, "queue_id": run_id, "body_hash": "", "state": "completed",
                "queued_at_db": 0.0, "user_id": owner.id, "user_name": "", "input": "", "source": "api_server",
            }
        )  # fmt: skip
        for role, place in (("USER", 0), ("ASSISTANT", 1)):
            said.append(
                {
                    **of_run, "id": ids.new_id(), "run_id": run_id, "position": 2 * position + place, "role": role,
                    "status": "SUCCESS", "content": "words " * 50,
                }
            )  # fmt: skip
    return made, said


def test_a_list_of_10_000_sessions_is_one_quick_query(db: Session) -> None:
    ann = a_user(db)
    now = clock.now()
    all_sessions, all_runs, all_messages = [], [], []
    for number in range(10_000):
        at = now - timedelta(seconds=number)
        session_id = f"s{number}"
        all_sessions.append(
            {
                "id": session_id, "owner_id": ann.id, "title": f"会话 {number}", "created_at": at, "updated_at": at,
                "last_message_at": at,
            }
        )  # fmt: skip
        made, said = rows_of(session_id, ann, 1)
        all_runs += made
        all_messages += said
    for table, rows in ((ChatSession, all_sessions), (Run, all_runs), (ChatMessage, all_messages)):
        db.execute(insert(table), rows)
    statements: list[str] = []
    listen = (db.connection(), "before_cursor_execute", lambda *args: statements.append(args[2]))
    event.listen(*listen)
    assert len(chat_sessions.list_for(db, ann)) == 50
    event.remove(*listen)
    assert len(statements) == 1
    assert can_take_less_than(0.05, lambda: chat_sessions.list_for(db, ann))
    assert [row.id for row in chat_sessions.list_for(db, ann, before="s5000", limit=2)] == ["s5001", "s5002"]
    assert can_take_less_than(0.05, lambda: chat_sessions.list_for(db, ann, before="s5000"))
    assert [row.id for row in chat_sessions.list_for(db, ann, query="9999")] == ["s9999"]
    assert can_take_less_than(0.1, lambda: chat_sessions.list_for(db, ann, query="9999"))


def test_a_session_of_15_000_messages_is_read_and_driven_quickly(db: Session) -> None:
    session = a_session(db, next_position=7501)
    made, said = rows_of(session.id, owner_of(db, session), 7_500)
    db.execute(insert(Run), made)
    db.execute(insert(ChatMessage), said)
    assert [m.position for m in messages.page(db, session.id)] == list(range(15_001 - 49, 15_002))
    assert can_take_less_than(0.05, lambda: messages.page(db, session.id))
    middle = said[7_000]
    assert [m.position for m in messages.page(db, session.id, before_id=middle["id"], limit=1)] == [
        middle["position"] - 1
    ]
    assert can_take_less_than(0.05, lambda: messages.page(db, session.id, before_id=middle["id"]))
    assert can_take_less_than(0.05, lambda: chat_sessions.list_for(db, owner_of(db, session)))
    first, second = a_queued_run(db, session), a_queued_run(db, session)
    assert can_take_less_than(0.05, lambda: runs.claim(db, second.id, worker_id="w", lease_s=9))
    assert runs.claim(db, first.id, worker_id="w", lease_s=9) == 1


def test_sessions_of_a_profile_are_counted_and_the_busy_ones_found(db: Session) -> None:
    owner = a_user(db)
    idle, busy, waits, deleted = (a_session(db, owner=owner, profile="work") for _ in range(4))
    a_session(db, owner=owner)
    chat_sessions.delete(db, deleted.id)
    a_run(db, idle, state=RunState.COMPLETED)
    a_run(db, busy, state=RunState.RUNNING)
    a_queued_run(db, busy)
    a_queued_run(db, waits)
    assert chat_sessions.count_by_profile(db) == {"work": 3, None: 1}
    assert set(chat_sessions.busy_with_profile(db, "work")) == {busy.id, waits.id}
    assert len(chat_sessions.busy_with_profile(db, "work")) == 2
    assert chat_sessions.busy_with_profile(db, "play") == []
