"""/api/openapi.json: the REST API as OpenAPI 3.1, from the same routes and schemas that serve it.

`OPERATIONS` says what the code of a route cannot: its bodies and its words. A route without a line here is a fault that
`missing` names and a test finds.
"""

import re
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from flask import Blueprint, Flask, Response, current_app, json
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from webapp.api import schemas
from webapp.auth import current
from webapp.render import render

bp = Blueprint("openapi", __name__)

PREFIX = "/api/"
EVENT_STREAM = "text/event-stream"
REF = "#/components/schemas/{model}"
_CONVERTER = re.compile(r"<(?:[a-z]+:)?([a-z_]+)>")


@dataclass(frozen=True)
class Operation:
    """What one endpoint takes and gives. `query`: names of parameters with their meaning."""

    summary: str
    body: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    status: int = 200
    query: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    content: str = "application/json"


_PAGE = (("limit", "At most so many, to 200"), ("before", "The id of the last one of the page before"))
OPERATIONS: dict[str, Operation] = {
    "api_chat_sessions.create": Operation("Open a session", schemas.NewSession, schemas.SessionMade, 201),
    "api_chat_sessions.list_sessions": Operation(
        "List your sessions, last activity first",
        answer=schemas.SessionList,
        query=(*_PAGE, ("archived", "true: those that were put away"), ("q", "What the title contains")),
    ),
    "api_chat_sessions.read": Operation("One session with its last 50 messages", answer=schemas.OneSession),
    "api_chat_sessions.change": Operation(
        "Rename, archive, choose model and skill", schemas.SessionChange, schemas.SessionItem
    ),
    "api_chat_sessions.delete": Operation("Stop what runs and delete; 7 days to undo", status=204),
    "api_chat_sessions.list_messages": Operation("Messages, oldest first", answer=schemas.MessageList, query=_PAGE),
    "api_runs.submit": Operation(
        "Submit a turn; 200 when the key gives one that is there",
        schemas.NewRun,
        schemas.RunMade,
        202,
        headers=(("Idempotency-Key", "The queue_id: the same key and body give the same run"),),
    ),
    "api_runs.state": Operation("The state of a run", answer=schemas.RunStateNow),
    "api_runs.resume": Operation("Answer what a run waits for", schemas.PauseAnswer, schemas.PauseAnswered),
    "api_runs.abort": Operation("Stop a run", answer=schemas.RunAborted),
    "api_runs.retry": Operation("Run an ended turn anew, as a new run", answer=schemas.RunMade, status=202),
    "api_runs.cancel_queued": Operation("Withdraw a waiting turn", answer=schemas.QueueNow),
    "api_runs.continue_queue": Operation("Let a held queue go on", answer=schemas.QueueNow),
    "stream.stream": Operation(
        "The events of a run, as server-sent events",
        content=EVENT_STREAM,
        query=(("lastEventId", "`<seq>-<epoch>`, or a number of the current epoch"),),
        headers=(("Last-Event-ID", "The same, as event sources send it"),),
    ),
    "api_catalogue.models": Operation("Language models to choose from", answer=schemas.ModelList),
    "api_catalogue.list_skills": Operation(
        "Skills of a profile, and the portal's own",
        answer=schemas.SkillList,
        query=(("profile", "The profile's name; else the default one"),),
    ),
    "api_catalogue.skill": Operation(
        "A skill: its text, its hash, and whether you have agreed to it",
        answer=schemas.SkillRead,
        query=(("profile", "The profile's name; else the default one"),),
    ),
    "api_catalogue.agree": Operation(
        "Agree to a skill's text, after it has changed", schemas.SkillConsent, schemas.SkillAgreed
    ),
    "api_catalogue.profiles": Operation("Profiles, and how their agents do", answer=schemas.ProfileList),
    "openapi.document": Operation("This document"),
    "openapi.docs": Operation("This document, as a page", content="text/html"),
}


@bp.get("/api/openapi.json")
def document() -> Response:
    response = Response(json.dumps(describe(current_app)), content_type="application/json")
    response.add_etag()
    return response


@bp.get("/api/docs")
def docs() -> str:
    """The same for people."""
    current()
    document = describe(current_app)
    schemas_of = document["components"]["schemas"]
    operations = [
        Described(method.upper(), path, op["summary"], _fields_of(op, schemas_of), op["parameters"])
        for path, methods in document["paths"].items()
        for method, op in methods.items()
    ]
    return render("pages/api_docs.html", operations=operations, version=document["info"]["version"])


@dataclass(frozen=True)
class Described:
    """One operation as the page shows it: `fields` of its body with their types."""

    method: str
    path: str
    summary: str
    fields: list[tuple[str, str, bool]]  # name, type, required
    parameters: list[dict[str, Any]]


def _fields_of(operation: dict[str, Any], schemas_of: dict[str, Any]) -> list[tuple[str, str, bool]]:
    body = operation.get("requestBody")
    if body is None:
        return []
    schema = schemas_of[body["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[-1]]
    required = schema.get("required", ())
    return [(name, _type_of(field), name in required) for name, field in schema["properties"].items()]


def _type_of(field: dict[str, Any]) -> str:
    """`string`, `string or list`, `once | session`: enough to write a request by hand."""
    if "enum" in field:
        return " | ".join(str(value) for value in field["enum"])
    if "anyOf" in field:
        kinds = [_type_of(kind) for kind in field["anyOf"] if kind.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    return str(field.get("type", "object")).replace("array", "list")


def describe(app: Flask) -> dict[str, Any]:
    """The whole document."""
    used = sorted({model for op in OPERATIONS.values() for model in (op.body, op.answer) if model}, key=_name)
    bodies = [model for model in used if issubclass(model, schemas.Body)]
    answers = [model for model in used if not issubclass(model, schemas.Body)] + [schemas.ProblemDocument]
    _, definitions = models_json_schema(
        [*((model, "validation") for model in bodies), *((model, "serialization") for model in answers)],
        ref_template=REF,
    )
    paths: dict[str, dict[str, Any]] = {}
    for rule in app.url_map.iter_rules():
        if rule.endpoint in OPERATIONS:
            operation = _operation(rule.endpoint, OPERATIONS[rule.endpoint], sorted(rule.arguments))
            for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
                paths.setdefault(_CONVERTER.sub(r"{\1}", rule.rule), {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Hermes Portal", "version": version("hermes-portal")},
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": definitions.get("$defs", {}),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "An API token from the settings page"}
            },
        },
        "security": [{"token": []}],
    }


def missing(app: Flask) -> list[str]:
    """Endpoints below /api/ that OPERATIONS does not describe."""
    return sorted(
        {rule.endpoint for rule in app.url_map.iter_rules() if rule.rule.startswith(PREFIX)} - OPERATIONS.keys()
    )


def _operation(endpoint: str, op: Operation, arguments: list[str]) -> dict[str, Any]:
    parameters = [
        *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in arguments),
        *({"name": n, "in": "query", "description": text, "schema": {"type": "string"}} for n, text in op.query),
        *({"name": n, "in": "header", "description": text, "schema": {"type": "string"}} for n, text in op.headers),
    ]
    success: dict[str, Any] = {"description": op.summary}
    if op.answer is not None:
        success["content"] = {op.content: {"schema": _ref(op.answer)}}
    elif op.content == EVENT_STREAM:
        success["content"] = {op.content: {"schema": {"type": "string"}}}
    problem = {
        "description": "A problem",
        "content": {"application/problem+json": {"schema": _ref(schemas.ProblemDocument)}},
    }
    described: dict[str, Any] = {
        "operationId": endpoint.split(".", 1)[1],
        "summary": op.summary,
        "parameters": parameters,
        "responses": {str(op.status): success, "default": problem},
    }
    if op.body is not None:
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(op.body)}}}
    return described


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": REF.format(model=_name(model))}


def _name(model: type[BaseModel]) -> str:
    return model.__name__
