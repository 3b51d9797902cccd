"""Beginnings of held-out texts, for viewers: how does the model go on?"""

from collections.abc import Iterable
from itertools import islice
from typing import Any, Protocol

import torch
from torch import nn

from dedloc_kit.config.seeds import seed_of
from dedloc_kit.learning.data.text.tokens import Document
from dedloc_kit.records.evaluation import Continuation

_SAMPLES = 5
_BEGINNING, _FURTHER = 16, 40
"""Tokens: what the model is given, and what it adds."""
_TEMPERATURE, _BEST = 0.7, 40
"""It draws from the best tokens, flattened less than it would say: always the best one soon repeats itself."""
_CHARACTERS = 500


class Continued(Protocol):
    """Held-out beginnings that a model continues."""

    def written(self, model: nn.Module) -> tuple[Continuation, ...]:
        """Each with what the model writes, on its device, and with what stands in the data."""
        ...


class Continuations:
    """The first tokens of a few documents, which the model continues: drawn at random, but always the same way.

    :param documents: held-out ones; those that are too short are left out
    :param begin: the token in front of each document
    """

    def __init__(self, documents: Iterable[Document], tokenizer: Any, begin: int, seed: int) -> None:
        self._tokenizer, self._seed = tokenizer, seed_of(seed, "continuations")
        long = (d.ids.astype("int64") for d in documents if len(d.ids) >= _BEGINNING + _FURTHER // 2)
        self._texts = [torch.from_numpy(ids[: _BEGINNING + _FURTHER]) for ids in islice(long, _SAMPLES)]
        self._begin = torch.tensor([begin])

    def written(self, model: nn.Module) -> tuple[Continuation, ...]:
        """Each with what the model writes, on its device, and with what stands in the text."""
        if not self._texts:
            return ()
        transformer: Any = model
        device = next(model.parameters()).device
        generator = torch.Generator().manual_seed(self._seed)
        ids = torch.stack([torch.cat([self._begin, text[:_BEGINNING]]) for text in self._texts])
        for _ in range(_FURTHER):
            scores = transformer(input_ids=ids.to(device), use_cache=False, logits_to_keep=1).logits[:, -1]
            best, tokens = (scores.float().cpu() / _TEMPERATURE).topk(min(_BEST, scores.shape[-1]))
            drawn = torch.multinomial(best.nan_to_num(0.0).softmax(dim=-1), 1, generator=generator)
            ids = torch.cat([ids, tokens.gather(1, drawn)], dim=1)
        return tuple(self._sample(row[1:].tolist(), text.tolist()) for row, text in zip(ids, self._texts, strict=True))

    def _sample(self, written: list[int], text: list[int]) -> Continuation:
        return Continuation(
            before=self._text(text[:_BEGINNING]),
            written=self._after(written),
            truth=self._after(text),
        )

    def _after(self, ids: list[int]) -> str:
        """What follows the beginning, with the space before it; a text that ends within is shown to its end."""
        ends = [at for at, token in enumerate(ids) if at >= _BEGINNING and token in self._tokenizer.all_special_ids]
        beginning, whole = self._text(ids[:_BEGINNING]), self._text(ids[: ends[0] if ends else None])
        return whole[len(beginning) :] if whole.startswith(beginning) else self._text(ids[_BEGINNING:])

    def _text(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text.rstrip("\ufffd")[:_CHARACTERS]  # a character may be cut between its bytes
