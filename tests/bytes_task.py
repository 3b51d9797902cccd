"""A causal language model over bytes: the task that docs/adding_a_task.md adds, on any text and without a tokenizer."""

import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import nn
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.shards import Warn
from dedloc_kit.learning.data.sources.stream import in_order, mixture, texts
from dedloc_kit.learning.task import Batch, Task
from dedloc_kit.records.evaluation import Evaluation
from dedloc_kit.run.config import RunConfig
from dedloc_kit.run.section import PositiveInt, Section

END, VOCABULARY = 0, 256  # no text holds a zero byte, so it may end each document
_logger = logging.getLogger(__name__)


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

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        self._held_out: Batch | None = None

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

    def batches(self, microbatch: int, seed: int, warn: Warn) -> Iterator[Batch]:
        data = self.run.data
        documents = mixture(data.train, texts, seed=seed, shuffle_buffer=data.shuffle_buffer, warn=warn)
        samples = self._samples(documents)
        return ({"ids": torch.from_numpy(np.stack(list(islice(samples, microbatch))))} for _ in iter(int, 1))

    def _samples(self, documents: Iterable[str]) -> Iterator[NDArray[np.int64]]:
        """The documents' bytes, one after the other, in pieces of the same length."""
        length, waiting = self.options.sequence_length, bytearray()
        for text in documents:
            waiting += text.encode().replace(b"\0", b" ") + bytes([END])
            whole = len(waiting) // length * length
            yield from np.frombuffer(bytes(waiting[:whole]), np.uint8).reshape(-1, length).astype(np.int64)
            del waiting[:whole]

    def loss(self, model: nn.Module, batch: Batch, step: int) -> torch.Tensor:
        scores = model(input_ids=batch["ids"][:, :-1]).logits.float()
        return functional.cross_entropy(scores.flatten(0, 1), batch["ids"][:, 1:].flatten())

    @torch.inference_mode()
    def evaluate(self, model: nn.Module) -> Evaluation:
        batch = self._evaluation_batch()
        device = next(model.parameters()).device
        return Evaluation(loss=float(self.loss(model, {name: each.to(device) for name, each in batch.items()}, 0)))

    def _evaluation_batch(self) -> Batch:
        if self._held_out is None:
            source = self.run.data.evaluation
            if source is None:
                raise UserError("the run has no held-out data to evaluate on; add [data.evaluation] to its run.toml")
            documents = in_order(source, texts, warn=_logger.warning)
            samples = list(islice(self._samples(documents), self.options.evaluation_samples))
            if not samples:
                raise UserError(f"{source.dataset} holds less text than one sample; choose other held-out data")
            self._held_out = {"ids": torch.from_numpy(np.stack(samples))}
        return self._held_out


TASKS = {"bytes": Bytes}
