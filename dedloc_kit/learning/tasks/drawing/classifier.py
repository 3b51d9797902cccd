"""A small classifier of pictures, trained the same way for every run: does a drawing show what its caption says?"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

SAMPLES = 8192
"""Pictures that it learns from, at most."""
SIDE = 32
"""Pixels along each side; larger pictures are made smaller."""
_STEPS, _BATCH, _RATE, _DECAY, _NOISE = 600, 64, 4e-3, 0.05, 0.1
_WIDTHS = (32, 64, 96)


def small(pictures: Tensor) -> Tensor:
    """Pictures uint8 [pictures, 3, size, size] as the classifier takes them."""
    side = min(SIDE, pictures.shape[-1])
    return functional.interpolate(pictures.float(), size=(side, side), mode="area").round().byte()


def train_classifier(
    pictures: Tensor, labels: Tensor, seed: int, before_step: Callable[[], None] = lambda: None
) -> nn.Module:
    """Three convolutions that tell the classes of small pictures apart; the global random state is left alone.

    :param pictures: as `small` makes them
    :param labels: int64 [pictures], from 0 on
    :param before_step: may raise something to end it
    """
    generator = torch.Generator().manual_seed(seed)
    model = _network(int(labels.max()) + 1, generator)
    optimizer = torch.optim.AdamW(model.parameters(), _RATE, weight_decay=_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, _STEPS)
    for step in range(_STEPS):
        before_step()
        some = torch.randint(len(pictures), (_BATCH,), generator=generator)
        inputs = _scaled(pictures[some])
        if step % 2:
            inputs += _NOISE * torch.randn(inputs.shape, generator=generator)
        loss = functional.cross_entropy(model(inputs.to(memory_format=torch.channels_last)), labels[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def classes_of(model: nn.Module, pictures: Tensor) -> Tensor:
    """The class of each picture as the classifier sees it, int64 [pictures].

    :param pictures: as `small` makes them
    """
    return torch.cat([model(_scaled(some)).argmax(1) for some in pictures.split(_BATCH)])


def _scaled(pictures: Tensor) -> Tensor:
    return pictures.float() / 127.5 - 1


def _network(classes: int, generator: torch.Generator) -> nn.Module:
    layers: list[nn.Module] = []
    with torch.device("meta"):  # nothing is drawn from the global random state
        for number, (before, width) in enumerate(zip((3, *_WIDTHS), _WIDTHS, strict=False)):
            layers += [nn.MaxPool2d(2)] if number else []
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * _WIDTHS[-1], classes)]
        model = nn.Sequential(*layers)
    model = model.to_empty(device="cpu")
    for layer in model:
        if isinstance(layer, nn.BatchNorm2d):
            layer.reset_parameters()
        elif isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, generator=generator)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return model
