"""The loss as a picture in the panel."""

import math
from xml.etree import ElementTree

import pytest

from dedloc_kit.notebook.chart import loss_chart
from dedloc_kit.session.snapshot import LossPoint


def lines(svg: str, whose: str) -> list[list[tuple[float, float]]]:
    """The points of the lines of this class."""
    found = []
    for line in ElementTree.fromstring(svg).iter("polyline"):
        if line.get("class") == whose:
            pairs = [point.split(",") for point in (line.get("points") or "").split()]
            found.append([(float(x), float(y)) for x, y in pairs])
    return found


def summary(svg: str) -> str:
    root = ElementTree.fromstring(svg)
    title = root.findtext("title") or ""
    assert root.get("role") == "img"
    assert root.get("aria-label") == title
    return title


def test_a_falling_loss_goes_down_from_left_to_right() -> None:
    (points,) = lines(loss_chart([LossPoint(10, 4.0, 0), LossPoint(11, 3.0, 0), LossPoint(13, 2.0, 0)]), "others")
    (left, top), (middle, between), (right, bottom) = points
    assert top < between < bottom
    assert right - middle == pytest.approx(2 * (middle - left), abs=0.2)


def test_only_the_stretches_with_samples_of_mine_are_in_my_colour() -> None:
    mine = (0, 0, 5, 7, 0, 0, 3, 0)
    svg = loss_chart([LossPoint(step, 5.0 - step / 10, mine[step]) for step in range(8)])
    (whole,) = lines(svg, "others")
    assert [line[:-1] for line in lines(svg, "mine")] == [whole[1:4], whole[5:7]]
    assert summary(svg).endswith("3 of the 8 steps shown hold samples of mine.")


def test_one_step_is_a_dot_in_the_colour_of_whose_it_is() -> None:
    for mine, whose in ((12, "mine"), (0, "others")):
        svg = loss_chart([LossPoint(4, 2.5, mine)])
        (dot,) = ElementTree.fromstring(svg).iter("circle")
        assert dot.get("class") == whose
        assert summary(svg).startswith("The loss of the model was 2.5 at step 4;")


def test_the_chart_is_told_in_words_too() -> None:
    svg = loss_chart([LossPoint(1, 9.25, 0), LossPoint(1200, 7.5, 8)])
    assert summary(svg).startswith("The loss of the model went from 9.25 at step 1 to 7.5 at step 1,200;")


def test_without_any_loss_it_says_what_is_to_come() -> None:
    for losses in ((), (LossPoint(1, math.nan, 3),)):
        svg = loss_chart(losses)
        assert summary(svg) == "The loss of the model: no step has been taken yet."
        assert "The curve begins after the next shared step" in svg


def test_a_point_that_is_no_number_is_left_out() -> None:
    assert loss_chart([LossPoint(1, 3.0, 0), LossPoint(2, math.inf, 0)]) == loss_chart([LossPoint(1, 3.0, 0)])
