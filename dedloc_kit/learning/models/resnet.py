"""SwAV's model: a residual network of transformers, a projection head and prototypes."""

import copy
from collections.abc import Iterable
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional
from transformers import ResNetConfig, ResNetModel

from dedloc_kit.config.section import PositiveInt, Section


class ResNetArchitecture(Section):
    """Keys of `transformers.ResNetConfig` and the head's; the defaults are SwAV's ResNet-50."""

    layer_type: Literal["bottleneck", "basic"] = "bottleneck"
    """The residual block: `basic` in ResNet-18 and 34, `bottleneck` in larger ones."""
    depths: tuple[PositiveInt, ...] = Field(default=(3, 4, 6, 3), min_length=1)
    """The number of blocks of each stage."""
    hidden_sizes: tuple[PositiveInt, ...] = Field(default=(256, 512, 1024, 2048), min_length=1)
    """The number of channels of each stage."""
    embedding_size: PositiveInt = 64
    """The number of channels of the first convolution."""
    stem: Literal["large", "small"] = "large"
    """The first layer: `large` divides height and width by 4; `small` is one 3x3 convolution that keeps them, for
    pictures of about 32 pixels."""
    projection: tuple[PositiveInt, PositiveInt] = (2048, 128)
    """Widths of the projection head's hidden layer and of its output."""
    num_prototypes: PositiveInt = 3000
    """The number of prototypes."""

    @model_validator(mode="after")
    def _as_many_depths_as_widths(self) -> "ResNetArchitecture":
        if len(self.depths) != len(self.hidden_sizes):
            raise ValueError("model.depths must have as many entries as task.model.hidden_sizes")
        return self


class SwavModel(nn.Module):
    """Features of pictures, embeddings on the unit sphere, and cosines to prototypes.

    Batch normalisation always uses the statistics of the batch at hand and keeps none: nothing but parameters is shared
    by the peers. A follower never runs the model, so it would have none to keep, and averages of many peers would lag
    behind the weights that they are used with. Whoever needs fixed statistics measures them: `calibrated`.
    """

    def __init__(self, architecture: ResNetArchitecture) -> None:
        super().__init__()
        config = ResNetConfig(**architecture.model_dump(exclude={"stem", "projection", "num_prototypes"}))
        backbone: Any = ResNetModel(config)
        if architecture.stem == "small":
            small = nn.Conv2d(3, architecture.embedding_size, 3, padding=1, bias=False)
            nn.init.kaiming_normal_(small.weight, mode="fan_out", nonlinearity="relu")
            backbone.embedder.embedder.convolution, backbone.embedder.pooler = small, nn.Identity()
        self.backbone = backbone
        width, embedding = architecture.projection
        self.head = nn.Sequential(
            nn.Linear(architecture.hidden_sizes[-1], width),
            nn.BatchNorm1d(width),
            nn.ReLU(inplace=True),
            nn.Linear(width, embedding),
        )
        self.prototypes = nn.Parameter(functional.normalize(torch.randn(architecture.num_prototypes, embedding)))
        for layer in _normalisations(self):
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None

    def features(self, pictures: Tensor) -> Tensor:
        """Normalised pictures [samples, 3, height, width] to features [samples, hidden_sizes[-1]]."""
        # With the channels of a place side by side in memory a CPU takes a quarter less time.
        pictures = pictures.contiguous(memory_format=torch.channels_last)
        pooled: Tensor = self.backbone(pictures).pooler_output
        return pooled.flatten(1)

    def embed(self, crops: list[Tensor]) -> Tensor:
        """Crops of several sizes, each [some, 3, size, size], to float32 embeddings of length 1, one after the other.

        Each size goes through the backbone by itself, all go through the head together.
        """
        projected = self.head(torch.cat([self.features(each) for each in crops]))
        return functional.normalize(projected.float())

    def scores(self, embeddings: Tensor, frozen: bool = False) -> Tensor:
        """Cosines [samples, prototypes].

        The prototypes are brought to length 1 wherever they are used, instead of after each step: then that does not
        depend on who takes the step, and with which optimizer. The gradient has no part along a prototype, so that up
        to the first order in the rate a step turns it as the paper's does.

        :param frozen: no gradient reaches the prototypes
        """
        prototypes = self.prototypes.detach() if frozen else self.prototypes
        with torch.autocast(embeddings.device.type, enabled=False):  # cosines are divided by a small temperature
            return embeddings @ functional.normalize(prototypes).T


@torch.no_grad()
def calibrated(model: SwavModel, batches: Iterable[Tensor]) -> SwavModel:
    """A copy in evaluation mode whose batch normalisation has the mean statistics of these batches of pictures.

    (Wu and Johnson 2021, arXiv 2105.07576, section 3.) Then a picture's features no longer depend on its neighbours.
    Only the backbone gets statistics; the head is for training.
    """
    fixed = copy.deepcopy(model)
    for layer in _normalisations(fixed.backbone):
        layer.track_running_stats, layer.momentum = True, None  # the plain mean over all batches
        layer.running_mean, layer.running_var = torch.zeros_like(layer.weight), torch.ones_like(layer.weight)
        layer.num_batches_tracked = torch.zeros((), dtype=torch.long, device=layer.weight.device)
    fixed.train()
    for pictures in batches:
        fixed.features(pictures)
    return fixed.eval()


def _normalisations(model: nn.Module) -> list[Any]:
    return [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)]
