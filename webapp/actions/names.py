"""Names that a client gives: of skills, profiles, models and sources. Never a path, never a control character (S32)."""

import re

from shared import errors

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,63}(/[A-Za-z0-9][A-Za-z0-9._:@-]{0,63}){0,3}")
_SOURCE = re.compile(r"api_server|cli|acp:[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAX_TITLE = 200
DEFAULT_PROFILE = "default"  # the profile of the settings, which has no row


def name(value: str | None, what: str) -> str | None:
    """A skill's or a profile's name; empty means none. Raises InvalidCommand, code `bad_name`."""
    return _checked(_NAME, value, what)


def profile(value: str | None) -> str | None:
    """A profile's name; None for the default one, whichever way it is said. Raises InvalidCommand."""
    checked = name(value, "profile")
    return None if checked == DEFAULT_PROFILE else checked


def model(value: str | None) -> str | None:
    """A model's name; providers put themselves before it with a slash, as in `anthropic/claude`."""
    return _checked(_MODEL, value, "model")


def source(value: str | None) -> str | None:
    """Which backend answers: `api_server`, `cli` or `acp:<agent>`."""
    return _checked(_SOURCE, value, "source")


def title(value: str) -> str:
    """One line without control characters. Raises InvalidCommand when it is too long."""
    line = " ".join("".join(c if c.isprintable() or c.isspace() else "\ufffd" for c in value).split())
    if len(line) > MAX_TITLE:
        raise errors.InvalidCommand(f"A title may have {MAX_TITLE} characters at most.")
    return line


def _checked(pattern: re.Pattern[str], value: str | None, what: str) -> str | None:
    if not value:
        return None
    if not pattern.fullmatch(value) or ".." in value:
        raise errors.InvalidCommand(f"This is not the name of a {what}.", code="bad_name")
    return value
