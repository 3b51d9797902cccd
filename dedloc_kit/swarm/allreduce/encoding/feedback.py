"""Error feedback: what the few bits of a round lose is sent with the next one."""

from dataclasses import dataclass

import torch
from hivemind.proto import runtime_pb2
from torch import Tensor

from dedloc_kit.learning.train.flat import FlatLayout, Room, Scratch, untouched_zeros
from dedloc_kit.swarm.allreduce.encoding.codec import Codec
from dedloc_kit.swarm.allreduce.encoding.compression import ChunkCompression
from dedloc_kit.swarm.trust.pledge import Sealed


class Feedback:
    """Error feedback in one direction: what a message lost of its chunk is added to the same numbers next time.

    So nothing is lost for good, however coarse the codec (Seide et al. 2014; Karimireddy et al. 2019, arXiv
    1901.09847; for the reducer's average Tang et al. 2019, arXiv 1905.05957). Chunks are known by their place in the
    flat vector, for it is cut differently from round to round.

    :param size: how many numbers the flat vector has
    :param room: where what is lost lies
    """

    def __init__(self, size: int, room: Room = untouched_zeros) -> None:
        self._size, self._room = size, room
        self._weight = 0.0
        # What was lost times the weight that it had, so that another weight in the next round does not change the sum.
        self._residual: Tensor | None = None
        # What this round loses. Both are kept from round to round: new memory costs more than all the arithmetic.
        self._lost: Tensor | None = None
        self._scratch = Scratch()
        # The length of a chunk and whether anything was lost of it, by its place.
        self._pending: dict[int, tuple[int, bool]] = {}

    def begin(self, weight: float) -> None:
        """A round begins in which this peer's vector (or, for a reducer, the average) stands for `weight` samples.

        With a weight of 0 the chunks of this round are encoded as they are, and the residual stays for later.
        """
        if not 0.0 <= weight < float("inf"):
            raise ValueError(f"a weight of {weight}")
        self._weight, self._pending = weight, {}

    def encode(
        self, compression: ChunkCompression, chunk: Tensor, offset: int, out: Tensor | None = None
    ) -> runtime_pb2.Tensor:
        """The message of a chunk (float32 [numel]) plus its residual.

        `out`, if there is one, takes the chunk as everyone will decode it; it must not be the chunk itself.
        """
        value = self._with_residual(chunk, offset, self._scratch.like(chunk))
        message = compression.compress(value)
        if not compression.lossless and self._weight:
            self._lost = self._room(self._size) if self._lost is None else self._lost
            lost = self._lost[offset : offset + chunk.numel()]
            decoded = compression.extract(message, lost if out is None else out)
            torch.sub(value, decoded, out=lost).mul_(self._weight)
        elif out is not None:
            compression.extract(message, out)
        self._remember(offset, chunk.numel(), not compression.lossless)
        return message

    def exact(self, chunk: Tensor, offset: int) -> Tensor:
        """A chunk plus its residual (without one, the chunk itself) that a peer reduces itself, so nothing is lost."""
        value = self._with_residual(chunk, offset)
        self._remember(offset, chunk.numel(), False)
        return value

    @property
    def residual(self) -> Tensor | None:
        """What was lost times the weight that it had, float32 [size]; none while that is nothing."""
        return self._residual

    def next_residual(self) -> Tensor | None:
        """The same once this round is complete, of which all chunks are encoded; until the next round begins."""
        for offset, (numel, lossy) in self._pending.items():
            if self._lost is not None and not lossy:
                self._lost[offset : offset + numel] = 0.0
        return self._lost

    def commit(self) -> None:
        """The round is complete: what it lost becomes the residual. Chunks that took no part keep theirs."""
        pending, self._pending = self._pending, {}
        whole = sum(numel for numel, _ in pending.values()) == self._size and self._lost is not None
        if whole:  # as always for a member's own gradients: the buffers change places, nothing is copied
            self._residual, self._lost = self._lost, self._residual
        for offset, (numel, lossy) in pending.items():
            chunk = slice(offset, offset + numel)
            if self._residual is None and lossy:
                self._residual = self._room(self._size)
            if self._residual is not None and not lossy:
                self._residual[chunk] = 0.0
            elif self._residual is not None and self._lost is not None and not whole:
                self._residual[chunk] = self._lost[chunk]

    def discard(self) -> None:
        """The round failed: it is as if it had never been."""
        self._pending = {}

    def reset(self) -> None:
        """Another state was loaded, to which no loss of ours belongs."""
        self._pending, self._residual = {}, None

    def _with_residual(self, chunk: Tensor, offset: int, out: Tensor | None = None) -> Tensor:
        if offset < 0 or offset + chunk.numel() > self._size:
            raise ValueError(f"a chunk at {offset} to {offset + chunk.numel()} of a vector of {self._size}")
        if self._residual is None or not self._weight:
            return chunk
        return torch.add(chunk, self._residual[offset : offset + chunk.numel()], alpha=1.0 / self._weight, out=out)

    def _remember(self, offset: int, numel: int, lossy: bool) -> None:
        if self._weight:
            self._pending[offset] = (numel, lossy)


@dataclass(frozen=True)
class Coding:
    """How chunks are written down, and what that loses is made good.

    :ivar sent: of what this peer sends as a member
    :ivar averaged: of what it sends as a reducer
    :ivar sealed: what it has encoded, and committed to, before it sends any of it; none where checks are off
    """

    codec: Codec
    sent: Feedback
    averaged: Feedback
    sealed: Sealed | None = None

    def of_gradients(self, begin: int, layout: FlatLayout) -> ChunkCompression:
        """Of the chunk that begins there: those of small tensors are written more finely."""
        return self.codec.small if begin >= layout.large else self.codec.gradients

    def of_averages(self, begin: int, layout: FlatLayout) -> ChunkCompression:
        return self.codec.small if begin >= layout.large else self.codec.averages

    def of_means(self, begin: int, layout: FlatLayout) -> ChunkCompression:
        return self.codec.small if begin >= layout.large else self.codec.means
