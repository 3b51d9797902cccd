"""ALBERT: masked language modelling and sentence order (Lan et al., 2019), as DeDLOC and sahajBERT train it."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import nn
from torch.nn import functional
from transformers import AlbertConfig, AlbertForPreTraining

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import TOKENS, PositiveFloat, PositiveInt, Section
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.labels import PLACES, TARGETS, at_places, places_of
from dedloc_kit.learning.data.pairs import Arrays, PairBuilder
from dedloc_kit.learning.data.tokenizers.special_tokens import MASKED
from dedloc_kit.learning.task import Batch, Example, Feature, Loss, Usage, prepared, rows
from dedloc_kit.learning.tasks.measuring import hash_of
from dedloc_kit.learning.tasks.text.common import (
    TextOptions,
    TextTask,
    dropping,
    evaluating,
    tensors,
)
from dedloc_kit.learning.tasks.text.fill_mask import SAMPLES, FillMaskSamples, fill_mask_usage
from dedloc_kit.learning.train.computing.microbatch import MAX_SAMPLES
from dedloc_kit.records.evaluation import Evaluation, FillMask

Dropout = Annotated[float, Field(ge=0, lt=1)]

_EVALUATION_BATCH = 32
_KEPT = "classifier_kept"
"""In a batch: bool [samples, hidden_size]."""
_FUSED = {"gelu_new": "gelu_pytorch_tanh"}
"""The same function as one kernel: a step is faster by a seventh on a CPU, and the backward pass keeps less."""


class AlbertArchitecture(Section):
    """Keys of `transformers.AlbertConfig`; the defaults are ALBERT-large's. The tokenizer gives `vocab_size`."""

    embedding_size: PositiveInt = 128
    """Width of the token embeddings."""
    hidden_size: PositiveInt = 1024
    """Width of the layers."""
    num_hidden_layers: PositiveInt = 24
    """The number of layers that a token passes."""
    num_hidden_groups: PositiveInt = 1
    """The number of groups of layers; the layers of a group share their weights."""
    inner_group_num: PositiveInt = 1
    """The number of different layers in a group."""
    num_attention_heads: PositiveInt = 16
    """The number of attention heads of a layer."""
    intermediate_size: PositiveInt = 4096
    """Width of the feed-forward network."""
    hidden_act: Literal["gelu_new", "gelu", "relu"] = "gelu_new"
    """Activation function of the feed-forward network."""
    hidden_dropout_prob: Dropout = 0.0
    """Dropout probability of embeddings and layers."""
    attention_probs_dropout_prob: Dropout = 0.0
    """Dropout probability of attention weights."""
    classifier_dropout_prob: Dropout = 0.1
    """Dropout probability of the sentence order classifier."""
    max_position_embeddings: Annotated[PositiveInt, TOKENS] = 512
    """The longest sample that the model takes."""
    initializer_range: PositiveFloat = 0.02
    """Standard deviation of the initial weights."""
    layer_norm_eps: PositiveFloat = 1e-12
    """Epsilon of layer normalization."""


class AlbertOptions(TextOptions):
    """The keys of `task` for ALBERT, beside its name."""

    mlm_probability: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """The share of tokens that are masked."""
    masking: Literal["tokens", "words"] = "tokens"
    """What is masked: single tokens, as in BERT, or whole words, up to `max_ngram_size` in a row, as in ALBERT."""
    max_ngram_size: PositiveInt = 3
    """The longest row of masked words, with `masking = "words"`."""
    model: AlbertArchitecture = AlbertArchitecture()
    """The shape of the model: keys of `transformers.AlbertConfig`."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> "AlbertOptions":
        model = self.model
        if self.sequence_length > model.max_position_embeddings:
            raise ValueError(
                f"sequence_length must be at most task.model.max_position_embeddings ({model.max_position_embeddings})"
            )
        if model.hidden_size % model.num_attention_heads:
            raise ValueError("model.hidden_size must be a multiple of task.model.num_attention_heads")
        if model.num_hidden_layers % model.num_hidden_groups:
            raise ValueError("model.num_hidden_layers must be a multiple of task.model.num_hidden_groups")
        return self


class Albert(TextTask):
    """The task `albert`."""

    Options = AlbertOptions
    options: AlbertOptions
    special_tokens = MASKED
    tokenization = "unigram"
    sentences = True

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        longest_ngram = self.options.max_ngram_size if self.options.masking == "words" else 0
        self.pairs = PairBuilder(
            self.tokenizer, self.options.sequence_length, self.options.mlm_probability, longest_ngram
        )
        self._evaluation: list[Batch] = []
        self._fill_mask: FillMaskSamples | None = None

    def model(self) -> nn.Module:
        architecture = self.options.model.model_dump()
        architecture["hidden_act"] = _FUSED.get(architecture["hidden_act"], architecture["hidden_act"])
        config = AlbertConfig(
            **architecture,
            vocab_size=len(self.tokenizer),
            pad_token_id=self.tokenizer.pad_token_id,
            bos_token_id=self.tokenizer.cls_token_id,
            eos_token_id=self.tokenizer.sep_token_id,
            attn_implementation="sdpa",
        )
        with self.seeded_weights():
            model: nn.Module = AlbertForPreTraining(config)
        return model.train()

    def unsupported(self, feature: Feature) -> str:
        """What the classifier drops is drawn with the samples."""
        inside = self.options.model.model_dump(exclude={"classifier_dropout_prob"})
        return dropping(inside) if feature == "checks" else super().unsupported(feature)

    def examples(self, records: Iterable[Any], rng: np.random.Generator) -> Iterator[Example]:
        """Samples of about the same length come one after the other, so that a batch has little padding."""
        together = self.run.microbatch or MAX_SAMPLES
        for arrays in self.pairs.batches(self.texts.documents(records), together, rng):
            yield from rows({**arrays, **self._kept(len(arrays["input_ids"]), rng)})

    def collate(self, examples: Sequence[Example]) -> Batch:
        """As long as its longest sample."""
        return super().collate(self.pairs.of_one_length(examples))

    def _kept(self, samples: int, generator: np.random.Generator) -> Arrays:
        """What the classifier's dropout keeps: in the batch, for each kind of device would draw something else."""
        architecture = self.options.model
        if not architecture.classifier_dropout_prob:
            return {}
        chances = generator.random((samples, architecture.hidden_size), dtype=np.float32)
        return {_KEPT: chances >= architecture.classifier_dropout_prob}

    def prepare(self, batch: Batch) -> Batch:
        """The places that have labels in place of these, and the mask only where there is padding.

        The mask has four dimensions, [samples, 1, 1, length]: transformers takes it as it is, and does not look.
        """
        mask, labels = batch["attention_mask"], batch["labels"]
        kept = {name: values for name, values in batch.items() if name not in ("attention_mask", "labels")}
        if not mask.all():
            kept["attention_mask"] = mask[:, None, None]
        return {**kept, **places_of(labels)}

    def loss(self, model: nn.Module, batch: Batch, step: int) -> Loss:
        """That of all labels, and that of each sample's order, which counts as much as the labels that a full sample
        has as a rule. (AlbertForPreTraining adds the two means: what a token counts would depend on its batch.)

        Only the masked positions have labels, so only they go through the output layer: at 512 tokens and a vocabulary
        of 32,000 the scores of one sample would otherwise take 65 MB.
        """
        return self._loss(*_scores(model, batch, self.options.model.classifier_dropout_prob), batch)

    def _loss(self, token_scores: torch.Tensor, order_scores: torch.Tensor, batch: Batch) -> Loss:
        # In float32 even under autocast: a sum over the vocabulary in half precision is too coarse.
        masked = functional.cross_entropy(token_scores.float(), batch[TARGETS], reduction="sum")
        order = functional.cross_entropy(order_scores.float(), batch["sentence_order_label"], reduction="sum")
        expected = self.options.mlm_probability * self.options.sequence_length
        return Loss(masked + expected * order, len(batch[TARGETS]))

    def evaluate(self, model: nn.Module) -> Evaluation:
        losses, samples, guessed, ordered = [], 0, 0.0, 0.0
        batches = self._evaluation_batches()
        with evaluating(model) as device:
            for kept in batches:
                batch = prepared(self, kept, device)
                token_scores, order_scores = _scores(model, batch)
                losses.append(self._loss(token_scores, order_scores, batch))
                samples += len(order_scores)
                guessed += (token_scores.argmax(-1) == batch[TARGETS]).sum().item()
                ordered += (order_scores.argmax(-1) == batch["sentence_order_label"]).sum().item()
            filled: tuple[FillMask, ...] = ()
            if self._fill_mask:
                batch = prepared(self, tensors(self._fill_mask.arrays), device)
                filled = self._fill_mask.filled(_scores(model, batch)[0])
        loss, masked = (float(sum(each)) for each in zip(*losses, strict=True))
        metrics = {"masked accuracy": guessed / masked, "sentence order accuracy": ordered / samples}
        return Evaluation(loss=loss / masked, metrics=metrics, samples=filled, held_out=self.held_out_hash)

    def export(self, model: nn.Module, folder: Path, repository: str) -> Usage:
        """What `AutoModel`, `AutoModelForMaskedLM` and `AutoTokenizer` of transformers load."""
        self.save(model, folder)
        return fill_mask_usage(repository)

    def _evaluation_batches(self) -> list[Batch]:
        """Kept in memory; every evaluation of a run, on any machine, sees the same samples with the same masks."""
        if not self._evaluation:
            source, items = self.held_out()
            wanted = self.options.evaluation_samples
            # A pair takes two sentences, so most documents give one or more; the factor is room for those that do not.
            documents = self.texts.documents(islice(items, 32 * wanted))
            generator = np.random.default_rng(seed_of(self.run.seed, "evaluation"))
            sizes = [_EVALUATION_BATCH] * (wanted // _EVALUATION_BATCH) + [wanted % _EVALUATION_BATCH]
            built = self.pairs.batches(documents, _EVALUATION_BATCH, generator)
            parts = [
                {name: values[:size] for name, values in arrays.items()}
                for size, arrays in zip(filter(None, sizes), built, strict=False)
            ]
            if not parts:
                raise UserError(f"no document of {source.dataset} has two sentences; choose other held-out data")
            self._fill_mask = FillMaskSamples(parts[0], self.tokenizer, SAMPLES, generator)
            self._evaluation = [tensors(arrays) for arrays in parts]
            self.held_out_hash = hash_of(self._evaluation)
        return self._evaluation


def _scores(model: nn.Module, batch: Batch, dropout: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the masked positions [labels, vocabulary] and of the sentence order [samples, 2].

    :param dropout: the classifier's, if the model trains
    """
    albert: Any = model
    hidden, pooled = albert.albert(
        input_ids=batch["input_ids"],
        attention_mask=batch.get("attention_mask"),
        token_type_ids=batch["token_type_ids"],
    )[:2]
    if model.training and dropout:
        pooled = pooled * batch[_KEPT] / (1 - dropout)
    return albert.predictions(at_places(hidden, batch[PLACES])), albert.sop_classifier.classifier(pooled)
