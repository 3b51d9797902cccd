"""Gradient checkpointing of the repeated blocks of a model (Chen et al. 2016, arXiv 1604.06174)."""

from collections.abc import Iterator
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from dedloc_kit.errors import UserError


class Checkpointing:
    """Trades time for memory: blocks keep their inputs only, and compute the rest again in the backward pass."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._blocks: list[nn.Module] = []

    @property
    def possible(self) -> bool:
        """Is there time left to trade for memory?"""
        return not self._blocks and any(_blocks(self._model))

    def begin(self) -> None:
        """Raises UserError if there is nothing left to trade."""
        if not self.possible:
            raise UserError(
                "this model does not fit into the memory of this device, not even with one sample at once; "
                "close other programs that use it, or choose the device 'cpu'"
            )
        self._blocks = list(_blocks(self._model))
        for block in self._blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)

    def end(self) -> None:
        """Take that back."""
        for block in self._blocks:
            del block.forward  # its class has the one of before
        self._blocks = []


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The members of its module lists: so the models of transformers keep what they repeat.

    Without those that hold something that says that it must compute once (`once`).
    """
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from (block for block in child if not any(getattr(each, "once", False) for each in block.modules()))
        else:
            yield from _blocks(child)
