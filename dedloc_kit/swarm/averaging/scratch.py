"""Memory for what lies between two steps of a calculation."""

import threading

import torch
from torch import Tensor


class Scratch(threading.local):
    """Room for one chunk, for each thread its own, kept from call to call.

    Memory that is new each time can cost more than the arithmetic: the system hands it out page by page, cleared.
    """

    def __init__(self) -> None:
        self._room = torch.empty(0)

    def like(self, values: Tensor) -> Tensor:
        """A float32 tensor of the same shape, whose content is that of the last use."""
        if self._room.numel() < values.numel():
            self._room = torch.empty(values.numel())
        return self._room[: values.numel()].view(values.shape)
