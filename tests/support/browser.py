"""A real Chromium for tests: the one that is installed here, closed to everything but this machine.

`blame` is what went wrong on a page: errors, violations of the content policy, requests elsewhere.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE_MS = 120_000
"""Machines that run tests are slow at times; what never comes is waited for this long."""
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_WATCH = """
window.blame = [];
addEventListener("securitypolicyviolation", (event) =>
  blame.push(`policy: ${event.violatedDirective} ${event.blockedURI}`));
"""


def program() -> str | None:
    """The browser to drive: `$TINKEX_CHROMIUM`, else what is on the path."""
    given = os.environ.get("TINKEX_CHROMIUM")
    return given or next((found for name in PROGRAMS if (found := shutil.which(name))), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser until the block ends; skips the test where there is none."""
    found = program()
    if found is None:
        pytest.skip("no browser is installed here: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(_FLAGS))
        yield browser
        browser.close()


class Visitor:
    """A browser window of its own, with its own cookies, at one server."""

    def __init__(
        self, browser: Browser, url: str, dark: bool = False, width: int = 1280, height: int = 800
    ) -> None:
        self.url = url
        self.context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
        )
        self.context.add_init_script(_WATCH)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: self.errors.append(f"dialog {dialog.message}"))
        self.page.on("request", lambda request: self._look(request.url))

    def come(self, link: str) -> None:
        """Arrive by a link of the server's terminal."""
        self.page.goto(link)
        self.page.get_by_role("heading", name="Now").wait_for()

    def sign_in(self, key: str) -> None:
        self.page.goto(self.url)
        self.page.get_by_label("API key").fill(key)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.get_by_role("heading", name="Now").wait_for()

    def open(self, place: str, heading: str) -> str:
        """Go to a view; the text it shows."""
        self.page.goto(f"{self.url}/#/{place}")
        self.page.get_by_role("heading", level=1, name=heading).wait_for()
        return self.text

    @property
    def text(self) -> str:
        return self.page.inner_text("body")

    def blame(self) -> list[str]:
        return [*self.errors, *self.page.evaluate("window.blame")]

    def _look(self, url: str) -> None:
        if not url.startswith((self.url, "blob:", "data:")):
            self.errors.append(f"asked elsewhere: {url}")
