"""How many augmented crops does one core make, beside the usual way, picture by picture?

Both begin with decoded pictures and end with normalised tensors of all crops, SwAV's augmentations in between. They
take turns on one core, and the seconds are the processor's, so that other work on the machine hits none of them.

- *ours*: whole batches in torch (`dedloc_kit.learning.tasks.features.augmentation`);
- *Pillow*: what torchvision's transforms do to a Pillow picture, one call after the other: `resize` with a box,
  `transpose`, `ImageEnhance` for brightness, contrast and colour, hue in HSV, `convert("L")`, `GaussianBlur`;
- *kornia*: the same augmentations of batches from that library, where it is installed.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter
from torch import Tensor

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
    draw_crops,
    make_crops,
    prepare_crops,
)
from dedloc_kit.learning.tasks.swav import SwavOptions

_ROW = "{:28}{:>10}{:>16}{:>18}{:>10}"
_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
_SPREAD = np.array([0.229, 0.224, 0.225], np.float32)

SETTINGS = {
    "384 px: 2x224 + 6x96": SwavOptions(),
    "32 px: 2x32 + 4x16, sharp": SwavOptions.model_validate(
        {
            "image_size": 32,
            "global_crops": {"count": 2, "size": 32, "scale": (0.2, 1.0)},
            "local_crops": {"count": 4, "size": 16, "scale": (0.08, 0.4)},
            "augmentation": {"blur_probability": 0.0},
        }
    ),
}


def main() -> int:
    options = _parse()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    print(_ROW.format("", "way", "crops/s and core", "(each)", "ratio"))
    found: dict[str, dict[str, list[float]]] = {}
    for name, setting in SETTINGS.items():
        ways = _ways(setting, options.microbatch)
        rates: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(options.repeats):
            for way, make in ways.items():
                rates[way].append(_rate(make, options.seconds))
        usual = statistics.median(rates["Pillow"])
        for way, each in rates.items():
            median = statistics.median(each)
            row = f"{median:.0f}", f"{min(each):.0f}..{max(each):.0f}", f"{median / usual:.2f} x"
            print(_ROW.format(name, way, *row), flush=True)
        found[name] = rates
    if options.json:
        ratios = {
            name: statistics.median(rates["ours"]) / statistics.median(rates["Pillow"]) for name, rates in found.items()
        }
        options.json.write_text(json.dumps({"ratio": min(ratios.values()), "ratios": ratios, "rates": found}) + "\n")
    return 0


def _ways(setting: SwavOptions, microbatch: int) -> dict[str, Callable[[], list[Tensor]]]:
    """Each makes all crops of one microbatch, drawn anew every time."""
    generator = np.random.default_rng(0)
    size = setting.image_size
    pixels = generator.integers(0, 256, (microbatch, size, size, 3), np.uint8)
    pictures, as_pillow = torch.from_numpy(pixels).permute(0, 3, 1, 2), [Image.fromarray(each) for each in pixels]
    kinds = [kind for kind in (setting.global_crops, setting.local_crops) if kind is not None]

    def draw(kind: Crops) -> Any:
        return draw_crops(microbatch, kind, setting.augmentation, generator)

    def ours() -> list[Tensor]:
        return [
            make_crops(pictures, prepare_crops(torch.from_numpy(draw(kind)), kind.size), kind.size) for kind in kinds
        ]

    def pillow() -> list[Tensor]:
        return [
            torch.stack(
                [
                    _crop(one, each, kind.size)
                    for one, crops in zip(as_pillow, draw(kind), strict=True)
                    for each in crops
                ]
            )
            for kind in kinds
        ]

    ways = {"Pillow": pillow, "ours": ours}
    if find_spec("kornia"):
        ways["kornia"] = _kornia(pictures, setting, kinds)
    return ways


def _crop(picture: Image.Image, numbers: Any, size: int) -> Tensor:
    side = picture.width
    left, top = numbers[LEFT] * side, numbers[TOP] * side
    box = (left, top, min(side, left + numbers[WIDTH] * side), min(side, top + numbers[HEIGHT] * side))
    picture = picture.resize((size, size), Image.Resampling.BILINEAR, box=box)
    if numbers[FLIP] < 0:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if numbers[BRIGHTNESS] != 1:
        picture = ImageEnhance.Brightness(picture).enhance(numbers[BRIGHTNESS])
        picture = ImageEnhance.Contrast(picture).enhance(numbers[CONTRAST])
        if numbers[SATURATION]:
            picture = ImageEnhance.Color(picture).enhance(numbers[SATURATION])
        hue, saturation, value = picture.convert("HSV").split()
        turned = np.asarray(hue) + np.uint8(int(numbers[HUE] * 255) % 256)
        picture = Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert("RGB")
    if not numbers[SATURATION]:
        picture = picture.convert("L").convert("RGB")
    if numbers[SIGMA]:
        picture = picture.filter(ImageFilter.GaussianBlur(float(numbers[SIGMA])))
    values = (np.asarray(picture, np.float32) / 255 - _MEAN) / _SPREAD
    return torch.from_numpy(values).permute(2, 0, 1)


def _kornia(pictures: Tensor, setting: SwavOptions, kinds: list[Crops]) -> Callable[[], list[Tensor]]:
    import kornia.augmentation as K

    d = setting.augmentation
    chains = []
    for kind in kinds:
        blur = [K.RandomGaussianBlur((13, 13), (0.1, 2.0), p=d.blur_probability)] if d.blur_probability else []
        chain = torch.nn.Sequential(
            K.RandomResizedCrop((kind.size, kind.size), scale=kind.scale),
            K.RandomHorizontalFlip(),
            K.ColorJitter(d.brightness, d.contrast, d.saturation, d.hue, p=d.jitter_probability),
            K.RandomGrayscale(p=d.grayscale_probability),
            *blur,
            K.Normalize(torch.from_numpy(_MEAN), torch.from_numpy(_SPREAD)),
        )
        chains.append((kind.count, chain))
    return lambda: [chain(pictures.float() / 255) for count, chain in chains for _ in range(count)]


def _rate(make: Callable[[], list[Tensor]], seconds: float) -> float:
    make()
    crops, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        crops += sum(map(len, make()))
    return crops / (time.process_time() - began)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--microbatch", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=2.0, help="of the processor, for each row and turn")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
