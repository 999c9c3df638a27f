"""The fixtures of tests/rig/web.py for all tests of the web side."""

from tests.rig.web import make_web, migrated_sqlite, web, web_on_each
from tests.webapp.live_portal import portal

__all__ = ["make_web", "migrated_sqlite", "portal", "web", "web_on_each"]
