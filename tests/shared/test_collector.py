"""What start-up made is out of the collector's rounds; what comes later is collected as ever."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from shared import collector


class Ring:
    """Garbage that only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def no_rounds_but_those_asked_for() -> Iterator[None]:
    gc.disable()
    yield
    gc.unfreeze()
    gc.enable()


def test_what_stands_is_set_aside_and_what_comes_later_is_still_collected() -> None:
    before = weakref.ref(Ring())
    assert before() is not None, "a ring stands until a round of the collector"
    known = len(gc.get_objects())
    frozen = collector.set_aside()
    assert before() is None, "garbage is not kept for ever"
    assert frozen > known / 2
    assert len(gc.get_objects()) < known / 10, "the next round goes over next to nothing"
    later = weakref.ref(Ring())
    gc.collect()
    assert later() is None
