"""Numbers in 8 bits: blocks of 256 with a scale each, the same bits on every processor.

What lies between two codes goes up or down in turn, as often as it is near to either. So an average that changes by
less than a code in a step still goes where it should; rounding to the nearest code would hold it fast. The turns come
from the step and the place: all peers round alike.
"""

import numpy as np
import torch
from torch import Tensor

from dedloc_kit.learning.train.optim.portable import CHUNK, Floats

BLOCK = 256
_TURNS = 4096
"""After so many steps they begin again."""
_LEVELS = 126
"""Of a number of either sign: so many on each side of zero."""
_SHIFT = 23 - 4
"""Bits of a float32 that a positive number loses at the end: 4 of its fraction stay."""
_TOP = float(np.array(255 << _SHIFT, np.int32).view(np.float32))
"""What the largest positive number of a block becomes for a moment: of its exponent only the 4 lowest bits are left."""
_TINIEST = np.float32(2.0**-100)
"""Blocks of still smaller numbers become zeros: their scale's inverse would be infinite."""

# Multiples of the golden ratio without their whole parts: every stretch of them is spread evenly.
_golden = (np.arange(CHUNK + 2 * _TURNS, dtype=np.uint64) * np.uint64(0x9E3779B1)) & np.uint64(0xFFFFFFFF)
_SIGNED_TURNS = ((_golden >> np.uint64(16)) / 2.0**16 + 128).astype(np.float32)
# Without their last bits: the block's largest may come out some of these too large, and must not go beyond the top.
_POSITIVE_TURNS = (_golden >> np.uint64(32 - _SHIFT)).astype(np.int32) & -8


class Blocks:
    """Numbers as they are kept.

    :param codes: int8 for those of either sign, at equal distances; uint8 for positive ones, which are floats of 8
        bits, 4 of them for the exponent: what is a thousandth of its block's largest is as exact as that
    :param scales: float32 [blocks], the largest absolute value of each
    :param factor: what they are multiplied with when they are read
    """

    def __init__(self, codes: Tensor, scales: Tensor, factor: float) -> None:
        self._signed = codes.dtype == torch.int8
        self._codes, self._scales = codes.numpy(), scales.numpy()[:, None]
        self._read_scales = self._scales * np.float32(factor / (_LEVELS if self._signed else _TOP))

    def read(self, blocks: slice, out: Floats) -> None:
        """Some blocks, [blocks, BLOCK], times the factor."""
        if self._signed:
            np.copyto(out, self._codes[blocks])
        else:
            bits = out.view(np.int32)
            np.copyto(bits, self._codes[blocks])
            bits <<= _SHIFT
        out *= self._read_scales[blocks]

    def write_signed(self, values: Floats, blocks: slice, step: int, room: Floats) -> None:
        """Keep some blocks.

        :param step: whose turns decide
        :param room: as large as the values; it is overwritten
        """
        np.abs(values, out=room)
        np.multiply(values, self._take_scales(room, blocks, _LEVELS), out=room)
        room += _SIGNED_TURNS[step % _TURNS :][: room.size].reshape(room.shape)
        codes = self._codes[blocks].view(np.uint8)
        np.copyto(codes, room, casting="unsafe")  # cut off, which would go up below zero: 128 has been added
        codes ^= 128

    def write_positive(self, values: Floats, blocks: slice, step: int) -> None:
        """The same for positive numbers, which are overwritten."""
        values *= self._take_scales(values, blocks, _TOP)
        bits = values.view(np.int32)
        bits += _POSITIVE_TURNS[_TURNS + step % _TURNS :][: bits.size].reshape(bits.shape)
        bits >>= _SHIFT
        np.copyto(self._codes[blocks], bits, casting="unsafe")

    def _take_scales(self, values: Floats, blocks: slice, top: float) -> Floats:
        """Keep the largest of each block; returns what makes it `top`."""
        scales = self._scales[blocks]
        np.max(values, 1, keepdims=True, out=scales)
        inverses: Floats = np.reciprocal(np.maximum(scales, _TINIEST)) * np.float32(top)
        return inverses
