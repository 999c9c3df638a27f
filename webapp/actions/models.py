"""What operators and administrators do with language models.

A model's name stays: sessions and turns refer to it. Where it leads (provider, address, the variable with the key) is
an administrator's to say: whoever changes it decides who sees the turns and the key. A key itself is never taken (S41).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy.orm import Session

from shared import errors, outbound
from shared.database import in_transaction, transaction
from shared.models import LanguageModel
from shared.redaction import redact
from shared.settings import is_portals
from shared.store import audit, catalogue, users
from webapp import rights
from webapp.actions import names
from webapp.actions.fields import Checks
from webapp.auth import Principal
from webapp.context import WebContext

LEADS: Final = ("provider", "base_url", "key_ref")
LEAST_CONTEXT, MOST_CONTEXT = 1_000, 100_000_000
BAD_NAME: Final = "Letters and digits, and . _ - : @ / between them; no spaces."
_MODEL = re.compile(r"[!-~]{1,200}")
_PROVIDER = re.compile(r"[a-z0-9][a-z0-9._:-]{0,63}")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{1,63}")


@dataclass(frozen=True)
class ModelInput:
    """As it was typed. `name`: of a new one. `provider`, `base_url`, `key_ref` None: as they are."""

    name: str = ""
    model: str = ""
    provider: str | None = None
    base_url: str | None = None
    key_ref: str | None = None
    context_window: str = ""
    is_default: bool = False


def add(web: WebContext, principal: Principal, given: ModelInput) -> LanguageModel:
    """Raises WrongFields with all that is wrong, Forbidden."""
    rights.require_configure(principal)
    with transaction(web.factory, write=False) as db:
        known = catalogue.language_models(db)
    checks = Checks()
    name = checks.of("name", _new_name, given.name, known)
    columns = _columns(principal, given, None, checks)
    checks.end()
    assert name is not None

    def work(db: Session) -> LanguageModel:
        row = catalogue.add_language_model(db, name=name, model=columns["model"])
        _put(row, columns)
        if given.is_default:
            catalogue.choose_language_model(db, row)
        _record(db, principal, "model_added", row, is_default=given.is_default)
        return row

    return in_transaction(web.factory, work)


def change(web: WebContext, principal: Principal, model_id: str, given: ModelInput) -> LanguageModel:
    """Everything but its name; its next turns use it so. Raises as `add`; NotFound."""
    rights.require_configure(principal)
    with transaction(web.factory, write=False) as db:
        before = catalogue.get_language_model(db, model_id)
    checks = Checks()
    columns = _columns(principal, given, before, checks)
    checks.end()

    def work(db: Session) -> LanguageModel:
        row = catalogue.get_language_model(db, model_id)
        wanted = {**columns, "is_default": given.is_default}
        changed = [name for name, value in wanted.items() if getattr(row, name) != value]
        _put(row, columns)
        if given.is_default != row.is_default:
            catalogue.choose_language_model(db, row if given.is_default else None)
        if changed:
            _record(db, principal, "model_changed", row, changed=changed)
        return row

    return in_transaction(web.factory, work)


def make_default(web: WebContext, principal: Principal, model_id: str) -> LanguageModel:
    """What answers from now on where nobody chose a model. Raises NotFound, Forbidden."""
    rights.require_configure(principal)

    def work(db: Session) -> LanguageModel:
        row = catalogue.get_language_model(db, model_id)
        catalogue.choose_language_model(db, row)
        _record(db, principal, "model_made_default", row)
        return row

    return in_transaction(web.factory, work)


def remove(web: WebContext, principal: Principal, model_id: str) -> str:
    """Gives its name; messages keep it, and a session that chose it sends the name as it stands. Raises NotFound,
    Forbidden."""
    rights.require_configure(principal)

    def work(db: Session) -> str:
        row = catalogue.get_language_model(db, model_id)
        _record(db, principal, "model_removed", row)
        catalogue.remove_language_model(db, row.name)
        return row.name

    return in_transaction(web.factory, work)


# ---- checks


def _columns(principal: Principal, given: ModelInput, row: LanguageModel | None, checks: Checks) -> dict[str, Any]:
    kept = {name: None if row is None else getattr(row, name) for name in LEADS}
    found: dict[str, Any] = {
        "model": checks.of("model", _model, given.model),
        "context_window": checks.of("context_window", _context_window, given.context_window),
    }
    for name, check in (("provider", _provider), ("base_url", _base_url), ("key_ref", _key_ref)):
        typed = getattr(given, name)
        if typed is None or typed.strip() == (kept[name] or ""):
            found[name] = kept[name]
            continue
        if not rights.may_set_addresses(principal):
            raise errors.Forbidden("Only an administrator may say where turns are sent.")
        found[name] = checks.of(name, check, typed.strip())
    return found


def _put(row: LanguageModel, columns: dict[str, Any]) -> None:
    for name, value in columns.items():
        setattr(row, name, value)


def _new_name(given: str, known: Sequence[LanguageModel]) -> str:
    name = given.strip()
    if not name:
        raise errors.InvalidCommand("Give it a name.")
    try:
        names.model(name)
    except errors.InvalidCommand:
        raise errors.InvalidCommand(BAD_NAME) from None
    if any(each.name == name for each in known):
        raise errors.InvalidCommand("There is a model of this name already.")
    return name


def _model(given: str) -> str:
    model = given.strip()
    if not _MODEL.fullmatch(model):
        raise errors.InvalidCommand("Write the model's name as its provider does, without spaces.")
    return model


def _provider(given: str) -> str | None:
    if given and not _PROVIDER.fullmatch(given):
        raise errors.InvalidCommand("Write the provider's name as Hermes does, in small letters: openrouter, custom.")
    return given or None


def _base_url(given: str) -> str | None:
    """A model's own server is often on this machine or in its network: only what is never asked is refused."""
    return outbound.check_url(given, allow_private=True) if given else None


def _key_ref(given: str) -> str | None:
    if not given:
        return None
    if not _VARIABLE.fullmatch(given) or redact(given) != given:
        raise errors.InvalidCommand(
            "Give the name of an environment variable in capital letters, never the key itself: OPENROUTER_API_KEY."
        )
    if is_portals(given):
        raise errors.InvalidCommand("This variable is the portal's own, and no key of a model.")
    return given


def _context_window(given: str) -> int | None:
    text = given.strip().replace(",", "").replace("_", "").replace(" ", "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and LEAST_CONTEXT <= int(text) <= MOST_CONTEXT):
        raise errors.InvalidCommand(f"The context is a number of tokens, {LEAST_CONTEXT} or more.")
    return int(text)


def _record(db: Session, principal: Principal, action: str, row: LanguageModel, **facts: Any) -> None:
    user = users.get(db, principal.user_id)
    audit.record(db, action, user=user, address=principal.address, model=row.name, **facts)
