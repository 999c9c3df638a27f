"""How a run begins: `running` is committed before the first byte of its turn goes out, or it goes back to the queue."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from shared import logs, skills
from shared.database import transaction
from shared.errors import BackendLost, BackendRefused, LeaseLost, Unavailable
from shared.models import LanguageModel
from shared.protocol.events import SKILL_CHANGED
from shared.settings import is_portals
from shared.store import approval_grants, catalogue, skill_consents
from shared.store import runs as run_store
from worker.backends import offered
from worker.backends.base import Backend, HistoryMessage, Provider, Turn
from worker.context import WorkerContext
from worker.runs.claim import Claimed, begin
from worker.runs.history import build_compressed_history
from worker.runs.live_run import LiveRun
from worker.runs.sealing import tell_failed

RETRY_S = 0.5
Made = TypeVar("Made")

log = logs.get(__name__)


def turn_of(claimed: Claimed, backend: Backend, live: LiveRun, context: WorkerContext) -> Turn:
    """Put the turn together. Raises Unavailable, BackendRefused."""
    run, session = claimed.run, claimed.session
    chosen = run.model or session.model
    skill_folder = run.skill_folder or session.skill_folder
    with transaction(context.factory, write=False) as db:
        row = catalogue.language_model(db, chosen) if chosen is not None else None
        if chosen is None and backend.capabilities.models:
            row = catalogue.default_language_model(db)
        before = run_store.previous(db, run)
        allowed = approval_grants.patterns(db, session.profile) if backend.capabilities.approvals else ()
        profile = catalogue.profile(db, session.profile) if session.profile is not None else None
    model = chosen if row is None else row.model
    provider = None if row is None else _provider(row)

    def make_history() -> tuple[HistoryMessage, ...]:
        def work() -> tuple[HistoryMessage, ...]:
            return build_compressed_history(
                context.factory, context.settings, run, backend, live.inbox.put, model=model, provider=provider
            )

        history = patiently(work, live)
        if live.aborted:
            raise BackendLost("The turn was stopped before it was sent.")
        return history

    return Turn(
        run_id=run.id,
        session_id=run.session_id,
        input=run.input,
        blocks=tuple(run.blocks or ()),
        make_history=make_history,
        after=None if before is None or run.retry_of is not None else before.id,
        instructions=_instructions(claimed, skill_folder, offered.home_of(profile, context.settings), context),
        model=model,
        provider=provider,
        allowed=allowed,
        grant_epoch=session.grant_epoch,
        profile=session.profile,
        skill_folder=skill_folder,
        backend_session_id=session.backend_session_id,
        max_iterations=run.max_iterations,
    )


def patiently(work: Callable[[], Made], live: LiveRun) -> Made:
    """What `work` gives; waits for a database that is away, until the run is to stop: then Unavailable."""
    while True:
        try:
            return work()
        except Unavailable:
            if live.wait_for_stop(RETRY_S):
                raise


def _provider(row: LanguageModel) -> Provider:
    """With the key that the worker's environment holds under the name in the row. Raises BackendRefused."""
    key = None
    if row.key_ref:
        if is_portals(row.key_ref):
            raise BackendRefused(f"{row.key_ref} is no key of a model, but the portal's own.", retryable=False)
        key = os.environ.get(row.key_ref)
        if not key:
            raise BackendRefused(
                f"The key of the model {row.name!r} is not there: set {row.key_ref} in the environment of the workers.",
                retryable=False,
            )
    return Provider(name=row.provider, base_url=row.base_url, key=key, context_window=row.context_window)


def _instructions(claimed: Claimed, skill_folder: str | None, home: Path, context: WorkerContext) -> str | None:
    """What goes before the conversation, for this turn only: the text of the chosen skill, then what was given with
    the turn. Raises Unavailable; BackendRefused for a skill that is not there (an answer without it would only look
    right), and for one that says something else than what its user has agreed to (S33)."""
    given = claimed.run.instructions
    if skill_folder is None:
        return given
    found = skills.read(home, context.settings.data_dir, skill_folder)
    if found is None:
        raise BackendRefused(f"The skill {skill_folder!r} is not there, or cannot be read.", retryable=False)
    _check_consent(claimed, skill_folder, found.sha256, context)
    return f"{found.text}\n\n{given}" if given else found.text


def _check_consent(claimed: Claimed, skill_folder: str, sha256: str, context: WorkerContext) -> None:
    """Who chooses a skill for the first time agrees to what it says now."""
    which: dict[str, Any] = {
        "user_id": claimed.run.user_id,
        "profile": claimed.session.profile,
        "folder_name": skill_folder,
        "sha256": sha256,
    }
    with transaction(context.factory) as db:
        consent = skill_consents.of(db, **which)
        if consent == "new":
            skill_consents.give(db, **which)
    if consent == "changed":
        raise BackendRefused(
            f"The skill {skill_folder!r} has changed since you agreed to it: read it, agree, and try the turn again.",
            code=SKILL_CHANGED,
        )


def begin_when_possible(claimed: Claimed, live: LiveRun, context: WorkerContext) -> str:
    """Begin a run that has not begun with its claim; gives the id of the answer's message. Waits for a database that
    is away as long as the lease lasts. Raises LeaseLost, also when an abort came first."""
    while True:
        try:
            with transaction(context.factory) as db:
                return begin(db, claimed)
        except Unavailable:
            if live.gone:
                raise LeaseLost(live.run_id) from None
            time.sleep(RETRY_S)


def give_back(live: LiveRun, context: WorkerContext) -> None:
    """starting -> queued, since surely nothing was sent; after the third failed start the run has failed."""
    try:
        with transaction(context.factory) as db:
            finished = run_store.back_to_queue(db, live.run_id, live.fence)
            run = run_store.get(db, live.run_id)
    except (LeaseLost, Unavailable) as error:  # a janitor does the same when the lease is over
        log.warning("run.not_given_back", run_id=live.run_id, error=type(error).__name__)
        return
    if finished is not None:
        tell_failed(context, run, finished)
