"""How the repeated blocks of a model compute: with gradient checkpointing (Chen et al. 2016, arXiv 1604.06174), or
compiled."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from dedloc_kit.errors import UserError

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
"""As `torch.compile`: a function that computes the same."""


class Checkpointing:
    """Trades time for memory: blocks keep their inputs only, and compute the rest again in the backward pass.

    Names of parameters stay as they are. Do not copy the model meanwhile: blocks of the copy would compute with the
    parameters of this one.
    """

    def __init__(self, model: nn.Module) -> None:
        self.blocks = list(_blocks(model))
        self._checkpointed = False
        self._compile: Compile | None = None

    @property
    def possible(self) -> bool:
        """Is there time left to trade for memory?"""
        return bool(self.blocks) and not self._checkpointed

    def begin(self) -> None:
        """Raises UserError if there is nothing left to trade."""
        if not self.possible:
            raise UserError(
                "this model does not fit into the memory of this device, not even with one sample at once; "
                "close other programs that use it, or choose the device 'cpu'"
            )
        self._set(True, self._compile)

    def end(self) -> None:
        """Take that back."""
        self._set(False, self._compile)

    def compile(self, compile: Compile | None) -> None:
        """Let blocks compute with what this makes of their forward pass, or, without it, as they are."""
        self._set(self._checkpointed, compile)

    def _set(self, checkpointed: bool, compile: Compile | None) -> None:
        self._checkpointed, self._compile = checkpointed, compile
        for block in self.blocks:
            vars(block).pop("forward", None)  # its class has the plain one
            if compile is not None:
                block.forward = compile(block.forward)
            if checkpointed:
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The members of its module lists: so the models of transformers keep what they repeat.

    Without those that hold something that says that it must compute once (`once`).
    """
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from (block for block in child if not any(getattr(each, "once", False) for each in block.modules()))
        else:
            yield from _blocks(child)
