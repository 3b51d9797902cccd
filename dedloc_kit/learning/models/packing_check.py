"""Whether a model, or a part of one, works as packing takes for granted, tried on a few tokens."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import nn

from dedloc_kit.errors import UserError

LEAK, ROUNDING = 1e-6, 1e-4
"""Of the largest value: what a masked token adds is nothing at all, however small the weights of a new model are."""


@contextmanager
def tried(model: nn.Module) -> Iterator[None]:
    """Try a model, or a part of one: without dropout and gradients. Raises UserError for whatever it raises."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    except UserError:
        raise
    except Exception as error:
        raise _unpackable(model, " ".join(str(error).split())[:200] or type(error).__name__) from None
    finally:
        model.train(was_training)


def check_packed(
    model: nn.Module,
    hidden: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    given: torch.Tensor,
    causal: bool = True,
) -> None:
    """Raise UserError if of two documents the second sees the first or, in a decoder, a word those that follow.

    :param hidden: what the model, or a part of it, makes of what it is given and of positions
    :param given: [1, 8, ...], four words of each
    """
    positions = torch.arange(4).repeat(2)[None]
    first, later = given.clone(), given.clone()
    first[0, 1:3] = given[0, [2, 1]]
    later[0, -1] = given[0, 0]
    plain, other, after = (hidden(each, positions) for each in (given, first, later))
    if differ(plain[:, 4:], other[:, 4:], LEAK):
        raise _unpackable(model, "documents in one sequence see each other")
    if causal and differ(plain[:, :-1], after[:, :-1], LEAK):
        raise _unpackable(model, "words see those that follow")


def check_scores(model: nn.Module, own: torch.Tensor, ours: torch.Tensor) -> None:
    """Raise UserError if the model's own scores are not those that are trained here."""
    if differ(own, ours, ROUNDING):
        raise _unpackable(model, "its positions or its scores are made in a way of their own")


def differ(one: torch.Tensor, other: torch.Tensor, tolerance: float) -> bool:
    """By more than so much of the largest value?"""
    return float((one - other).abs().max()) > tolerance * float(one.abs().max())


def _unpackable(model: Any, reason: str) -> UserError:
    return UserError(
        f"task.architecture: {model.config.model_type} cannot be trained on packed documents ({reason}); choose "
        f"another, or a newer transformers than {transformers.__version__}"
    )
