"""Training a picture model of one's own, and what is to be known of one before a run stands on it."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.pictures.codes import PictureCodes
from dedloc_kit.learning.data.pictures.images import Pixels
from dedloc_kit.learning.models.picture_model import PictureModel
from dedloc_kit.learning.models.picture_model.autoencoder import Architecture, Autoencoder
from dedloc_kit.learning.models.picture_model.loading import Ready, as_floats
from dedloc_kit.learning.models.picture_model.settings import Training

_COMMITMENT = 0.25
_WEIGHT_DECAY = 1e-4
COLLAPSED = 0.1
"""With less than this share of its codes in use a codebook is of no use."""


@dataclass(frozen=True)
class Quality:
    """What a picture model makes of pictures."""

    decibels: float
    """Peak signal-to-noise ratio of decoded pictures."""
    used: int
    """How many codes they have."""


def architecture_of(pictures: PictureCodes, training: Training) -> Architecture:
    """Raises UserError if a picture model of one's own cannot make such codes."""
    scale = pictures.size // pictures.side
    if not 2 <= scale <= 64 or scale & (scale - 1):
        raise UserError(
            f"task.pictures: one code of {scale} x {scale} pixels cannot be trained here; set size to side times 2, 4, "
            "8, 16, 32 or 64"
        )
    return Architecture(codes=pictures.codes, scale=scale, width=training.width, code_width=training.code_width)


def train(
    architecture: Architecture,
    training: Training,
    pictures: Iterator[Pixels],
    seed: int,
    told: Callable[[int, float, float], None],
    device: str = "cpu",
) -> Autoencoder:
    """A picture model that has learned from endless pictures; the same seed and threads give the same one on a CPU.

    :param told: after each step its number, the loss, and the share of codes in use in this batch
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        network = Autoencoder(architecture)
    network.train().to(device)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(network.parameters(), training.learning_rate, weight_decay=_WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, training.learning_rate, training.steps)
    for step in range(training.steps):
        batch = stacked(islice(pictures, training.batch)).to(device)
        loss, codes = _step(network, as_floats(batch).to(memory_format=torch.channels_last), generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        told(step + 1, float(loss.detach()), len(codes.unique()) / architecture.codes)
    network.eval().requires_grad_(False)
    return network


def _step(network: Autoencoder, pictures: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The loss of a batch, and its codes."""
    directions = network.directions(pictures)
    flat = directions.flatten(0, 2)
    codes = network.codebook.nearest(flat)
    words = network.codebook.look_up(codes).view_as(directions)
    network.codebook.follow(flat.detach(), codes, generator)
    # The gradient goes past the codebook, as if nothing had been rounded.
    drawn = network.drawn(directions + (words - directions).detach())
    difference = functional.l1_loss(drawn, pictures) + functional.mse_loss(drawn, pictures)
    return difference + _COMMITMENT * functional.mse_loss(directions, words), codes


def stacked(pictures: Iterable[Pixels]) -> Tensor:
    """Uint8 [n, 3, size, size]."""
    return torch.from_numpy(np.stack(list(pictures))).permute(0, 3, 1, 2).contiguous()


def quality(model: PictureModel, held_out: Sequence[Pixels], seen: Sequence[Pixels]) -> Quality:
    """What a model makes of pictures, at least one of them held out."""
    pictures = stacked(held_out)
    codes = model.encode(pictures)
    error = float(functional.mse_loss(model.decode(codes).float(), pictures.float()))
    used = torch.cat([codes.flatten(), model.encode(stacked([*held_out[:1], *seen])).flatten()]).unique()
    return Quality(10 * math.log10(255**2 / max(error, 1e-9)), len(used))


def check_use(network: Autoencoder, pictures: PictureCodes, seen: Sequence[Pixels]) -> None:
    """Raise UserError if the codebook has collapsed, as pictures show that it was trained on."""
    codes = Ready(network, pictures).encode(stacked(seen))
    used = len(codes.unique())
    if used < COLLAPSED * min(pictures.codes, codes.numel()):
        raise UserError(
            f"the codebook collapsed: {used} of {pictures.codes} codes ({used / pictures.codes:.1%}) are in use; train "
            "on more and more different pictures, for more steps (images.training.steps), or with fewer codes "
            "(task.pictures.codes)"
        )
