"""The parts in which a flat vector travels through an all-reduce, added up by their reducer."""

import asyncio
from collections.abc import Sequence

import torch
from hivemind.averaging.allreduce import AllreduceException


class PartMeans:
    """Weighted means of the parts that this peer reduces. Parts of different senders may come in any order.

    It stands where hivemind's TensorPartReducer would, which lets all senders wait for the slowest at each part.

    :param sums: room for each part; what it holds does not matter
    """

    def __init__(self, sums: Sequence[torch.Tensor]) -> None:
        loop = asyncio.get_running_loop()
        self._sums = sums
        self._received = [0] * len(sums)
        self._means: list[asyncio.Future[torch.Tensor]] = [loop.create_future() for _ in sums]
        self._senders, self._weight = 0, 0.0
        self.finished = asyncio.Event()

    def expect(self, senders: int, weight: float) -> None:
        """How many senders there are and what their weights sum to."""
        self._senders, self._weight = senders, weight
        for index in range(len(self._sums)):
            self._finish(index)

    def add(self, index: int, part: torch.Tensor, weight: float) -> None:
        if self._received[index]:
            self._sums[index].add_(part, alpha=weight)
        else:
            torch.mul(part, weight, out=self._sums[index])
        self._received[index] += 1
        self._finish(index)

    def _finish(self, index: int) -> None:
        if self._senders and self._received[index] == self._senders and not self._means[index].done():
            self._means[index].set_result(self._sums[index].div_(self._weight))

    async def mean(self, index: int) -> torch.Tensor:
        """The mean of a part, as soon as everyone has sent it; raises AllreduceException if the round fails."""
        return await asyncio.shield(self._means[index])

    def finalize(self) -> None:
        """Let go of whoever still waits."""
        for mean in self._means:
            if not mean.done():
                mean.set_exception(AllreduceException("the round is over"))
                mean.exception()  # not everyone waits: without this asyncio complains
        self.finished.set()


def safe_fractions(shares: Sequence[int]) -> tuple[float, ...]:
    """The shares, the first a quarter of a value larger.

    hivemind computes the borders between peers by a floating point division and rounds down; without the quarter a
    border may come out one value too low.
    """
    first = next(index for index, share in enumerate(shares) if share)
    return tuple(share + 0.25 * (index == first) for index, share in enumerate(shares))
