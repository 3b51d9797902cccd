"""A model on a device, whose parameters are one vector there, and their gradients another."""

import torch
from torch import Tensor, nn

from dedloc_kit.learning.train.aligned import AlignedLayout
from dedloc_kit.learning.train.copies import Copies
from dedloc_kit.learning.train.gradient_sum import GradientSum


class FlatModel:
    """Moves a model to a device and makes its parameters views of one vector, so that all go in one copy.

    :param model: float32; it is taken over
    :param copies: in place of the device's own
    """

    def __init__(self, model: nn.Module, device: torch.device, copies: Copies | None = None) -> None:
        self.model, self.device = model.to(device), device
        self.copies = copies or Copies(device)
        parameters = list(model.parameters())
        self.aligned = AlignedLayout.of(parameters)
        self.layout = self.aligned.wire
        self.vector = torch.zeros(self.aligned.size, device=device)
        """The parameters, with padding."""
        with torch.no_grad():
            for parameter, view in zip(parameters, self.aligned.views(self.vector), strict=True):
                view.copy_(parameter)
                parameter.data = view
        self.gradients = GradientSum(parameters, self.copies)
        self.step = 0
        """The global step whose parameters it holds."""

    def load(self, flat: Tensor) -> None:
        """Hold these parameters from the next microbatch on: float32 [layout.size] on the CPU, which may change as soon
        as this returns. Nothing waits for the device."""
        if self.copies.here:
            self.aligned.from_wire(self.vector, flat)
        else:
            self.vector.copy_(self.onto(flat))

    def onto(self, flat: Tensor) -> Tensor:
        """Such a vector on the device, with padding: one copy, beside what the device computes."""
        host = self.copies.pinned(self.aligned.size)
        self.aligned.from_wire(host, flat)
        (there,) = self.copies.to_device([host])
        return there

    def read(self) -> Tensor:
        """The parameters, float32 [layout.size] on the CPU. Waits for the device."""
        return self.to_wire(self.vector, torch.empty(self.layout.size))

    def to_wire(self, vector: Tensor, flat: Tensor) -> Tensor:
        """Copy such a vector of the device to a flat one on the CPU, which is returned. Waits for the device."""
        self.aligned.to_wire(self.copies.to_host(vector, self.copies.mark()), flat)
        return flat
