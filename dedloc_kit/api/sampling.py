"""Which token comes next, in each of the answers to one request.

Each answer has a random generator of its own: answers that are made at the same time do not change one another, and
the same seed gives the same answer. The model's `generate` is told to take the likeliest token, and this leaves it one.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dedloc_kit.api.requests import AnyRequest
from dedloc_kit.config.seeds import seed_of

_LEAST_LOGPROB = -9999.0
"""In place of minus infinity, which JSON does not have; OpenAI's API says the same of what is unlikely."""
_LEAST_SCORE = torch.finfo(torch.float32).min / 4
"""In place of minus infinity, which a model gives to what it is never to say."""


@dataclass(frozen=True)
class Likely:
    """A token and the logarithm of its probability, before temperature and top_p; at least -9999."""

    token: int
    logprob: float


@dataclass(frozen=True)
class Choice:
    """The token that was taken, and the likeliest ones."""

    taken: Likely
    likeliest: tuple[Likely, ...]


class Sampling:
    """Of the answers to one request; used as a logits processor."""

    def __init__(self, asked: AnyRequest) -> None:
        temperature = 1.0 if asked.temperature is None else asked.temperature
        # What is 0 as a float32 would make 0 / 0 of the likeliest token.
        self._temperature = temperature if temperature >= torch.finfo(torch.float32).tiny else 0.0
        self._top_p = 1.0 if asked.top_p is None else asked.top_p
        self._alternatives = asked.alternatives()
        seed = secrets.randbits(63) if asked.seed is None else asked.seed
        self._random = [torch.Generator().manual_seed(seed_of("api", seed, answer)) for answer in range(asked.answers)]
        self.choices: Sequence[Choice | None] = [None] * asked.answers
        """What was noted last about each answer, if logarithms of probabilities are wanted."""

    def __call__(self, _: Tensor, scores: Tensor) -> Tensor:
        rows = scores.float().cpu().clamp(min=_LEAST_SCORE)
        if not rows.isfinite().all():
            raise ArithmeticError("the model's scores are not numbers")
        taken = torch.tensor([self._take(row, random) for row, random in zip(rows, self._random, strict=True)])
        if self._alternatives is not None:
            self.choices = [
                _choice(row, int(token), self._alternatives) for row, token in zip(rows, taken, strict=True)
            ]
        only = torch.full_like(scores, -torch.inf)
        return only.scatter_(1, taken[:, None].to(scores.device), 0.0)

    def _take(self, row: Tensor, random: torch.Generator) -> int:
        if self._temperature == 0:
            return int(row.argmax())
        likely = ((row - row.max()) / self._temperature).softmax(0)
        if self._top_p == 1:
            return int(torch.multinomial(likely, 1, generator=random))
        likely, tokens = likely.sort(descending=True, stable=True)
        likely[1:][likely.cumsum(0)[:-1] >= self._top_p] = 0.0
        return int(tokens[torch.multinomial(likely, 1, generator=random)])


def _choice(row: Tensor, token: int, alternatives: int) -> Choice:
    logprobs = row.log_softmax(0).clamp(min=_LEAST_LOGPROB)
    values, tokens = logprobs.topk(alternatives)
    likeliest = (Likely(*pair) for pair in zip(tokens.tolist(), values.tolist(), strict=True))
    return Choice(Likely(token, float(logprobs[token])), tuple(likeliest))
