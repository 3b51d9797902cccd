"""A causal language model over bytes: the task that docs/adding_a_task.md adds, on any text and without a tokenizer."""

from collections.abc import Iterable, Iterator
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import nn
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

from dedloc_kit.config.section import PositiveInt, Section
from dedloc_kit.learning.task import Batch, Example, Feature, Loss, Task, prepared, rows
from dedloc_kit.records.evaluation import Evaluation

END, VOCABULARY = 0, 256  # no text holds a zero byte, so it may end each document


class BytesOptions(Section):
    """The keys of `task` beside its name."""

    sequence_length: Annotated[int, Field(ge=2)] = 128
    """Bytes in one sample."""
    evaluation_samples: PositiveInt = 64
    n_embd: PositiveInt = 64
    n_layer: PositiveInt = 2
    n_head: PositiveInt = 4


class Bytes(Task):
    """The task `bytes`."""

    Options = BytesOptions
    options: BytesOptions

    def model(self) -> nn.Module:
        architecture = self.options.model_dump(include={"n_embd", "n_layer", "n_head"})
        config = GPT2Config(
            **architecture,
            vocab_size=VOCABULARY,
            n_positions=self.options.sequence_length,
            bos_token_id=END,
            eos_token_id=END,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
        with self.seeded_weights():
            model: nn.Module = GPT2LMHeadModel(config)
        return model.train()

    def unsupported(self, feature: Feature) -> str:
        return "" if feature == "checks" else super().unsupported(feature)

    def examples(self, records: Iterable[str], rng: np.random.Generator) -> Iterator[Example]:
        """The documents' bytes, one after the other, in pieces of the same length."""
        length, waiting = self.options.sequence_length, bytearray()
        for text in records:
            waiting += text.encode().replace(b"\0", b" ") + bytes([END])
            whole = len(waiting) // length * length
            ids = np.frombuffer(bytes(waiting[:whole]), np.uint8).reshape(-1, length)
            yield from rows({"ids": ids.astype(np.int64)})
            del waiting[:whole]

    def loss(self, model: nn.Module, batch: Batch, step: int) -> Loss:
        scores = model(input_ids=batch["ids"][:, :-1]).logits.float()
        labels = batch["ids"][:, 1:].flatten()
        return Loss.of(functional.cross_entropy(scores.flatten(0, 1), labels), len(labels))

    @torch.inference_mode()
    def evaluate(self, model: nn.Module) -> Evaluation:
        held_out = self.collate(self.held_out_examples(self.options.evaluation_samples))
        batch = prepared(self, held_out, next(model.parameters()).device)
        return Evaluation(loss=float(self.loss(model, batch, 0).mean))


TASKS = {"bytes": Bytes}
