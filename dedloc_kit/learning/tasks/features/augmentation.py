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
from functools import lru_cache
from itertools import cycle
from typing import Annotated, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional

from dedloc_kit.config.section import PIXELS, PositiveInt, Section

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
    """Random crops of one size, as tables `[task.global_crops]` and `[task.local_crops]`."""

    count: PositiveInt
    """The number of crops of each picture."""
    size: Annotated[int, Field(ge=8), PIXELS]
    """Height and width of a crop."""
    scale: Annotated[tuple[float, float], Field(strict=False)]
    """The smallest and the largest area of a crop before it is resized, as shares of the picture."""

    @model_validator(mode="after")
    def _scale_is_a_range(self) -> "Crops":
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(
                f"global_crops.scale and local_crops.scale are two shares, the smaller first, not {self.scale}"
            )
        return self


class Distortion(Section):
    """How crops are distorted; the defaults are SwAV's."""

    brightness: Share = 0.8
    """Strength of the brightness jitter."""
    contrast: Share = 0.8
    """Strength of the contrast jitter."""
    saturation: Share = 0.8
    """Strength of the saturation jitter."""
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.2
    """Strength of the hue jitter, in turns of the colour circle."""
    jitter_probability: Share = 0.8
    """The share of crops whose colours are jittered."""
    grayscale_probability: Share = 0.2
    """The share of crops that become gray."""
    blur_probability: Share = 0.5
    """The share of crops that are blurred."""


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
    jittered = generator.random(shape) < distortion.jitter_probability

    def around_one(range_: float) -> NDArray[np.float64]:
        return np.where(jittered, generator.uniform(max(0.0, 1 - range_), 1 + range_, shape), 1.0)

    numbers = np.empty((*shape, 10), np.float32)
    numbers[..., LEFT] = generator.random(shape) * (1 - width)
    numbers[..., TOP] = generator.random(shape) * (1 - height)
    numbers[..., WIDTH], numbers[..., HEIGHT] = width, height
    numbers[..., FLIP] = np.where(generator.random(shape) < 0.5, -1, 1)
    numbers[..., BRIGHTNESS] = around_one(distortion.brightness)
    numbers[..., CONTRAST] = around_one(distortion.contrast)
    gray = generator.random(shape) < distortion.grayscale_probability
    numbers[..., SATURATION] = np.where(gray, 0.0, around_one(distortion.saturation))
    numbers[..., HUE] = np.where(jittered, generator.uniform(-distortion.hue, distortion.hue, shape), 0.0)
    blurred = generator.random(shape) < distortion.blur_probability
    numbers[..., SIGMA] = np.where(blurred, generator.uniform(*_SIGMAS, shape), 0.0)
    return numbers


class Crop(NamedTuple):
    """What the crops of one size are made from, for pictures [samples, 3, height, width]."""

    numbers: Tensor
    """[samples, crops, 10], as `draw_crops` makes them."""
    blurred: Tensor
    """Int64, the crops that are blurred; they count as `make_crops` returns them."""
    kernels: Tensor
    """Float32 [blurred, taps], how each of these is blurred along a row, and along a column."""


def prepare_crops(numbers: Tensor, size: int) -> Crop:
    """On the CPU: which crops are blurred, and how. A GPU would have to be waited for to tell.

    The blur is Gaussian, cut off at three standard deviations, the largest one's of all.
    """
    sigma = numbers[:, :, SIGMA].T.flatten()
    blurred = sigma.nonzero()[:, 0]
    reach = min(math.ceil(3 * float(sigma.max())), size - 1)
    distance = torch.arange(-reach, reach + 1)
    kernels = torch.exp(-0.5 * (distance / sigma[blurred, None]) ** 2)
    return Crop(numbers, blurred, kernels / kernels.sum(1, keepdim=True))


@torch.no_grad()
def make_crops(pictures: Tensor, crop: Crop, size: int) -> Tensor:
    """The crops of pictures, normalised for the model.

    :param pictures: uint8 [samples, 3, height, width]
    :param crop: as `prepare_crops` makes it, on the device of the pictures
    :returns: float32 [crops * samples, 3, size, size]: the first crop of each sample, then the second ...
    """
    with torch.autocast(pictures.device.type, enabled=False):  # 8 bits of colour do not fit into bfloat16
        # Only a CPU resizes bytes, and it does so much faster than anything else.
        cut = cut_by_slices if pictures.device.type == "cpu" else cut_by_products
        crops = _colour(cut(pictures, crop.numbers, size).float(), crop.numbers.transpose(0, 1).flatten(0, 1))
        if len(crop.blurred):
            crops.index_copy_(0, crop.blurred, _blur(crops.index_select(0, crop.blurred), crop.kernels))
        return crops


@torch.no_grad()
def as_they_are(pictures: Tensor) -> Tensor:
    """Whole pictures, uint8 [samples, 3, height, width], normalised for the model in float32."""
    constants = _constants(pictures.device)
    return pictures.float() * constants.scale + constants.shift


class _Constants(NamedTuple):
    """On one device."""

    scale: Tensor
    shift: Tensor
    """Factor and summand, [3, 1, 1] each, that turn colours from 0 to 255 into the model's."""
    luma: Tensor
    yiq: Tensor
    rgb: Tensor
    """The inverse of `yiq`."""


@lru_cache
@torch.inference_mode(False)
def _constants(device: torch.device) -> _Constants:
    """Copied to a device once."""
    mean, spread = (torch.tensor(values)[:, None, None] for values in (_MEAN, _SPREAD))
    yiq = torch.tensor(_YIQ)
    made = 1 / (255 * spread), -mean / spread, torch.tensor(_LUMA), yiq, yiq.inverse()
    return _Constants(*(each.to(device) for each in made))


def cut_by_slices(pictures: Tensor, numbers: Tensor, size: int) -> Tensor:
    """Crop to whole pixels, mirror and resize (bilinear, filtered where it shrinks), one crop after the other.

    The numbers are read, so it is for a CPU. Returns [crops * samples, 3, size, size], of bytes rounded bytes.
    """
    height, width = pictures.shape[2:]
    each = numbers.transpose(0, 1).flatten(0, 1)
    boxes = each[:, [LEFT, TOP, WIDTH, HEIGHT]] * torch.tensor([width, height, width, height])
    flips = each[:, FLIP].tolist()
    crops = []
    for picture, (left, top, wide, high), flip in zip(
        cycle(pictures.split(1)), boxes.round().int().tolist(), flips, strict=False
    ):
        box = picture[:, :, top : top + max(1, high), left : left + max(1, wide)]
        crop = functional.interpolate(box, (size, size), mode="bilinear", antialias=True)
        crops.append(crop.flip(3) if flip < 0 else crop)
    return torch.cat(crops)


def cut_by_products(pictures: Tensor, numbers: Tensor, size: int) -> Tensor:
    """The same without rounding, for all crops at once and without reading a number: for a GPU.

    Cropping, mirroring and resizing are linear along rows and along columns, so they are two products of matrices.
    `grid_sample` would take less time, but it does not filter where a crop shrinks.
    """
    samples, channels, height, width = pictures.shape
    crops = numbers.shape[1]
    left, wide = _pixels(numbers[:, :, LEFT], width), _pixels(numbers[:, :, WIDTH], width).clamp(min=1)
    top, high = _pixels(numbers[:, :, TOP], height), _pixels(numbers[:, :, HEIGHT], height).clamp(min=1)
    rows = _resize(top, high, height, size)
    columns = _resize(left, wide, width, size)
    columns = torch.where(numbers[:, :, FLIP, None, None] < 0, columns.flip(2), columns)
    source = pictures.float().transpose(1, 2).flatten(2)  # [samples, height, 3 * width]
    made = (rows.flatten(1, 2) @ source).view(samples, crops, size, channels, width)
    made = made.flatten(2, 3) @ columns.transpose(2, 3)  # [samples, crops, size * 3, size]
    return made.view(samples, crops, size, channels, size).permute(1, 0, 3, 2, 4).flatten(0, 1)


def _pixels(shares: Tensor, length: int) -> Tensor:
    return (shares * length).round()


def _resize(start: Tensor, length: Tensor, whole: int, size: int) -> Tensor:
    """How much of each pixel of a line each pixel of a part of it is that is resized: [..., size, whole].

    :param start: [...], the first pixel of the part
    :param length: [...], its pixels
    """
    length = torch.minimum(length, whole - start)  # rounded, a part may end behind the picture
    pixel = (length / size)[..., None, None]  # of the crop, in pixels of the picture
    target = torch.arange(size, device=start.device)[:, None] + 0.5
    source = torch.arange(whole, device=start.device) + 0.5 - start[..., None, None]
    weights = (1 - (target * pixel - source).abs() / pixel.clamp(min=1)).clamp(min=0)
    weights = weights * ((source > 0) & (source < length[..., None, None]))
    return weights / weights.sum(-1, keepdim=True)


def _colour(crops: Tensor, numbers: Tensor) -> Tensor:
    """Brightness, contrast (around the crop's mean gray), saturation and hue: a matrix and a gray for each crop.

    The model's normalisation goes into the same matrix; black and white are then other numbers in each channel.
    """
    scale, shift, luma, yiq, rgb = _constants(crops.device)
    saturation = numbers[:, SATURATION, None, None]
    matrix = saturation * torch.eye(3, device=crops.device) + (1 - saturation) * luma.expand(3, 3)
    turn = 2 * math.pi * numbers[:, HUE]
    turned = torch.eye(3, device=crops.device).repeat(len(crops), 1, 1)
    turned[:, 1, 1] = turned[:, 2, 2] = turn.cos()
    turned[:, 1, 2], turned[:, 2, 1] = -turn.sin(), turn.sin()
    brightness, contrast = numbers[:, BRIGHTNESS, None, None], numbers[:, CONTRAST, None, None]
    matrix = brightness * contrast * (rgb @ turned @ yiq @ matrix)
    gray = brightness * (1 - contrast) * (crops.mean((2, 3)) @ luma)[:, None, None]
    coloured = torch.baddbmm(gray * scale[:, 0] + shift[:, 0], scale[:, 0] * matrix, crops.flatten(2)).view(crops.shape)
    for channel, mean, spread in zip(coloured.unbind(1), _MEAN, _SPREAD, strict=True):
        channel.clamp_(-mean / spread, (1 - mean) / spread)
    return coloured


def _blur(crops: Tensor, kernels: Tensor) -> Tensor:
    """Along rows and along columns; beyond the border the crop is mirrored."""
    samples, channels, height, width = crops.shape
    reach = kernels.shape[1] // 2
    weights = kernels.repeat_interleave(channels, 0)[:, None, None]
    planes = crops.reshape(1, samples * channels, height, width)
    planes = functional.pad(planes, (reach, reach, reach, reach), mode="reflect")
    planes = functional.conv2d(planes, weights, groups=samples * channels)
    planes = functional.conv2d(planes, weights.transpose(2, 3), groups=samples * channels)
    return planes.view_as(crops)
