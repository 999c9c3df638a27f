"""One run, from claim to final state (RELIABILITY 2). Called without Celery in tests.

`starting`: the backend is found; nothing is sent. `running` is committed before the first
byte goes out, and from then on the turn is never begun again.
"""

from shared import logs
from shared.errors import BackendError, LeaseLost, Unavailable
from worker.backends.base import Backend
from worker.context import WorkerContext
from worker.runs import interrupts, outcome
from worker.runs.claim import Claimed, claim
from worker.runs.drive import Drive
from worker.runs.ending import Circumstances, end_run
from worker.runs.live_run import LiveRun
from worker.runs.recorder import Recorder
from worker.runs.start import begin_when_possible, give_back

log = logs.get(__name__)


def execute(run_id: str, context: WorkerContext) -> None:
    """Claim the run and drive it to its end; does nothing when it is not its turn or another has it."""
    try:
        claimed = claim(run_id, context)
    except Unavailable as error:  # it stays in the queue, and a janitor sends its task again
        log.warning("run.not_claimed", run_id=run_id, code=error.code)
        return
    if claimed is None:
        return
    live = LiveRun(
        run_id=run_id,
        session_id=claimed.run.session_id,
        fence=claimed.fence,
        user_name=claimed.run.user_name,
        source=claimed.run.source,
    )
    context.live_runs.add(live)
    with logs.bind(run_id=run_id, session_id=live.session_id):
        try:
            _run(claimed, live, context)
        finally:
            live.inbox.close()
            context.live_runs.remove(run_id)


def _run(claimed: Claimed, live: LiveRun, context: WorkerContext) -> None:
    recorder = Recorder(context, live)
    try:
        _drive(claimed, live, recorder, context)
    finally:
        recorder.close()


def _drive(claimed: Claimed, live: LiveRun, recorder: Recorder, context: WorkerContext) -> None:
    refused: BackendError | None = None
    backend: Backend | None = None
    try:
        backend = context.backends.backend_for(claimed.run.source, claimed.session.profile)
    except BackendError as error:
        refused = error  # a second try would bring the same: the run begins, and fails at once
    except Exception as error:
        log.exception("run.start_failed", error=type(error).__name__)
        give_back(live, context)
        return
    try:
        message_id = claimed.message_id or begin_when_possible(claimed, live, context)
    except LeaseLost:
        _end_unbegun(live, recorder, context)
        return
    log.info("run.begun", fence=live.fence, source=claimed.run.source)
    if backend is None:
        assert refused is not None
        end_run(context, live, recorder, outcome.of_error(refused), Circumstances(message_id, live.began_at), [])
        return
    Drive(claimed, live, recorder, context, backend, message_id).run()


def _end_unbegun(live: LiveRun, recorder: Recorder, context: WorkerContext) -> None:
    """It was aborted before anything was sent, or is not ours any more."""
    try:
        interrupts.look(context, [live])
    except Unavailable:
        return  # a janitor ends it when the lease is over
    if live.abort_seen:
        end_run(context, live, recorder, outcome.STOPPED, Circumstances("", live.began_at), [])
