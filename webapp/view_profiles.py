"""What the pages of profiles show: each with its health, where it leads, and what is allowed always in it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from markupsafe import Markup
from sqlalchemy.orm import Session

from shared.models import ApprovalGrant, Profile
from shared.redaction import redact
from shared.store import approval_grants, catalogue, chat_sessions, users
from webapp import rights
from webapp.actions.names import DEFAULT_PROFILE
from webapp.auth import Principal
from webapp.context import WebContext
from webapp.view_health import Health, health_of
from webapp.view_pauses import visible


@dataclass(frozen=True)
class Form:
    """A form as it is to be shown: what stands in its fields, and what is wrong with them. `asks_password`: the last
    time it was given is too long ago."""

    values: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    asks_password: bool = False
    may_set_addresses: bool = False
    fault: str = ""  # of no field


@dataclass(frozen=True)
class ProfileRow:
    """`id` of the profile of the settings is its name, `default`. `home`, `gateway`, `chats`: None for who may not
    configure."""

    id: str
    name: str
    is_settings: bool
    is_default: bool  # new chats get it
    health: Health
    allowed: int
    home: str | None = None
    gateway: str | None = None
    chats: int | None = None

    @property
    def can_begin(self) -> bool:
        """Whether a chat that begins with it is not dead from the start, as far as anybody knows."""
        return self.health.state not in ("missing", "absent")


@dataclass(frozen=True)
class GrantRow:
    """`command`: as it was asked, odd characters made visible; None for what another one's session asked."""

    id: str
    pattern: str
    description: str
    command: Markup | None
    reason: str
    by: str
    at: datetime
    may_revoke: bool
    revoked_by: str = ""
    revoked_at: datetime | None = None


@dataclass(frozen=True)
class ProfilePage:
    """One profile. `grants`: each pattern once; `revoked`: the latest that were taken back."""

    row: ProfileRow
    grants: tuple[GrantRow, ...]
    revoked: tuple[GrantRow, ...]
    may_configure: bool
    form: Form


def rows_of(web: WebContext, db: Session, principal: Principal) -> tuple[ProfileRow, ...]:
    """The profile of the settings, then the others; what new chats get stands where its name puts it."""
    rows = sorted(catalogue.profiles(db), key=lambda row: row.name)
    counts = _Counts.of(db)
    return tuple(_row(web, principal, row, counts) for row in (None, *rows))


def page_of(
    web: WebContext, db: Session, principal: Principal, profile_id: str, form: Form | None = None
) -> ProfilePage:
    """Raises NotFound."""
    row = None if profile_id == DEFAULT_PROFILE else catalogue.get_profile(db, profile_id)
    name = None if row is None else row.name
    grants = approval_grants.in_force(db, name)
    each_once = list({grant.pattern_key: grant for grant in reversed(grants)}.values())[::-1]
    revoked = approval_grants.revoked(db, name)
    people = users.names(db, [id for grant in (*grants, *revoked) for id in (grant.granted_by, grant.revoked_by)])
    return ProfilePage(
        row=_row(web, principal, row, _Counts.of(db)),
        grants=tuple(_grant(grant, principal, people) for grant in each_once),
        revoked=tuple(_grant(grant, principal, people) for grant in revoked),
        may_configure=rights.may_configure(principal),
        form=form or form_of(principal, row),
    )


def form_of(
    principal: Principal,
    row: Profile | None = None,
    *,
    values: Mapping[str, str] | None = None,
    faults: Mapping[str, str] | None = None,
    fault: str = "",
) -> Form:
    """A form with what is stored, or with what was typed."""
    stored = {} if row is None else {
        "name": row.name,
        "hermes_home": row.hermes_home or "",
        "gateway_url": row.gateway_url or "",
        "is_default": "1" if row.is_default else "",
    }  # fmt: skip
    return Form(
        values=values if values is not None else stored,
        faults=faults or {},
        asks_password=not principal.is_fresh,
        may_set_addresses=rights.may_set_addresses(principal),
        fault=fault,
    )


@dataclass(frozen=True)
class _Counts:
    """By profile: what is allowed always, and chats. `has_default`: one with a row is for new chats."""

    allowed: Mapping[str | None, int]
    chats: Mapping[str | None, int]
    has_default: bool

    @staticmethod
    def of(db: Session) -> "_Counts":
        has_default = catalogue.default_profile(db) is not None
        return _Counts(approval_grants.counts(db), chat_sessions.count_by_profile(db), has_default)


def _row(web: WebContext, principal: Principal, row: Profile | None, counts: _Counts) -> ProfileRow:
    name = None if row is None else row.name
    sees_all = rights.may_configure(principal)
    home = gateway = None
    if sees_all:
        home = str(web.settings.hermes_home) if row is None else row.hermes_home or ""
        gateway = redact((web.settings.hermes_gateway_url if row is None else row.gateway_url) or "")
    return ProfileRow(
        id=DEFAULT_PROFILE if row is None else row.id,
        name=name or DEFAULT_PROFILE,
        is_settings=row is None,
        is_default=not counts.has_default if row is None else row.is_default,
        health=health_of(web.workers.now(), name),
        allowed=counts.allowed.get(name, 0),
        home=home,
        gateway=gateway,
        chats=counts.chats.get(name, 0) if sees_all else None,
    )


def _grant(grant: ApprovalGrant, principal: Principal, people: Mapping[str, str]) -> GrantRow:
    is_theirs = grant.granted_by == principal.user_id
    sees_all = is_theirs or rights.may_configure(principal)
    return GrantRow(
        id=grant.id,
        pattern=grant.pattern_key,
        description=grant.description[:1].upper() + grant.description[1:],
        command=visible(grant.command) if sees_all and grant.command else None,
        reason=(grant.reason or "") if sees_all else "",
        by=people.get(grant.granted_by or "", ""),
        at=grant.granted_at,
        may_revoke=grant.revoked_at is None and rights.may_revoke(principal, grant.granted_by),
        revoked_by=people.get(grant.revoked_by or "", ""),
        revoked_at=grant.revoked_at,
    )
