"""What was typed in a form and is wrong, field by field: each fault is told beside its field, and all at once."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from shared import errors

Value = TypeVar("Value")


class WrongFields(errors.InvalidCommand):
    """`faults`: the name of a field -> a sentence about what was typed there."""

    code = "wrong_fields"

    def __init__(self, message: str = "", *, faults: Mapping[str, str] | None = None) -> None:
        self.faults = dict(faults or {})
        super().__init__(message or " ".join(self.faults.values()))


class Checks:
    """Gathers the faults of a form.

    checks = Checks()
    name = checks.of("name", check_name, given.name)
    checks.end()
    """

    def __init__(self) -> None:
        self.faults: dict[str, str] = {}

    def of(self, field: str, check: Callable[..., Value], *given: object) -> Value | None:
        """What `check` makes of the field; None after its InvalidCommand, which becomes the field's fault."""
        try:
            return check(*given)
        except errors.InvalidCommand as error:
            self.faults.setdefault(field, error.message)
            return None

    def end(self) -> None:
        """Raises WrongFields when there was any fault."""
        if self.faults:
            raise WrongFields(faults=self.faults)
