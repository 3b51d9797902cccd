"""Where everything stands, against plain loops over the places."""

import math
from typing import Any

import pytest
import torch

from dedloc_kit.learning.tasks.drawing.places import KINDS, Places, mask, rotation, shifted, shifted_code, turned

PLACES = Places(caption=3, side=4)
CPU = torch.device("cpu")


def place_of(number: int) -> tuple[int, int] | None:
    """Row and column of a code; none for a token."""
    code = number - PLACES.caption
    return None if code < 0 else divmod(code, PLACES.side)


def sees(attention: str, own: int, other: int) -> bool:
    if other > own:
        return False
    mine, theirs = place_of(own), place_of(other)
    if mine is None or theirs is None:
        return True
    match attention:
        case "row":
            return mine[0] == theirs[0]
        case "column":
            return mine[1] == theirs[1]
        case "convolution":
            return mine[0] - theirs[0] <= 1 and abs(mine[1] - theirs[1]) <= 1
    return True


@pytest.mark.parametrize("attention", KINDS)
def test_a_place_looks_at_the_caption_and_at_its_part_of_the_picture_before_it(attention: Any) -> None:
    found = mask(PLACES, attention, 3, CPU)
    assert PLACES.inputs == 3 + 16 - 1
    numbers = range(PLACES.inputs)
    assert found.tolist() == [[sees(attention, own, other) for other in numbers] for own in numbers]


def test_half_of_the_channels_come_from_the_token_before_and_from_the_codes_above_and_to_the_left() -> None:
    channels = torch.arange(1.0, 1 + 2 * PLACES.inputs * 8).reshape(2, PLACES.inputs, 8)
    expected = channels.clone()
    for number in range(PLACES.inputs):
        at = place_of(number)
        if at is None:
            sources = [(slice(0, 4), number - 1 if number else None)]
        else:
            above = number - PLACES.side if at[0] else None
            left = number - 1 if at[1] else None
            sources = [(slice(0, 2), above), (slice(2, 4), left)]
        for part, source in sources:
            expected[:, number, part] = 0 if source is None else channels[:, source, part]
    assert torch.equal(shifted(channels, PLACES), expected)
    for count in (PLACES.caption, PLACES.caption + 1, PLACES.caption + 6):
        assert torch.equal(shifted(channels[:, :count], PLACES), expected[:, :count])

    row = torch.full((2, PLACES.side, 4), torch.nan)
    for number in range(PLACES.caption, PLACES.inputs):
        alone = shifted_code(channels[:, number, None], number - PLACES.caption, row)
        assert torch.equal(alone[:, 0], expected[:, number])


def test_channels_turn_by_the_place_in_the_text_by_the_row_and_by_the_column() -> None:
    width, pairs = 14, 2
    cosines, sines = rotation(PLACES, width, CPU)
    heads = torch.randn(PLACES.inputs, width, generator=torch.Generator().manual_seed(0))
    expected = heads.clone()
    for number in range(PLACES.inputs):
        at = place_of(number)
        stands = (float(number), -40.0, -40.0) if at is None else (8192.0, float(at[0]), float(at[1]))
        for part, place in enumerate(stands):
            for pair in range(pairs):
                share = pair / pairs
                speed = 10_000.0**-share if part == 0 else math.pi / 4 * 2.0**share
                one = part * pairs + pair
                other = one + 3 * pairs
                angle = place * speed
                a, b = heads[number, one].item(), heads[number, other].item()
                expected[number, one] = a * math.cos(angle) - b * math.sin(angle)
                expected[number, other] = a * math.sin(angle) + b * math.cos(angle)
    torch.testing.assert_close(turned(heads, (cosines, sines)), expected, atol=1e-3, rtol=0)


def test_how_well_two_codes_match_goes_by_how_far_apart_they_are_alone() -> None:
    angles = rotation(PLACES, 24, CPU)
    one, other = torch.randn(2, 24, generator=torch.Generator().manual_seed(1))
    queries, keys = (turned(each.expand(PLACES.inputs, -1), angles) for each in (one, other))
    scores = queries @ keys.T

    def score(a: tuple[int, int], b: tuple[int, int]) -> float:
        numbers = [PLACES.caption + row * PLACES.side + column for row, column in (a, b)]
        return scores[numbers[0], numbers[1]].item()

    assert score((1, 1), (0, 2)) == pytest.approx(score((2, 0), (1, 1)), abs=1e-3)
    assert score((1, 1), (0, 2)) != pytest.approx(score((1, 1), (0, 1)), abs=1e-2)
    assert score((1, 1), (1, 2)) != pytest.approx(score((1, 1), (2, 1)), abs=1e-2)
