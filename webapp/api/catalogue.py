"""/api/models, /api/skills, /api/profiles: what there is to choose from, and how it does.

No path, no address and no name of a key's variable is told here, to nobody: a program chooses by name.
"""

from flask import Blueprint, Response, request

from shared import skills
from shared.store import catalogue
from webapp import rights
from webapp.actions import names
from webapp.actions import skills as skills_actions
from webapp.actions.names import DEFAULT_PROFILE
from webapp.api import body
from webapp.api.schemas import (
    ModelItem,
    ModelList,
    ProfileHealth,
    ProfileItem,
    ProfileList,
    SkillAgreed,
    SkillConsent,
    SkillItem,
    SkillList,
    SkillRead,
)
from webapp.auth import current
from webapp.context import db, web
from webapp.homes import home_of
from webapp.view_health import health_of, key_state_of

bp = Blueprint("api_catalogue", __name__, url_prefix="/api")

KEY_IS_SET = {"set": True, "part": False, "missing": False}


@bp.get("/models")
def models() -> Response:
    rights.reading(current())
    living = web().workers.now()
    items = []
    for row in catalogue.language_models(db()):
        key = key_state_of(living, row.key_ref)
        items.append(
            ModelItem(
                id=row.id,
                name=row.name,
                model=row.model,
                provider=row.provider,
                context_window=row.context_window,
                is_default=row.is_default,
                needs_key=row.key_ref is not None,
                key_is_set=None if key is None else KEY_IS_SET.get(key.state),
            )
        )
    return body.answer(ModelList(models=items))


@bp.get("/skills")
def list_skills() -> Response:
    rights.reading(current())
    home = home_of(db(), web().settings, names.profile(request.args.get("profile")))
    return body.answer(
        SkillList(
            skills=[
                SkillItem(
                    folder_name=skill.folder_name, name=skill.name, description=skill.description, source=skill.source
                )
                for skill in skills.listed(home, web().settings.data_dir)
            ]
        )
    )


@bp.get("/skills/<folder_name>")
def skill(folder_name: str) -> Response:
    found = skills_actions.read(web(), current(), folder_name, request.args.get("profile"))
    content = found.content
    return body.answer(
        SkillRead(
            folder_name=found.folder_name,
            source=content.source,
            sha256=content.sha256,
            text=content.text,
            consent=found.consent,
        )
    )


@bp.post("/skills/<folder_name>/consent")
def agree(folder_name: str) -> Response:
    asked = body.read(SkillConsent)
    skills_actions.agree(web(), current(), folder_name, asked.profile, asked.sha256)
    return body.answer(SkillAgreed(folder_name=folder_name, sha256=asked.sha256))


@bp.get("/profiles")
def profiles() -> Response:
    rights.reading(current())
    usual = catalogue.default_profile(db())
    rows = [(row.name, row is usual) for row in catalogue.profiles(db())]
    found = [(DEFAULT_PROFILE, usual is None), *rows]
    return body.answer(
        ProfileList(
            profiles=[ProfileItem(name=name, is_default=is_default, health=_health(name)) for name, is_default in found]
        )
    )


def _health(profile: str) -> ProfileHealth:
    health = health_of(web().workers.now(), None if profile == DEFAULT_PROFILE else profile)
    looks = [worker.looked_at for worker in health.workers if worker.looked_at is not None]
    return ProfileHealth(state=health.state, workers=len(health.workers), looked_at=max(looks, default=None))
