"""What the page of models shows: never a key, only the name of its variable and whether the workers have it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from shared.models import LanguageModel
from shared.store import catalogue
from webapp import render, rights
from webapp.auth import Principal
from webapp.context import WebContext
from webapp.view_health import KeyState, key_state_of
from webapp.view_profiles import Form


@dataclass(frozen=True)
class ModelRow:
    """`base_url`, `key_ref`: empty for who may not configure."""

    id: str
    name: str
    model: str
    provider: str
    context: str
    is_default: bool
    key: KeyState | None
    base_url: str
    key_ref: str
    created_at: datetime


def rows_of(web: WebContext, db: Session, principal: Principal) -> tuple[ModelRow, ...]:
    rows = sorted(catalogue.language_models(db), key=lambda row: row.name.casefold())
    return tuple(row_of(web, principal, row) for row in rows)


def row_of(web: WebContext, principal: Principal, row: LanguageModel) -> ModelRow:
    sees_all = rights.may_configure(principal)
    return ModelRow(
        id=row.id,
        name=row.name,
        model=row.model,
        provider=row.provider or "",
        context=render.number(row.context_window) if row.context_window else "",
        is_default=row.is_default,
        key=key_state_of(web.workers.now(), row.key_ref),
        base_url=(row.base_url or "") if sees_all else "",
        key_ref=(row.key_ref or "") if sees_all else "",
        created_at=row.created_at,
    )


def form_of(
    principal: Principal,
    row: LanguageModel | None = None,
    *,
    values: Mapping[str, str] | None = None,
    faults: Mapping[str, str] | None = None,
    fault: str = "",
) -> Form:
    """A form with what is stored, or with what was typed. What was typed as the name of a key's variable and is none
    may be the key itself: that alone is not shown again."""
    stored = {} if row is None else {
        "name": row.name,
        "model": row.model,
        "provider": row.provider or "",
        "base_url": row.base_url or "",
        "key_ref": row.key_ref or "",
        "context_window": str(row.context_window or ""),
        "is_default": "1" if row.is_default else "",
    }  # fmt: skip
    shown = dict(values if values is not None else stored)
    if faults and "key_ref" in faults:
        shown["key_ref"] = ""
    return Form(
        values=shown,
        faults=faults or {},
        asks_password=not principal.is_fresh,
        may_set_addresses=rights.may_set_addresses(principal),
        fault=fault,
    )
