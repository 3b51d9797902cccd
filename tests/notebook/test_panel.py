"""The panel in a notebook, without a browser: what each part says, and what is sent."""

import re
from dataclasses import replace
from typing import Any

import ipywidgets
import pytest

from dedloc_kit.notebook.panel import Panel
from dedloc_kit.records.orders import Decay
from dedloc_kit.session.snapshot import Snapshot
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
        "sahajbert see the run live ↗ A language model for Bengali",
        "Computing with your machine",
        "Together 2,711 of 4,096 samples, 312 by you",
        "step 1,205 of 125,000",
        "Your samples 48,312 1,204,990 in all",
        "Time given 2 h 5 min",
        "Your share 2.3 %",
        "Your rank 3 of 17 volunteers",
        "you take part as Rabi 14 volunteers training now your machine: Tesla T4 31.4 samples/s 2.1 GB of memory",
        "sends 1.2 MB/s, receives 812 kB/s",
    ):
        assert part in words


def test_while_the_learning_rate_falls_its_steps_are_shown() -> None:
    assert "cooldown: step 5 of 50" in words_of(shown(snapshot(decay=Decay(start=1201, steps=50))))


def test_the_bar_shows_my_part_and_that_of_the_others() -> None:
    page = page_of(shown(snapshot(global_batch=200, batch_samples=150, my_batch_samples=50)))
    assert 'class="mine" style="width:25.00%"' in page
    assert 'class="others" style="width:50.00%"' in page
    assert 'aria-valuemax="200" aria-valuenow="150"' in page


def test_more_samples_than_the_batch_takes_do_not_overflow_the_bar() -> None:
    page = page_of(shown(snapshot(global_batch=200, batch_samples=260, my_batch_samples=250)))
    assert 'class="mine" style="width:100.00%"' in page
    assert 'class="others" style="width:0.00%"' in page


def test_what_is_not_known_yet_is_not_shown_as_a_number() -> None:
    nothing: dict[str, Any] = dict.fromkeys(("step", "total_steps", "global_batch", "batch_samples"), 0)
    nothing |= {"my_batch_samples": 0, "session_samples": 0, "total_samples": None, "share": None, "rank": None}
    nothing |= {"contributors": None, "seconds_given": 0.0, "samples_per_second": 0.0, "peers": 0, "losses": ()}
    nothing |= {"memory_bytes": 0, "sent_bytes_per_second": 0.0, "received_bytes_per_second": 0.0}
    nothing |= {"run_id": "", "about": "", "url": None, "name": "", "device": ""}
    words = words_of(shown(snapshot(phase="starting", text="reading the invitation", **nothing)))
    assert words.startswith("Joining Reading the invitation Your samples 0")
    assert "Your share – " in words
    assert "Your rank – known soon" in words
    assert "Together" not in words
    assert "you take part" not in words


@pytest.mark.parametrize("field", ["text", "run_id", "about", "name", "device", "announcement"])
def test_what_others_wrote_is_text_not_markup(field: str) -> None:
    panel = shown(snapshot(**{field: HOSTILE}))
    assert "<img" not in page_of(panel)
    assert "&lt;img src=x" in page_of(panel).lower()


def test_texts_of_the_end_and_of_warnings_are_escaped_too() -> None:
    thanked = page_of(shown(snapshot(phase="left", text="", name=HOSTILE)))
    failed = page_of(shown(snapshot(phase="failed", problem=HOSTILE, details=HOSTILE)))
    warned = page_of(shown(snapshot(warnings=(HOSTILE,))))
    for page, times in ((thanked, 2), (failed, 3), (warned, 1)):
        assert "<img" not in page
        assert page.count("&lt;img src=x") >= times - 1


@pytest.mark.parametrize("url", ["javascript:alert(1)", "data:text/html,x", "http://[", 'ftp://x/"', None])
def test_an_address_that_is_not_of_the_web_is_no_link(url: str | None) -> None:
    assert "<a " not in page_of(shown(snapshot(url=url)))


def test_a_link_cannot_break_out_of_its_attribute() -> None:
    page = page_of(shown(snapshot(url='https://x/"onmouseover="alert(1)')))
    assert 'href="https://x/&quot;onmouseover=&quot;alert(1)"' in page


def test_pause_turns_into_resume_and_back() -> None:
    clicks = Clicks()
    panel = Panel(clicks)
    panel.show(snapshot())
    buttons_of(panel)["Pause"].click()
    assert buttons_of(panel)["Pause"].disabled  # until it is seen to work
    panel.show(snapshot(phase="paused"))
    assert not buttons_of(panel)["Resume"].disabled
    buttons_of(panel)["Resume"].click()
    panel.show(snapshot())
    buttons_of(panel)["Leave"].click()
    assert clicks == ["pause", "resume", "leave"]


@pytest.mark.parametrize(
    ("phase", "pause", "leave"),
    [
        ("starting", False, True),
        ("loading", False, True),
        ("training", True, True),
        ("waiting", True, True),
        ("restarting", False, True),
        ("leaving", False, False),
        ("left", False, False),
        ("finished", False, False),
        ("failed", False, False),
    ],
)
def test_buttons_are_live_only_where_they_make_sense(phase: str, pause: bool, leave: bool) -> None:
    buttons = buttons_of(shown(snapshot(phase=phase)))
    assert (not buttons["Pause"].disabled, not buttons["Leave"].disabled) == (pause, leave)


def test_who_lends_a_line_sees_what_it_carried_in_place_of_samples() -> None:
    words = words_of(shown(snapshot(phase="training", carried=3_000_000_000)))
    assert "Your line carried 3.0 GB" in words
    assert "Your samples" not in words
    thanked = words_of(shown(snapshot(phase="left", carried=3_000_000_000)))
    assert "You carried 3.0 GB over your line" in thanked


def test_who_hosts_experts_sees_what_they_answered_beside_its_samples() -> None:
    words = words_of(shown(snapshot(phase="training", hosted=(12, 3), answered=45_678)))
    assert "your machine holds 12 experts of the model and copies of 3 more, which answered 45,678 tokens" in words
    assert "45,678 tokens answered for others" in words_of(
        shown(snapshot(phase="left", hosted=(12, 3), answered=45_678))
    )
    assert "experts" not in words_of(shown(snapshot(phase="training")))


def test_without_buttons_the_panel_says_how_to_leave() -> None:
    panel = shown(snapshot(), buttons=False)
    assert not buttons_of(panel)
    assert "To leave, stop this cell with its stop button" in words_of(panel)
    assert "stop button" not in words_of(shown(snapshot()))
    panel.show(snapshot(phase="left"))
    assert "stop button" not in words_of(panel)


def test_who_leaves_is_thanked_with_what_they_gave() -> None:
    panel = shown(snapshot(phase="left", text="you have left"))
    assert (
        "Thank you, Rabi ! You gave 48,312 samples in 2 h 5 min of computing. With your earlier visits that is "
        "1,204,990 samples. That is 2.3 % of all that everyone has given. To come back, run the cell again. "
        "see how the model is doing ↗"
    ) in words_of(panel)
    assert "Together" not in words_of(panel)
    with_page = shown(snapshot(phase="left", own_page="http://127.0.0.1:8000/people/QmRabi#me"))
    assert "see how the model is doing ↗ your page and certificate ↗" in words_of(with_page)
    assert "see the run live ↗ your page ↗" in words_of(with_page)
    first_time = shown(snapshot(phase="finished", total_samples=48_312))
    assert "earlier visits" not in words_of(first_time)
    assert "run the cell again" not in words_of(first_time)
    nothing = shown(snapshot(phase="left", session_samples=0))
    assert "Thank you for coming. No sample was finished this time." in words_of(nothing)


def test_a_failure_is_one_sentence_and_a_fold() -> None:
    problem = "http://x does not answer: check the address"
    panel = shown(
        snapshot(phase="failed", text="this machine cannot take part", problem=problem, details="log\nline 2")
    )
    assert f"This machine cannot take part {problem}" in words_of(panel)
    assert "<details><summary>Details for whoever helps you</summary>" in page_of(panel)
    assert "log\nline 2</pre>" in page_of(panel)
    assert "<details>" not in page_of(shown(snapshot()))
    assert "<details>" in page_of(shown(snapshot(phase="restarting", details="log")))


def test_a_failure_before_anything_was_given_shows_no_empty_figures() -> None:
    words = words_of(shown(snapshot(phase="failed", session_samples=0, losses=(), problem="no way")))
    assert "Your samples" not in words
    assert "Thank you" not in words
    assert "curve" not in words


def test_the_newest_warnings_are_shown() -> None:
    words = words_of(shown(snapshot(warnings=tuple(f"warning {number}" for number in range(5)))))
    assert "warning 1" not in words
    assert "warning 2 warning 3 warning 4" in words


def test_only_what_changed_is_sent() -> None:
    panel = shown(snapshot())
    sent: list[str] = []
    for widget in widgets_of(panel.widget):
        widget.observe(lambda change: sent.append(change["name"]))  # a widget sends what it would tell an observer
    panel.show(snapshot())
    assert sent == []
    panel.show(replace(snapshot(), batch_samples=2712))
    assert sent == ["value"]
    panel.show(replace(snapshot(), batch_samples=2712, phase="paused"))
    assert sent == ["value", "value", "description"]


def test_names_from_right_to_left_keep_the_sentence_in_order() -> None:
    assert "you take part anonymously, as <bdi>רבי</bdi>" in page_of(shown(snapshot(name="רבי", anonymous=True)))
