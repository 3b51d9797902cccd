"""The picture of the losses."""

from xml.etree import ElementTree

import pytest

from dedloc_kit.curve import MOST_POINTS, curve
from dedloc_kit.ledger import EvaluationPoint
from dedloc_kit.records import GlobalStep

SVG = "{http://www.w3.org/2000/svg}"


def steps(losses: list[float | None]) -> list[GlobalStep]:
    return [
        GlobalStep(step=n, round="ab", time=0.0, samples=1, loss=loss, peers=2, seconds=0.0)
        for n, loss in enumerate(losses, start=1)
    ]


def lines(svg: str) -> list[list[tuple[float, float]]]:
    found = []
    for line in ElementTree.fromstring(svg).iter(f"{SVG}polyline"):
        pairs = [point.split(",") for point in (line.get("points") or "").split()]
        found.append([(float(x), float(y)) for x, y in pairs])
    return found


def test_both_losses_are_drawn_where_they_belong() -> None:
    points = [EvaluationPoint(0, 4.0, 0.0, {}), EvaluationPoint(4, 2.0, 0.0, {})]
    training, held_out = lines(curve(steps([4.0, None, 2.0, 1.0]), points))
    assert len(training) == 3, "a step without a loss is left out"
    assert len(held_out) == 2
    assert training[-1][0] == held_out[-1][0], "the same step is at the same place"
    assert training[1][1] == held_out[1][1], "and so is the same loss"
    assert training[0][1] < training[1][1] < training[2][1], "downwards in the picture is downwards in loss"


def test_the_axis_has_round_numbers_around_the_losses() -> None:
    texts = [text.text for text in ElementTree.fromstring(curve(steps([6.63, 9.02]), [])).iter(f"{SVG}text")]
    assert texts[:4] == ["6", "7", "8", "9"]
    assert "10" in texts


@pytest.mark.parametrize("losses", [[], [None], [2.0], [0.0, 0.0], [1e9, -1e9], [3.0, 3.0 + 1e-12]])
def test_any_losses_make_a_picture(losses: list[float | None]) -> None:
    svg = curve(steps(losses), [])
    assert "nan" not in svg
    for line in lines(svg):
        assert all(0 <= x <= 720 and 0 <= y <= 320 for x, y in line)


def test_a_long_run_is_thinned_and_ends_at_its_newest_step() -> None:
    long, short = lines(curve(steps([1.0 + 1 / n for n in range(1, 10_001)]), []))[0], lines(curve(steps([1.0]), []))[0]
    assert len(long) <= MOST_POINTS
    assert long[-1][0] == short[-1][0]
