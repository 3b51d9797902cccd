"""The panel in a notebook, without a browser: what each part says, and what is sent."""

import re
from typing import Any

import ipywidgets
import pytest

from dedloc_kit.notebook.panel import Panel
from dedloc_kit.session.snapshot import CANNOT, Phase, Progress, Snapshot
from tests.notebook.snapshots import snapshot

HOSTILE = '<img src=x onerror="alert(1)">&\'</bdi></div>'


class Clicks(list[str]):
    """Controls that keep what they were asked for."""

    def pause(self) -> None:
        self.append("pause")

    def resume(self) -> None:
        self.append("resume")

    def leave(self) -> None:
        self.append("leave")


def widgets_of(widget: Any) -> list[Any]:
    return [widget, *(inner for child in getattr(widget, "children", ()) for inner in widgets_of(child))]


def page_of(panel: Any) -> str:
    """All that the panel shows, as HTML, but its style."""
    texts = [widget.value for widget in widgets_of(panel.widget) if isinstance(widget, ipywidgets.HTML)]
    return "\n".join(text for text in texts if not text.startswith("<style>"))


def words_of(panel: Any) -> str:
    """Spaces that do not break become plain ones."""
    return " ".join(re.sub(r"<[^>]+>", " ", page_of(panel)).split())


def shown(now: Snapshot, buttons: bool = True) -> Panel:
    panel = Panel(Clicks() if buttons else None)
    panel.show(now)
    return panel


def buttons_of(panel: Any) -> dict[str, Any]:
    return {widget.description: widget for widget in widgets_of(panel.widget) if isinstance(widget, ipywidgets.Button)}


def test_a_volunteer_sees_the_run_the_batch_and_what_they_gave() -> None:
    words = words_of(shown(snapshot()))
    for part in (
        "sahajbert live page ↗ your page ↗ A language model for Bengali",
        "Training: your machine computes samples",
        "Step 1,205 of 125,000: 2,711 of 4,096 samples, 312 by you about 1 min left",
        "Newest step : Your machine computed 340 of the 4,096 samples of step 1,204: 8.3 % of what",
        "Given 48,312 samples in 2 h 5 min",
        "Rank 3 of 17 volunteers",
        "Machine Tesla T4, 31.4 samples/s",
        "Loss 7.1: lower is better",
    ):
        assert part in words


def test_the_bar_shows_my_part_and_that_of_the_others() -> None:
    page = page_of(shown(snapshot(progress=Progress("", 0.75, 0.25))))
    assert 'class="mine" style="width:25.00%"' in page
    assert 'class="others" style="width:50.00%"' in page
    assert 'aria-valuemax="100" aria-valuenow="75"' in page


def test_a_bar_of_what_this_machine_does_alone_is_its_own_and_none_overflows() -> None:
    assert 'class="mine" style="width:40.00%"' in page_of(shown(snapshot(progress=Progress("", 0.4))))
    page = page_of(shown(snapshot(progress=Progress("", 1.5, 1.25))))
    assert 'class="mine" style="width:100.00%"' in page
    assert 'class="others" style="width:0.00%"' in page


def test_a_bar_whose_end_nobody_knows_moves_and_is_sent_once() -> None:
    panel = shown(snapshot(progress=Progress("12 s so far")))
    assert 'class="moving"' in page_of(panel)
    assert "valuenow" not in page_of(panel)
    assert "12 s so far" in words_of(panel)
    assert sent_by(panel, snapshot(progress=Progress("13 s so far"))) == ["value"], "its text alone"


def test_what_is_not_known_yet_is_not_shown() -> None:
    words = words_of(shown(Snapshot(Phase.STARTING, "Reading the invitation; then this machine is checked.")))
    assert words == "Joining Reading the invitation; then this machine is checked."


@pytest.mark.parametrize("field", ["text", "title", "about", "details"])
def test_what_others_wrote_is_text_not_markup(field: str) -> None:
    page = page_of(shown(snapshot(**{field: HOSTILE})))
    assert "<img" not in page
    assert "&lt;img src=x" in page


@pytest.mark.parametrize("field", ["facts", "notes", "links"])
@pytest.mark.parametrize("at", [0, 1])
def test_labels_and_values_are_text_too(field: str, at: int) -> None:
    hostile = (HOSTILE, "http://h/") if at == 0 else ("label", f"http://h/{HOSTILE}")
    assert "<img" not in page_of(shown(snapshot(**{field: (hostile,)})))


def test_so_are_failures_bars_and_warnings() -> None:
    for hostile in (
        snapshot(phase=Phase.FAILED, text=HOSTILE),
        snapshot(progress=Progress(HOSTILE)),
        snapshot(progress=Progress(HOSTILE, 0.5)),
        snapshot(warnings=(HOSTILE,)),
    ):
        page = page_of(shown(hostile))
        assert "<img" not in page
        assert "&lt;img src=x" in page


@pytest.mark.parametrize("url", ["javascript:alert(1)", "data:text/html,x", "http://[", 'ftp://x/"', ""])
def test_an_address_that_is_not_of_the_web_is_no_link(url: str) -> None:
    assert "<a " not in page_of(shown(snapshot(links=(("live page", url),))))


def test_a_link_cannot_break_out_of_its_attribute() -> None:
    page = page_of(shown(snapshot(links=(("page", 'https://x/"onmouseover="alert(1)'),))))
    assert 'href="https://x/&quot;onmouseover=&quot;alert(1)"' in page


def test_pause_turns_into_resume_and_back() -> None:
    clicks = Clicks()
    panel = Panel(clicks)
    panel.show(snapshot())
    buttons_of(panel)["Pause"].click()
    assert buttons_of(panel)["Pause"].disabled  # until it is seen to work
    panel.show(snapshot(phase=Phase.PAUSED))
    assert not buttons_of(panel)["Resume"].disabled
    buttons_of(panel)["Resume"].click()
    panel.show(snapshot())
    buttons_of(panel)["Leave"].click()
    assert clicks == ["pause", "resume", "leave"]


@pytest.mark.parametrize(
    ("phase", "pause", "leave"),
    [
        (Phase.STARTING, False, True),
        (Phase.WORKING, True, True),
        (Phase.WAITING, True, True),
        (Phase.RESTARTING, False, True),
        (Phase.LEAVING, False, False),
        (Phase.LEFT, False, False),
        (Phase.FINISHED, False, False),
        (Phase.FAILED, False, False),
    ],
)
def test_buttons_are_live_only_where_they_make_sense(phase: Phase, pause: bool, leave: bool) -> None:
    buttons = buttons_of(shown(snapshot(phase=phase)))
    assert (not buttons["Pause"].disabled, not buttons["Leave"].disabled) == (pause, leave)


def test_without_buttons_the_panel_says_how_to_leave() -> None:
    panel = shown(snapshot(), buttons=False)
    assert not buttons_of(panel)
    assert "To leave, stop this cell with its stop button" in words_of(panel)
    assert "stop button" not in words_of(shown(snapshot()))
    panel.show(snapshot(phase=Phase.LEFT))
    assert "stop button" not in words_of(panel)


def test_a_failure_is_one_sentence_and_a_fold() -> None:
    problem = "http://x does not answer: check the address"
    panel = shown(Snapshot(Phase.FAILED, problem, details="log\nline 2"))
    assert words_of(panel) == f"Joining {CANNOT} {problem} Details for support log line 2"
    assert "<details><summary>Details for support</summary>" in page_of(panel)
    assert "log\nline 2</pre>" in page_of(panel)
    assert "<details>" not in page_of(shown(snapshot()))


def test_only_what_changed_is_sent() -> None:
    panel = shown(snapshot())
    assert sent_by(panel, snapshot()) == []
    assert sent_by(panel, snapshot(text="Waiting.")) == ["value"]
    assert sent_by(panel, snapshot(text="Waiting.", phase=Phase.PAUSED)) == ["value", "description"]


def sent_by(panel: Panel, now: Snapshot) -> list[str]:
    sent: list[str] = []
    for widget in widgets_of(panel.widget):
        widget.unobserve_all()
        widget.observe(lambda change: sent.append(change["name"]))  # a widget sends what it would tell an observer
    panel.show(now)
    return sent


def test_names_from_right_to_left_keep_the_sentence_in_order() -> None:
    page = page_of(shown(snapshot(facts=(("you", "רבי"),), notes=(("Thank you, רבי", "You gave much."),))))
    assert "<bdi>רבי</bdi>" in page
    assert "<bdi>Thank you, רבי</bdi>:" in page
