"""What operators and administrators do with profiles, and who takes back what was allowed always in one.

A profile's name stays: sessions and permissions refer to it. `default` is the profile of the settings (HERMES_HOME); it
has no row, and sessions without a profile have it.
"""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from sqlalchemy.orm import Session

from shared import errors, outbound
from shared.database import in_transaction, transaction
from shared.models import ApprovalGrant, Profile, Run
from shared.store import approval_grants, audit, catalogue, chat_sessions, runs, users
from webapp import rights
from webapp.actions import names
from webapp.actions.fields import Checks
from webapp.actions.queue_events import Queue, queue_of
from webapp.actions.runs import tell_stopped
from webapp.auth import Principal
from webapp.context import WebContext

DEFAULT: Final = names.DEFAULT_PROFILE
MAX_HOME: Final = 500
LEAST_PARTS: Final = 3  # of a home's path: Hermes closes it to others, and /etc or /srv are theirs
BAD_NAME: Final = "Letters, digits, and . _ - between them; 64 characters at most."


@dataclass(frozen=True)
class ProfileInput:
    """As it was typed. `name`: of a new one. `hermes_home`, `gateway_url` None: as they are."""

    name: str = ""
    hermes_home: str | None = None
    gateway_url: str | None = None
    is_default: bool = False


def add(web: WebContext, principal: Principal, given: ProfileInput) -> Profile:
    """Raises WrongFields with all that is wrong, Forbidden."""
    rights.require_configure(principal)
    _check_may_set(principal, given, "")
    with transaction(web.factory, write=False) as db:
        known = catalogue.profiles(db)
    checks = Checks()
    name = checks.of("name", _new_name, given.name, known)
    home = checks.of("hermes_home", _home, web, given.hermes_home or "", None, known)
    gateway = checks.of("gateway_url", _gateway, web, given.gateway_url or "")
    checks.end()
    assert name is not None

    def work(db: Session) -> Profile:
        row = catalogue.add_profile(db, name=name)
        row.hermes_home, row.gateway_url = home, gateway
        if given.is_default:
            catalogue.choose_profile(db, row)
        _record(db, principal, "profile_added", row.name, is_default=given.is_default)
        return row

    return in_transaction(web.factory, work)


def change(web: WebContext, principal: Principal, profile_id: str, given: ProfileInput) -> Profile:
    """Home, gateway, and whether new sessions get it. Its next turns go there; what was allowed always in its home
    before is taken back. Raises as `add`; NotFound."""
    rights.require_configure(principal)
    with transaction(web.factory, write=False) as db:
        before, known = catalogue.get_profile(db, profile_id), catalogue.profiles(db)
    _check_may_set(principal, given, before.gateway_url or "")
    checks = Checks()
    home, gateway = before.hermes_home, before.gateway_url
    if given.hermes_home is not None:
        home = checks.of("hermes_home", _home, web, given.hermes_home, before, known)
    if given.gateway_url is not None and given.gateway_url.strip() != (gateway or ""):
        gateway = checks.of("gateway_url", _gateway, web, given.gateway_url)
    checks.end()

    def work(db: Session) -> Profile:
        row = catalogue.get_profile(db, profile_id)
        wanted = {"hermes_home": home, "gateway_url": gateway, "is_default": given.is_default}
        changed = [name for name, value in wanted.items() if getattr(row, name) != value]
        row.hermes_home, row.gateway_url = home, gateway
        if given.is_default != row.is_default:
            catalogue.choose_profile(db, row if given.is_default else None)
        revoked = _revoke_all(db, principal, row.name) if "hermes_home" in changed else 0
        if changed:
            facts = {"revoked": revoked} if revoked else {}
            _record(db, principal, "profile_changed", row.name, changed=changed, **facts)
        return row

    return in_transaction(web.factory, work)


def make_default(web: WebContext, principal: Principal, profile_id: str) -> None:
    """What new sessions get from now on; `DEFAULT`: the profile of the settings. Raises NotFound, Forbidden."""
    rights.require_configure(principal)

    def work(db: Session) -> None:
        row = None if profile_id == DEFAULT else catalogue.get_profile(db, profile_id)
        catalogue.choose_profile(db, row)
        _record(db, principal, "profile_made_default", DEFAULT if row is None else row.name)

    in_transaction(web.factory, work)


def remove(web: WebContext, principal: Principal, profile_id: str) -> str:
    """Stop what runs or waits in its sessions, then remove it; gives its name. The sessions keep their messages and say
    that it is gone (F54). What was allowed in it is taken back, so that a later profile of that name begins with
    nothing. Raises NotFound, Forbidden."""
    rights.require_configure(principal)

    def work(db: Session) -> tuple[str, list[tuple[Queue, list[Run]]]]:
        row = catalogue.get_profile(db, profile_id)
        stopped = []
        for session_id in chat_sessions.busy_with_profile(db, row.name):
            found = runs.stop_all(db, session_id, by_name=principal.name)
            stopped.append((queue_of(db, session_id), found))
        _revoke_all(db, principal, row.name)
        catalogue.remove_profile(db, row.name)
        _record(db, principal, "profile_removed", row.name, stopped=sum(len(found) for _, found in stopped))
        return row.name, stopped

    name, stopped = in_transaction(web.factory, work)
    for queue, found in stopped:
        tell_stopped(web, queue, found, principal.name)
    return name


def _revoke_all(db: Session, principal: Principal, profile: str) -> int:
    """Take back what is allowed always in a profile; gives how many grants."""
    user = users.get(db, principal.user_id)
    grants = approval_grants.in_force(db, profile)
    for grant in grants:
        approval_grants.revoke(db, grant.id, user=user)
    return len(grants)


def revoke_grant(web: WebContext, principal: Principal, grant_id: str) -> ApprovalGrant:
    """From the next turn on the agent asks again. Who configures may, and who has allowed it. Raises NotFound, also for
    what somebody else has allowed."""

    def work(db: Session) -> ApprovalGrant:
        grant = approval_grants.get(db, grant_id)
        if not rights.may_revoke(principal, grant.granted_by):
            raise errors.NotFound("There is no such permission.")
        was_in_force = grant.revoked_at is None
        user = users.get(db, principal.user_id)
        grant = approval_grants.revoke(db, grant_id, user=user)
        if was_in_force:
            audit.record(
                db, "grant_revoked", user=user, address=principal.address, grant=grant.id,
                profile=grant.profile or DEFAULT, pattern=grant.pattern_key, granted_by=grant.granted_by,
            )  # fmt: skip
        return grant

    return in_transaction(web.factory, work)


# ---- checks


def _new_name(given: str, known: Sequence[Profile]) -> str:
    name = given.strip()
    if not name:
        raise errors.InvalidCommand("Give it a name.")
    try:
        names.name(name, "profile")
    except errors.InvalidCommand:
        raise errors.InvalidCommand(BAD_NAME) from None
    if name.casefold() == DEFAULT:
        raise errors.InvalidCommand("This name is taken: the default profile has it.")
    if any(each.name == name for each in known):
        raise errors.InvalidCommand("There is a profile of this name already.")
    return name


def _home(web: WebContext, given: str, row: Profile | None, known: Sequence[Profile]) -> str | None:
    """The folder, from / on, without a way up in it. None: the profile has the home of the settings."""
    text = given.strip()
    if not text:
        return None
    if len(text) > MAX_HOME or not text.isprintable():
        raise errors.InvalidCommand("This is not the path of a folder.")
    if not text.startswith("/"):
        raise errors.InvalidCommand("Write the whole path, from / on.")
    home = Path("/" + os.path.normpath(text).lstrip("/"))
    real, data_dir = home.resolve(), web.settings.data_dir.resolve()
    if len(real.parts) < LEAST_PARTS or real.is_relative_to(data_dir) or data_dir.is_relative_to(real):
        raise errors.InvalidCommand("Choose a folder of its own: this one holds other things.")
    others = [(DEFAULT, web.settings.hermes_home)]
    others += [(each.name, Path(each.hermes_home)) for each in known if each.hermes_home]
    for name, other in others:
        if other.resolve() == real and (row is None or name != row.name):
            raise errors.InvalidCommand("Another profile has this home already: choose another folder.")
    unchanged = row is not None and row.hermes_home == str(home)
    if not unchanged and _is_local(web) and not _is_folder(home):
        raise errors.InvalidCommand("There is no such folder on this machine.")
    return str(home)


def _is_local(web: WebContext) -> bool:
    """Whether the workers run where we do, as far as anybody can tell: only then is their folder ours to look at."""
    living = web.workers.now()
    return not living or any(worker.host == socket.gethostname() for worker in living)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _gateway(web: WebContext, given: str) -> str | None:
    url = given.strip()
    if not url:
        return None
    configured = web.settings.hermes_gateway_url
    trusted = configured is not None and _origin(configured) == _origin(url)
    return outbound.check_url(url, allow_private=trusted or web.settings.allow_private_addresses)


def _origin(url: str) -> tuple[str, str]:
    try:
        parts = urlsplit(url)
    except ValueError:
        return "", ""
    return parts.scheme, parts.netloc


def _check_may_set(principal: Principal, given: ProfileInput, before: str) -> None:
    if given.gateway_url is None or given.gateway_url.strip() == before:
        return
    if not rights.may_set_addresses(principal):
        raise errors.Forbidden("Only an administrator may say where turns are sent.")


def _record(db: Session, principal: Principal, action: str, profile: str, **facts: Any) -> None:
    user = users.get(db, principal.user_id)
    audit.record(db, action, user=user, address=principal.address, profile=profile, **facts)
