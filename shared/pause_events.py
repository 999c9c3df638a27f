"""How the decision of an approval or a question is told, alike by the web process and by workers. Pure."""

from typing import Literal, cast

from shared import clock
from shared.models import Pause
from shared.protocol.events import (
    ApprovalResolved,
    ApprovalResolvedData,
    ClarifyResolved,
    ClarifyResolvedData,
)

Reason = Literal["answered", "expired", "withdrawn"]


def resolved_event(pause: Pause) -> ApprovalResolved | ClarifyResolved:
    """The event that tells how a pause was decided, and when: as the database keeps it, so that whoever reads the row
    folds the same. It carries no fence: anybody may say it."""
    reason = cast(Reason, pause.state)
    at = pause.decided_at or clock.now()
    if pause.kind == "clarification":
        answer = ClarifyResolvedData(clarify_id=pause.id, answer=pause.answer, by=pause.by_name, reason=reason)
        return ClarifyResolved(session_id=pause.session_id, run_id=pause.run_id, at=at, data=answer)
    choice = pause.choice if pause.state == "answered" else "deny"
    decision = ApprovalResolvedData(approval_id=pause.id, choice=choice, by=pause.by_name, reason=reason)
    return ApprovalResolved(session_id=pause.session_id, run_id=pause.run_id, at=at, data=decision)
