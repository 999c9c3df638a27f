"""What an operator configured: language models and profiles."""

from typing import TypeVar

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shared import clock, ids
from shared.errors import Conflict, NotFound
from shared.models import LanguageModel, Profile

Row = TypeVar("Row", LanguageModel, Profile)


def language_models(db: Session) -> list[LanguageModel]:
    """The default first, then by name."""
    return list(db.scalars(select(LanguageModel).order_by(LanguageModel.is_default.desc(), LanguageModel.name)))


def language_model(db: Session, name: str) -> LanguageModel | None:
    """By its name, else by its id."""
    wanted = select(LanguageModel).where((LanguageModel.name == name) | (LanguageModel.id == name))
    return db.scalars(wanted.order_by((LanguageModel.name == name).desc()).limit(1)).one_or_none()


def default_language_model(db: Session) -> LanguageModel | None:
    """What answers where nobody chose a model; None: what the backend is configured for."""
    return db.scalars(select(LanguageModel).where(LanguageModel.is_default).limit(1)).one_or_none()


def get_language_model(db: Session, model_id: str) -> LanguageModel:
    """By its id. Raises NotFound."""
    row = db.get(LanguageModel, model_id)
    if row is None:
        raise NotFound("There is no such model.")
    return row


def add_language_model(db: Session, *, name: str, model: str) -> LanguageModel:
    """A new one; the rest of its columns are the caller's. Raises Conflict `name_taken`."""
    row = LanguageModel(id=ids.new_id(), name=name, model=model, is_default=False, created_at=clock.now())
    return _added(db, row, "There is a model of this name already.")


def choose_language_model(db: Session, row: LanguageModel | None) -> None:
    """What answers from now on where nobody chose a model; None: what the backend is configured for."""
    db.execute(update(LanguageModel).values(is_default=False))
    if row is not None:
        row.is_default = True
    db.flush()


def put_language_model(
    db: Session,
    *,
    name: str,
    model: str,
    provider: str | None = None,
    base_url: str | None = None,
    key_ref: str | None = None,
    context_window: int | None = None,
    is_default: bool = False,
) -> LanguageModel:
    """Add one, or change the one of that name. `key_ref` names an environment variable."""
    if is_default:
        db.execute(update(LanguageModel).values(is_default=False))
    row = db.scalars(select(LanguageModel).where(LanguageModel.name == name)).one_or_none()
    if row is None:
        row = LanguageModel(id=ids.new_id(), name=name, created_at=clock.now())
        db.add(row)
    row.model, row.provider, row.base_url, row.key_ref = model, provider, base_url, key_ref
    row.context_window, row.is_default = context_window, is_default
    db.flush()
    return row


def remove_language_model(db: Session, name: str) -> None:
    """Raises NotFound. Messages keep the name of the model they were made with."""
    row = db.scalars(select(LanguageModel).where(LanguageModel.name == name)).one_or_none()
    if row is None:
        raise NotFound("There is no such model.")
    db.delete(row)
    db.flush()


def profiles(db: Session) -> list[Profile]:
    """The default first, then by name."""
    return list(db.scalars(select(Profile).order_by(Profile.is_default.desc(), Profile.name)))


def profile(db: Session, name: str) -> Profile | None:
    return db.scalars(select(Profile).where(Profile.name == name)).one_or_none()


def get_profile(db: Session, profile_id: str) -> Profile:
    """By its id. Raises NotFound."""
    row = db.get(Profile, profile_id)
    if row is None:
        raise NotFound("There is no such profile.")
    return row


def default_profile(db: Session) -> Profile | None:
    """What new sessions get where nobody chose a profile; None: the default one of the settings."""
    return db.scalars(select(Profile).where(Profile.is_default).limit(1)).one_or_none()


def add_profile(db: Session, *, name: str) -> Profile:
    """A new one; the rest of its columns are the caller's. Raises Conflict `name_taken`."""
    row = Profile(id=ids.new_id(), name=name, is_default=False, created_at=clock.now())
    return _added(db, row, "There is a profile of this name already.")


def choose_profile(db: Session, row: Profile | None) -> None:
    """What new sessions get from now on; None: the default one of the settings."""
    db.execute(update(Profile).values(is_default=False))
    if row is not None:
        row.is_default = True
    db.flush()


def put_profile(
    db: Session, *, name: str, hermes_home: str | None = None, gateway_url: str | None = None, is_default: bool = False
) -> Profile:
    """Add one, or change the one of that name."""
    if is_default:
        db.execute(update(Profile).values(is_default=False))
    row = profile(db, name)
    if row is None:
        row = Profile(id=ids.new_id(), name=name, created_at=clock.now())
        db.add(row)
    row.hermes_home, row.gateway_url, row.is_default = hermes_home, gateway_url, is_default
    db.flush()
    return row


def remove_profile(db: Session, name: str) -> None:
    """Raises NotFound. Sessions keep its name and say that it is gone."""
    row = profile(db, name)
    if row is None:
        raise NotFound("There is no such profile.")
    db.delete(row)
    db.flush()


def _added(db: Session, row: Row, taken: str) -> Row:
    try:
        with db.begin_nested():
            db.add(row)
    except IntegrityError:
        raise Conflict(taken, code="name_taken") from None
    return row
