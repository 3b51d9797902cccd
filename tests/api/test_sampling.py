"""Which token is taken, where a model's scores are not those of everyday."""

import json
import math

import pytest
import torch

from dedloc_kit.api.requests import CompletionRequest, parse
from dedloc_kit.api.sampling import Sampling

NEVER = -math.inf
TOKENS = torch.zeros(1, 0)


def sampling(**asked: object) -> Sampling:
    return Sampling(
        parse(CompletionRequest, json.dumps({"model": "m", "prompt": "a", "logprobs": 5, **asked}).encode())
    )


@pytest.mark.parametrize("how", [{}, {"temperature": 0}, {"temperature": 2, "top_p": 0.5}, {"temperature": 1e-30}])
@pytest.mark.parametrize("scores", [[NEVER, 1.0, NEVER, NEVER, NEVER], [NEVER] * 5, [-6e4, -5e4, NEVER, NEVER, -6e4]])
def test_scores_of_minus_infinity_leave_finite_logarithms(scores: list[float], how: dict[str, float]) -> None:
    some = sampling(**how)
    taken = int(some(TOKENS, torch.tensor([scores])).argmax())
    assert scores[taken] == max(scores)
    (choice,) = some.choices
    assert choice is not None
    assert choice.taken.token == taken
    assert all(-9999 <= likely.logprob <= 0 for likely in (choice.taken, *choice.likeliest))


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0, 1])
def test_scores_that_are_no_numbers_make_no_answer(wrong: float, temperature: float) -> None:
    with pytest.raises(ArithmeticError):
        sampling(temperature=temperature)(TOKENS, torch.tensor([[0.0, wrong, 0.0, 0.0, 0.0]]))
