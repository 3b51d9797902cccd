"""Whether tensors that come from a file or from others are a state of one's own kind."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dedloc_kit.learning.train.state.checkpoint import is_finite
from dedloc_kit.learning.train.state.orders import NOTHING_ORDERED, decay_of


def in_order(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> list[Tensor]:
    """The tensors of another state in the order of ours; older checkpoints lack some orders. Raises ValueError if they
    have other names, or an optimizer's state of another kind."""
    theirs = {**NOTHING_ORDERED, **theirs}
    kept, wanted = (any(tensor.dtype == torch.int8 for tensor in tensors.values()) for tensors in (theirs, mine))
    if kept and not wanted:
        raise ValueError('its optimizer keeps its state in 8 bits: set optimizer.state_dtype = "8bit"')
    if wanted and not kept:
        raise ValueError('its optimizer keeps its state in 32 bits: remove optimizer.state_dtype = "8bit"')
    if mine.keys() != theirs.keys():
        raise ValueError("its tensors are not those of the model")
    return [theirs[name] for name in mine]


def check(mine: Mapping[str, Tensor], theirs: Sequence[Tensor]) -> None:
    """Raise ValueError if another state's tensors, in our order, cannot be taken over."""
    if len(theirs) != len(mine):
        raise ValueError(f"the state has {len(theirs)} tensors, the model {len(mine)}")
    for (name, own), other in zip(mine.items(), theirs, strict=True):
        if own.shape != other.shape or own.dtype != other.dtype:
            raise ValueError(f"'{name}' has the shape {tuple(other.shape)}, the model {tuple(own.shape)}")
        if not is_finite(other):
            raise ValueError(f"'{name}' holds numbers that are not finite")
    decay_of(dict(zip(mine, theirs, strict=True)))
