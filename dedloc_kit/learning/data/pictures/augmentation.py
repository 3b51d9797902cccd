"""Multi-crop augmentation of whole batches of pictures, on whatever device they are.

After Caron et al. 2020 (SwAV, arXiv 2006.09882, section 3.2). A crop is drawn as ten numbers, on the
CPU and from a seed, and made of a picture later, where the model is: what a sample becomes is settled with the sample.

Plain torch, since no library fits: torchvision has no CPU build where the kit is tested and would pull another torch
there; kornia installs everywhere but was slower than Pillow picture by picture on a CPU (`benchmarks/images.py`). It
takes little: torch crops and resizes bytes by itself, and all changes of colour are one matrix a picture.

Two differences from those libraries, both small: colours are cut off at black and white once at the end instead of
after each change, and hues turn in the YIQ plane instead of on the HSV hexagon, which makes them a matrix.
"""

import math
from itertools import cycle
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional

from dedloc_kit.run.section import PositiveInt, Section

LEFT, TOP, WIDTH, HEIGHT, FLIP, BRIGHTNESS, CONTRAST, SATURATION, HUE, SIGMA = range(10)
"""The numbers of a crop: a box in shares of the picture, -1 for mirrored or 1, three factors, a turn of the hues
(1 is once around) and the blur's standard deviation in pixels of the crop (0: sharp)."""

_ASPECT = 4 / 3
_SIGMAS = (0.1, 2.0)
_MEAN, _SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's, by which pictures are put on a common scale."""
_LUMA = (0.299, 0.587, 0.114)
_YIQ = (_LUMA, (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))


Share = Annotated[float, Field(ge=0, le=1)]


class Crops(Section):
    """Random crops of one size."""

    count: PositiveInt
    size: Annotated[int, Field(ge=8)]
    """Pixels along each side."""
    scale: Annotated[tuple[float, float], Field(strict=False)]
    """Smallest and largest area, as shares of the picture."""

    @model_validator(mode="after")
    def _scale_is_a_range(self) -> "Crops":
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"large.scale and small.scale are two shares, the smaller one first, not {self.scale}")
        return self


class Distortion(Section):
    """How crops are distorted; the defaults are SwAV's."""

    brightness: Share = 0.8
    contrast: Share = 0.8
    saturation: Share = 0.8
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.2
    """At most so much of a turn around the circle of hues."""
    jitter: Share = 0.8
    """The share of crops that the four above change."""
    grayscale: Share = 0.2
    blur: Share = 0.5


def draw_crops(
    samples: int, crops: Crops, distortion: Distortion, generator: np.random.Generator
) -> NDArray[np.float32]:
    """The numbers of random crops of each sample, [samples, crops.count, 10].

    Their sides are 3:4 to 4:3, or nearer to a square where the crop would not fit otherwise; half are mirrored.
    """
    shape = (samples, crops.count)
    area = generator.uniform(*crops.scale, shape)
    widest = np.log(np.minimum(_ASPECT, 1 / area))
    ratio = np.exp(generator.uniform(-1, 1, shape) * widest)
    width, height = np.sqrt(area * ratio), np.sqrt(area / ratio)
    jittered = generator.random(shape) < distortion.jitter

    def around_one(range_: float) -> NDArray[np.float64]:
        return np.where(jittered, generator.uniform(max(0.0, 1 - range_), 1 + range_, shape), 1.0)

    numbers = np.empty((*shape, 10), np.float32)
    numbers[..., LEFT] = generator.random(shape) * (1 - width)
    numbers[..., TOP] = generator.random(shape) * (1 - height)
    numbers[..., WIDTH], numbers[..., HEIGHT] = width, height
    numbers[..., FLIP] = np.where(generator.random(shape) < 0.5, -1, 1)
    numbers[..., BRIGHTNESS] = around_one(distortion.brightness)
    numbers[..., CONTRAST] = around_one(distortion.contrast)
    gray = generator.random(shape) < distortion.grayscale
    numbers[..., SATURATION] = np.where(gray, 0.0, around_one(distortion.saturation))
    numbers[..., HUE] = np.where(jittered, generator.uniform(-distortion.hue, distortion.hue, shape), 0.0)
    blurred = generator.random(shape) < distortion.blur
    numbers[..., SIGMA] = np.where(blurred, generator.uniform(*_SIGMAS, shape), 0.0)
    return numbers


@torch.no_grad()
def make_crops(pictures: Tensor, numbers: Tensor, size: int) -> Tensor:
    """The crops of pictures, normalised for the model.

    :param pictures: uint8 [samples, 3, height, width]
    :param numbers: [samples, crops, 10], as `draw_crops` makes them
    :returns: float32 [crops * samples, 3, size, size]: the first crop of each sample, then the second ...
    """
    with torch.autocast(pictures.device.type, enabled=False):  # 8 bits of colour do not fit into bfloat16
        # Only a CPU resizes bytes, and it does so much faster than anything else.
        source = pictures if pictures.device.type == "cpu" else pictures.float()
        each = numbers.transpose(0, 1).flatten(0, 1)
        crops = _colour(_cut(source, each, size).float(), each)
        blurred = each[:, SIGMA] > 0
        if blurred.any():
            crops[blurred] = _blur(crops[blurred], each[blurred, SIGMA])
        return crops


@torch.no_grad()
def as_they_are(pictures: Tensor) -> Tensor:
    """Whole pictures, uint8 [samples, 3, height, width], normalised for the model in float32."""
    scale, shift = _normalisation(pictures.device)
    return pictures.float() * scale + shift


def _normalisation(device: torch.device) -> tuple[Tensor, Tensor]:
    """Factor and summand, [3, 1, 1] each, that turn colours from 0 to 255 into the model's."""
    mean, spread = (torch.tensor(values, device=device)[:, None, None] for values in (_MEAN, _SPREAD))
    return 1 / (255 * spread), -mean / spread


def _cut(pictures: Tensor, numbers: Tensor, size: int) -> Tensor:
    """Crop to whole pixels, mirror and resize (bilinear, filtered where it shrinks)."""
    height, width = pictures.shape[2:]
    boxes = numbers[:, [LEFT, TOP, WIDTH, HEIGHT]].cpu() * torch.tensor([width, height, width, height])
    flips = numbers[:, FLIP].tolist()
    crops = []
    for picture, (left, top, wide, high), flip in zip(
        cycle(pictures.split(1)), boxes.round().int().tolist(), flips, strict=False
    ):
        box = picture[:, :, top : top + max(1, high), left : left + max(1, wide)]
        crop = functional.interpolate(box, (size, size), mode="bilinear", antialias=True)
        crops.append(crop.flip(3) if flip < 0 else crop)
    return torch.cat(crops)


def _colour(crops: Tensor, numbers: Tensor) -> Tensor:
    """Brightness, contrast (around the crop's mean gray), saturation and hue: a matrix and a gray for each crop.

    The model's normalisation goes into the same matrix; black and white are then other numbers in each channel.
    """
    luma, yiq = crops.new_tensor(_LUMA), crops.new_tensor(_YIQ)
    saturation = numbers[:, SATURATION, None, None]
    matrix = saturation * torch.eye(3, device=crops.device) + (1 - saturation) * luma.expand(3, 3)
    turn = 2 * math.pi * numbers[:, HUE]
    turned = torch.eye(3, device=crops.device).repeat(len(crops), 1, 1)
    turned[:, 1, 1] = turned[:, 2, 2] = turn.cos()
    turned[:, 1, 2], turned[:, 2, 1] = -turn.sin(), turn.sin()
    brightness, contrast = numbers[:, BRIGHTNESS, None, None], numbers[:, CONTRAST, None, None]
    matrix = brightness * contrast * (yiq.inverse() @ turned @ yiq @ matrix)
    gray = brightness * (1 - contrast) * (crops.mean((2, 3)) @ luma)[:, None, None]
    scale, shift = _normalisation(crops.device)
    coloured = torch.baddbmm(gray * scale[:, 0] + shift[:, 0], scale[:, 0] * matrix, crops.flatten(2)).view(crops.shape)
    for channel, mean, spread in zip(coloured.unbind(1), _MEAN, _SPREAD, strict=True):
        channel.clamp_(-mean / spread, (1 - mean) / spread)
    return coloured


def _blur(crops: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian, cut off at three standard deviations; beyond the border the crop is mirrored."""
    samples, channels, height, width = crops.shape
    reach = min(math.ceil(3 * float(sigma.max())), height - 1, width - 1)
    distance = torch.arange(-reach, reach + 1, device=crops.device)
    weights = torch.exp(-0.5 * (distance / sigma[:, None]) ** 2)
    weights = (weights / weights.sum(1, keepdim=True)).repeat_interleave(channels, 0)[:, None, None]
    planes = crops.reshape(1, samples * channels, height, width)
    planes = functional.pad(planes, (reach, reach, reach, reach), mode="reflect")
    planes = functional.conv2d(planes, weights, groups=samples * channels)
    planes = functional.conv2d(planes, weights.transpose(2, 3), groups=samples * channels)
    return planes.view_as(crops)
