"""Where a profile's Hermes home is, as far as the web side sees it: only on the machine of the workers it is there."""

from pathlib import Path

from sqlalchemy.orm import Session

from shared.settings import Settings
from shared.store import catalogue
from webapp.actions.names import DEFAULT_PROFILE


def home_of(db: Session, settings: Settings, profile: str | None) -> Path:
    """The home of the profile of that name; one that is not there has that of the settings."""
    row = None if not profile or profile == DEFAULT_PROFILE else catalogue.profile(db, profile)
    given = None if row is None else row.hermes_home
    return settings.hermes_home if given is None else Path(given)
