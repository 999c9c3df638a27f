"""Reading and writing the bodies of the API: JSON in, validated once; camelCase JSON out, with an ETag."""

from typing import Any, TypeVar

from flask import Response, request
from pydantic import BaseModel

from shared import errors
from webapp import json_input
from webapp.context import web
from webapp.errors import NotJson

Model = TypeVar("Model", bound=BaseModel)


def read(model: type[Model], *, may_be_empty: bool = False) -> Model:
    """The request's body. Raises InvalidCommand, TooLarge, or pydantic's ValidationError, which names the field."""
    raw = request.get_data(cache=False)
    if not raw and may_be_empty:
        return model.model_validate({})
    if not request.is_json:
        raise NotJson("Send JSON with Content-Type: application/json.")
    limit = max(json_input.MAX_BYTES, 2 * web().settings.max_message_kb * 1024)
    return model.model_validate(json_input.parse_object(raw, max_bytes=limit))


def answer(model: BaseModel, status: int = 200) -> Response:
    """A JSON answer; of a GET with an ETag, so that asking again costs little."""
    response = Response(model.model_dump_json(by_alias=True), status, content_type="application/json")
    if request.method == "GET" and status == 200:
        response.add_etag()
        response.make_conditional(request)
    return response


def limit_of(value: str | None, *, default: int = 50, most: int = 200) -> int:
    """`?limit=`: a number from 1 to `most`. Raises InvalidCommand."""
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and len(value) <= 6 and int(value) >= 1):
        raise errors.InvalidCommand("limit is a number from 1 on.")
    return min(int(value), most)


def flag(value: str | None) -> bool:
    """`?archived=true`. Raises InvalidCommand."""
    known: dict[Any, bool] = {None: False, "": False, "0": False, "false": False, "1": True, "true": True}
    if value not in known:
        raise errors.InvalidCommand("A yes or no is written true or false.")
    return known[value]
