"""How the numbers of an all-reduce travel: few bits for each.

An all-reduce works on chunks of one flat float32 vector, each of which becomes a message.
"""

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from hivemind.compression import CompressionBase, CompressionInfo
from hivemind.proto import runtime_pb2
from numpy.typing import NDArray
from torch import Tensor

from dedloc_kit.learning.train.flat import Scratch

LARGEST = 2.0**100
"""The largest absolute value that a chunk may hold. No gradient that was computed comes near it, for the square of its
norm is finite. Neither rounding nor a sum over the members, weighted by as many samples as anyone may claim, can carry
such numbers to infinity: the reducer that adds them up would seem to be at fault."""
_TINIEST = 2.0**-100  # blocks of still smaller numbers travel as zeros: their scale's inverse would be infinite


_scratch = Scratch()


class ChunkCompression(CompressionBase):
    """A way to write down a chunk: a float32 tensor of one dimension on the CPU, with at least one number.

    `compress` and `extract` raise ValueError for a chunk, or a message, that is not what it should be.
    """

    compression_type = runtime_pb2.CompressionType.NONE  # hivemind's enum has no value for ours: see `tag`
    tag: ClassVar[str]
    """What stands in the `dtype` of a message."""
    lossless: ClassVar[bool] = False

    def compress(
        self, tensor: Tensor, info: CompressionInfo | None = None, allow_inplace: bool = False
    ) -> runtime_pb2.Tensor:
        values = tensor.detach()
        if values.dtype != torch.float32 or values.ndim != 1 or not values.numel():
            raise ValueError(f"a chunk is a float32 vector, not {values.dtype} of shape {tuple(values.shape)}")
        return runtime_pb2.Tensor(
            compression=self.compression_type, dtype=self.tag, size=tuple(values.shape), buffer=self._pack(values)
        )

    def extract(self, serialized_tensor: runtime_pb2.Tensor, out: Tensor | None = None) -> Tensor:
        """The chunk, written to `out` (float32 [numel]) if there is one."""
        buffer, numel = serialized_tensor.buffer, self._numel(serialized_tensor)
        chunk = torch.empty(numel) if out is None else out
        self._unpack(buffer, chunk)
        return chunk

    def check(self, message: runtime_pb2.Tensor) -> None:
        """Raises ValueError for what `extract` does, in a fraction of its time."""
        self._check(message.buffer, self._numel(message))

    def _numel(self, message: runtime_pb2.Tensor) -> int:
        if message.dtype != self.tag or message.compression != self.compression_type:
            raise ValueError(f"a chunk came as '{message.dtype[:32]}' instead of '{self.tag}'")
        shape, found = tuple(message.size[:4]), len(message.buffer)
        if len(shape) != 1 or not shape[0] or found != self.byte_count(shape[0]):
            raise ValueError(f"a '{self.tag}' chunk of shape {shape} does not take {found} bytes")
        return int(shape[0])

    def estimate_compression_ratio(self, info: CompressionInfo) -> float:
        """Bytes for each byte of float32, for a long chunk."""
        return self.byte_count(2**20) / 2**22

    @abstractmethod
    def byte_count(self, numel: int) -> int:
        """How many bytes so many numbers take."""

    @abstractmethod
    def _pack(self, values: Tensor) -> bytes:
        """The bytes of numbers; raises ValueError if any is larger than LARGEST."""

    @abstractmethod
    def _check(self, buffer: bytes, numel: int) -> None:
        """Raises ValueError if a number in a buffer of the right length is not finite."""

    @abstractmethod
    def _unpack(self, buffer: bytes, chunk: Tensor) -> None:
        """Fill the chunk from a buffer of the right length; raises ValueError if a number is not finite."""


class Float32(ChunkCompression):
    """The numbers as they are."""

    tag = "float32"
    lossless = True
    _dtype: ClassVar[type[np.floating[Any]]] = np.float32
    _largest: ClassVar[float] = torch.finfo(torch.float32).max

    def byte_count(self, numel: int) -> int:
        return np.dtype(self._dtype).itemsize * numel

    def _pack(self, values: Tensor) -> bytes:
        check_size(float(values.abs().amax()))
        values = values.clamp(-self._largest, self._largest)
        return values.numpy().astype(self._dtype, copy=False).tobytes()

    def _check(self, buffer: bytes, numel: int) -> None:
        check_size(float(np.abs(np.frombuffer(buffer, self._dtype)).max()))

    def _unpack(self, buffer: bytes, chunk: Tensor) -> None:
        np.copyto(chunk.numpy(), np.frombuffer(buffer, self._dtype))
        check_size(float(chunk.abs().amax()))


class Float16(Float32):
    """Half precision; numbers beyond its range become the largest that it has."""

    tag = "float16"
    lossless = False
    _dtype = np.float16
    _largest = torch.finfo(torch.float16).max


class _Blockwise(ChunkCompression):
    """Blocks of numbers as small integers times the block's scale, after Dettmers et al. 2021 (arXiv 2110.02861).

    The scale is the block's largest absolute value, rounded up to bfloat16: float16 has no numbers as small as some
    gradients. The scales stand first, then the codes; the last block is filled up with zeros.
    """

    block: ClassVar[int]
    bits: ClassVar[int]

    def byte_count(self, numel: int) -> int:
        return -(-numel // self.block) * (2 + self.block * self.bits // 8)

    def _pack(self, values: Tensor) -> bytes:
        missing = -values.numel() % self.block
        rows = torch.nn.functional.pad(values, (0, missing)) if missing else values
        rows = rows.reshape(-1, self.block)
        room = _scratch.like(rows)
        largest = torch.abs(rows, out=room).amax(1).numpy()  # twenty times as fast as a norm over rows, or aminmax
        check_size(float(largest.max()))
        # The scales are few: an operation of numpy on them takes a fifth of the time of one of torch.
        scales = ((largest.view(np.uint32) + 0xFFFF) >> 16 << 16).view(np.float32)  # rounded up
        scales[scales < _TINIEST] = 0.0
        inverses = np.divide(127.0, scales, out=np.zeros_like(scales), where=scales > 0)
        codes = torch.mul(rows, torch.from_numpy(inverses)[:, None], out=room).round_().to(torch.int8)
        return b"".join(((scales.view(np.uint32) >> 16).astype(np.uint16).data, self._pack_codes(codes).data))

    def _check(self, buffer: bytes, numel: int) -> None:
        self._scales(buffer, -(-numel // self.block))

    def _scales(self, buffer: bytes, blocks: int) -> NDArray[np.float32]:
        scales = (np.frombuffer(buffer, np.uint16, blocks).astype(np.uint32) << 16).view(np.float32)
        if not (scales.min() >= 0.0 and scales.max() <= LARGEST):  # so that NaN is refused as well
            raise ValueError("a chunk has a scale that is negative, too large or not a number")
        return scales

    def _unpack(self, buffer: bytes, chunk: Tensor) -> None:
        blocks = -(-chunk.numel() // self.block)
        scales = self._scales(buffer, blocks)
        whole = blocks * self.block == chunk.numel()
        rows = (chunk if whole else torch.empty(blocks * self.block)).view(blocks, self.block)
        self._unpack_codes(memoryview(buffer)[2 * blocks :], rows.numpy())
        rows.mul_(torch.from_numpy(scales / 127.0)[:, None])
        if not whole:
            chunk.copy_(rows.view(-1)[: chunk.numel()])

    @abstractmethod
    def _pack_codes(self, codes: Tensor) -> NDArray[np.int8] | NDArray[np.uint8]:
        """The bytes of whole numbers from -127 to 127, int8 [blocks, block]."""

    @abstractmethod
    def _unpack_codes(self, buffer: memoryview, rows: NDArray[np.float32]) -> None:
        """Fill the rows [blocks, block] with the numbers that were packed, or with what stands for them."""


class Blockwise8Bit(_Blockwise):
    """255 levels at equal steps: off by at most 0.4 % of the block's largest value, 8.06 bits."""

    tag = "blockwise8"
    block = 256
    bits = 8

    def _pack_codes(self, codes: Tensor) -> NDArray[np.int8]:
        return codes.numpy()

    def _unpack_codes(self, buffer: memoryview, rows: NDArray[np.float32]) -> None:
        np.copyto(rows, np.frombuffer(buffer, np.int8).reshape(rows.shape))


class Blockwise4Bit(_Blockwise):
    """15 levels, closer near zero, where most gradients are: off by at most 11.5 % of the block's largest, 4.13 bits.

    They have the least squared error over gradients of an ALBERT (Lloyd's method): they lose 10 % of the norm, equal
    steps 12 %. Zero is a level, so that what has no gradient gets none. Neighbours are an odd number of 127ths apart,
    so that rounding to 127ths first does not change which one is nearest.
    """

    tag = "blockwise4"
    block = 128
    bits = 4
    LEVELS = (-119, -90, -67, -48, -33, -20, -9, 0, 9, 20, 33, 48, 67, 90, 119)
    """What the numbers 0 to 14 stand for, in 127ths of the scale."""

    def __init__(self) -> None:
        # Tables for bytes.translate, which is faster than any look-up of torch or numpy.
        levels = np.array([*self.LEVELS, 0], dtype=np.int8)  # nobody of ours sends a 15
        octets = np.arange(256, dtype=np.uint8)
        distances = np.abs(octets.view(np.int8)[:, None].astype(int) - self.LEVELS)
        self._number_of_code = distances.argmin(1).astype(np.uint8).tobytes()
        self._code_of_low, self._code_of_high = levels[octets & 15].tobytes(), levels[octets >> 4].tobytes()

    def _pack_codes(self, codes: Tensor) -> NDArray[np.uint8]:
        numbers = torch.frombuffer(bytearray(codes.numpy()).translate(self._number_of_code), dtype=torch.uint8)
        low, high = numbers.view(codes.shape).chunk(2, dim=1)
        return (low | high << 4).numpy()

    def _unpack_codes(self, buffer: memoryview, rows: NDArray[np.float32]) -> None:
        packed, tables = bytes(buffer), (self._code_of_low, self._code_of_high)
        middle = self.block // 2
        for half, table in zip((rows[:, :middle], rows[:, middle:]), tables, strict=True):
            np.copyto(half, np.frombuffer(packed.translate(table), np.int8).reshape(half.shape))


def check_size(largest: float) -> None:
    if not largest <= LARGEST:  # so that NaN is refused as well
        raise ValueError("a chunk holds numbers that are not finite, or larger than 1e30")
