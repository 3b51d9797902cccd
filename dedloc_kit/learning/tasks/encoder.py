"""Masked language modelling without sentence order: an encoder of transformers, on packed documents."""

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import nn

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import PositiveInt
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.learning.data.labels import PLACES, TARGETS, at_places
from dedloc_kit.learning.data.masking import Masker
from dedloc_kit.learning.data.packing import Pack
from dedloc_kit.learning.data.pairs import Arrays
from dedloc_kit.learning.data.tokenizers.special_tokens import MASKED
from dedloc_kit.learning.models.families import ENCODERS
from dedloc_kit.learning.models.output_loss import best_tokens, output_loss
from dedloc_kit.learning.models.packed_attention import BOUNDS
from dedloc_kit.learning.task import Batch, Loss, Usage, prepared
from dedloc_kit.learning.tasks.measuring import hash_of
from dedloc_kit.learning.tasks.text.common import evaluating, tensors
from dedloc_kit.learning.tasks.text.fill_mask import SAMPLES, FillMaskSamples, fill_mask_usage
from dedloc_kit.learning.tasks.text.packed import PackedOptions, PackedTask
from dedloc_kit.records.evaluation import Evaluation, FillMask


class EncoderOptions(PackedOptions):
    """The keys of `task` for an encoder, beside its name."""

    architecture: str = "modernbert"
    """The architecture, by its `model_type` in transformers: one with a masked language model."""
    mlm_probability: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """The share of tokens that are masked."""
    masking: Literal["tokens", "words"] = "tokens"
    """What is masked: single tokens, or whole words, up to `max_ngram_size` in a row."""
    max_ngram_size: PositiveInt = 3
    """The longest row of masked words, with `masking = "words"`."""


class Encoder(PackedTask):
    """The task `encoder`."""

    Options = EncoderOptions
    options: EncoderOptions
    special_tokens = MASKED
    family = ENCODERS

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        longest = self.options.max_ngram_size if self.options.masking == "words" else 0
        self.masker = Masker(self.tokenizer, self.options.mlm_probability, longest)
        self._evaluation: list[Batch] = []
        self._fill_mask: FillMaskSamples | None = None

    def arrays(self, pack: Pack, rng: np.random.Generator) -> Arrays:
        masked, labels = self.masker.masked(pack.ids.astype(np.int32), rng)
        return {"input_ids": masked, "position_ids": pack.positions, "labels": labels}

    def loss(self, model: nn.Module, batch: Batch, step: int) -> Loss:
        transformer: Any = model
        targets = batch[TARGETS]
        mean = output_loss(self._hidden(model, batch), transformer.get_output_embeddings(), targets)
        return Loss.of(mean, len(targets))

    def _hidden(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """What the output layer gets of the masked tokens alone: nothing else is scored."""
        hidden = self.family.hidden(model, batch["input_ids"], batch["position_ids"], batch[BOUNDS])
        return self.family.output_inputs(model, at_places(hidden, batch[PLACES]))

    def evaluate(self, model: nn.Module) -> Evaluation:
        transformer: Any = model
        output = transformer.get_output_embeddings()
        batches = self._evaluation_batches()
        loss = masked = guessed = 0.0
        with evaluating(model) as device:
            for kept in batches:
                batch = prepared(self, kept, device)
                hidden, labels = self._hidden(model, batch), batch[TARGETS]
                loss += output_loss(hidden, output, labels).item() * len(labels)
                masked += len(labels)
                guessed += (best_tokens(hidden, output) == labels).sum().item()
            filled: tuple[FillMask, ...] = ()
            if self._fill_mask:
                batch = prepared(self, tensors(self._fill_mask.arrays), device)
                filled = self._fill_mask.filled(output(self._hidden(model, batch)))
        metrics = {"masked accuracy": guessed / masked}
        return Evaluation(loss=loss / masked, metrics=metrics, samples=filled, held_out=self.held_out_hash)

    def _evaluation_batches(self) -> list[Batch]:
        """Kept in memory; every evaluation of a run, on any machine, sees the same samples with the same masks."""
        if not self._evaluation:
            generator = np.random.default_rng(seed_of(self.run.seed, "evaluation"))
            parts = [self.arrays(pack, generator) for pack in self.held_out_packs().packs]
            self._fill_mask = FillMaskSamples(parts[0], self.tokenizer, SAMPLES, generator)
            self._evaluation = [tensors(arrays) for arrays in parts]
            self.held_out_hash = hash_of(self._evaluation)
        return self._evaluation

    def export(self, model: nn.Module, folder: Path, repository: str) -> Usage:
        """What `AutoModel`, `AutoModelForMaskedLM` and `AutoTokenizer` of transformers load."""
        self.save(model, folder)
        return fill_mask_usage(repository)
