"""Crops against a reference that takes one pixel after the other in double precision."""

import colorsys
import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dedloc_kit.learning.tasks.features.augmentation import (
    BRIGHTNESS,
    CONTRAST,
    FLIP,
    HEIGHT,
    HUE,
    LEFT,
    SATURATION,
    SIGMA,
    TOP,
    WIDTH,
    Crops,
    Distortion,
    as_they_are,
    cut_by_products,
    cut_by_slices,
    draw_crops,
    make_crops,
    prepare_crops,
)

SWAV = Distortion()
MEAN, SPREAD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
Array = NDArray[np.float64]


def pictures(count: int = 2, size: int = 20) -> torch.Tensor:
    return torch.randint(256, (count, 3, size, size), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def numbers(**changes: float) -> torch.Tensor:
    """A crop that is the whole picture, as it is, but for the changes."""
    plain = {"LEFT": 0.0, "TOP": 0.0, "WIDTH": 1.0, "HEIGHT": 1.0, "FLIP": 1.0, "BRIGHTNESS": 1.0, "CONTRAST": 1.0,
             "SATURATION": 1.0, "HUE": 0.0, "SIGMA": 0.0}  # fmt: skip
    return torch.tensor([[list((plain | changes).values())]])


def made_of(given: torch.Tensor, drawn: torch.Tensor, size: int) -> torch.Tensor:
    return make_crops(given, prepare_crops(drawn, size), size)


def crop(picture: torch.Tensor, size: int, **changes: float) -> Array:
    """One crop of one picture, [3, size, size], in colours from 0 to 1."""
    made = made_of(picture[None], numbers(**changes), size)[0].double().numpy()
    return np.asarray(made * SPREAD[:, None, None] + MEAN[:, None, None])


def reference_crop(picture: Array, size: int, left: int, top: int, width: int, height: int) -> Array:
    """Bilinear within the box: a pixel's weight falls on a line to 0 at one (larger) pixel's distance."""
    box = picture[:, top : top + height, left : left + width]

    def weights(length: int) -> Array:
        pixel = length / size  # of the crop, in pixels of the picture
        reach = max(pixel, 1.0)
        rows = np.zeros((size, length))
        for target in range(size):
            for source in range(length):
                rows[target, source] = max(0.0, 1 - abs((target + 0.5) * pixel - (source + 0.5)) / reach)
        return np.asarray(rows / rows.sum(1, keepdims=True))

    return np.asarray(weights(height) @ box @ weights(width).T)


@pytest.mark.parametrize("box", [(0, 0, 20, 20), (4, 6, 10, 12), (12, 0, 8, 6), (19, 19, 1, 1)])
@pytest.mark.parametrize("flip", [1, -1])
def test_a_crop_is_the_box_resized_and_mirrored(box: tuple[int, int, int, int], flip: int) -> None:
    (picture,) = pictures(1)
    expected = reference_crop(picture.double().numpy() / 255, 12, *box)[:, :, ::flip]
    left, top, width, height = (number / 20 for number in box)
    found = crop(picture, 12, LEFT=left, TOP=top, WIDTH=width, HEIGHT=height, FLIP=flip)
    np.testing.assert_allclose(found, expected, atol=1.5 / 255)  # rounded to bytes twice


@pytest.mark.parametrize("size", [7, 12, 33])
def test_products_of_matrices_cut_as_slices_do(size: int) -> None:
    """As on a GPU, where bytes become numbers first: crops that shrink and grow, at borders and of a single pixel."""
    given = pictures(3).float()[:, :, :, :17].contiguous()
    scales = (0.02, 0.1), (0.2, 1.0), (1.0, 1.0)
    kinds = [Crops(count=4, size=8, scale=scale) for scale in scales]
    generator = np.random.default_rng(3)
    drawn = torch.from_numpy(np.concatenate([draw_crops(3, kind, SWAV, generator) for kind in kinds], axis=1))
    drawn[0, 0, :4] = torch.tensor([0.97, 0.97, 0.03, 0.03])
    drawn[1, 1, :4] = torch.tensor([0.61, 0.58, 0.39, 0.42])  # rounded, it ends behind the picture
    torch.testing.assert_close(
        cut_by_products(given, drawn, size), cut_by_slices(given, drawn, size), rtol=0, atol=1e-3
    )


def test_the_whole_picture_at_its_own_size_is_the_picture() -> None:
    given = pictures()
    torch.testing.assert_close(made_of(given, numbers().expand(2, 1, 10), 20), as_they_are(given), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"BRIGHTNESS": 0.4},
        {"CONTRAST": 0.3},
        {"SATURATION": 0.0},
        {"SATURATION": 0.5},
        {"BRIGHTNESS": 0.6, "CONTRAST": 0.8, "SATURATION": 0.7},
    ],
    ids=str,
)
def test_colours_change_as_one_change_after_the_other(changes: dict[str, float]) -> None:
    (picture,) = pictures(1)
    x = picture.double().numpy() / 255

    def luma(colours: Array) -> Array:
        return np.asarray(0.299 * colours[0] + 0.587 * colours[1] + 0.114 * colours[2])

    x = x * changes.get("BRIGHTNESS", 1.0)
    contrast = changes.get("CONTRAST", 1.0)
    x = contrast * x + (1 - contrast) * luma(x).mean()
    saturation = changes.get("SATURATION", 1.0)
    x = saturation * x + (1 - saturation) * luma(x)
    np.testing.assert_allclose(crop(picture, 20, **changes), x, atol=1e-4)


def test_hues_turn_around_the_circle_and_grays_do_not() -> None:
    colours = np.array([[0.6, 0.4, 0.4], [0.4, 0.6, 0.45], [0.45, 0.4, 0.6], [0.5, 0.5, 0.5]])
    picture = torch.from_numpy((colours.T[:, :, None] * 255).round().astype(np.uint8)).expand(3, 4, 4)
    for turn in (-0.2, 0.1):
        found = crop(picture.contiguous(), 4, HUE=turn)[:, :, 0].T
        np.testing.assert_allclose(found[3], colours[3], atol=0.01)
        for before, after in zip(colours[:3], found[:3], strict=True):
            moved = colorsys.rgb_to_hsv(*after)[0] - colorsys.rgb_to_hsv(*before)[0]
            assert abs((abs(moved) + 0.5) % 1 - 0.5) == pytest.approx(abs(turn), abs=0.05), "YIQ is not HSV, but near"
    np.testing.assert_allclose(crop(picture.contiguous(), 4, HUE=1.0), crop(picture.contiguous(), 4), atol=1e-4)


def test_colours_stay_between_black_and_white() -> None:
    found = crop(pictures(1)[0], 20, BRIGHTNESS=1.8, CONTRAST=1.8, SATURATION=1.8)
    assert found.min() > -1e-6
    assert found.max() < 1 + 1e-6


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.0])
def test_a_blur_spreads_a_point_as_a_gaussian(sigma: float) -> None:
    picture = torch.zeros(3, 31, 31, dtype=torch.uint8)
    picture[:, 15, 15] = 255
    found = crop(picture, 31, SIGMA=sigma)[0]
    reach = math.ceil(3 * sigma)
    row = np.exp(-0.5 * ((np.arange(31) - 15) / sigma) ** 2) * (abs(np.arange(31) - 15) <= reach)
    row /= row.sum()
    np.testing.assert_allclose(found, row[:, None] * row[None, :], atol=1e-4)


def test_each_sample_and_each_crop_is_distorted_by_its_own_numbers() -> None:
    given = pictures(3)
    drawn = torch.from_numpy(draw_crops(3, Crops(count=2, size=8, scale=(0.3, 1.0)), SWAV, np.random.default_rng(1)))
    together = made_of(given, drawn, 8)
    assert together.shape == (6, 3, 8, 8)
    for sample in range(3):
        for number in range(2):
            alone = made_of(given[sample : sample + 1], drawn[sample : sample + 1, number : number + 1], 8)
            torch.testing.assert_close(together[3 * number + sample], alone[0], atol=1e-4, rtol=1e-3)


def test_boxes_lie_within_the_picture_and_have_the_areas_and_shapes_that_were_asked_for() -> None:
    for scale in ((0.05, 0.14), (0.14, 1.0), (1.0, 1.0)):
        drawn = draw_crops(2000, Crops(count=2, size=8, scale=scale), SWAV, np.random.default_rng(0))
        left, top, width, height = drawn[..., LEFT], drawn[..., TOP], drawn[..., WIDTH], drawn[..., HEIGHT]
        assert min(left.min(), top.min()) >= 0
        assert max((left + width).max(), (top + height).max()) <= 1 + 1e-6
        area = width * height
        assert scale[0] - 1e-6 <= area.min() <= area.max() <= scale[1] + 1e-6
        assert area.mean() == pytest.approx(sum(scale) / 2, rel=0.05)
        assert 3 / 4 - 1e-6 <= (width / height).min() <= (width / height).max() <= 4 / 3 + 1e-6


def test_so_many_crops_are_distorted_as_was_asked_for() -> None:
    drawn = draw_crops(5000, Crops(count=2, size=8, scale=(0.14, 1.0)), SWAV, np.random.default_rng(0))
    shares = {
        "flipped": (drawn[..., FLIP] == -1).mean(),
        "jittered": (drawn[..., BRIGHTNESS] != 1).mean(),
        "gray": (drawn[..., SATURATION] == 0).mean(),
        "blurred": (drawn[..., SIGMA] > 0).mean(),
    }
    assert shares == pytest.approx({"flipped": 0.5, "jittered": 0.8, "gray": 0.2, "blurred": 0.5}, abs=0.02)
    assert abs(drawn[..., HUE]).max() == pytest.approx(0.2, abs=0.01)
    assert drawn[..., CONTRAST].min() == pytest.approx(0.2, abs=0.01)
    assert drawn[..., SIGMA].max() == pytest.approx(2.0, abs=0.01)
