"""Debian's Chromium, headless, driven by Playwright: pages that note every CSP violation, script error and request."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.rig.require import missing

PLACES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 60_000
WATCH_CSP = """
window.__csp = [];
document.addEventListener('securitypolicyviolation', e => window.__csp.push(e.violatedDirective + ' ' + e.blockedURI));
"""


def executable() -> str:
    """The path of the browser; ends the test when there is none."""
    found = next((path for path in map(shutil.which, PLACES) if path), None)
    if found is None:
        missing("chromium", "apt-get install chromium")
    return found


@dataclass
class Watched:
    """A page and what went wrong on it. `requests` are all addresses it asked for."""

    page: Page
    context: BrowserContext
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def violations(self) -> list[str]:
        """Of the content security policy, on the document shown now."""
        found: list[str] = self.page.evaluate("window.__csp")
        return found

    def foreign(self, own: str) -> list[str]:
        """Requests that left the portal."""
        own_socket = own.replace("http", "ws", 1)
        return [url for url in self.requests if not url.startswith((own, own_socket, "data:", "blob:"))]


class Chromium:
    """One browser process. Close it."""

    def __init__(self) -> None:
        path = executable()
        self._playwright = sync_playwright().start()
        self.browser: Browser = self._playwright.chromium.launch(
            executable_path=path, args=FLAGS, timeout=2 * PATIENCE_MS
        )

    @contextmanager
    def page(
        self, *, width: int = 1440, height: int = 900, locale: str = "en-GB", dark: bool = False,
        zone: str = "Europe/Berlin", cookies: Mapping[str, str] | None = None, url: str = "", **context: Any,
    ) -> Iterator[Watched]:  # fmt: skip
        """A fresh profile with one page; `cookies` are of `url`."""
        made = self.browser.new_context(
            viewport={"width": width, "height": height}, locale=locale, timezone_id=zone,
            color_scheme="dark" if dark else "light", **context,
        )  # fmt: skip
        if cookies:
            made.add_cookies([{"name": name, "value": value, "url": url} for name, value in cookies.items()])
        made.set_default_timeout(PATIENCE_MS)
        made.add_init_script(WATCH_CSP)
        page = made.new_page()
        watched = Watched(page, made)
        page.on("pageerror", lambda error: watched.errors.append(str(error)))
        page.on("console", lambda message: watched.errors.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: watched.requests.append(request.url))
        page.on("websocket", lambda socket: watched.requests.append(socket.url))
        try:
            yield watched
        finally:
            made.close()

    def close(self) -> None:
        self.browser.close()
        self._playwright.stop()
