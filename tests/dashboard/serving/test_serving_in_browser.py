"""The page of a served model in a real browser."""

import re
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from dedloc_kit.dashboard.serving.dashboard import ServingDashboard
from tests.browser import need_chromium, open_browser, photograph
from tests.dashboard.served_model import GAP, SERVING, WHOLE
from tests.invitations import ORGANIZER, invited

DEADLINE = 20_000


@pytest.fixture
def dashboard() -> Iterator[ServingDashboard]:
    now = [1_760_000_000.0]
    opened = ServingDashboard(SERVING, clock=lambda: now[0])
    opened.give_out(invited(SERVING, url=opened.url))
    for minute in range(20):  # an hour would look the same
        now[0] += 60.0
        servers = tuple(each.model_copy(update={"served": each.served + 900 * minute**2}) for each in GAP.servers)
        opened.publish(GAP.model_copy(update={"servers": servers}))
    opened.start()
    yield opened
    opened.stop()


@pytest.fixture
def page() -> Iterator[Page]:
    """A reader in whose browser nothing may go wrong."""
    need_chromium()
    with open_browser() as browser:
        context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
        context.set_default_timeout(DEADLINE)
        errors: list[str] = []
        hosts: set[str] = set()
        context.on("console", lambda said: errors.append(said.text) if said.type in ("error", "warning") else None)
        context.on("weberror", lambda error: errors.append(str(error.error)))
        context.on("dialog", lambda dialog: errors.append(dialog.message))
        context.on("request", lambda request: hosts.add(request.url.split("/")[2].split(":")[0]))
        yield context.new_page()
        context.close()
        assert errors == []
        assert hosts <= {"127.0.0.1"}


def barriers(page: Page) -> list[str]:
    """What axe-core finds serious or critical."""
    found = Axe().run(page, None, {"resultTypes": ["violations"]}).response["violations"]
    return [str(each["nodes"]) for each in found if each["impact"] in ("serious", "critical")]


@pytest.mark.soak
def test_the_page_shows_who_serves_what_on_every_screen_and_has_no_barriers(
    page: Page, dashboard: ServingDashboard
) -> None:
    expect.set_options(timeout=DEADLINE)
    page.goto(dashboard.url)
    expect(page.locator("#status-text")).to_have_text("Layers are missing")
    expect(page.locator(".stretch.bare")).to_have_attribute("title", "Layers 22 to 25: nobody, 0.0 tokens/s")
    expect(page.locator(".stretch.single")).to_have_count(2)
    expect(page.locator("#alert")).to_contain_text("Nobody serves the layers 22 to 25")
    expect(page.locator("#summary")).to_contain_text("10 servers, 20 sessions")
    expect(page.locator("tbody tr")).to_have_count(10)
    expect(page.locator("tbody td:nth-child(3)").first).to_have_attribute(
        "title", re.compile("^with these layers since ")
    )
    assert page.locator("b, script:not([src]), [onload]").count() == 0, "what servers say is text"
    page.locator(".chart").scroll_into_view_if_needed()
    expect(page.locator(".chart .main-svg").first).to_be_visible()
    for theme, width in (("light", 1280), ("dark", 400), ("light", 360)):
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
        assert barriers(page) == []
        page.evaluate("scrollTo(0, 0)")
        photograph(page, f"serving-{width}-{theme}")

    page.get_by_role("button", name="Use it").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#join-command")).to_contain_text(f'from_pretrained("{dashboard.url}#{ORGANIZER.peer}")')
    page.get_by_text("The layers in a table").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("row", name="22 to 25 nobody")).to_be_visible()

    dashboard.publish(WHOLE)
    expect(page.locator("#status-text")).to_have_text("Serving")
    expect(page.locator(".stretch")).to_have_count(1)
    expect(page.locator("#alert")).to_be_hidden()
    expect(page.get_by_role("row", name="0 to 29 2 servers 15")).to_be_visible()
    dashboard.stop()
    expect(page.locator("#alert")).to_contain_text("This page has lost its server")
