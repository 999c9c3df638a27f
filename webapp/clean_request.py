"""The request as routes see it: no NUL and no lone surrogate in forms and queries, as `json_input` does for bodies."""

from functools import cached_property
from typing import Any

from flask import Request
from werkzeug.datastructures import ImmutableMultiDict, MultiDict

from shared.text import storable


class CleanRequest(Request):
    """PostgreSQL takes no NUL, UTF-8 no lone surrogate: what a form or a query brings of them is replaced here."""

    @cached_property
    def args(self) -> MultiDict[str, str]:
        return _clean(super().args)

    def _load_form_data(self) -> None:
        if "form" in self.__dict__:
            return
        super()._load_form_data()
        self.__dict__["form"] = _clean(self.__dict__["form"])


def _clean(given: MultiDict[str, str]) -> ImmutableMultiDict[str, Any]:
    return ImmutableMultiDict((storable(name), storable(value)) for name, value in given.items(multi=True))
