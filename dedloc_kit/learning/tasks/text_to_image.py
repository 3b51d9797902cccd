"""Pictures from text: a transformer that goes on from a caption with the codes of a picture.

As "Training Transformers Together" does (Borzunov et al. 2022, arXiv 2207.03481). What makes codes of pictures and
pictures of codes was trained before and stays as it is: only the organizer and the coordinator need it.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.pictures.codes import Captioned, read_code_shard
from dedloc_kit.learning.data.sources.patience import Warn
from dedloc_kit.learning.data.sources.shards import Shard
from dedloc_kit.learning.data.tokenizers.bare import BareTokenizer
from dedloc_kit.learning.data.tokenizers.special_tokens import CAUSAL
from dedloc_kit.learning.models.output_loss import output_loss
from dedloc_kit.learning.models.picture_model.loading import PictureModel, load_picture_model
from dedloc_kit.learning.task import Batch, Example, Feature, Loss, ParamGroup, Task, Usage
from dedloc_kit.learning.tasks.drawing.evaluation import SHOWN, CaptionExam, ShownDrawings, first_different
from dedloc_kit.learning.tasks.drawing.generation import generate
from dedloc_kit.learning.tasks.drawing.options import TextToImageOptions
from dedloc_kit.learning.tasks.drawing.transformer import DrawingTransformer
from dedloc_kit.learning.tasks.measuring import hash_of
from dedloc_kit.learning.tasks.text.common import evaluating
from dedloc_kit.records.evaluation import Evaluation

_DRAWN_FROM = 10
"""Times as many held-out samples."""
_MOST = 1e9
"""What a diverged model's losses exceed is not told."""
_logger = logging.getLogger(__name__)


class TextToImage(Task):
    """The task `text-to-image`."""

    Options = TextToImageOptions
    options: TextToImageOptions
    special_tokens = CAUSAL

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        self.tokenizer = BareTokenizer(self.options.tokenizer)
        self.shape = self.options.shape(self.tokenizer.tokens)

    def model(self) -> nn.Module:
        with self.seeded_weights():
            return DrawingTransformer(self.shape).train()

    def unsupported(self, feature: Feature) -> str:
        return "" if feature == "checks" else super().unsupported(feature)

    def groups(self, model: nn.Module) -> list[ParamGroup]:
        """Matrices decay; biases and scales, those of the branches too, do not."""
        assert isinstance(model, DrawingTransformer)
        matrices = [each for each in model.parameters() if each.ndim == 2]
        rest = [each for each in model.parameters() if each.ndim != 2]
        return [
            {"params": matrices, "weight_decay": self.run.optimizer.weight_decay},
            {"params": rest, "weight_decay": 0.0},
        ]

    def examples(self, records: Iterable[Any], rng: np.random.Generator) -> Iterator[Example]:
        """Captions with their places filled up, some left out, and codes."""
        return (self._example(each, rng.random() >= self.options.caption_dropout) for each in records)

    def loss(self, model: nn.Module, batch: Batch, step: int) -> Loss:
        """Captions are filled up, so all samples have as many tokens and codes."""
        assert isinstance(model, DrawingTransformer)
        captions, codes = batch["captions"], batch["codes"]
        after_tokens, after_codes = model(captions, codes[:, :-1])
        of_text = output_loss(after_tokens.flatten(0, 1), model.text_output, captions[:, 1:].flatten())
        of_codes = output_loss(after_codes.flatten(0, 1), model.code_output, codes.flatten())
        weight = self.options.image_loss_weight
        return Loss.of((of_text + weight * of_codes) / (1 + weight), len(captions))

    def evaluate(self, model: nn.Module) -> Evaluation:
        """The loss of the codes after their captions, what it is without them or with others, and drawings."""
        assert isinstance(model, DrawingTransformer)
        exam, shown = self._exam, self._shown
        with evaluating(model):
            loss, metrics = exam.taken(model)
            samples, pictures = shown.drawn(model)
        told = {name: value for name, value in metrics.items() if value < _MOST}
        return Evaluation(
            loss=loss, metrics=told, samples=samples, pictures=pictures, held_out=hash_of([self._held_out])
        )

    @cached_property
    def _shown(self) -> ShownDrawings:
        held_out = self._held_out
        some = first_different(held_out["captions"], SHOWN)
        captions, codes = held_out["captions"][some], held_out["codes"][some]
        texts = [
            self.tokenizer.text([token for token in ids if token < self.shape.tokens]) for ids in captions.tolist()
        ]
        seed = seed_of(self.run.seed, "drawings")
        return ShownDrawings(texts, captions, codes, self.decode, self.options.how, seed)

    def export(self, model: nn.Module, folder: Path, repository: str) -> Usage:
        """A model with its tokenizer and its picture model, and a file of Python that draws with them."""
        from dedloc_kit.learning.tasks.drawing.export import export

        assert isinstance(model, DrawingTransformer)
        return export(model, self.tokenizer, self.options.pictures, self.options.how, folder, repository)

    def draw_codes(self, model: nn.Module, captions: Sequence[str], seed: int) -> torch.Tensor:
        """The codes of a picture for each caption, int64 [captions, codes] on the CPU."""
        assert isinstance(model, DrawingTransformer)
        ids = self.shape.padded([self.tokenizer.ids(caption) for caption in captions])
        return generate(model, ids, self.options.how, seed)

    @cached_property
    def _pictures(self) -> PictureModel:
        with torch.random.fork_rng(devices=[]):  # its first weights are drawn
            return load_picture_model(self.options.pictures)

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """The pictures, uint8 [pictures, 3, size, size], of codes int64 [pictures, codes].

        Raises UserError with the fix if the picture model is not there.
        """
        return self._pictures.decode(codes.unflatten(1, (self.shape.side, self.shape.side)))

    @cached_property
    def _exam(self) -> CaptionExam:
        seed = seed_of(self.run.seed, "captions")
        return CaptionExam(**self._held_out, ranked=self.options.ranking_samples, seed=seed)

    @cached_property
    def _held_out(self) -> Batch:
        """So many as `task.evaluation_samples` says, drawn from more: one class may follow the other in a file."""
        wanted = self.options.evaluation_samples
        source, records = self.held_out()
        found = list(islice(records, _DRAWN_FROM * wanted))
        order = np.random.default_rng(seed_of(self.run.seed, "evaluation")).permutation(len(found))[:wanted]
        samples = [found[number] for number in order]
        if len({sample.caption[: self.shape.caption].tobytes() for sample in samples}) < 2:
            raise UserError(f"{source.dataset} holds fewer than two different captions; choose other held-out data")
        return self.collate([self._example(sample, True) for sample in samples])

    def _example(self, sample: Captioned, told: bool) -> Example:
        caption = self.shape.padded([sample.caption.tolist() if told else []])[0]
        return {"captions": caption.numpy(), "codes": sample.codes.astype(np.int64)}

    def read(self, source: Source, shard: Shard, warn: Warn) -> Iterator[Captioned]:
        if not source.tokenized:
            raise UserError(
                f"{source.dataset} holds pictures, and volunteers read codes: write them with dedloc prepare images "
                "RUN.toml --shards, and name those with tokenized = true"
            )
        vocabulary_hash = self.tokenizer.vocabulary_hash
        return read_code_shard(shard, self.options.pictures, vocabulary_hash, self.tokenizer.tokens, warn)
