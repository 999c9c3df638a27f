"""/profiles and /models: what answers and where it leads, how it does, and what is allowed always.

Everybody who may read sees names and health; who configures changes them, with a password given in the last ten
minutes. A form that is refused comes back with all that was typed.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from flask import Blueprint, Response, make_response, redirect, request
from flask.typing import ResponseReturnValue

from shared import clock, errors
from shared.store import catalogue
from webapp import auth, rights, view_models, view_profiles
from webapp.actions import account, models, profiles
from webapp.actions.fields import WrongFields
from webapp.actions.models import ModelInput
from webapp.actions.names import DEFAULT_PROFILE
from webapp.actions.profiles import ProfileInput
from webapp.auth import Principal
from webapp.context import db, web
from webapp.errors import problem_of, told
from webapp.pages.side import side_of
from webapp.render import render, url

bp = Blueprint("catalogue", __name__)

MAX_FIELD = 2_000  # characters shown again of what was typed
PROFILE_FIELDS = ("name", "hermes_home", "gateway_url", "is_default")
MODEL_FIELDS = ("name", "model", "provider", "base_url", "key_ref", "context_window", "is_default")
DONE = ("added", "saved", "removed", "revoked", "default")


# ---- profiles


@bp.get("/profiles")
def list_profiles() -> ResponseReturnValue:
    principal = rights.reading(auth.current())
    rows = view_profiles.rows_of(web(), db(), principal)
    return _page("pages/profiles.html", principal, rows=rows)


@bp.get("/profiles/new")
def new_profile() -> ResponseReturnValue:
    principal = _configuring()
    return _page("pages/profile_new.html", principal, form=view_profiles.form_of(principal))


@bp.post("/profiles")
def add_profile() -> ResponseReturnValue:
    principal = _configuring()

    def again(**given: Any) -> Response:
        return _page("pages/profile_new.html", principal, form=view_profiles.form_of(principal, **given))

    def work(confirmed: Principal) -> Response:
        row = profiles.add(web(), confirmed, _profile_input())
        return _go("profiles", row.id, done="added")

    return _try(principal, work, again, PROFILE_FIELDS)


@bp.get("/profiles/<profile_id>")
def show_profile(profile_id: str) -> ResponseReturnValue:
    principal = rights.reading(auth.current())
    return _profile_page(principal, profile_id)


@bp.post("/profiles/<profile_id>")
def change_profile(profile_id: str) -> ResponseReturnValue:
    principal = _configuring()
    row = catalogue.get_profile(db(), profile_id)

    def again(**given: Any) -> Response:
        return _profile_page(principal, profile_id, view_profiles.form_of(principal, row, **given))

    def work(confirmed: Principal) -> Response:
        profiles.change(web(), confirmed, profile_id, _profile_input())
        return _go("profiles", profile_id, done="saved")

    return _try(principal, work, again, PROFILE_FIELDS)


@bp.post("/profiles/<profile_id>/default")
def use_profile_for_new_chats(profile_id: str) -> ResponseReturnValue:
    profiles.make_default(web(), _configuring(), profile_id)
    return _go("profiles", done="default")


@bp.post("/profiles/<profile_id>/remove")
def remove_profile(profile_id: str) -> ResponseReturnValue:
    profiles.remove(web(), _configuring(), profile_id)
    return _go("profiles", done="removed")


@bp.post("/profiles/grants/<grant_id>/revoke")
def revoke_grant(grant_id: str) -> ResponseReturnValue:
    grant = profiles.revoke_grant(web(), auth.current(), grant_id)
    row = None if grant.profile is None else catalogue.profile(db(), grant.profile)
    return _go("profiles", DEFAULT_PROFILE if row is None else row.id, done="revoked")


# ---- models


@bp.get("/models")
def list_models() -> ResponseReturnValue:
    principal = rights.reading(auth.current())
    return _page("pages/models.html", principal, rows=view_models.rows_of(web(), db(), principal))


@bp.get("/models/new")
def new_model() -> ResponseReturnValue:
    principal = _configuring()
    return _page("pages/model.html", principal, row=None, form=view_models.form_of(principal))


@bp.post("/models")
def add_model() -> ResponseReturnValue:
    principal = _configuring()

    def again(**given: Any) -> Response:
        return _page("pages/model.html", principal, row=None, form=view_models.form_of(principal, **given))

    def work(confirmed: Principal) -> Response:
        models.add(web(), confirmed, _model_input())
        return _go("models", done="added")

    return _try(principal, work, again, MODEL_FIELDS)


@bp.get("/models/<model_id>")
def show_model(model_id: str) -> ResponseReturnValue:
    principal = _configuring()
    row = catalogue.get_language_model(db(), model_id)
    shown = view_models.row_of(web(), principal, row)
    return _page("pages/model.html", principal, row=shown, form=view_models.form_of(principal, row))


@bp.post("/models/<model_id>")
def change_model(model_id: str) -> ResponseReturnValue:
    principal = _configuring()
    row = catalogue.get_language_model(db(), model_id)

    def again(**given: Any) -> Response:
        shown = view_models.row_of(web(), principal, row)
        return _page("pages/model.html", principal, row=shown, form=view_models.form_of(principal, row, **given))

    def work(confirmed: Principal) -> Response:
        models.change(web(), confirmed, model_id, _model_input())
        return _go("models", done="saved")

    return _try(principal, work, again, MODEL_FIELDS)


@bp.post("/models/<model_id>/default")
def use_model_by_default(model_id: str) -> ResponseReturnValue:
    models.make_default(web(), _configuring(), model_id)
    return _go("models", done="default")


@bp.post("/models/<model_id>/remove")
def remove_model(model_id: str) -> ResponseReturnValue:
    models.remove(web(), _configuring(), model_id)
    return _go("models", done="removed")


# ---- shared


def _configuring() -> Principal:
    """Who asks, if it may configure at all; whether the password is fresh enough is for the action to say."""
    principal = auth.current()
    if not rights.may_configure(principal):
        raise errors.Forbidden("Only an operator or an administrator may do that.")
    return principal


def _try(
    principal: Principal,
    work: Callable[[Principal], Response],
    again: Callable[..., Response],
    fields: tuple[str, ...],
) -> Response:
    """Do it, or show the form again with what was typed and what is wrong with it."""
    try:
        return work(_confirmed(principal))
    except WrongFields as error:
        wrong: dict[str, Any] = {"faults": {name: told(sentence) for name, sentence in error.faults.items()}}
        status = 400
    except errors.NotFound:
        raise
    except errors.PlatformError as error:
        problem = problem_of(error)
        wrong, status = {"fault": told(problem.detail)}, problem.status
    values = {name: request.form.get(name, "")[:MAX_FIELD] for name in fields}
    response = again(values=values, **wrong)
    response.status_code = status
    return response


def _confirmed(principal: Principal) -> Principal:
    """With the password of the form, where the last time it was given is too long ago. Raises WrongFields."""
    if principal.is_fresh:
        return principal
    password = request.form.get("password", "")
    if not password:
        raise WrongFields(faults={"password": "Give your password again to do that."})
    try:
        account.confirm(web(), principal, password)
    except errors.NotAuthenticated as error:
        raise WrongFields(faults={"password": error.message}) from None
    return replace(principal, confirmed_at=clock.now())


def _profile_input() -> ProfileInput:
    form = request.form
    return ProfileInput(
        name=form.get("name", ""),
        hermes_home=form.get("hermes_home"),
        gateway_url=form.get("gateway_url"),
        is_default=bool(form.get("is_default")),
    )


def _model_input() -> ModelInput:
    form = request.form
    return ModelInput(
        name=form.get("name", ""),
        model=form.get("model", ""),
        provider=form.get("provider"),
        base_url=form.get("base_url"),
        key_ref=form.get("key_ref"),
        context_window=form.get("context_window", ""),
        is_default=bool(form.get("is_default")),
    )


def _profile_page(principal: Principal, profile_id: str, form: view_profiles.Form | None = None) -> Response:
    page = view_profiles.page_of(web(), db(), principal, profile_id, form)
    return _page("pages/profile.html", principal, page=page)


def _page(template: str, principal: Principal, **values: Any) -> Response:
    done = request.args.get("done")
    shown: Mapping[str, Any] = {
        "side": side_of(principal, place="profiles"),
        "may_configure": rights.may_configure(principal),
        "may_begin": rights.may_create(principal),
        "done": done if done in DONE else None,
    }
    return make_response(render(template, **shown, **values))


def _go(*parts: str, done: str) -> Response:
    return redirect(url(*parts, done=done), 303)  # type: ignore[return-value]
