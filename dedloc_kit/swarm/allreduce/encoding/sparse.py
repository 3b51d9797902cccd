"""The largest numbers of a chunk alone, in few bits: what local steps send once in many minutes.

After SparseLoCo (Sarfi et al. 2025, arXiv 2508.15706). It only makes sense with error feedback, which sends the others
later.
"""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dedloc_kit.swarm.allreduce.encoding.compression import LARGEST, ChunkCompression, check_size

_INDEX_BITS, _CODE_BITS = 12, 2
_ENTRY_BITS = _INDEX_BITS + _CODE_BITS


class Sparse(ChunkCompression):
    """Of each block of 4,096 numbers the 64 largest, each as its place and one of four levels: 0.0283 bytes a number.

    The levels are two of either sign: the mean of those kept numbers that are at most as large as their mean, and of
    the others, as bfloat16. These stand first, then the kept numbers' places, ascending within each block, each with
    its level.
    """

    tag = "sparse"
    block = 1 << _INDEX_BITS
    kept = 64

    def byte_count(self, numel: int) -> int:
        return 4 * -(-numel // self.block) + -(-self._entries(numel) * _ENTRY_BITS // 8)

    def _entries(self, numel: int) -> int:
        return numel // self.block * self.kept + min(self.kept, numel % self.block)

    def _pack(self, values: Tensor) -> bytes:
        check_size(float(values.abs().amax()))
        whole = values.numel() // self.block * self.block
        packed = [self._pack_rows(rows) for rows in (values[:whole].view(-1, self.block), values[whole:][None])]
        levels, entries = (np.concatenate(each) for each in zip(*packed, strict=True))
        bits = np.unpackbits(entries.astype(">u2").view(np.uint8)).reshape(-1, 16)[:, -_ENTRY_BITS:]
        return levels.tobytes() + np.packbits(bits).tobytes()

    def _pack_rows(self, rows: Tensor) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
        """The levels and the entries of blocks that are equally long."""
        if not rows.numel():
            return np.empty(0, np.uint16), np.empty(0, np.uint16)
        places = rows.abs().topk(min(self.kept, rows.shape[1]), sorted=False).indices.sort().values
        found = rows.gather(1, places).numpy()
        sizes = np.abs(found)
        high = sizes > sizes.mean(1, keepdims=True)
        count = high.sum(1)
        large = np.where(high, sizes, 0).sum(1) / np.maximum(count, 1)
        small = np.where(high, 0, sizes).sum(1) / np.maximum(sizes.shape[1] - count, 1)
        levels = (np.stack([small, large], 1).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        codes = (high << 1 | (found < 0)).astype(np.uint16)
        return levels.ravel(), (places.numpy().astype(np.uint16) << _CODE_BITS | codes).ravel()

    def _check(self, buffer: bytes, numel: int) -> None:
        self._read(buffer, numel)

    def _unpack(self, buffer: bytes, chunk: Tensor) -> None:
        places, values = self._read(buffer, chunk.numel())
        chunk.zero_()
        chunk.numpy()[places] = values

    def _read(self, buffer: bytes, numel: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Places in the chunk and their numbers; raises ValueError for places that are not the chunk's, not ascending
        or doubled, and for levels that are not finite."""
        blocks, count = -(-numel // self.block), self._entries(numel)
        levels = (np.frombuffer(buffer, np.uint16, 2 * blocks).astype(np.uint32) << 16).view(np.float32)
        if not (levels.min() >= 0.0 and levels.max() <= LARGEST):  # so that NaN is refused as well
            raise ValueError("a chunk has a level that is negative, too large or not a number")
        packed = np.frombuffer(buffer, np.uint8, offset=4 * blocks)
        bits = np.zeros((count, 16), np.uint8)
        bits[:, -_ENTRY_BITS:] = np.unpackbits(packed, count=count * _ENTRY_BITS).reshape(count, _ENTRY_BITS)
        entries = np.packbits(bits, axis=1).view(">u2").ravel().astype(np.int64)
        block = np.arange(count) // self.kept
        places = block * self.block + (entries >> _CODE_BITS)
        if not (np.diff(places) > 0).all() or places[-1] >= numel:
            raise ValueError("the places of a sparse chunk are not ascending, or not its own")
        codes = entries & 3
        values = levels[2 * block + (codes >> 1)]
        return places, np.where(codes & 1, -values, values)
