"""Many sessions at once in two profiles of the real hermes-agent: nothing of one reaches another (RELIABILITY S55,
CASES 161), and whatever is stopped at whatever moment, the others go on."""

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared import settings as portal_settings
from shared.relay import mailbox
from shared.relay.mailbox import Note
from shared.store import catalogue
from shared.store import runs as run_store
from tests.rig.bridge import HermesHome, running, wait_for
from tests.rig.hermes import ScriptedModel
from tests.worker.conftest import Desk
from worker.backends.bridge import backend as bridge_backend

KEY = "KEY_OF_A_LISTED_MODEL"
SESSIONS = 20
ABORTS = 60
GRACE_S = 30.0


@pytest.fixture
def homes(hermes_model: ScriptedModel, hermes_home: HermesHome) -> Iterator[dict[str | None, HermesHome]]:
    work = HermesHome(hermes_model)
    yield {None: hermes_home, "work": work}
    work.close()


@pytest.fixture
def desk(
    sqlite_desk: Desk, homes: dict[str | None, HermesHome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Desk]:
    """A worker with two profiles, as it is set up by its environment and its database."""
    monkeypatch.setattr(bridge_backend, "LOOK_TIMEOUT_S", 60.0)
    monkeypatch.setenv(KEY, "canary-key")
    monkeypatch.setenv("PORTAL_SECRET_KEY", "canary-secret")
    home = homes[None]
    environ = {
        **sqlite_desk.environ,
        **home.environ,
        "PORTAL_DATA_DIR": str(tmp_path / "data"),
        "PORTAL_ABORT_GRACE_S": str(GRACE_S),
    }
    sqlite_desk.settings = portal_settings.load(environ, cwd=tmp_path)
    sqlite_desk.context.engine.dispose()
    sqlite_desk.context = sqlite_desk.new_context("worker-a")
    with sqlite_desk.db() as db:
        catalogue.put_profile(db, name="work", hermes_home=str(homes["work"].path))
        catalogue.put_language_model(db, name="Listed", model="listed-1", key_ref=KEY)
    yield sqlite_desk
    sqlite_desk.context.backends.close()
    for each in homes.values():
        wait_for(lambda each=each: running(str(each.path)) == [], "the end of all children")


def all_at_once(desk: Desk, turns: list[tuple[str, str]]) -> list[str]:
    """Drive one turn in each session, all at the same time; gives the run ids."""
    run_ids = [desk.submit(session_id, text) for session_id, text in turns]
    for thread in [desk.start(run_id) for run_id in run_ids]:
        thread.join(200)
    return run_ids


def test_nothing_of_a_session_or_a_home_reaches_another(desk: Desk, homes: dict[str | None, HermesHome]) -> None:
    for profile, home in homes.items():
        (home.path / "SOUL.md").write_text(f"You are the canary-soul-of-{profile}.")
    profiles = [None, "work"] * (SESSIONS // 2)
    sessions = [desk.session(source="cli", profile=profile) for profile in profiles]
    look = '[[tool:terminal:{"command":"pwd; echo home=$HERMES_HOME; env; echo mine > note; ls"}]]'
    first = all_at_once(
        desk,
        [(session_id, f"canary-{n}-x {look} [[then]] [[say:canary-{n}-y]]") for n, session_id in enumerate(sessions)],
    )
    told = all_at_once(desk, [(session_id, "[[echo:system]]") for session_id in sessions])
    for n, (run_id, session_id, profile) in enumerate(zip(first, sessions, profiles, strict=True)):
        assert desk.state(run_id) == "completed", desk.row(run_id).error
        everything = str(desk.transcript(run_id))
        assert f"workspaces/{session_id}" in everything
        assert f"home={homes[profile].path}" in everything
        assert f"canary-{n}-y" in everything
        others = [other for other in range(SESSIONS) if other != n]
        assert not [other for other in others if f"canary-{other}-" in everything]
        assert not [other for other in sessions if other != session_id and other in everything]
        assert "canary-key" not in everything
        assert "canary-secret" not in everything
        assert "PORTAL_" not in everything
    for run_id, profile in zip(told, profiles, strict=True):
        system = desk.answer(run_id).content
        assert f"canary-soul-of-{profile}" in system
        assert f"canary-soul-of-{'work' if profile is None else None}" not in system
    remembered = all_at_once(desk, [(session_id, "[[echo:roles]]") for session_id in sessions])
    assert {desk.answer(run_id).content.count('"') // 2 for run_id in remembered} == {8}
    described = [facts for backend in desk.context.backends.holding_agents() for facts in backend.describe()]
    assert sorted((facts["profile"] or "", facts["sessions"]) for facts in described) == [("", 10), ("work", 10)]
    for facts in described:
        environ = Path(f"/proc/{facts['pid']}/environ").read_text()
        assert "HERMES_HOME" in environ
        assert "canary" not in environ
        assert not [name for name in ("DATABASE_URL", "REDIS_URL", "PORTAL_", KEY) if name in environ]


def test_a_profile_that_is_gone_says_so(desk: Desk) -> None:
    session_id = desk.session(source="cli", profile="nobody")
    run_id = desk.submit(session_id, "Hello")
    desk.start(run_id).join(60)
    assert (desk.state(run_id), desk.row(run_id).reason) == ("failed", "backend_refused")
    assert "'nobody' is gone" in (desk.row(run_id).error or "")


def abort(desk: Desk, run_id: str) -> None:
    with desk.db() as db:
        run_store.request_abort(db, run_id, by_name="Ada")
        run = run_store.get(db, run_id)
    if run.worker_id:
        note = Note(run_id=run_id, kind="abort", fence=run.fence)
        mailbox.post(desk.context.redis, desk.context.keys, run.worker_id, note)


TOOL = f"sleep 60.{os.getpid()}"  # which no other test runs at the same time
TURNS = (
    "[[stream:9000:10]]",
    f'[[say:x]] [[tool:terminal:{{"command":"{TOOL}"}}]]',
    "[[hang:60]]",
    "[[think:hm]] [[stream:50:5]] [[danger]]",
    "[[clarify:Which?|a|b]]",
    '[[tool:read_file:{"path":"/etc/hostname"}]] [[tool:read_file:{"path":"/etc/passwd"}]] [[then]] [[stream:200:10]]',
)


def test_aborts_at_any_moment_end_the_turn_and_nothing_else(desk: Desk) -> None:
    """F36 at the bridge. The seed stands in the failure."""
    seed = int(os.environ.get("PORTAL_TEST_SEED") or time.time())
    chance = random.Random(seed)
    desk.run("[[say:Warm.]]", source="cli")
    desk.start_threads()
    pid = _child(desk)["pid"]
    plan = [(chance.choice(TURNS), chance.random() ** 2 * 1.5) for _ in range(ABORTS)]
    slow: list[tuple[float, str]] = []

    def one_after_another(mine: list[tuple[str, float]]) -> None:
        session_id = desk.session(source="cli", on_failure="continue")
        for number, (text, after_s) in enumerate(mine):
            run_id = desk.submit(session_id, text)
            thread = desk.start(run_id)
            if number % 4:  # else also before it begins
                desk.wait(lambda run_id=run_id: desk.row(run_id).begun_at is not None, what="its beginning")
            time.sleep(after_s)
            began = time.monotonic()
            abort(desk, run_id)
            thread.join(120)
            slow.append((time.monotonic() - began, run_id))

    threads = [threading.Thread(target=one_after_another, args=(plan[n::6],)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    ends = Counter(desk.state(run_id) for _, run_id in slow)
    for _, run_id in slow:
        if desk.row(run_id).begun_at is not None:
            assert desk.seen_text(run_id) == desk.answer(run_id).content
    assert len(slow) == ABORTS
    assert set(ends) <= {"aborted", "completed", "cancelled"}, (ends, seed)
    assert ends["aborted"] > ABORTS / 2, (ends, seed)
    assert max(slow)[0] < GRACE_S - 2, f"one had to be killed, or nearly (seed {seed})"
    assert _child(desk)["pid"] == pid, f"the child was lost (seed {seed})"
    wait_for(lambda: _child(desk)["busy"] == 0, "the end of all runs in the child")
    wait_for(lambda: not running(TOOL), "the end of all tools")


def _child(desk: Desk) -> dict[str, Any]:
    (facts,) = [facts for backend in desk.context.backends.holding_agents() for facts in backend.describe()]
    return facts
