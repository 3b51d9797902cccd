"""Arithmetic that gives the same bits on every processor, for any number of threads.

Only single sums, differences, products, quotients and numpy's square roots do: IEEE 754 says how each is rounded.
torch's sums over many values follow the width of the processor's registers, its compound operations round once where
there is a fused multiply-add and twice where there is none, and its square root is now and then off by a last bit.
"""

import math

import numpy as np
from numpy.typing import NDArray

CHUNK = 2**17
"""Values that are worked on at a time: few enough to stay near the processor, and many for the calls that they take."""
_LANES = 4096

Floats = NDArray[np.float32]


class SquareSum:
    """Adds up the squares of float32 values, chunk after chunk."""

    def __init__(self, room: Floats) -> None:
        """`room` is float32 [CHUNK], which is overwritten."""
        self._room = room
        self._lanes = np.zeros(_LANES)

    def add(self, values: Floats) -> None:
        """At most CHUNK values; all but the last chunk must be whole."""
        np.multiply(values, values, out=self._room[: values.size])
        self._room[values.size :] = 0
        self._lanes += _folded(self._room, _LANES)

    def root(self) -> float:
        """The norm of all values."""
        return math.sqrt(float(_folded(self._lanes, 1)[0]))


def norm(values: Floats) -> float:
    """The Euclidean norm of a vector."""
    squares = SquareSum(np.empty(CHUNK, np.float32))
    for begin in range(0, values.size, CHUNK):
        squares.add(values[begin : begin + CHUNK])
    return squares.root()


def _folded(values: NDArray[np.floating], size: int) -> NDArray[np.floating]:
    """Sums of what lies `size` apart, half by half in place."""
    half = values.size
    while half > size:
        half //= 2
        values[:half] += values[half : 2 * half]
    return values[:size]
