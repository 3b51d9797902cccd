"""The picture of the losses."""

from xml.etree import ElementTree

import pytest

from dedloc_kit.display.curve import MAX_POINTS, curve

SVG = "{http://www.w3.org/2000/svg}"


def points(losses: list[float]) -> list[tuple[int, float]]:
    return list(enumerate(losses, start=1))


def lines(svg: str) -> list[list[tuple[float, float]]]:
    found = []
    for line in ElementTree.fromstring(svg).iter(f"{SVG}polyline"):
        pairs = [point.split(",") for point in (line.get("points") or "").split()]
        found.append([(float(x), float(y)) for x, y in pairs])
    return found


def test_both_losses_are_drawn_where_they_belong() -> None:
    training, held_out = lines(curve([(1, 4.0), (3, 2.0), (4, 1.0)], [(0, 4.0), (4, 2.0)]))
    assert (len(training), len(held_out)) == (3, 2)
    assert training[-1][0] == held_out[-1][0], "the same step is at the same place"
    assert training[1][1] == held_out[1][1], "and so is the same loss"
    assert training[0][1] < training[1][1] < training[2][1], "downwards in the picture is downwards in loss"


def test_the_axis_has_round_numbers_around_the_losses() -> None:
    texts = [text.text for text in ElementTree.fromstring(curve(points([6.63, 9.02]), [])).iter(f"{SVG}text")]
    assert texts[:4] == ["6", "7", "8", "9"]
    assert "10" in texts


@pytest.mark.parametrize("losses", [[], [2.0], [0.0, 0.0], [1e9, -1e9], [3.0, 3.0 + 1e-12]])
def test_any_losses_make_a_picture(losses: list[float]) -> None:
    svg = curve(points(losses), [])
    assert "nan" not in svg
    for line in lines(svg):
        assert all(0 <= x <= 720 and 0 <= y <= 320 for x, y in line)


def test_a_long_run_is_thinned_and_ends_at_its_newest_step() -> None:
    long, short = (
        lines(curve(points([1.0 + 1 / n for n in range(1, 10_001)]), []))[0],
        lines(curve(points([1.0]), []))[0],
    )
    assert len(long) <= MAX_POINTS
    assert long[-1][0] == short[-1][0]
