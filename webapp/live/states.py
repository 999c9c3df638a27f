"""What the events of a session have told so far, folded beside the stream, and whether the database says otherwise."""

from dataclasses import replace

from shared.protocol import events as e
from shared.store.session_state import SessionState


def after(state: SessionState, event: e.AnyEvent) -> SessionState:
    """The state once `event` has been told. Events set values, so one that is told twice changes nothing."""
    if isinstance(event, e.Delta):
        return state
    run_id = event.run_id
    match event:
        case e.RunQueued() if run_id is not None and run_id != state.active:
            return replace(state, waiting=state.waiting | {run_id}, held=event.data.held)
        case e.QueueUpdated():
            waiting = frozenset(item.run_id for item in event.data.queue)
            return replace(state, waiting=waiting - {state.active}, held=event.data.held is not None)
        case e.RunDequeued() if run_id is not None:
            if event.data.reason == "started":
                return replace(state, waiting=state.waiting - {run_id}, active=run_id)
            return replace(state, waiting=state.waiting - {run_id})
        case e.RunStarted() if run_id is not None:
            return replace(state, waiting=state.waiting - {run_id}, active=run_id, begun=True)
        case e.ApprovalRequested():
            return replace(state, pauses=state.pauses | {event.data.approval_id})
        case e.ClarifyRequested():
            return replace(state, pauses=state.pauses | {event.data.clarify_id})
        case e.ApprovalResolved():
            return replace(state, pauses=state.pauses - {event.data.approval_id})
        case e.ClarifyResolved():
            return replace(state, pauses=state.pauses - {event.data.clarify_id})
        case e.RunCompleted() | e.RunFailed() | e.RunCancelled() | e.RunInterrupted() | e.AbortCompleted():
            return _ended(state, run_id)
        case e.SessionUpdated():
            return _updated(state, event.data)
    return state


def _ended(state: SessionState, run_id: str | None) -> SessionState:
    if run_id is None:
        return state
    waiting = state.waiting - {run_id}
    if state.active != run_id:
        return replace(state, waiting=waiting)
    return replace(state, waiting=waiting, active=None, begun=False, pauses=frozenset())


def _updated(state: SessionState, data: e.SessionUpdatedData) -> SessionState:
    return replace(
        state,
        title=state.title if data.title is None else data.title,
        archived=state.archived if data.archived is None else data.archived,
        deleted=state.deleted if data.deleted is None else data.deleted,
    )


def differ(told: SessionState, stored: SessionState) -> bool:
    """True when the database holds what no event has told. `starting` is told by no event of its own: there the run
    may still count as waiting."""
    if _in_play(told) != _in_play(stored):
        return True
    if stored.begun and told.active != stored.active:
        return True
    return (told.pauses, told.held, told.title, told.archived, told.deleted) != (
        stored.pauses,
        stored.held,
        stored.title,
        stored.archived,
        stored.deleted,
    )


def _in_play(state: SessionState) -> frozenset[str]:
    return state.waiting if state.active is None else state.waiting | {state.active}
