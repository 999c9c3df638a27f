"""Every route of the app, with what it takes to call it on a real object. A route that is not here fails the tests."""

from dataclasses import dataclass
from typing import Literal

from flask import Flask

Verb = Literal["read", "send", "abort", "answer", "queue", "rename", "configure", "delete", "undelete"]


@dataclass(frozen=True)
class Route:
    """`verb`: the right it needs on the session of its object; None: it has no object. `form` or `json`: a body that
    would do something. `public`: answers without a sign-in. `own`: what it does is only to the caller itself."""

    verb: Verb | None = None
    form: tuple[tuple[str, str], ...] | None = None
    json: tuple[tuple[str, object], ...] | None = None
    public: bool = False


SESSION = "<session_id>"
ROUTES: dict[tuple[str, str], Route] = {
    # probes and static
    ("GET", "/static/<path:filename>"): Route(public=True),
    ("GET", "/healthz"): Route(public=True),
    ("GET", "/readyz"): Route(public=True),
    ("GET", "/metrics"): Route(public=True),
    # who somebody is
    ("GET", "/login"): Route(public=True),
    ("POST", "/login"): Route(public=True, form=(("login", "admin"), ("password", "x"))),
    ("POST", "/logout"): Route(form=()),
    ("GET", "/setup"): Route(public=True),
    ("POST", "/setup"): Route(public=True, form=(("token", "x"),)),
    ("POST", "/language"): Route(public=True, form=(("language", "en"),)),
    ("GET", "/settings"): Route(),
    ("POST", "/settings/password"): Route(form=(("old", "x"), ("new", "y"))),
    ("POST", "/settings/confirm"): Route(form=(("password", "x"),)),
    ("POST", "/settings/tokens"): Route(form=(("name", "script"), ("scope", "read"))),
    ("POST", "/settings/tokens/<token_id>/revoke"): Route(form=()),
    ("POST", "/admin/sessions/<session_id>/open"): Route(form=(("reason", "asked to help"),)),
    # pages
    ("GET", "/"): Route(),
    ("GET", "/chat"): Route(),
    ("GET", "/chat/list"): Route(),
    ("POST", "/chat/new"): Route(form=()),
    ("GET", "/chat/<session_id>"): Route("read"),
    ("GET", "/chat/<session_id>/older"): Route("read"),
    ("GET", "/chat/<session_id>/queue/<queue_id>"): Route("queue"),
    ("GET", "/chat/<session_id>/frame"): Route("read"),
    ("GET", "/chat/<session_id>/runs/<run_id>/process"): Route("read"),
    ("GET", "/chat/<session_id>/runs/<run_id>/output/<int:n>"): Route("read"),
    ("POST", "/chat/<session_id>/send"): Route("send", form=(("input", "Hello"),)),
    ("POST", "/chat/<session_id>/retry"): Route("send", form=(("run_id", "<run_id>"),)),
    ("POST", "/chat/<session_id>/abort"): Route("abort", form=()),
    ("POST", "/chat/<session_id>/cancel"): Route("queue", form=(("queue_id", "<queue_id>"),)),
    ("POST", "/chat/<session_id>/edit"): Route("queue", form=(("queue_id", "<queue_id>"), ("input", "Other"))),
    ("POST", "/chat/<session_id>/move"): Route("queue", form=(("queue_id", "<queue_id>"), ("position", "1"))),
    ("POST", "/chat/<session_id>/continue"): Route("queue", form=()),
    ("POST", "/chat/<session_id>/approval"): Route(
        "answer", form=(("approval_id", "<approval_id>"), ("choice", "deny"))
    ),
    ("POST", "/chat/<session_id>/clarify"): Route("answer", form=(("clarify_id", "<clarify_id>"), ("answer", "Yes"))),
    ("POST", "/chat/<session_id>/rename"): Route("rename", form=(("title", "Other"),)),
    ("POST", "/chat/<session_id>/archive"): Route("rename", form=(("archived", "1"),)),
    ("POST", "/chat/<session_id>/options"): Route("configure", form=(("on_failure", "continue"),)),
    ("POST", "/chat/<session_id>/delete"): Route("delete", form=()),
    ("POST", "/chat/<session_id>/undelete"): Route("undelete", form=()),
    ("GET", "/chat/skills"): Route(),
    ("GET", "/chat/skills/<folder_name>"): Route(),
    ("POST", "/chat/skills/<folder_name>"): Route(form=(("sha256", "0" * 64),)),
    # profiles and models
    ("GET", "/profiles"): Route(),
    ("GET", "/profiles/new"): Route(),
    ("POST", "/profiles"): Route(form=(("name", "work"), ("hermes_home", "/"))),
    ("GET", "/profiles/<profile_id>"): Route(),
    ("POST", "/profiles/<profile_id>"): Route(form=(("hermes_home", "/"),)),
    ("POST", "/profiles/<profile_id>/default"): Route(form=()),
    ("POST", "/profiles/<profile_id>/remove"): Route(form=()),
    ("POST", "/profiles/grants/<grant_id>/revoke"): Route(form=()),
    ("GET", "/models"): Route(),
    ("GET", "/models/new"): Route(),
    ("POST", "/models"): Route(form=(("name", "big"), ("model", "m"))),
    ("GET", "/models/<model_id>"): Route(),
    ("POST", "/models/<model_id>"): Route(form=(("model", "m"),)),
    ("POST", "/models/<model_id>/default"): Route(form=()),
    ("POST", "/models/<model_id>/remove"): Route(form=()),
    # the socket
    ("GET", "/chat-run"): Route(),
    # REST
    ("POST", "/api/chat/sessions"): Route(json=()),
    ("GET", "/api/chat/sessions"): Route(),
    ("GET", "/api/chat/sessions/<session_id>"): Route("read"),
    ("PATCH", "/api/chat/sessions/<session_id>"): Route("rename", json=(("title", "Other"),)),
    ("DELETE", "/api/chat/sessions/<session_id>"): Route("delete", json=()),
    ("GET", "/api/chat/sessions/<session_id>/messages"): Route("read"),
    ("POST", "/api/chat/sessions/<session_id>/runs"): Route("send", json=(("message", "Hello"),)),
    ("DELETE", "/api/chat/sessions/<session_id>/queue/<queue_id>"): Route("queue", json=()),
    ("POST", "/api/chat/sessions/<session_id>/queue/continue"): Route("queue", json=()),
    ("GET", "/api/chat/runs/<run_id>/state"): Route("read"),
    ("GET", "/api/chat/runs/<run_id>/stream"): Route("read"),
    ("POST", "/api/chat/runs/<run_id>/resume"): Route(
        "answer", json=(("approvalId", "<approval_id>"), ("choice", "deny"))
    ),
    ("POST", "/api/chat/runs/<run_id>/abort"): Route("abort", json=()),
    ("POST", "/api/chat/runs/<run_id>/retry"): Route("send", json=()),
    ("GET", "/api/models"): Route(),
    ("GET", "/api/skills"): Route(),
    ("GET", "/api/skills/<folder_name>"): Route(),
    ("POST", "/api/skills/<folder_name>/consent"): Route(json=(("sha256", "0" * 64),)),
    ("GET", "/api/profiles"): Route(),
    ("GET", "/api/openapi.json"): Route(),
    ("GET", "/api/docs"): Route(),
}


OTHER_IDS = {"profile_id": "default", "model_id": "0" * 32, "grant_id": "0" * 32, "folder_name": "gone"}


def served(app: Flask) -> set[tuple[str, str]]:
    """(method, rule) of everything that the app answers."""
    return {
        (method, rule.rule)
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }


def filled(text: str, ids: dict[str, str]) -> str:
    """A rule, or a value of a form, with ids in the place of its parameters."""
    for name, value in {
        "path:filename": "css/base.css",
        "token_id": "0" * 32,
        **OTHER_IDS,
        "int:n": "0",
        **ids,
    }.items():
        text = text.replace(f"<{name}>", value)
    return text
