"""What to do when an optional component is missing: skip with the way to get it, or fail under PORTAL_TEST_REQUIRE."""

import os
from typing import NoReturn

import pytest


def missing(component: str, how: str) -> NoReturn:
    """End the test: skipped with `how` to get the component, failed when PORTAL_TEST_REQUIRE is `all` or names it."""
    required = os.environ.get("PORTAL_TEST_REQUIRE", "")
    text = f"{component} is not here: {how}"
    if required == "all" or component in required.split(","):
        pytest.fail(text, pytrace=False)
    pytest.skip(text)
