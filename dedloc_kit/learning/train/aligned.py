"""All parameters of a model, or their gradients, as one vector on a device, each at an aligned address."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dedloc_kit.learning.train.flat import ALIGNED, FlatLayout

_VALUES = ALIGNED // 4
"""float32 values between two aligned addresses."""


@dataclass(frozen=True)
class AlignedLayout:
    """Where each tensor lies in a device's vector. `FlatLayout`, which peers share, has no padding: most parameters
    would begin off 16 bytes there, where kernels are slower and may round otherwise."""

    wire: FlatLayout
    """The same tensors as peers exchange them."""
    offsets: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> "AlignedLayout":
        wire, offsets, size = FlatLayout.of(tensors), list[int](), 0
        for tensor in tensors:
            offsets.append(size)
            size += math.ceil(tensor.numel() / _VALUES) * _VALUES
        return cls(wire, tuple(offsets), size)

    def views(self, vector: Tensor) -> list[Tensor]:
        """The tensors inside such a vector, in their own order; they share its memory."""
        return [
            vector[offset : offset + math.prod(shape)].view(shape)
            for shape, offset in zip(self.wire.shapes, self.offsets, strict=True)
        ]

    def from_wire(self, vector: Tensor, flat: Tensor) -> None:
        """Fill a vector with the values of a flat one, both on the CPU; the padding becomes zero."""
        ends = (*self.offsets[1:], self.size)
        for mine, theirs, offset, end in zip(
            self.views(vector), self.wire.views(flat), self.offsets, ends, strict=True
        ):
            mine.copy_(theirs)
            vector[offset + mine.numel() : end].zero_()

    def to_wire(self, vector: Tensor, flat: Tensor) -> None:
        """The other way round."""
        for mine, theirs in zip(self.views(vector), self.wire.views(flat), strict=True):
            theirs.copy_(mine)
