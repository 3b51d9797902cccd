"""SwAV: features of pictures without labels, by swapping cluster assignments (Caron et al. 2020, arXiv 2006.09882).

As DeDLOC trains it with volunteers (section 4.1). What is shared and what is not:

- weights and prototypes: their gradients are averaged like all others; the prototypes' first steps are none;
- the queue of features: each peer's own, never sent;
- the assignments: over a peer's own microbatch and queue, not over the global batch;
- batch normalisation: over a peer's own microbatch; no statistics are kept (see `resnet.SwavModel`).
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import nn

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import PIXELS, SAMPLES, STEPS, PositiveFloat, PositiveInt, Section
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.pairs import Arrays
from dedloc_kit.learning.data.pictures.images import Encoded, Labelled, Pixels, decoded, encoded_images
from dedloc_kit.learning.data.sources.classes import named, names_of
from dedloc_kit.learning.data.sources.formats import BadRow
from dedloc_kit.learning.data.sources.patience import Warn
from dedloc_kit.learning.data.sources.shards import Shard
from dedloc_kit.learning.data.sources.stream import in_order
from dedloc_kit.learning.models.resnet import ResNetArchitecture, SwavModel, calibrated
from dedloc_kit.learning.task import Batch, Example, Feature, Loss, ParamGroup, Task, prepared, rows
from dedloc_kit.learning.tasks.features.assignments import FeatureQueue, sinkhorn, swapped_loss
from dedloc_kit.learning.tasks.features.augmentation import (
    Crop,
    Crops,
    Distortion,
    as_they_are,
    draw_crops,
    make_crops,
    prepare_crops,
)
from dedloc_kit.learning.tasks.features.neighbours import knn_accuracy, neighbour_samples
from dedloc_kit.learning.tasks.measuring import hash_of
from dedloc_kit.records.evaluation import Evaluation

_TOGETHER = 8
"""So many samples have their crops drawn together."""
_EVALUATION_BATCH = 64
_LOSS_SAMPLES = 256
"""The loss takes all crops of a sample, so it is measured on fewer."""
_BARE_SIDE = 32
_SHOWN_PICTURES, _SHOWN_NEIGHBOURS = 6, 5
_logger = logging.getLogger(__name__)


class SwavOptions(Section):
    """The keys of `task` for SwAV, beside its name; the defaults are DeDLOC's for ImageNet."""

    image_size: Annotated[int, Field(ge=8), PIXELS] = 384
    """Height and width to which a picture is resized before crops are taken."""
    global_crops: Crops = Crops(count=2, size=224, scale=(0.14, 1.0))
    """The large crops; all crops predict their assignments."""
    local_crops: Crops | None = Crops(count=6, size=96, scale=(0.05, 0.14))
    """The small crops."""
    augmentation: Distortion = Distortion()
    """How the colours of crops change."""
    temperature: PositiveFloat = 0.1
    """Temperature of the softmax over prototypes."""
    epsilon: PositiveFloat = 0.03
    """Entropy of the assignments (Sinkhorn); smaller is harder."""
    sinkhorn_iterations: PositiveInt = 3
    """The number of Sinkhorn iterations."""
    queue_length: Annotated[int, Field(ge=0), SAMPLES] = 3840
    """The number of earlier features that a peer adds to its microbatch when it computes assignments; 0: none."""
    queue_start_step: Annotated[int, Field(ge=0), STEPS] = 0
    """The global step at which the queue comes into use."""
    freeze_prototypes_steps: Annotated[int, Field(ge=0), STEPS] = 0
    """The number of first steps in which prototypes do not change."""
    label_column: str = "label"
    """The column with the classes of the held-out pictures."""
    evaluation_samples: Annotated[int, Field(ge=2), SAMPLES] = 2000
    """The number of held-out pictures that are evaluated."""
    knn_neighbors: PositiveInt = 20
    """The number of neighbours that vote in the k-NN accuracy."""
    model: ResNetArchitecture = ResNetArchitecture()
    """The shape of the model: keys of `transformers.ResNetConfig` and of the projection head."""

    @model_validator(mode="after")
    def _two_views(self) -> "SwavOptions":
        if self.global_crops.count < 2:
            raise ValueError("global_crops.count must be at least 2: each crop predicts another one's assignment")
        return self


@dataclass(frozen=True)
class _HeldOut:
    """Labelled pictures."""

    pictures: torch.Tensor
    """Uint8 [samples, 3, size, size]."""
    labels: torch.Tensor
    """Of each, from 0 on."""
    classes: list[str]
    """The name of each label."""

    @cached_property
    def hash(self) -> str:
        return hash_of([{"pictures": self.pictures, "labels": self.labels}])

    @property
    def names(self) -> list[str]:
        """The class of each picture."""
        return [self.classes[label] for label in self.labels.tolist()]

    def one_of_each(self, most: int) -> torch.Tensor:
        """The number of the first picture of each class, for at most so many."""
        firsts = np.unique(self.labels.numpy(), return_index=True)[1]
        return torch.from_numpy(np.sort(firsts)[:most])


class Swav(Task):
    """The task `swav`."""

    Options = SwavOptions
    options: SwavOptions

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        self._queue = FeatureQueue(self.options.queue_length)
        self._held_out: _HeldOut | None = None
        self.neighbours = self.options.knn_neighbors

    def model(self) -> nn.Module:
        with self.seeded_weights():
            model = SwavModel(self.options.model)
        return model.train()

    def groups(self, model: nn.Module) -> list[ParamGroup]:
        """As in SwAV all parameters decay alike."""
        return [{"params": list(model.parameters()), "weight_decay": self.run.optimizer.weight_decay}]

    def unsupported(self, feature: Feature) -> str:
        match feature:
            case "probe":
                return ""
            case "checks":
                queue = "the loss depends on a queue that is each volunteer's own; set task.queue_length to 0"
                return queue if self.options.queue_length else ""
        return super().unsupported(feature)

    def read(self, source: Source, shard: Shard, warn: Warn) -> Iterator[Encoded | BadRow]:
        return encoded_images(source, shard, warn)

    def examples(self, records: Iterable[Any], rng: np.random.Generator) -> Iterator[Example]:
        """Pictures, and what is to be cut from them: the same numbers lead to the same crops on any device."""
        pictures = decoded(iter(records), self.options.image_size)
        while some := [pixels for pixels, _ in islice(pictures, _TOGETHER)]:
            for pixels, crops in zip(some, rows(self._drawn(len(some), rng)), strict=True):
                yield {"pictures": pixels, **crops}

    def collate(self, examples: Sequence[Example]) -> Batch:
        """The colours of a picture lie side by side in the memory, as they come."""
        batch = super().collate(examples)
        return {**batch, "pictures": batch["pictures"].permute(0, 3, 1, 2)}

    @property
    def _kinds(self) -> dict[str, Crops]:
        """The sizes of crops by their names."""
        kinds = {"large": self.options.global_crops, "small": self.options.local_crops}
        return {name: kind for name, kind in kinds.items() if kind is not None}

    def _drawn(self, samples: int, generator: np.random.Generator) -> Arrays:
        return {
            name: draw_crops(samples, kind, self.options.augmentation, generator) for name, kind in self._kinds.items()
        }

    def prepare(self, batch: Batch) -> Batch:
        """Which crops are blurred and how, beside the numbers of each kind, see `Crop`."""
        found = dict(batch)
        for name, kind in self._kinds.items():
            found |= zip(_of(name), prepare_crops(batch[name], kind.size), strict=True)
        return found

    def loss(self, model: nn.Module, batch: Batch, step: int) -> Loss:
        """Assignments are made within a batch, so what one of several samples counts depends on the others."""
        assert isinstance(model, SwavModel)
        frozen = step < self.options.freeze_prototypes_steps
        embeddings, scores = self._views(model, batch, frozen)
        large = [each.detach() for each in embeddings[: self.options.global_crops.count]]
        earlier = self._queue.before(step)
        assignments = self._assignments(model, large, [])
        if earlier and step >= self.options.queue_start_step:
            full, beside = self._queue.full, self._assignments(model, large, earlier)
            assignments = [torch.where(full, *pair) for pair in zip(beside, assignments, strict=True)]
        if self.options.queue_length:
            self._queue.add(large)
        mean = swapped_loss(scores, assignments, self.options.temperature)
        return Loss.of(mean, len(batch["pictures"]))

    def _views(self, model: SwavModel, batch: Batch, frozen: bool = False) -> tuple[tuple[torch.Tensor, ...], ...]:
        """The embeddings and the scores of each crop."""
        crops = [
            make_crops(batch["pictures"], Crop(*(batch[each] for each in _of(name))), kind.size)
            for name, kind in self._kinds.items()
        ]
        embeddings = model.embed(crops)
        samples = len(batch["pictures"])
        return embeddings.split(samples), model.scores(embeddings, frozen).split(samples)

    @torch.no_grad()
    def _assignments(
        self, model: SwavModel, large: list[torch.Tensor], earlier: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        together = [torch.cat(pair) for pair in zip(earlier, large, strict=True)] if earlier else large
        return [
            sinkhorn(model.scores(each), self.options.epsilon, self.options.sinkhorn_iterations)[-len(own) :]
            for each, own in zip(together, large, strict=True)
        ]

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> Evaluation:
        """The training loss (without queue) on held-out pictures, and the classes that their neighbours tell."""
        assert isinstance(model, SwavModel)
        held_out, features_of = self._evaluation_pictures(), self.features(model)
        features = torch.cat([features_of(part) for part in held_out.pictures.split(_EVALUATION_BATCH)])
        accuracy = knn_accuracy(features, held_out.labels.to(features.device), self.neighbours)
        asked = held_out.one_of_each(_SHOWN_PICTURES).to(features.device)
        samples, small = neighbour_samples(features, held_out.pictures, held_out.names, asked, _SHOWN_NEIGHBOURS)
        loss = self._held_out_loss(model, held_out.pictures)
        metrics = {"k-NN accuracy": accuracy}
        return Evaluation(loss=loss, metrics=metrics, samples=samples, pictures=small, held_out=held_out.hash)

    def labelled(self, held_out: bool) -> Iterator[tuple[torch.Tensor, list[str]]]:
        """Pictures at the size of a large crop."""
        if held_out:
            kept = self._evaluation_pictures()
            pictures, names = iter(kept.pictures), iter(kept.names)
            while some := list(islice(pictures, _EVALUATION_BATCH)):
                yield torch.stack(some), list(islice(names, len(some)))
        for source in () if held_out else self.run.data.train:
            items = self._labelled(source)
            while found := list(islice(items, _EVALUATION_BATCH)):
                yield _stacked([pixels for pixels, _ in found]), [str(label) for _, label in found]

    @torch.no_grad()
    def features(self, model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        """With the statistics of batch normalisation measured on the held-out pictures."""
        assert isinstance(model, SwavModel)
        device = next(model.parameters()).device
        held_out = self._evaluation_pictures().pictures.split(_EVALUATION_BATCH)
        fixed = calibrated(model, (as_they_are(part.to(device)) for part in held_out))

        @torch.no_grad()
        def features_of(pictures: torch.Tensor) -> torch.Tensor:
            return fixed.features(as_they_are(pictures.to(device)))

        return features_of

    def bare_features(self, samples: torch.Tensor) -> torch.Tensor:
        """Pixels, of large pictures those of a smaller copy."""
        side = min(_BARE_SIDE, samples.shape[-1])
        return nn.functional.interpolate(samples.float(), size=(side, side), mode="area").flatten(1)

    def _held_out_loss(self, model: SwavModel, pictures: torch.Tensor) -> float:
        device = next(model.parameters()).device
        generator = np.random.default_rng(seed_of(self.run.seed, "evaluation crops"))
        some, total = pictures[:_LOSS_SAMPLES], 0.0
        for part in some.split(_EVALUATION_BATCH):
            crops = {name: torch.from_numpy(drawn) for name, drawn in self._drawn(len(part), generator).items()}
            embeddings, scores = self._views(model, prepared(self, {"pictures": part, **crops}, device))
            assignments = self._assignments(model, list(embeddings[: self.options.global_crops.count]), [])
            total += float(swapped_loss(scores, assignments, self.options.temperature)) * len(part)
        return total / len(some)

    def _evaluation_pictures(self) -> _HeldOut:
        """Kept in memory, in an order of their own."""
        if self._held_out is None:
            source, _ = self.held_out()
            samples = list(islice(self._labelled(source), self.options.evaluation_samples))
            classes, labels = np.unique([str(label) for _, label in samples], return_inverse=True)
            if len(classes) < 2:
                raise UserError(
                    f"the first {len(samples)} labelled pictures of {source.dataset} are not of two classes or more; "
                    "choose held-out data with several classes, in a mixed order"
                )
            # In an order of our own: batch normalisation must not meet one class at a time.
            order = np.random.default_rng(seed_of(self.run.seed, "evaluation")).permutation(len(samples))
            pictures = _stacked([samples[number][0] for number in order])
            self._held_out = _HeldOut(pictures, torch.from_numpy(labels[order]), classes.tolist())
        return self._held_out

    def _labelled(self, source: Source) -> Iterator[Labelled]:
        """The source's pictures at the size of a large crop, with the names of their classes, in their order."""

        def read(source: Source, shard: Shard, warn: Warn) -> Iterator[Encoded | BadRow]:
            names = names_of(source, shard, self.options.label_column, warn)
            for item in encoded_images(source, shard, warn, self.options.label_column):
                if isinstance(item, Encoded):
                    item.label = named(item.label, names)
                yield item

        return decoded(in_order(source, read, warn=_logger.warning), self.options.global_crops.size)


def _of(kind: str) -> list[str]:
    """The names in a prepared batch of what a `Crop` of this kind has."""
    return [kind, f"{kind}_blurred", f"{kind}_kernels"]


def _stacked(pictures: Sequence[Pixels]) -> torch.Tensor:
    """Uint8 [samples, 3, size, size], with the colours side by side in the memory, as they come."""
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)
