"""How a run begins: `running` is committed before the first byte of its turn goes out, or it goes back to the queue."""

import time

from shared import logs, skills
from shared.database import transaction
from shared.errors import BackendRefused, LeaseLost, Unavailable
from shared.store import catalogue
from shared.store import runs as run_store
from worker.backends.base import Backend, Turn
from worker.context import WorkerContext
from worker.runs.claim import Claimed, begin
from worker.runs.history import build_compressed_history
from worker.runs.live_run import LiveRun
from worker.runs.sealing import tell_failed

RETRY_S = 0.5

log = logs.get(__name__)


def turn_of(claimed: Claimed, backend: Backend, live: LiveRun, context: WorkerContext) -> Turn:
    """Put the turn together. Older turns may have to be summarised by the backend itself, which takes its time."""
    run, session = claimed.run, claimed.session
    model = _model(run.model or session.model, context)
    skill_folder = run.skill_folder or session.skill_folder
    return Turn(
        run_id=run.id,
        session_id=run.session_id,
        input=run.input,
        blocks=tuple(run.blocks or ()),
        history=build_compressed_history(context.factory, context.settings, run, backend, live.inbox.put, model=model),
        instructions=_instructions(run.instructions, skill_folder, context),
        model=model,
        profile=session.profile,
        skill_folder=skill_folder,
        backend_session_id=session.backend_session_id,
        max_iterations=run.max_iterations,
    )


def _model(chosen: str | None, context: WorkerContext) -> str | None:
    """What the backend is to be asked for: a name or id of the catalogue stands for its model, anything else for
    itself. Raises Unavailable."""
    if chosen is None:
        return None
    with transaction(context.factory, write=False) as db:
        row = catalogue.language_model(db, chosen)
    return chosen if row is None else row.model


def _instructions(given: str | None, skill_folder: str | None, context: WorkerContext) -> str | None:
    """What goes before the conversation, for this turn only: the text of the chosen skill, then what was given with
    the turn. Raises BackendRefused for a skill that is not there: an answer without it would only look right."""
    if skill_folder is None:
        return given
    text = skills.text_of(context.settings.hermes_home, skill_folder)
    if text is None:
        raise BackendRefused(f"The skill {skill_folder!r} is not there, or cannot be read.", retryable=False)
    return f"{text}\n\n{given}" if given else text


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
