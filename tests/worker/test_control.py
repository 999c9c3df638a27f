"""What operators type behind a control command, as Celery's own command line reads it."""

import click
import pytest
from celery.bin.control import _compile_arguments

from worker import control

assert control  # its commands are known once it is imported


@pytest.mark.parametrize(
    ("command", "typed", "meant"),
    [
        ("portal_drain", [], {}),
        ("portal_drain", ["true"], {"on": True}),
        ("portal_drain", ["false"], {"on": False}),
        ("portal_drain", ["on=true"], {"on": True}),
        ("portal_drain", ["on=false"], {"on": False}),
        ("portal_bridge_restart", ["work"], {"profile": "work"}),
        ("portal_bridge_restart", ["work", "at_once=true"], {"profile": "work", "at_once": True}),
        ("portal_bridge_restart", ["work", "at_once=false"], {"profile": "work", "at_once": False}),
        ("portal_bridge_restart", ["work", "no"], {"profile": "work", "at_once": False}),
    ],
)
def test_a_no_is_not_taken_for_a_yes(command: str, typed: list[str], meant: dict[str, object]) -> None:
    assert _compile_arguments(command, typed) == meant


@pytest.mark.parametrize("typed", ["", "maybe", "at_once", "on=false", "at_once="])
def test_what_is_neither_is_told(typed: str) -> None:
    with pytest.raises(click.BadParameter, match="true or false"):
        _compile_arguments("portal_bridge_restart", ["work", typed])
