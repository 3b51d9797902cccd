"""Held-out conversations, for viewers: what does the model answer?"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from dedloc_kit.config.seeds import seed_of
from dedloc_kit.learning.data.text.conversations import ASSISTANT, USER
from dedloc_kit.learning.data.tokenizers.chat_template import Spoken
from dedloc_kit.records.evaluation import Continuation

_SAMPLES = 5
_FURTHER = 40
"""Tokens of an answer, at most."""
_TEMPERATURE, _BEST = 0.7, 40
"""As `continuation.py` draws."""
_ASKED, _CHARACTERS = 400, 500

Scores = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]
"""The scores [rows, vocabulary] of the token after the place [rows] in each row of tokens [rows, length]."""


class Answers:
    """The first turns of a few conversations, which the model answers: drawn at random, but always the same way.

    :param conversations: held-out ones; a first turn that leaves no room for an answer is left out
    :param end: the token that ends an answer
    :param length: tokens that the model sees at most
    """

    def __init__(
        self, conversations: Sequence[Spoken], tokenizer: Any, end: int, length: int, seed: int, scores: Scores
    ) -> None:
        self._tokenizer, self._end, self._scores = tokenizer, end, scores
        self._seed = seed_of(seed, "answers")
        short = [each for each in conversations if _prompt(each) + _FURTHER <= length]
        self._asked = short[:_SAMPLES]

    def written(self, model: nn.Module) -> tuple[Continuation, ...]:
        """Each with what the model answers, on its device, and with the answer of the data."""
        if not self._asked:
            return ()
        device = next(model.parameters()).device
        generator = torch.Generator().manual_seed(self._seed)
        rows = [torch.from_numpy(each.ids[: _prompt(each)]) for each in self._asked]
        ends = torch.tensor([len(row) for row in rows])
        # What comes after a place is not seen from it, so rows of different lengths need no mask.
        ids = torch.zeros(len(rows), int(ends.max()) + _FURTHER, dtype=torch.int64)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = row
        every = torch.arange(len(rows))
        for _ in range(_FURTHER):
            scores = self._scores(model, ids[:, : int(ends.max())].to(device), (ends - 1).to(device))
            best, tokens = (scores.float().cpu() / _TEMPERATURE).topk(min(_BEST, scores.shape[-1]))
            drawn = torch.multinomial(best.nan_to_num(0.0).softmax(dim=-1), 1, generator=generator)
            ids[every, ends] = tokens.gather(1, drawn)[:, 0]
            ends += 1
        return tuple(
            self._sample(each, row[_prompt(each) : _prompt(each) + _FURTHER].tolist())
            for each, row in zip(self._asked, ids, strict=True)
        )

    def _sample(self, conversation: Spoken, written: list[int]) -> Continuation:
        answer = next(number for number, each in enumerate(conversation.messages) if each.role == ASSISTANT)
        said = written[: written.index(self._end)] if self._end in written else written
        text: str = self._tokenizer.decode(said, skip_special_tokens=False)
        return Continuation(
            before=f"{USER}: {conversation.messages[answer - 1].content[:_ASKED]}\n{ASSISTANT}: ",
            written=text.strip().rstrip("\ufffd")[:_CHARACTERS],  # a character may be cut between its bytes
            truth=conversation.messages[answer].content[:_CHARACTERS],
        )


def _prompt(conversation: Spoken) -> int:
    """Tokens before the first answer."""
    return int(conversation.said.argmax())
