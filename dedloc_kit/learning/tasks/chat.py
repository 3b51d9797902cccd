"""Fine-tuning on conversations: the loss of a causal model is over what the assistant says, and nothing else.

Rows hold whole conversations, which do not see each other. Labels and packing differ from the task `causal`, the model
and its loss do not.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dedloc_kit.config.section import public_name
from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.best_fit import best_fit
from dedloc_kit.learning.data.masking import IGNORED
from dedloc_kit.learning.data.sources.patience import Warn
from dedloc_kit.learning.data.sources.shards import Shard
from dedloc_kit.learning.data.text.conversations import Conversation, conversations
from dedloc_kit.learning.data.text.tokens import vocabulary_hash
from dedloc_kit.learning.data.tokenizers.chat_template import ChatTemplate, Refused, Spoken, add_chat
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer
from dedloc_kit.learning.models.families import scores_of, softcap
from dedloc_kit.learning.models.vocabulary_transfer import Origins, origins
from dedloc_kit.learning.task import Batch, Example, Feature, Usage
from dedloc_kit.learning.tasks.causal import Causal
from dedloc_kit.learning.tasks.measuring import hash_of
from dedloc_kit.learning.tasks.text.answers import Answers

_EVALUATION_TOKENS = 8192
"""At once."""
_USAGE = """\
from transformers import pipeline

chat = pipeline("text-generation", model="{repository}")
said = chat([{{"role": "user", "content": "Put a question here"}}], max_new_tokens=200, do_sample=True)
print(said[0]["generated_text"][-1]["content"])
"""


class Chat(Causal):
    """The task `chat`."""

    own_records = True
    template: ChatTemplate

    def _load_tokenizer(self) -> Any:
        tokenizer = super()._load_tokenizer()
        add_chat(tokenizer)
        self.template = ChatTemplate(tokenizer, public_name(self.options.tokenizer))
        return tokenizer

    def edges(self) -> tuple[int, int]:
        begin = self.tokenizer.bos_token_id
        return self.template.end if begin is None else begin, self.template.end

    @property
    def labels_all(self) -> bool:
        return False

    @property
    def put_in_front(self) -> int | None:
        return None

    def unsupported(self, feature: Feature) -> str:
        if feature == "checks" and self.template.reads_clock:
            return "the chat template writes today's date, so nobody can make a batch of yesterday again"
        return super().unsupported(feature)

    def read(self, source: Source, shard: Shard, warn: Warn) -> Iterator[Any]:
        if source.tokenized:
            raise UserError(
                f"{source.dataset} holds token ids, and the task chat reads conversations: name the dataset that they "
                "were made of, and remove tokenized"
            )
        return conversations(source, shard, warn)

    def spoken(self, records: Iterable[Any]) -> Iterator[Spoken]:
        """Tokenize conversations; one that cannot be used is counted as a bad row."""
        length = self.options.sequence_length
        record: Conversation
        for record in records:
            try:
                found = self.template.fitted(record.messages, length)
            except Refused as error:
                record.bad(f"is refused: {error}; change the row, or leave it out", "refused")
                continue
            if found is None:
                record.bad(
                    f"has no answer that ends within task.sequence_length ({length} tokens); raise that, or leave such "
                    "rows out",
                    "long",
                )
            else:
                yield found

    def rows(self, records: Iterable[Any]) -> Iterator[list[Spoken]]:
        """Pack whole conversations into rows."""
        return best_fit(self.spoken(records), lambda each: len(each.ids), self.options.sequence_length)

    def row(self, conversations: Sequence[Spoken]) -> Example:
        """The sample of a row. Padding is one more document, without labels."""
        length = self.options.sequence_length
        filler = self.tokenizer.pad_token_id
        ids, labels = np.full(length, filler, dtype=np.int64), np.full(length, IGNORED, dtype=np.int64)
        positions = np.zeros(length, dtype=np.int64)
        at = 0
        for each in conversations:
            end = at + len(each.ids)
            ids[at:end], positions[at:end] = each.ids, np.arange(len(each.ids))
            labels[at : end - 1] = np.where(each.said[1:], each.ids[1:], IGNORED)
            at = end
        positions[at:] = np.arange(length - at)
        return {"input_ids": ids, "position_ids": positions, "labels": labels}

    def examples(self, records: Iterable[Any], rng: np.random.Generator) -> Iterator[Example]:
        return map(self.row, self.rows(records))

    @cached_property
    def _origins(self) -> Origins:
        """As of other tasks; each token that the chat template adds begins as the mean of all others."""
        assert self._start is not None
        old, own = load_tokenizer(self._start.name), load_tokenizer(self.options.tokenizer)
        known: Sequence[Sequence[int]] = [[number] for number in range(len(old))]
        if vocabulary_hash(old) != vocabulary_hash(own):
            known = origins(own, old).parts
        everything = range(len(old))
        return Origins([*known, *[everything] * (len(self.tokenizer) - len(known))])

    def start_loss(self) -> float | None:
        """Of the model as the run begins with it: as it was published it knows no tokens of conversations."""
        return None if self._start is None else self.evaluate(self.first_model()).loss

    def held_out_batches(self) -> Sequence[Batch]:
        if not self._evaluation:
            source, records = self.held_out()
            rows = list(islice(self.rows(records), self.options.evaluation_samples))
            if not rows:
                raise UserError(
                    f"{source.dataset} holds no conversation that fits into task.sequence_length; choose other "
                    "held-out data"
                )
            shown = [each for row in rows for each in row]
            self._bytes = float(sum(each.bytes for each in shown))
            self._continuations = Answers(
                shown, self.tokenizer, self.end, self.options.sequence_length, self.run.seed, self._scores
            )
            samples = list(map(self.row, rows))
            count = max(1, _EVALUATION_TOKENS // self.options.sequence_length)
            self._evaluation = [self.collate(samples[at : at + count]) for at in range(0, len(samples), count)]
            self.held_out_hash = hash_of(self._evaluation)
        return self._evaluation

    def _scores(self, model: nn.Module, ids: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        transformer: Any = model
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        hidden = self.family.hidden(model, ids, positions)
        places = torch.arange(len(ids), device=ids.device)
        return scores_of(transformer.get_output_embeddings(), hidden[places, at], softcap(model))

    def export(self, model: nn.Module, folder: Path, repository: str) -> Usage:
        """What transformers loads as `AutoModelForCausalLM` and, with the chat template, `AutoTokenizer`."""
        super().export(model, folder, repository)
        return Usage("transformers", "text-generation", _USAGE.format(repository=repository))
