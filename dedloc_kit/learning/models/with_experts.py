"""A decoder of transformers some of whose layers have experts in place of their feed-forward network."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dedloc_kit.blocks.architecture import Layout
from dedloc_kit.config.parts import ExpertsConfig
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.errors import UserError
from dedloc_kit.experts.calls import Answers, Cell, Ticket
from dedloc_kit.experts.mixture import Mixture, connect
from dedloc_kit.learning.models.families import Family

_FEED_FORWARD = "mlp"
"""Its name in the layers of most decoders."""


class _Nobody:
    """Experts that do not answer."""

    def __init__(self, grid: tuple[int, int]) -> None:
        self._grid = grid

    def alive(self, layer: int) -> Tensor:
        return torch.zeros(self._grid, dtype=torch.bool)

    def forward(self, layer: int, inputs: Mapping[Cell, Tensor], keep: bool) -> Answers:
        return Answers({}, None)

    def backward(self, layer: int, ticket: Ticket, gradients: Mapping[Cell, Tensor]) -> Mapping[Cell, Tensor]:
        return {}


def check_experts(config: Any, settings: ExpertsConfig) -> None:
    """Raise UserError if a decoder of this configuration cannot have these experts."""
    width, layers = config.hidden_size, config.num_hidden_layers
    if settings.width != width:
        raise UserError(
            f"experts.width is {settings.width}, and the trunk has {width} channels (task.model.hidden_size); set one "
            "to the other"
        )
    if settings.layers[-1] >= layers:
        raise UserError(
            f"experts.layers names the layer {settings.layers[-1]}, and the model has {layers} "
            f"(task.model.num_hidden_layers), from 0 to {layers - 1}; name those alone"
        )


def give_experts(model: Any, family: Family, settings: ExpertsConfig, name: str) -> None:
    """Put mixtures in place of feed-forward networks; somebody has to `connect` them.

    Raises UserError if the architecture has no such networks, or does otherwise not work with mixtures.

    :param name: what the gates' first weights follow from
    """
    layers = model.base_model.get_submodule(Layout.of(model).path)
    for number in settings.layers:
        if not isinstance(getattr(layers[number], _FEED_FORWARD, None), nn.Module):
            raise UserError(
                f"task.architecture: the layers of a {model.config.model_type} have no feed-forward network that "
                "experts could take the place of; choose another, such as llama, or remove the [experts]"
            )
        mixture = Mixture(number, settings, seed_of(name, "gate", number))
        setattr(layers[number], _FEED_FORWARD, mixture.train(model.training))
    connect(model, _Nobody(settings.grid))
    family.check(model)
    connect(model, None)
