"""The tables, as typed SQLAlchemy models. Importing this package registers them all on `Base.metadata`."""

from shared.models.approval_grant import ApprovalGrant
from shared.models.audit import AuditEvent, AuditRetention
from shared.models.base import Base
from shared.models.catalogue import LanguageModel, Profile
from shared.models.chat_session import ChatSession, Compression
from shared.models.message import ChatMessage, ToolOutput
from shared.models.pause import Pause
from shared.models.run import Run
from shared.models.run_log import RunLog
from shared.models.skill_consent import SkillConsent
from shared.models.user import ApiToken, SetupToken, SignIn, User

__all__ = [
    "ApiToken",
    "ApprovalGrant",
    "AuditEvent",
    "AuditRetention",
    "Base",
    "ChatMessage",
    "ChatSession",
    "Compression",
    "LanguageModel",
    "Pause",
    "Profile",
    "Run",
    "RunLog",
    "SetupToken",
    "SignIn",
    "SkillConsent",
    "ToolOutput",
    "User",
]
