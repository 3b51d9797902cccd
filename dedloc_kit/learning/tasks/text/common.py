"""What all tasks of text have in common: their settings, reading, parameter groups, and export."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from tokenizers.processors import TemplateProcessing
from torch import nn

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import SAMPLES, TOKENS, PositiveInt, Section
from dedloc_kit.config.task import SEQUENCE_LENGTH, Source
from dedloc_kit.learning.data.sources.formats import BadRow
from dedloc_kit.learning.data.sources.patience import Warn
from dedloc_kit.learning.data.sources.shards import Shard
from dedloc_kit.learning.data.sources.stream import texts
from dedloc_kit.learning.data.text.sentences import DEFAULT_LANGUAGE, LANGUAGE_CODE
from dedloc_kit.learning.data.text.token_shards import read_token_shard
from dedloc_kit.learning.data.text.tokens import Document, DocumentTokenizer, vocabulary_hash
from dedloc_kit.learning.data.tokenizers.tokenizer import Tokenization, load_tokenizer
from dedloc_kit.learning.task import Batch, Task
from dedloc_kit.learning.train.computing.device import half_precision
from dedloc_kit.pretrained import is_misread

_logger = logging.getLogger(__name__)


class TextOptions(Section):
    """The keys of `task` that every task of text has, beside its name."""

    tokenizer: str = Field(min_length=1)
    """The tokenizer: a folder, or `OWNER/NAME@COMMIT` of the Hub."""
    language: Annotated[str, Field(pattern=LANGUAGE_CODE)] = DEFAULT_LANGUAGE
    """ISO 639 code of the language, such as `bn`. `albert` splits sentences by it; others name it in the model card."""
    vocab_size: Annotated[PositiveInt, TOKENS] = 32_000
    """Size of the vocabulary that `dedloc prepare tokenizer` trains."""
    tokenization: Tokenization | None = None
    """The kind of tokenizer that `dedloc prepare tokenizer` trains; by default `unigram` for `albert`, else `bpe`."""
    sequence_length: Annotated[int, Field(ge=8), TOKENS] = SEQUENCE_LENGTH
    """Length of a training sample, special tokens included."""
    evaluation_samples: Annotated[PositiveInt, SAMPLES] = 256
    """The number of held-out samples on which the loss is measured."""


class TextTask(Task):
    """The common part of the tasks of text."""

    options: TextOptions
    sentences = False
    """Whether the task must know where sentences end."""

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        self.tokenizer = self._load_tokenizer()
        self._warned_of_misreading = False
        self.texts = DocumentTokenizer(self.tokenizer, self.options.language if self.sentences else None)
        self.vocabulary_hash = vocabulary_hash(self.tokenizer)
        self.held_out_texts: Sequence[str] | None = None
        """In place of the run's held-out data."""
        self.held_out_hash = ""
        """Of what evaluations measure, once one has begun; see `measuring.hash_of`."""

    def _load_tokenizer(self) -> Any:
        return load_tokenizer(self.options.tokenizer)

    def held_out(self) -> tuple[Source, Iterator[str | Document]]:
        """The run's held-out data, each text or tokenized document once, the same on every machine."""
        source, records = super().held_out()
        return source, records if self.held_out_texts is None else iter(self.held_out_texts)

    def read(self, source: Source, shard: Shard, warn: Warn) -> Iterator[str | Document | BadRow]:
        if source.tokenized:
            return read_token_shard(shard, self.vocabulary_hash, len(self.tokenizer), warn)
        return texts(source, shard, warn)

    def save(
        self,
        model: nn.Module,
        folder: Path,
        begin: int | None = None,
        tensors: dict[str, torch.Tensor] | None = None,
    ) -> None:
        """Write a model of transformers and its tokenizer to an existing folder.

        :param begin: the token that the tokenizer is to put in front of a text, and nothing else; none: what it puts
        :param tensors: in place of the model's own
        """
        pretrained: Any = model
        tokenizer = deepcopy(self.tokenizer)
        # Where truncation=True cuts: what the model takes, which may be more than it was trained with.
        longest = getattr(pretrained.config, "max_position_embeddings", None)
        tokenizer.model_max_length = longest if isinstance(longest, int) else self.options.sequence_length
        if pretrained.can_generate() and pretrained.generation_config.pad_token_id is None:
            pretrained.generation_config.pad_token_id = tokenizer.pad_token_id
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # into the log of a run, at each write
        pretrained.save_pretrained(folder, state_dict=tensors)
        if begin is not None:
            token = tokenizer.convert_ids_to_tokens(begin)
            tokenizer.bos_token = tokenizer.bos_token or token
            tokenizer.eos_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(pretrained.config.eos_token_id)
            tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
                single=[token, "$A"], pair=[token, "$A", "$B"], special_tokens=[(token, begin)]
            )
        tokenizer.save_pretrained(folder)
        if not self._warned_of_misreading and is_misread(folder):
            self._warned_of_misreading = True
            _logger.warning(
                "transformers' AutoTokenizer takes any tokenizer beside a %s for the published one, and makes other "
                "tokens than the model knows; load it with PreTrainedTokenizerFast, and choose another "
                "task.architecture for the next run",
                pretrained.config.model_type,
            )


def dropping(model: Mapping[str, Any]) -> str:
    """Which key of a model's configuration lets it drop something at random, with the fix; empty if none does."""
    for key, value in model.items():
        if "drop" in key and isinstance(value, int | float) and value:
            return f"task.model.{key} is {value}, and each device drops others; set it to 0"
    return ""


@contextmanager
def evaluating(
    model: nn.Module, half: Callable[[torch.device], torch.dtype | None] = half_precision
) -> Iterator[torch.device]:
    """Without dropout and without gradients; the model is left as it was. Yields its device.

    In bfloat16 where training uses it. Not in float16: a score that it cannot hold would count as a diverged training.
    """
    was_training = model.training
    device = next(model.parameters()).device
    model.eval()
    try:
        with (
            torch.inference_mode(),
            torch.autocast(device.type, torch.bfloat16) if half(device) is torch.bfloat16 else nullcontext(),
        ):
            yield device
    finally:
        model.train(was_training)


def tensors(arrays: dict[str, Any]) -> Batch:
    """Arrays as a batch."""
    return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in arrays.items()}
