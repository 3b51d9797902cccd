"""The page in a real browser: every view of a run that looks like one, live, on small and large screens."""

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect

from dedloc_kit.config.machine import CoordinatorConfig
from dedloc_kit.dashboard.http.login import Keys
from dedloc_kit.dashboard.routes import organizer
from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.events import AnyEvent, Failed, Joined, Peers, Pushed, State, StepDone
from dedloc_kit.ledger import Ledger, StartPoint
from dedloc_kit.machine.home import peer_folder
from dedloc_kit.organizer.launch import Coordinator
from dedloc_kit.records.invitation import INVITATION_FILE
from dedloc_kit.records.orders import Checks
from dedloc_kit.steering.orders import OrderBook
from dedloc_kit.worker import volunteer_job
from tests.browser import need_chromium, open_browser, photograph
from tests.dashboard.community import (
    CAPTIONS,
    CONVICTIONS,
    COORDINATOR,
    EVERYONE,
    LONG,
    MARKUP,
    NAMES,
    PEOPLE,
    RUN,
    STEPS,
    TURNED,
    continued_texts,
    drawn_pictures,
    evaluation,
    peer_id,
    record_step,
    sample_picture,
    seen,
    similar_pictures,
    write_ledger,
)
from tests.dashboard.expert_run import HELD as EXPERTS_HELD
from tests.dashboard.expert_run import LACKING as EXPERTS_LACK
from tests.dashboard.expert_run import MIXED
from tests.dashboard.expert_run import WHOLE as EXPERTS_WHOLE
from tests.dashboard.runs import HOSTILE_NAMES
from tests.dashboard.staged_run import GAP as STAGES_LACK
from tests.dashboard.staged_run import LIMITED, STAGED
from tests.invitations import invited

DEADLINE, LONG_DEADLINE = 20_000, 120_000
"""Milliseconds: machines that test are busy. The long one is for what a real swarm does."""
VIEWS = {
    "overview": ("/", 1),
    "people": ("/people", 0),
    "person": (f"/people/{peer_id(0)}", 1),
    "swarm": ("/swarm", 2),
    "organizer": ("/organizer", 0),
}
"""Paths, and how many charts are there by plotly."""
MORE_OF_THE_SAME = [":is(tbody tr, .timeline li):nth-child(n + 5)"]
WIDTHS = (360, 800, 1280, 1920)
PICTURED: dict[Literal["light", "dark"], tuple[int, ...]] = {"light": (360, 1280), "dark": (800, 1920)}
FIRST_PAINT_BYTES = 300_000
MAX_MOVED = 0.05
"""Cumulative layout shift (web.dev/articles/cls); 0.1 is still called good."""
CHARTS_FIT = """() => new Promise((resolve) => {
  const width = (element) => Math.round(element.getBoundingClientRect().width);
  const fits = (svg) => width(svg) === width(svg.closest(".chart"));
  const all = () => [...document.querySelectorAll(".chart .main-svg")];
  const look = () => (all().every(fits) ? resolve() : requestAnimationFrame(look));
  look();
})"""
"""Plotly draws anew a little after the window has another size."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    need_chromium()
    expect.set_options(timeout=DEADLINE)
    with open_browser() as opened:
        yield opened


RESTARTED = seen(0).model_copy(update={"restarted": f"why {MARKUP}"})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger of a run that is well under way. What a test adds, the next ones see."""
    made = tmp_path_factory.mktemp("run") / "ledger.sqlite"
    with pytest.MonkeyPatch.context() as monkeypatch:
        write_ledger(made, monkeypatch)
    return made


@pytest.fixture(scope="module")
def dashboard(path: Path) -> Iterator[Dashboard]:
    routes = organizer.routes(path.parent, RUN.fingerprint, lambda: (RESTARTED,), decays=True)
    served = Dashboard(RUN, path, organizer=routes)
    served.start()
    served.publish(EVERYONE)
    yield served
    served.stop()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A reader with a browser of their own, in which nothing may go wrong."""
    opened = browser.new_context(viewport={"width": 1280, "height": 900})
    opened.set_default_timeout(DEADLINE)
    errors: list[str] = []
    hosts: set[str] = set()
    opened.on("console", lambda message: errors.append(message.text) if is_trouble(message) else None)
    opened.on("weberror", lambda error: errors.append(str(error.error)))
    opened.on("request", lambda request: hosts.add(request.url.split("/")[2].split(":")[0]))
    opened.on("dialog", lambda dialog: errors.append(f"dialog: {dialog.message}"))
    yield opened
    opened.close()
    assert errors == []
    assert hosts <= {"127.0.0.1"}


def is_trouble(message: ConsoleMessage) -> bool:
    """Whoever is not the organizer is told so by an answer of 401, which the browser notes."""
    return message.type in ("error", "warning") and not message.location["url"].endswith("/api/organizer")


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def opened(page: Page, dashboard: Dashboard, path: str = "/") -> Page:
    """The page at a view that has all its parts."""
    page.goto(dashboard.url + path)
    expect(page.locator("#status")).not_to_have_attribute("data-status", "offline")
    expect(page.locator("#view h1").first).to_be_visible()
    return page


def step_of(page: Page) -> int:
    return int(page.locator("#step").inner_text().replace(",", ""))


def expect_charts(page: Page, count: int) -> None:
    """A chart is drawn when a reader comes near it."""
    expect(page.locator(".chart")).to_have_count(count)
    for chart in page.locator(".chart:visible").all():
        chart.scroll_into_view_if_needed()
    expect(page.locator(".chart .main-svg:first-child")).to_have_count(count)
    page.evaluate("scrollTo(0, 0)")


@pytest.mark.soak
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_fits_every_screen_in_light_and_dark_and_has_no_barriers(
    context: BrowserContext, dashboard: Dashboard, view: str
) -> None:
    page = context.new_page()
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    path, charts = VIEWS[view]
    opened(page, dashboard, path)
    expect_charts(page, charts)
    if view != "organizer":
        expect(page.locator(f"main >> text={NAMES[0]}").first).to_be_visible()
    for theme in PICTURED:
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            too_wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert page.evaluate(too_wide) == 0, f"{view} scrolls sideways at {width} px"
            if width in PICTURED[theme]:
                page.evaluate(CHARTS_FIT)
                photograph(page, f"dashboard-{view}-{width}-{theme}")
        assert barriers(page) == []


def assert_fits_and_has_no_barriers(page: Page, name: str) -> None:
    """On a telephone by day and on a desk by night."""
    shown: tuple[tuple[Literal["light", "dark"], int], ...] = (("light", 360), ("dark", 1280))
    for theme, width in shown:
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
        page.evaluate(CHARTS_FIT)
        photograph(page, f"dashboard-{name}-{width}-{theme}")
        assert barriers(page) == []


def barriers(page: Page) -> list[str]:
    """What axe-core finds serious or critical."""
    found = Axe().run(page, {"exclude": [MORE_OF_THE_SAME]}, {"resultTypes": ["violations"]}).response["violations"]
    return [
        f"{violation['id']}: {[node['html'] for node in violation['nodes']]}"
        for violation in found
        if violation["impact"] in ("serious", "critical")
    ]


@pytest.mark.soak
def test_what_happens_is_shown_without_a_reload(page: Page, dashboard: Dashboard, path: Path) -> None:
    opened(page, dashboard)
    page.evaluate("() => { window.mark = 'the same page' }")
    before = step_of(page)
    ledger = Ledger(path)
    done = record_step(ledger, before + 1, time.time(), [0, 1, 2], [10**6] * PEOPLE)
    dashboard.publish(StepDone(step=done, contributions={}))
    dashboard.publish(Peers(peers=(COORDINATOR, seen(0, before + 1, 1024), seen(1, before + 1, 512))))
    expect(page.locator("#step")).to_have_text(f"{before + 1}")
    expect(page.get_by_role("heading", name=f"Global step {before + 2} is filling")).to_be_visible()
    expect(page.get_by_role("img", name="1,536 of 4,096 samples, 38 % of the batch")).to_be_visible()
    expect(page.locator(".share")).to_have_count(2)
    expect(page).to_have_title(f"Overview · {RUN.name}")
    page.get_by_role("link", name="Swarm").click()
    expect(page.get_by_role("row").filter(has_text=NAMES[1])).to_be_visible()
    where = page.get_by_role("region", name="Where they are")
    expect(where).to_have_count(0)  # off unless the organizer turns it on
    dashboard.publish(EVERYONE)
    expect(page.get_by_role("row").filter(has_text=NAMES[9])).to_be_visible()
    expect(where.get_by_role("img", name="Bangladesh 5, India 2, Antarctica 1, Germany 1")).to_be_visible()
    expect(where.locator(".mark")).to_have_count(4)  # Antarctica is not on the map
    expect(where.get_by_text("Countries: An Atlas of Addresses")).to_be_visible()
    assert page.evaluate("() => window.mark") == "the same page"


@pytest.mark.soak
def test_a_lost_server_is_told_and_found_again(page: Page, tmp_path: Path) -> None:
    first = Dashboard(RUN, tmp_path / "ledger.sqlite")
    first.start()
    opened(page, first)
    first.stop()
    alert = page.get_by_text("This page has lost its server")
    expect(alert).to_be_visible()
    expect(page.locator("#status")).to_have_text("Connecting")
    second = Dashboard(RUN, tmp_path / "ledger.sqlite", port=int(first.url.rsplit(":", 1)[1]))
    second.publish(EVERYONE)
    second.start()
    expect(page.locator("#status")).to_have_text("Training")
    expect(alert).to_be_hidden()
    page.close()
    second.stop()


@pytest.mark.soak
def test_how_the_run_stands_is_told_in_words(page: Page, tmp_path: Path) -> None:
    changing = Dashboard(RUN, tmp_path / "ledger.sqlite")
    changing.start()
    changing.publish(State(text="loading the model"))
    opened(page, changing)
    joined = Joined(run_id=RUN.run_id, peer="c", session="a1", addresses=(), step=0, device="cpu", parameters=1)
    events: dict[str, AnyEvent] = {
        "This run has not begun yet": State(text="loading the tokenizer"),
        "Nobody is training right now": joined,
        "The organizer has paused the run": Peers(peers=(COORDINATOR, seen(0)), paused=True),
        "The coordinator cannot be heard": Failed(text="out of memory"),
    }
    for title, event in events.items():
        changing.publish(event)
        expect(page.locator(".notice h2")).to_have_text(title)
        photograph(page, f"dashboard-state-{title.split()[-1]}")
    changing.publish(EVERYONE)
    expect(page.locator(".notice")).to_be_hidden()
    page.close()
    changing.stop()


@pytest.mark.soak
def test_the_stages_of_a_pipeline_are_columns_in_which_gaps_and_moves_are_seen(page: Page, tmp_path: Path) -> None:
    served = Dashboard(STAGED, tmp_path / "ledger.sqlite")
    served.start()
    served.publish(EVERYONE)
    served.publish(LIMITED)
    opened(page, served)
    page.get_by_role("link", name="Pipeline", exact=True).click()
    expect(page.locator(".lede")).to_have_text("Stage 2 of 4 limits the run: 3.1 of 7.8 microbatches/s.")
    expect(page.locator(".limits h3")).to_contain_text("Stage 2")
    expect(page.locator(".stage-peers .name").first).to_contain_text(HOSTILE_NAMES[0])
    expect(page.locator(".stage-peers .moving")).to_contain_text("moves to stage 2, 1.5/s")
    expect(page.locator(".stage-peers .moving")).to_contain_text("1 driver says that it answers wrongly")
    heights = (
        page.get_by_role("list", name="Who holds stage 3")
        .locator("li")
        .evaluate_all("boxes => boxes.map((box) => parseFloat(box.style.minHeight.split(',')[1]))")
    )
    assert heights == sorted(heights, reverse=True)
    assert heights[0] == pytest.approx(10 * heights[1], rel=0.02)
    coming = page.get_by_role("list", name="Who holds stage 2").locator(".coming")
    expect(coming).to_contain_text(HOSTILE_NAMES[4])
    expect(coming).to_contain_text("comes from stage 1")
    expect(page.get_by_text("microbatches: 19 forward, 5 back")).to_be_visible()
    expect(page.get_by_role("img", name="16 microbatches there")).to_have_text("and 2 more")
    dots = "dots => parseFloat(getComputedStyle(dots, '::after').width) / 8"
    assert page.get_by_role("img", name="3 microbatches there").evaluate(dots) == pytest.approx(3, abs=0.1)
    page.get_by_text("Their peers as a table").click()
    expect(page.get_by_role("region", name="Their peers as a table").get_by_role("row")).to_have_count(11)
    assert_fits_and_has_no_barriers(page, "pipeline")
    photograph(page, "pipeline-moving")
    served.publish(STAGES_LACK)
    expect(page.locator(".stage-peers .gap")).to_have_text("nobody")
    expect(page.locator(".lede")).to_have_text("Stage 2 of 4 has nobody.")
    photograph(page, "dashboard-pipeline-gap")
    page.close()
    served.stop()


@pytest.mark.soak
def test_the_experts_are_a_grid_for_each_layer_in_which_who_lacks_a_second_machine_is_seen(
    page: Page, tmp_path: Path
) -> None:
    served = Dashboard(MIXED, tmp_path / "ledger.sqlite")
    served.start()
    served.publish(EVERYONE)
    served.publish(EXPERTS_LACK)
    opened(page, served)
    page.get_by_role("link", name="Experts", exact=True).click()
    expect(page.locator(".lede")).to_have_text(f"{EXPERTS_HELD[0][0].upper()}{EXPERTS_HELD[0][1:]}.")
    first, second = page.locator(".cells").all()
    expect(first.locator("i.two")).to_have_count(5)
    expect(first.locator("i.one")).to_have_count(1)
    expect(second.locator("i.none")).to_have_count(1)
    expect(first.locator("i").nth(4)).to_have_attribute("style", "--load: 100%;")
    expect(first.locator("i").nth(0)).to_have_attribute("title", re.compile("^1.0.0: kept by .*script.*, copy with "))
    expect(page.locator(".board .name").nth(1)).to_have_text(HOSTILE_NAMES[0])
    assert_fits_and_has_no_barriers(page, "experts")
    photograph(page, "dashboard-experts")
    served.publish(EXPERTS_WHOLE)
    expect(page.locator(".cells i.two")).to_have_count(12)
    page.close()
    served.stop()


@pytest.mark.soak
def test_a_finished_run_thanks_everyone_and_leads_to_the_model(page: Page, tmp_path: Path) -> None:
    record_step(Ledger(tmp_path / "ledger.sqlite"), RUN.optimizer.total_steps, time.time(), [0, 1], [0] * PEOPLE)
    finished = Dashboard(RUN, tmp_path / "ledger.sqlite")
    finished.start()
    finished.publish(Pushed(step=20_000, url="https://huggingface.co/asha/bangla-albert/commit/1a2b"))
    opened(page, finished)
    expect(page.locator(".notice")).to_contain_text("The model is finished")
    link = page.get_by_role("link", name="The model on the Hub")
    expect(link).to_have_attribute("href", "https://huggingface.co/asha/bangla-albert/commit/1a2b")
    expect(page.locator(".join")).to_be_hidden()
    photograph(page, "dashboard-state-finished")
    page.close()
    finished.stop()


@pytest.mark.soak
def test_everything_is_reached_by_keyboard_and_the_focus_is_seen(page: Page, dashboard: Dashboard) -> None:
    opened(page, dashboard)
    focused = page.locator(":focus")
    reached = []
    for _ in range(14):
        page.keyboard.press("Tab")
        reached.append(focused.inner_text() or focused.get_attribute("aria-label"))
        assert focused.evaluate("element => getComputedStyle(element).outlineStyle") == "solid"
    assert reached[:7] == [
        "Skip to the content", "dedloc", "Overview", "People", "Swarm", "Organizer", "Dark colours"
    ]  # fmt: skip
    assert {"Notebook", "Terminal", "Copy"} <= set(reached)
    page.get_by_role("button", name="Terminal").focus()
    page.keyboard.press("Space")
    expect(page.locator("#join-command")).to_contain_text(f"dedloc join {dashboard.url}")
    page.get_by_role("button", name="Dark colours").focus()
    page.keyboard.press("Enter")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.get_by_role("link", name="People", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{dashboard.url}/people")
    expect(page.locator("main")).to_be_focused()
    page.get_by_role("link", name=NAMES[0], exact=True).focus()
    page.keyboard.press("Enter")
    expect(page).to_have_title(f"{NAMES[0]} · {RUN.name}")
    page.go_back()
    expect(page).to_have_title(f"People · {RUN.name}")
    page.go_back()
    expect(page).to_have_title(f"Overview · {RUN.name}")


@pytest.mark.soak
def test_the_first_paint_needs_little_and_the_charts_come_later(page: Page, dashboard: Dashboard) -> None:
    opened(page, dashboard)
    expect_charts(page, 1)
    painted, resources = page.evaluate(
        """() => [
          performance.getEntriesByName("first-contentful-paint")[0].startTime,
          [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")].map(
            ({ name, startTime, transferSize }) => ({ name, startTime, transferSize }),
          ),
        ]"""
    )
    charts = [one for one in resources if "plotly" in one["name"]]
    others = [one for one in resources if "plotly" not in one["name"]]
    assert [one["startTime"] > painted for one in charts] == [True]
    assert sum(one["transferSize"] for one in others) < FIRST_PAINT_BYTES


@pytest.mark.soak
@pytest.mark.parametrize("width", [412, 1280])
@pytest.mark.parametrize("view", VIEWS)
def test_what_is_read_already_does_not_move_when_more_arrives(
    page: Page, dashboard: Dashboard, view: str, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 823})
    page.add_init_script(
        """window.moved = 0;
        new PerformanceObserver((list) => {
          for (const shift of list.getEntries()) window.moved += shift.value;
        }).observe({ type: "layout-shift", buffered: true });"""
    )
    opened(page, dashboard, VIEWS[view][0])
    page.wait_for_load_state("load")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.evaluate("window.moved") < MAX_MOVED


@pytest.mark.soak
def test_on_a_small_screen_the_charts_are_loaded_when_they_come_near(page: Page, dashboard: Dashboard) -> None:
    page.set_viewport_size({"width": 412, "height": 823})
    opened(page, dashboard)
    page.wait_for_load_state("load")
    assert page.evaluate("window.Plotly") is None
    expect_charts(page, 1)


@pytest.mark.soak
def test_the_curve_follows_its_controls(page: Page, dashboard: Dashboard) -> None:
    opened(page, dashboard)
    expect_charts(page, 1)
    layout = "chart => ({x: chart.layout.xaxis.type, y: chart.layout.yaxis.type, range: chart.layout.xaxis.range})"
    chart = page.locator(".chart")
    assert chart.evaluate(layout)["y"] == "linear"
    page.get_by_role("button", name="Log", exact=True).click()
    page.get_by_role("button", name="Time", exact=True).click()
    expect(page.get_by_role("button", name="Time", exact=True)).to_have_attribute("aria-pressed", "true")
    drawn = chart.evaluate(layout)
    assert (drawn["x"], drawn["y"]) == ("date", "log")
    page.get_by_role("button", name="Steps", exact=True).click()
    page.get_by_role("button", name="Last quarter").click()
    assert chart.evaluate(layout)["range"][0] >= 0.7 * STEPS
    page.get_by_role("button", name="Whole run").click()
    whole = chart.evaluate(layout)["range"]
    box = chart.bounding_box()
    assert box is not None
    for across, act in ((0.5, page.mouse.down), (0.75, page.mouse.up)):  # a drag over a quarter of the chart
        page.mouse.move(box["x"] + across * box["width"], box["y"] + box["height"] / 2, steps=5)
        act()
    zoomed = chart.evaluate(layout)["range"]
    assert zoomed[1] - zoomed[0] < 0.5 * (whole[1] - whole[0])
    rough = chart.evaluate("chart => chart.data.length")
    page.get_by_label("Smoothing").fill("0")
    assert chart.evaluate("chart => chart.data.length") == rough - 1  # nothing faint behind the line
    page.get_by_text("The curve as a table").click()
    expect(page.get_by_role("region", name="The curve as a table").get_by_role("row")).not_to_have_count(0)


@pytest.mark.soak
def test_the_model_that_a_run_goes_on_from_is_a_line_across_the_curve_and_a_sentence(
    page: Page, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    given = [0] * PEOPLE
    for step in range(1, 41):
        record_step(ledger, step, time.time() - 3000 + 60 * step, [0, 1], given)
        if step % 10 == 0:
            ledger.record_evaluation(step, evaluation(step), time.time() - 3000 + 60 * step)
    served = Dashboard(RUN, tmp_path / "ledger.sqlite")
    with ExitStack() as stack:
        served.start()
        stack.callback(served.stop)
        stack.callback(page.close)  # before: what it asks a server that is gone would be an error
        served.publish(EVERYONE)
        opened(page, served)
        expect_charts(page, 1)
        sentence, key = page.locator(".compared"), page.locator(".key.start")
        expect(sentence).to_be_hidden()
        expect(key).to_be_hidden()
        ledger.record_start(StartPoint("ours-0123456789abcdef", MARKUP, 6.5))
        expect(sentence).to_have_text(
            f"Better than the model it began from, {MARKUP}, since step 30: held-out loss 5.372, that of the model "
            "6.500."
        )
        expect(key).to_have_text("the model it began from 6.500")
        dashed = "document.querySelector('.chart').data.find((trace) => trace.line?.dash === 'dash')"
        page.wait_for_function(dashed)
        assert page.evaluate(f"(({{x, y}}) => [...x, ...y])({dashed})") == [1, 40, 6.5, 6.5]
        assert_fits_and_has_no_barriers(page, "start")
        ledger.record_evaluation(50, evaluation(0), time.time())
        expect(sentence).to_contain_text("Not yet better than the model it began from")


@pytest.mark.soak
def test_the_model_is_heard_now_and_before(page: Page, dashboard: Dashboard) -> None:
    opened(page, dashboard)
    boat = page.get_by_role("listitem").filter(has_text="The boat crossed the")
    expect(boat.locator(".guess")).to_have_text("river")
    expect(boat.locator(".was")).to_have_text(["the", "road"])
    expect(page.get_by_text("Of 100 hidden words it guesses 50, at first 0.")).to_be_visible()


@pytest.mark.soak
def test_scores_by_suites_stand_beside_those_of_published_models(page: Page, dashboard: Dashboard) -> None:
    opened(page, dashboard)
    rows = page.get_by_role("region", name="Scores by standard suites").locator("tbody tr")
    expect(rows).to_have_text(
        [
            "accuracy of belebele_ben_Beng, 900 questionsthis one, at step 2027.0 ± 1.5",
            "this one, at step 4029.0 ± 1.5",
            f"{MARKUP}50.0 ± 1.5",
            "perplexity per word of near, 900 questionsthis one, at step 2041.500 ± 0.015",
        ]
    )
    assert rows.nth(2).locator("meter").evaluate("meter => meter.value") == 0.5
    expect(rows.nth(3).locator("meter")).to_have_count(0)


@pytest.mark.soak
def test_similar_pictures_are_seen_now_and_before(page: Page, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for step in (0, 20, 40):
        ledger.record_evaluation(step, similar_pictures(step), 1.0)
    ledger._connection.execute("DELETE FROM pictures WHERE digest = ?", (sample_picture(0, 3).digest,))
    served = Dashboard(RUN, tmp_path / "ledger.sqlite")
    with ExitStack() as stack:
        served.start()
        stack.callback(served.stop)
        stack.callback(page.close)
        opened(page, served)
        expect(page.get_by_text("Of 100 pictures it puts 60 among their own kind, at first 20;")).to_be_visible()
        cards = page.locator(".neighbours > li")
        expect(cards).to_have_count(3)
        expect(cards.nth(1).locator(".now")).to_contain_text("Most similar now: 2 of 3 of its class")
        expect(cards.nth(1).locator(".before .when")).to_have_text(["step 20", "untrained"])
        for picture in page.locator(".neighbours img").all():
            picture.scroll_into_view_if_needed()
            expect(picture).to_have_js_property("naturalWidth", 32)
        expect(page.get_by_role("img", name=f"{MARKUP}, similarity 0.50").first).to_be_attached()
        expect(page.locator(".neighbours .lacking")).not_to_have_count(0)
        expect(page.get_by_text("Some pictures are not here: a mirror has those")).to_be_visible()
        assert_fits_and_has_no_barriers(page, "similar")


@pytest.mark.soak
def test_what_a_model_draws_for_captions_is_seen_beside_the_real_pictures_and_what_it_drew_before(
    page: Page, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for step in (0, 20, 40):
        ledger.record_evaluation(step, drawn_pictures(step), 1.0)
    others = drawn_pictures(30)
    ledger.record_evaluation(30, others.model_copy(update={"samples": others.samples[::-1]}), 1.0)
    lost = sample_picture(3, 2).digest  # drawn at step 20
    ledger._connection.execute("DELETE FROM pictures WHERE digest = ?", (lost,))
    served = Dashboard(RUN, tmp_path / "ledger.sqlite")
    with ExitStack() as stack:
        served.start()
        stack.callback(served.stop)
        stack.callback(page.close)
        opened(page, served)
        expect(page.locator(".skills li")).to_have_text(
            [
                "For each piece of a picture it wavers between 20 kinds, at first 148; without the caption between 39, "
                "with another picture's between 148.",
                "Of 16 captions it finds the right one for a picture in 46 of 100 cases, at first in 6; chance alone "
                "would give 6.",
            ]
        )
        cards = page.locator(".drawing > li")
        expect(cards.locator(".caption")).to_have_text([*CAPTIONS])
        boat, hostile = CAPTIONS[1], CAPTIONS[2]
        now, real = cards.nth(1).locator("figure img").all()
        expect(now).to_have_attribute("alt", f"{boat}, drawn at step 40")
        expect(real).to_have_attribute("alt", f"{boat}, the real picture")
        assert now.get_attribute("src") == real.get_attribute("src"), "this one it has learned"
        expect(cards.nth(1).locator(".drawn li")).to_have_text(["untrained", "step 20"])
        expect(cards.nth(0).locator(".drawn li")).to_have_text(["untrained"])  # step 40 shows the same as step 20
        expect(page.get_by_role("img", name=f"{hostile}, drawn untrained")).to_be_attached()
        for picture in page.locator(".drawing img").all():
            picture.scroll_into_view_if_needed()
            expect(picture).to_have_js_property("naturalWidth", 32)
        expect(page.locator(".drawing .lacking")).to_have_count(1)
        expect(page.get_by_text("Some pictures are not here: a mirror has those")).to_be_visible()
        assert_fits_and_has_no_barriers(page, "drawn")


@pytest.mark.soak
def test_how_a_model_goes_on_with_a_text_is_seen_now_and_before(page: Page, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for step in (0, 20, 40):
        ledger.record_evaluation(step, continued_texts(step), 1.0)
    served = Dashboard(RUN, tmp_path / "ledger.sqlite")
    with ExitStack() as stack:
        served.start()
        stack.callback(served.stop)
        stack.callback(page.close)
        opened(page, served)
        expect(page.get_by_text("it has to be told 2.10, it guesses the rest; at first it was 2.50.")).to_be_visible()
        expect(page.get_by_text("It wavers between 1,460 tokens for what comes next, at first 1,500.")).to_be_visible()
        cards = page.locator(".continuation > li")
        expect(cards).to_have_count(2)
        expect(cards.nth(0).locator(".sentence")).to_have_text("The boat crossed the river 40 times")
        expect(cards.nth(1).locator(".written")).to_have_text(f" {MARKUP} 40")
        cards.nth(0).get_by_text("Before, and in the text").click()
        expect(cards.nth(0).locator("dt")).to_have_text(["untrained", "step 20", "the text"])
        expect(cards.nth(0).locator("dd")).to_have_text(["the river 0 times", "the river 20 times", "the sea."])
        assert_fits_and_has_no_barriers(page, "continued")


@pytest.mark.soak
def test_people_are_sorted_searched_and_paged(page: Page, dashboard: Dashboard) -> None:
    opened(page, dashboard, "/people")
    names = page.locator(".board .who .name")
    expect(names).to_have_count(25)
    expect(names.first).to_have_text(NAMES[0])
    page.get_by_role("button", name="Next").click()
    expect(names).to_have_count(PEOPLE - 25)
    page.get_by_role("button", name="Name", exact=True).click()
    expect(names.nth(1)).not_to_have_text(NAMES[1])
    page.get_by_label("Search names").fill("tanvir")
    expect(names).to_have_text(["tanvir_ahmed"])
    expect(page.locator(".bubble")).to_have_count(PEOPLE)
    page.locator(".bubble", has_text="Rabi").first.click()
    expect(page).to_have_title(f"Rabi · {RUN.name}")


@pytest.mark.soak
def test_hundreds_of_peers_are_shown_in_parts_and_who_was_left_out_with_the_reason(
    page: Page, dashboard: Dashboard
) -> None:
    dashboard.publish(Peers(peers=(COORDINATOR, *(seen(number) for number in range(300)))))
    opened(page, dashboard, "/swarm")
    peers = page.get_by_role("region", name="Peers now")
    rows = peers.locator("tbody tr")
    for shown in ("1 to 50 of 301 peers", "51 to 100 of 301 peers"):
        expect(peers.get_by_role("status")).to_have_text(shown)
        expect(rows).to_have_count(50)
        peers.get_by_role("button", name="Next").click()
    dashboard.publish(EVERYONE)  # most have left: the reader is where somebody is
    expect(rows).to_have_count(len(EVERYONE.peers))
    expect(peers.get_by_role("button", name="Next")).to_be_hidden()
    absent = page.get_by_role("region", name="Left out of a step")
    expect(absent.get_by_text("40 times so far")).to_be_visible()
    expect(absent.get_by_text(f"{NAMES[0]} fell silent")).to_be_hidden()
    absent.get_by_text(f"Step {STEPS - 2}: 40 peers").click()
    lines = [f"{NAMES[0]} fell silent", f"peer …{peer_id(900)[-4:]} did not come", "and 38 more peers"]
    expect(absent.locator("details li")).to_have_text(lines)
    photograph(page, "dashboard-swarm-left-out")
    page.get_by_text("The sizes as a table").click()
    step = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=f"{STEPS - 2}", exact=True))
    expect(step.last).to_contain_text("40")


@pytest.mark.soak
def test_who_was_sent_away_is_told_to_everybody_with_name_date_and_reason(page: Page, dashboard: Dashboard) -> None:
    opened(page, dashboard)
    expect(page.get_by_text("1 in 50 contributions is checked: 112 checked, 3 sent away.")).to_be_visible()
    alarm = Checks(passed=40, convicted=1, share=0.3, alarm=12)
    dashboard.publish(EVERYONE.model_copy(update={"checks": alarm}))
    expect(page.get_by_text("3 in 10 contributions are checked since somebody was sent away 12 steps")).to_be_visible()
    photograph(page, "dashboard-overview-alarm")
    page.get_by_role("link", name="Swarm").click()
    away = page.get_by_role("region", name="Sent away")
    expect(away.get_by_text("3 times so far")).to_be_visible()
    expect(away.locator(".name")).to_have_text([MARKUP, f"peer …{peer_id(901)[-4:]}", LONG])
    expect(away.locator(".why")).to_have_text([one.why for one in CONVICTIONS])
    when = [re.compile(r"\w+ \d+, \d{4}$")] * 2 + [re.compile("let in again")]
    expect(away.locator("li .note")).to_have_text(when)
    expect(away.get_by_role("link", name="All as a table")).to_be_hidden()
    photograph(page, "dashboard-swarm-sent-away")
    page.get_by_role("link", name="People", exact=True).click()
    expect(page.locator("tr", has=page.locator(".badge.away:visible"))).to_contain_text(MARKUP)
    page.get_by_role("link", name=MARKUP).click()
    expect(page.get_by_text("Sent away", exact=True)).to_be_visible()
    expect(page.get_by_text("Training now", exact=True)).to_be_hidden()


@pytest.mark.soak
def test_a_volunteers_own_link_is_remembered(page: Page, dashboard: Dashboard) -> None:
    opened(page, dashboard, f"/people/{peer_id(1)}#me")
    expect(page.get_by_text("This is you")).to_be_visible()
    certificate = page.get_by_role("link", name="Certificate", exact=True)
    expect(certificate).to_have_attribute("href", f"{dashboard.url}/people/{peer_id(1)}/certificate.svg")
    page.get_by_role("link", name="People", exact=True).click()
    expect(page.locator("tr", has=page.locator(".badge.you:visible"))).to_contain_text("Rabi")
    page.get_by_role("link", name="This is you").click()
    expect(page).to_have_title(f"Rabi · {RUN.name}")


@pytest.mark.real
def test_hostile_names_are_only_text_and_keep_to_their_place(page: Page, dashboard: Dashboard) -> None:
    opened(page, dashboard, "/people")
    row = page.get_by_role("row").filter(has_text=MARKUP)
    expect(row.get_by_role("link")).to_have_text(MARKUP)
    assert page.locator("img").count() == 0
    turned = page.get_by_role("link", name=TURNED)
    assert turned.evaluate("element => getComputedStyle(element).unicodeBidi") == "isolate"
    long = page.get_by_role("link", name=LONG)
    assert long.evaluate("element => element.scrollWidth > element.clientWidth")
    expect(long).to_have_attribute("title", LONG)
    expect(page.get_by_role("link", name="anonymous", exact=True)).to_have_count(1)
    long.click()
    expect(page.locator("h1")).to_contain_text(LONG)
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("link", name="Swarm").click()
    expect(page.get_by_text(f"which calls itself {MARKUP}")).to_be_visible()
    assert page.locator("img").count() == 0


@pytest.mark.soak
def test_the_way_to_join_is_copied(context: BrowserContext, dashboard: Dashboard) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    invitation = invited(RUN)
    dashboard.entrance.give_out(invitation)
    page = opened(context.new_page(), dashboard)
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert f'join("{dashboard.url}#{invitation.organizer}")' in copied


@pytest.mark.soak
def test_bubbles_touch_but_never_overlap(page: Page, dashboard: Dashboard) -> None:
    opened(page, dashboard)
    overlap, spread = page.evaluate(
        """async () => {
          const { pack } = await import("/static/bubbles.js");
          const radii = Array.from({ length: 120 }, (_, index) => 1 / (index + 1) ** 0.5);
          const placed = pack(radii, 1.6);
          const gaps = placed.flatMap((a, i) =>
            placed.slice(0, i).map((b) => Math.hypot(a.x - b.x, a.y - b.y) - a.r - b.r));
          const edges = (axis, sign) => placed.map((p) => p[axis] + sign * p.r);
          const size = (axis) => Math.max(...edges(axis, 1)) - Math.min(...edges(axis, -1));
          const area = radii.reduce((sum, r) => sum + Math.PI * r * r, 0);
          return [Math.min(...gaps), size("x") * size("y") / area];
        }"""
    )
    assert overlap > -1e-6
    assert spread < 2.5  # times the circles' own area


@pytest.mark.soak
@pytest.mark.parametrize(("motion", "moves"), [("no-preference", True), ("reduce", False)])
def test_numbers_run_up_where_motion_is_welcome(
    page: Page, dashboard: Dashboard, motion: Literal["no-preference", "reduce"], moves: bool
) -> None:
    page.emulate_media(reduced_motion=motion)
    opened(page, dashboard)
    seen_on_the_way = page.evaluate(
        """async () => {
          const { counter } = await import("/static/numbers.js");
          const element = document.createElement("p");
          const show = counter(element, (value) => String(Math.round(value)));
          show(0);
          show(1000);
          const seen = new Set();
          while (element.textContent !== "1000") {
            seen.add(element.textContent);
            await new Promise(requestAnimationFrame);
          }
          return seen.size;
        }"""
    )
    assert (seen_on_the_way > 1) == moves


@pytest.mark.soak
def test_who_is_not_the_organizer_is_told_how_to_become_it(page: Page, dashboard: Dashboard) -> None:
    opened(page, dashboard, "/organizer")
    expect(page.get_by_role("heading", name="You are not logged in")).to_be_visible()
    expect(page.locator("main")).to_contain_text("dedloc run admin-link RUN")
    assert page.get_by_role("button", name="Pause").count() == 0


@pytest.mark.real
def test_the_organizer_steers_the_run(page: Page, dashboard: Dashboard, path: Path, stack: ExitStack) -> None:
    decays = RUN.optimizer.model_copy(update={"schedule": "warmup-stable-decay"})
    invitation = invited(RUN.model_copy(update={"optimizer": decays}))
    (path.parent / INVITATION_FILE).write_text(invitation.model_dump_json())  # the mark of a run that was launched here
    (path.parent / "checkpoints").mkdir()
    for step in (2, 4):
        (path.parent / "checkpoints" / f"step-{step:08d}.safetensors").touch()
    stack.enter_context(peer_folder(path.parent))  # and is up
    OrderBook(path.parent).kick(peer_id(3), NAMES[3], f"it lied {MARKUP}")
    (path.parent / "evidence").mkdir()
    (path.parent / "evidence" / f"17-{peer_id(3)}.jsonl").touch()
    page.goto(Keys(path.parent).link(dashboard.url))
    expect(page).to_have_url(f"{dashboard.url}/organizer")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("It is paused. Volunteers wait.")).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("It goes on.")).to_be_visible()
    expect(page.get_by_role("region", name="Restarts").locator("li")).to_contain_text(f"why {MARKUP}")
    page.get_by_label("Shown at the top of the page").fill(f"Tomorrow {MARKUP}")
    page.get_by_role("button", name="Announce").click()
    expect(page.locator(".standing").filter(has_text=f"Tomorrow {MARKUP}")).to_be_visible()
    page.get_by_role("button", name="Send away: Rabi").click()
    page.get_by_role("button", name="Let in again: Rabi").click()
    expect(page.get_by_role("button", name="Let in again: Rabi")).to_have_count(0)
    expect(page.get_by_text("unban: ")).to_be_visible()
    expect(page.locator("li small").get_by_text(f"it lied {MARKUP}")).to_be_visible()
    expect(page.locator("li small").get_by_text(f"evidence/17-{peer_id(3)}.jsonl")).to_be_visible()
    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name=f"Let in again: {NAMES[3]}").click()
    expect(dialog).to_contain_text(f"It was found to cheat: it lied {MARKUP}.")
    assert barriers(page) == []
    photograph(page, "dashboard-organizer-let-in-again")
    dialog.get_by_role("button", name="Keep it away").click()
    assert OrderBook(path.parent).read().kicked_peers == {peer_id(3)}
    photograph(page, "dashboard-organizer-sent-away")
    page.get_by_role("button", name=f"Let in again: {NAMES[3]}").click()
    dialog.get_by_role("button", name="Let it in").click()
    expect(page.get_by_role("button", name=f"Let in again: {NAMES[3]}")).to_have_count(0)
    assert OrderBook(path.parent).read().kicked == ()
    page.get_by_role("button", name="Cooldown").click()
    assert barriers(page) == []
    photograph(page, "dashboard-organizer-decay")
    dialog.get_by_role("button", name="Let it fall").click()  # over how many steps is not said yet
    dialog.get_by_role("button", name="Not yet").click()
    expect(dialog).to_be_hidden()
    assert OrderBook(path.parent).read().decay is None
    page.get_by_role("button", name="Cooldown").click()
    dialog.get_by_label("Over so many global steps").fill("20")
    dialog.get_by_role("button", name="Let it fall").click()
    falling = page.get_by_text("from the next global step on, over 20 steps. Then it ends.")
    expect(falling).to_be_visible()
    expect(page.get_by_role("button", name="Cooldown")).to_be_disabled()
    decay = OrderBook(path.parent).read().decay
    assert decay is not None
    assert decay.steps == 20
    page.get_by_label("To the state of").select_option("2")
    page.get_by_label("With so many times its learning rate").fill("0.5")
    page.get_by_role("button", name="Go back", exact=True).click()
    expect(dialog).to_contain_text("takes over the state of global step 2, with 0.5 times its learning rate")
    photograph(page, "dashboard-organizer-rewind")
    dialog.get_by_role("button", name="Go on training").click()
    expect(dialog).to_be_hidden()
    assert OrderBook(path.parent).read().rewind is None
    page.get_by_role("button", name="Go back", exact=True).click()
    dialog.get_by_role("button", name="Go back there").click()
    expect(page.get_by_text("The next global step takes over the state of global step 2.")).to_be_visible()
    expect(page.get_by_role("button", name="Go back", exact=True)).to_be_disabled()
    ordered = OrderBook(path.parent).read().rewind
    assert ordered is not None
    assert (ordered.checkpoint, ordered.rate) == (2, 0.5)
    expect(falling).to_be_hidden()  # who goes back to before it takes it back
    expect(page.get_by_role("button", name="Cooldown")).to_be_enabled()
    page.get_by_role("button", name="Finish the run").click()
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Finish the run").click()
    dialog.get_by_role("button", name="Finish it").click()
    expect(page.get_by_text("It is over")).to_be_visible()
    assert barriers(page) == []
    photograph(page, "dashboard-organizer-desk")


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_real_run_is_seen_from_its_first_volunteer_on_and_is_steered(page: Page, tmp_path: Path) -> None:
    # Imported here: they import torch, which the other tests do without.
    from tests.swarm.harness import Peer
    from tests.tiny import tiny_run

    run = tiny_run(about="A network that learns to shift numbers, for all who test it")
    peer = CoordinatorConfig(
        folder=tmp_path / "coordinator", swarm_host="127.0.0.1", devices="cpu", task_module="tests.tiny"
    )
    status = page.locator("#status")
    with Coordinator(run, peer, host="127.0.0.1", port=0, on_event=lambda _: None) as coordinator, ExitStack() as stack:
        invitation = coordinator.invitation()
        (peer.folder / INVITATION_FILE).write_text(invitation.model_dump_json())
        opened(page, coordinator.dashboard)
        expect(status).to_have_text("Nobody is training", timeout=LONG_DEADLINE)
        volunteer = Peer(
            *("volunteer", "Asha", tmp_path, lambda config: volunteer_job(invitation, config), {"TINY_PAUSE": "0.1"}),
            microbatch=8,
            team="Testers",
        )
        stack.callback(volunteer.worker.kill)
        expect(status).to_have_text("Training", timeout=LONG_DEADLINE)
        expect(page.locator("#step")).to_have_text(re.compile(r"^([4-9]|[1-9][0-9]+)$"), timeout=LONG_DEADLINE)
        expect_charts(page, 1)
        photograph(page, "dashboard-real-overview")
        page.get_by_role("link", name="Swarm").click()
        row = page.get_by_role("region", name="The peers in a table").get_by_role("row").filter(has_text="Asha")
        expect(row).to_contain_text("Testers")
        expect_charts(page, 2)
        photograph(page, "dashboard-real-swarm")
        page.get_by_role("link", name="People", exact=True).click()
        page.get_by_role("region", name="Everyone in a table").get_by_role("link", name="Asha").click()
        expect(page.get_by_text("Training now", exact=True)).to_be_visible()
        photograph(page, "dashboard-real-person")
        page.goto(Keys(peer.folder).link(coordinator.dashboard.url))
        page.get_by_role("button", name="Pause").click()
        expect(status).to_have_text("Paused", timeout=LONG_DEADLINE)
        page.get_by_role("button", name="Resume").click()
        expect(status).to_have_text("Training", timeout=LONG_DEADLINE)
        photograph(page, "dashboard-real-organizer")
        volunteer.worker.kill()
        expect(status).to_have_text("Nobody is training", timeout=LONG_DEADLINE)
        page.goto("about:blank")  # it would miss the server
