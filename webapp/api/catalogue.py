"""/api/models, /api/skills, /api/profiles: what there is to choose from."""

from flask import Blueprint, Response

from shared import skills
from shared.store import catalogue
from webapp import rights
from webapp.api import body
from webapp.api.schemas import (
    ModelItem,
    ModelList,
    ProfileItem,
    ProfileList,
    SkillItem,
    SkillList,
)
from webapp.auth import current
from webapp.context import db, web

bp = Blueprint("api_catalogue", __name__, url_prefix="/api")


@bp.get("/models")
def models() -> Response:
    rights.reading(current())
    return body.answer(
        ModelList(
            models=[
                ModelItem(
                    id=row.id,
                    name=row.name,
                    model=row.model,
                    provider=row.provider,
                    context_window=row.context_window,
                    is_default=row.is_default,
                )
                for row in catalogue.language_models(db())
            ]
        )
    )


@bp.get("/skills")
def list_skills() -> Response:
    rights.reading(current())
    found = skills.listed(web().settings.hermes_home, web().settings.data_dir)
    return body.answer(
        SkillList(skills=[SkillItem(folder_name=s.folder_name, name=s.name, description=s.description) for s in found])
    )


@bp.get("/profiles")
def profiles() -> Response:
    rights.reading(current())
    rows = catalogue.profiles(db())
    return body.answer(ProfileList(profiles=[ProfileItem(name=row.name, is_default=row.is_default) for row in rows]))
