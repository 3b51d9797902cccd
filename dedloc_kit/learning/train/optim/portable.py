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


def norm(values: Floats, room: Floats | None = None) -> float:
    """The Euclidean norm of a float32 vector.

    :param room: float32 [CHUNK], which is overwritten
    """
    room = np.empty(CHUNK, np.float32) if room is None else room
    lanes = np.zeros(_LANES)
    for begin in range(0, values.size, CHUNK):
        some = values[begin : begin + CHUNK]
        np.multiply(some, some, out=room[: some.size])
        room[some.size :] = 0
        lanes += _folded(room, _LANES)
    return math.sqrt(float(_folded(lanes, 1)[0]))


def _folded(values: NDArray[np.floating], size: int) -> NDArray[np.floating]:
    """Sums of what lies `size` apart, half by half in place."""
    half = values.size
    while half > size:
        half //= 2
        values[:half] += values[half : 2 * half]
    return values[:size]
