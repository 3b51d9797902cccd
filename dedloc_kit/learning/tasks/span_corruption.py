"""Span corruption: an encoder reads text with gaps, a decoder tells what stood there (T5, Raffel et al. 2020, 3.1.4).

As in T5's own code, rows are of packed documents, which see each other, and all have as many gaps, so that none is
padded; behind the last gap of the targets stands the end, not one more sentinel.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, JsonValue
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import AutoModelForSeq2SeqLM

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import TOKENS
from dedloc_kit.learning.data.packing import Packer
from dedloc_kit.learning.data.tokenizers.special_tokens import CAUSAL, bos_eos, require
from dedloc_kit.learning.models.families import Family
from dedloc_kit.learning.task import Batch, Example, Feature, Loss, Usage, prepared, rows
from dedloc_kit.learning.tasks.measuring import hash_of
from dedloc_kit.learning.tasks.text.common import TextOptions, TextTask, dropping, evaluating
from dedloc_kit.records.evaluation import Evaluation

_T5 = {"d_ff": 1024, "num_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu", "dropout_rate": 0.0}
_FAMILY = Family(AutoModelForSeq2SeqLM, ("t5", "mt5", "umt5"), _T5, (), causal=False)
_TOGETHER = 16  # rows that are made, and evaluated, at once
_USAGE = """\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{repository}")
model = AutoModelForSeq2SeqLM.from_pretrained("{repository}")
inputs = tokenizer("Put a sentence here with <extra_id_0> in place of some words.", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=20)[0]))
"""


class SpanCorruptionOptions(TextOptions):
    """The keys of `task` beside its name; `sequence_length` is that of a row before it has gaps."""

    architecture: str = "t5"
    """The architecture, by its `model_type` in transformers: `t5`, `mt5` or `umt5`."""
    model: dict[str, JsonValue] = Field(default={})
    """The shape of the model: keys of the architecture's configuration class. The tokenizer gives `vocab_size`."""
    noise_density: Annotated[float, Field(ge=0.01, le=0.5)] = 0.15
    """The share of tokens that are masked."""
    mean_noise_span_length: Annotated[float, Field(ge=1, le=8), TOKENS] = 3.0
    """The mean length of a masked span."""


class SpanCorruption(TextTask):
    """The task `span-corruption`."""

    Options = SpanCorruptionOptions
    options: SpanCorruptionOptions
    special_tokens = CAUSAL

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        require(tokenizer := self.tokenizer, ("pad_token",))
        begin, self.end = bos_eos(tokenizer, self.special_tokens)
        self.packer = Packer(begin, self.end, self.options.sequence_length)
        self.hidden = max(1, round(self.options.sequence_length * self.options.noise_density))
        self.spans = max(1, round(self.hidden / self.options.mean_noise_span_length))
        names, end = [f"<extra_id_{n}>" for n in range(self.spans)], tokenizer.convert_ids_to_tokens(self.end)
        tokenizer.add_special_tokens({"additional_special_tokens": names})
        self.sentinels = np.array(tokenizer.convert_tokens_to_ids(names))
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=["$A", end], pair=["$A", end, "$B", end], special_tokens=[(end, self.end)]
        )
        tokens = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "eos_token_id": self.end}
        self.config = config = _FAMILY.config(self.options.architecture, self.options.model, tokens)
        config.decoder_start_token_id = tokenizer.pad_token_id

    def unsupported(self, feature: Feature) -> str:
        return dropping(self.config.to_dict()) if feature == "checks" else super().unsupported(feature)

    def model(self) -> nn.Module:
        with self.seeded_weights():
            model: nn.Module = AutoModelForSeq2SeqLM.from_config(self.config, dtype=torch.float32)
        return model.train()

    def examples(self, records: Iterable[Any], rng: np.random.Generator) -> Iterator[Example]:
        for pack in self.packer.packs(self.texts.documents(records), _TOGETHER):
            gaps = self._gaps(len(pack.ids), rng)
            yield from rows({"input_ids": self._marked(pack.ids, gaps), "labels": self._marked(pack.ids, ~gaps)})

    def _gaps(self, count: int, rng: np.random.Generator) -> NDArray[np.bool_]:
        """Which tokens of so many rows are in gaps: text comes first and a gap last, and all lengths are as likely."""
        lengths = np.empty((count, self.spans, 2), dtype=np.int64)
        for kind, total in enumerate((self.options.sequence_length - self.hidden, self.hidden)):
            cuts = rng.permuted(np.tile(np.arange(1, total), (count, 1)), axis=1)[:, : self.spans - 1]
            lengths[..., kind] = np.diff(np.sort(cuts, axis=1), prepend=0, append=total, axis=1)
        return np.repeat(np.tile([False, True], count * self.spans), lengths.ravel()).reshape(count, -1)

    def _marked(self, ids: NDArray[np.int64], gaps: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Rows with a sentinel in place of each gap, the same ones in all rows, and the end."""
        first = gaps & ~np.pad(gaps, ((0, 0), (1, 0)))[:, :-1]
        marked = np.where(first, self.sentinels[first.cumsum(axis=1) - 1], ids)[~gaps | first]
        return np.pad(marked.reshape(len(ids), -1), ((0, 0), (0, 1)), constant_values=self.end)

    def loss(self, model: nn.Module, batch: Batch, step: int) -> Loss:
        mean = model(input_ids=batch["input_ids"], labels=batch["labels"], use_cache=False).loss
        return Loss.of(mean, batch["labels"].numel())

    def evaluate(self, model: nn.Module) -> Evaluation:
        examples = self.held_out_examples(self.options.evaluation_samples)
        batches = [self.collate(examples[at : at + _TOGETHER]) for at in range(0, len(examples), _TOGETHER)]
        with evaluating(model) as device:
            losses = [self.loss(model, prepared(self, batch, device), 0) for batch in batches]
        total, weight = (float(sum(each)) for each in zip(*losses, strict=True))
        return Evaluation(loss=total / weight, held_out=hash_of(batches))

    def export(self, model: nn.Module, folder: Path, repository: str) -> Usage:
        """What `AutoModelForSeq2SeqLM` and `AutoTokenizer` of transformers load."""
        self.save(model, folder)
        return Usage("transformers", "text2text-generation", _USAGE.format(repository=repository))
