"""Language models: added, changed, chosen, removed; only an administrator says where they lead, and no key is taken."""

import logging
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest

from shared import clock, errors
from shared.database import transaction
from shared.models import LanguageModel
from shared.store import catalogue
from tests.rig.web import Web
from tests.webapp.test_actions_profiles import CONFIGURING, audited, faults_of, fresh
from webapp.actions import models
from webapp.actions.models import ModelInput
from webapp.auth import Principal


@pytest.fixture
def admin(web: Web) -> Principal:
    return fresh(web.admin)


def given(**fields: Any) -> ModelInput:
    return ModelInput(**{"name": "big", "model": "vendor/big-1:free", **fields})


def stored(web: Web, name: str = "big") -> LanguageModel:
    with transaction(web.factory, write=False) as db:
        row = catalogue.language_model(db, name)
    assert row is not None
    return row


def test_a_model_is_added_with_a_trace_that_tells_no_address(web: Web, admin: Principal) -> None:
    models.add(
        web.context, admin,
        given(provider="openrouter", base_url="https://1.1.1.1/v1/", key_ref="BIG_KEY", context_window="131,072"),
    )  # fmt: skip
    row = stored(web)
    assert (row.model, row.provider, row.base_url) == ("vendor/big-1:free", "openrouter", "https://1.1.1.1/v1")
    assert (row.key_ref, row.context_window, row.is_default) == ("BIG_KEY", 131_072, False)
    assert audited(web) == [("model_added", {"model": "big", "is_default": False})]


@pytest.mark.parametrize("name", ["", " ", "a b", "../x", "-x", "<b>", "名", "x" * 300, "a\nb", "a//b", "/a"])
def test_a_name_that_nobody_could_choose_is_refused(web: Web, admin: Principal, name: str) -> None:
    assert set(faults_of(lambda: models.add(web.context, admin, given(name=name)))) == {"name"}


def test_a_name_is_taken_once(web: Web, admin: Principal) -> None:
    models.add(web.context, admin, given())
    assert "already" in faults_of(lambda: models.add(web.context, admin, given()))["name"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", ""), ("model", "a b"), ("model", "x" * 201), ("model", "名"),
        ("provider", "Open Router"), ("provider", "x" * 65),
        ("base_url", "1.1.1.1"), ("base_url", "http://169.254.169.254/v1"), ("base_url", "http://u:p@1.1.1.1"),
        ("base_url", "https://1.1.1.1/v1?key=x"), ("base_url", "ftp://1.1.1.1"),
        ("key_ref", "sk-abcdefghijklmnopqrstuvwxyz"), ("key_ref", "AIzaSyA1234567890abcdefghijklmnopqrstuv"),
        ("key_ref", "AKIAIOSFODNN7EXAMPLE"), ("key_ref", "lower_case"), ("key_ref", "X"), ("key_ref", "A=B"),
        ("key_ref", "PORTAL_SECRET_KEY"), ("key_ref", "HERMES_GATEWAY_KEY"), ("key_ref", "DATABASE_URL"),
        ("context_window", "many"), ("context_window", "-1"), ("context_window", "999"), ("context_window", "1e9"),
        ("context_window", "9" * 30), ("context_window", "１２３４"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_beside_its_field(web: Web, admin: Principal, field: str, value: str) -> None:
    before = web.rows()
    faults = faults_of(lambda: models.add(web.context, admin, given(**{field: value})))
    assert set(faults) == {field}
    assert value not in faults[field] or len(value) < 3
    assert web.rows() == before


def test_a_server_of_its_own_may_be_private(web: Web, admin: Principal) -> None:
    models.add(web.context, admin, given(base_url="http://127.0.0.1:11434/v1"))
    assert stored(web).base_url == "http://127.0.0.1:11434/v1"


def test_a_key_that_was_typed_by_mistake_is_kept_nowhere(web: Web, admin: Principal, caplog: Any) -> None:
    """S41."""
    canary = "sk-canary0123456789abcdefghijkl"
    log = StringIO()
    logging.getLogger().addHandler(handler := logging.StreamHandler(log))
    try:
        faults = faults_of(lambda: models.add(web.context, admin, given(key_ref=canary)))
    finally:
        logging.getLogger().removeHandler(handler)
    assert canary not in str(faults)
    assert canary not in repr(web.rows())
    assert canary not in log.getvalue() + caplog.text


def test_a_change_keeps_the_name_and_says_which_fields(web: Web, admin: Principal) -> None:
    row = models.add(web.context, admin, given(key_ref="BIG_KEY"))
    models.change(web.context, admin, row.id, ModelInput(name="other", model="m2", key_ref="BIG_KEY", is_default=True))
    changed = stored(web)
    assert (changed.name, changed.model, changed.key_ref, changed.is_default) == ("big", "m2", "BIG_KEY", True)
    assert audited(web)[-1] == ("model_changed", {"model": "big", "changed": ["model", "is_default"]})
    models.change(web.context, admin, row.id, ModelInput(model="m2", key_ref="", is_default=False))
    assert (stored(web).key_ref, stored(web).is_default) == (None, False)


def test_an_operator_changes_what_leads_nowhere(web: Web, admin: Principal) -> None:
    """Who says where turns and keys are sent reads them all."""
    operator = fresh(web.user("olga", role="operator"))
    row = models.add(web.context, admin, given(base_url="https://1.1.1.1", key_ref="BIG_KEY", provider="openrouter"))
    for field, value in (
        ("base_url", "https://8.8.8.8"), ("base_url", ""), ("key_ref", "OTHER_KEY"), ("key_ref", ""),
        ("provider", "custom"), ("provider", ""),
    ):  # fmt: skip
        with pytest.raises(errors.Forbidden, match="Only an administrator"):
            models.change(web.context, operator, row.id, ModelInput(model="m2", **{field: value}))
        if value:
            with pytest.raises(errors.Forbidden):
                models.add(web.context, operator, given(name="mine", **{field: value}))
    models.change(web.context, operator, row.id, ModelInput(model="m2", context_window="8000"))
    kept = stored(web)
    assert (kept.model, kept.context_window) == ("m2", 8_000)
    assert (kept.base_url, kept.key_ref, kept.provider) == ("https://1.1.1.1", "BIG_KEY", "openrouter")
    models.add(web.context, operator, given(name="plain"))


def test_members_viewers_and_programs_configure_nothing(web: Web, admin: Principal) -> None:
    row = models.add(web.context, admin, given())
    others = [fresh(web.user(role, role=role)) for role in ("member", "viewer")]
    others += [replace(fresh(web.user(f"t-{role}", role=role)), kind="token") for role in CONFIGURING]
    others += [replace(admin, confirmed_at=clock.now().replace(year=2020))]
    before = web.rows()
    for who in others:
        for work in (
            lambda who=who: models.add(web.context, who, given(name="mine")),
            lambda who=who: models.change(web.context, who, row.id, given()),
            lambda who=who: models.make_default(web.context, who, row.id),
            lambda who=who: models.remove(web.context, who, row.id),
        ):
            with pytest.raises(errors.Forbidden):
                work()
    assert web.rows() == before


def test_one_model_answers_where_nobody_chose(web: Web, admin: Principal) -> None:
    first = models.add(web.context, admin, given(is_default=True))
    second = models.add(web.context, admin, given(name="small"))
    models.make_default(web.context, admin, second.id)
    assert (stored(web).is_default, stored(web, "small").is_default) == (False, True)
    assert models.remove(web.context, admin, second.id) == "small"
    with transaction(web.factory, write=False) as db:
        assert [row.id for row in catalogue.language_models(db)] == [first.id]
        assert catalogue.default_language_model(db) is None
    assert [action for action, _ in audited(web)][-2:] == ["model_made_default", "model_removed"]
    for work in (models.remove, models.make_default):
        with pytest.raises(errors.NotFound):
            work(web.context, admin, second.id)
