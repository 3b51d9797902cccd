"""Forward and backward of one peer: in half precision where the device is fast at it, within the memory there is."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dedloc_kit.errors import UserError
from dedloc_kit.learning.train.computing.device import free_cached, out_of_memory
from dedloc_kit.learning.train.eager import EagerOptimizer

Batch = dict[str, Tensor]

_loss_scale: ContextVar[float] = ContextVar("loss_scale", default=1.0)


@contextmanager
def loss_scaled(scale: float) -> Iterator[None]:
    """What this thread computes meanwhile leads to a loss that is multiplied by this before it goes backward."""
    token = _loss_scale.set(scale)
    try:
        yield
    finally:
        _loss_scale.reset(token)


def loss_scale() -> float:
    """What whoever sends gradients elsewhere has to divide them by; to be asked in the forward pass."""
    return _loss_scale.get()


def as_it_is(batch: Batch) -> Batch:
    """How a batch is prepared whose loss looks nothing up."""
    return batch


class Compute:
    """Computes the gradients of a model whose parameters, like the gradients, are float32 on `device`.

    :param loss: the mean loss of a model over a batch on its device
    :param half: what autocast computes with, or none for float32. With float16 the loss is scaled, so that small
        gradients do not vanish (Micikevicius et al. 2017, section 3.2). The scale is this peer's own: gradients are
        divided by it before they are added to others.
    :param prepare: see `Task.prepare`
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[nn.Module, Batch], Tensor],
        device: torch.device,
        half: torch.dtype | None,
        prepare: Callable[[Batch], Batch] = as_it_is,
    ) -> None:
        self.model, self.device = model, device
        self._loss, self._half, self._prepare = loss, half, prepare
        self._scaler = torch.amp.GradScaler(device.type, enabled=half is torch.float16)
        self._optimizer = EagerOptimizer(model.parameters(), {})  # only tells the scaler which parameters
        self._checkpointed: list[nn.Module] = []
        self.rescaled = False
        """Whether the last gradients overflowed because of the scale, which is smaller now: that happens now and then
        and is no fault."""

    def gradients(self, batch: Batch) -> float | None:
        """Leave the gradients of the batch's mean loss in `.grad` and return that loss; either may be not finite.

        Returns None, and leaves no gradients, if the device's memory does not hold so many samples at once.
        """
        try:
            return self._gradients(batch)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
        # Only out here does nothing hold the tensors of the attempt any more.
        self.clear()
        free_cached(self.device)
        return None

    def clear(self) -> None:
        """Forget the gradients."""
        self._optimizer.zero_grad(set_to_none=True)

    @property
    def can_save_memory(self) -> bool:
        """Is there time left to trade for memory?"""
        return not self._checkpointed and any(_blocks(self.model))

    def save_memory(self) -> None:
        """Trade time for memory; raises UserError if there is nothing left to trade.

        The repeated blocks of the model keep their inputs only, and compute the rest again in the backward pass (Chen
        et al. 2016, arXiv 1604.06174).
        """
        if not self.can_save_memory:
            raise UserError(
                "this model does not fit into the memory of this device, not even with one sample at once; "
                "close other programs that use it, or choose the device 'cpu'"
            )
        self._checkpointed = list(_blocks(self.model))
        for block in self._checkpointed:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)

    def save_time(self) -> None:
        """Take that back."""
        for block in self._checkpointed:
            del block.forward  # its class has the one of before
        self._checkpointed = []

    def _gradients(self, batch: Batch) -> float:
        self.clear()
        batch = {name: values.to(self.device) for name, values in self._prepare(batch).items()}
        half = torch.autocast(self.device.type, dtype=self._half or torch.bfloat16, enabled=self._half is not None)
        with loss_scaled(self._scaler.get_scale()), half:
            loss = self._loss(self.model, batch)
        self._scaler.scale(loss).backward()
        value = loss.item()  # waits for the device; the accumulation must know whether all is finite anyway
        self._unscale(value)
        return value

    def _unscale(self, loss: float) -> None:
        before = self._scaler.get_scale()
        self._scaler.unscale_(self._optimizer)
        self._scaler.update()
        scale = self._scaler.get_scale()
        self.rescaled = 1.0 <= scale < before and math.isfinite(loss)
        if scale < 1.0:  # the gradients themselves overflow, and a scale that vanishes would not help
            self._scaler.update(1.0)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The members of its module lists: so the models of transformers keep what they repeat.

    Without those that hold something that says that it must compute once (`once`).
    """
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from (block for block in child if not any(getattr(each, "once", False) for each in block.modules()))
        else:
            yield from _blocks(child)
