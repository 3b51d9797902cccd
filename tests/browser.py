"""The machine's own Chromium, for tests of pages."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARTIFACTS = Path(__file__).parents[1] / "artifacts"
"""Where pictures of pages are kept."""


def photograph(page: Page, name: str, *, whole: bool = True) -> None:
    """Keep a picture of a page for whoever wants to see it: nobody does in CI, which has no time for it."""
    if "CI" not in os.environ:
        ARTIFACTS.mkdir(exist_ok=True)
        page.screenshot(path=ARTIFACTS / f"{name}.png", full_page=whole)


def need_chromium() -> None:
    """Skip the test where there is no browser; fail it where there must be one."""
    if CHROMIUM is None:
        missing = pytest.fail if os.environ.get("REQUIRE_BROWSER") else pytest.skip
        missing("there is no chromium on this machine; install it to test the pages")


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """A headless Chromium that fetches nothing of its own."""
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        try:
            yield browser
        finally:
            browser.close()
