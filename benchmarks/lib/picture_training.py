"""Training a small picture model, for runs that are tried with pictures of their own."""

from collections.abc import Iterator
from itertools import islice

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from dedloc_kit.config.section import PositiveFloat, PositiveInt, Section
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.pictures.codes import PictureCodes
from dedloc_kit.learning.data.pictures.images import Pixels
from dedloc_kit.learning.models.picture_model.autoencoder import Architecture, Autoencoder
from dedloc_kit.learning.models.picture_model.encoding import stacked
from dedloc_kit.learning.models.picture_model.loading import as_floats

_COMMITMENT = 0.25
_WEIGHT_DECAY = 1e-4
_KEPT = 0.99
"""Of the averages, at each step."""
_UNUSED = 0.03
"""A code that is used less than this share of the mean is dealt anew."""


class Training(Section):
    """How a picture model is trained. The defaults are for pictures of 32 pixels and 256 codes."""

    steps: PositiveInt = 1400
    batch: PositiveInt = 64
    """Pictures of a step."""
    learning_rate: PositiveFloat = 2e-3
    """The highest; it rises and falls once."""
    width: int = Field(default=24, ge=8, le=1024, multiple_of=8)
    """Channels at full size: twice as many take nearly four times as long."""
    code_width: int = Field(default=8, ge=2, le=256)
    """Numbers that a code stands for."""


def architecture_of(pictures: PictureCodes, training: Training) -> Architecture:
    """Raises UserError if such codes cannot be made."""
    scale = pictures.size // pictures.side
    if not 2 <= scale <= 64 or scale & (scale - 1):
        raise UserError("set task.pictures.size to side times 2, 4, 8, 16, 32 or 64")
    return Architecture(codes=pictures.codes, scale=scale, width=training.width, code_width=training.code_width)


def train(architecture: Architecture, training: Training, pictures: Iterator[Pixels], seed: int) -> Autoencoder:
    """A picture model that has learned from endless pictures; the same seed and threads give the same one."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        network = Autoencoder(architecture).train()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    codebook = _Codebook(network.codebook.words, torch.Generator().manual_seed(seed))
    optimizer = torch.optim.AdamW(network.parameters(), training.learning_rate, weight_decay=_WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, training.learning_rate, training.steps)
    for step in range(training.steps):
        batch = as_floats(stacked(islice(pictures, training.batch))).to(memory_format=torch.channels_last)
        directions = network.directions(batch)
        flat = directions.flatten(0, 2)
        codes = network.codebook.nearest(flat)
        words = network.codebook.look_up(codes).view_as(directions)
        codebook.follow(flat.detach(), codes)
        # The gradient goes past the codebook, as if nothing had been rounded.
        drawn = network.drawn(directions + (words - directions).detach())
        difference = functional.l1_loss(drawn, batch) + functional.mse_loss(drawn, batch)
        loss = difference + _COMMITMENT * functional.mse_loss(directions, words)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % 100 == 0:
            used = len(codes.unique()) / architecture.codes
            print(f"step {step + 1} of {training.steps}: loss {float(loss.detach()):.3f}, {used:.0%} of the codes")
    network.eval().requires_grad_(False)
    return network


class _Codebook:
    """Codes that follow what they are shown, by exponential moving averages (VQ-VAE-2, Razavi et al. 2019)."""

    def __init__(self, words: Tensor, generator: torch.Generator) -> None:
        self._words, self._generator = words, generator
        self._uses, self._sums = torch.ones(len(words)), words.clone()

    @torch.no_grad()
    def follow(self, directions: Tensor, codes: Tensor) -> None:
        """Move each code towards the directions, [n, width], that have it; deal those anew that hardly any has."""
        chosen = functional.one_hot(codes, len(self._words)).to(directions.dtype)
        self._uses.lerp_(chosen.sum(0), 1 - _KEPT)
        self._sums.lerp_(chosen.T @ directions, 1 - _KEPT)
        mean = self._uses.mean()
        unused = self._uses < _UNUSED * mean
        drawn = torch.randint(len(directions), (int(unused.sum()),), generator=self._generator)
        self._sums[unused] = directions[drawn] * mean
        self._uses[unused] = mean
        self._words.copy_(self._sums / self._uses[:, None])
