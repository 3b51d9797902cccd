"""What a reducer makes of the members' values: a seam, the weighted mean, and the same of bounded values."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dedloc_kit.config.trust import TrustConfig
from dedloc_kit.swarm.trust.robust import clipped_mean


class RoundOver(Exception):
    """The all-reduce has failed; nobody need wait any more."""


def let_go(future: "asyncio.Future[Any]", reason: str = "the round is over") -> None:
    """Whoever waits for this gets RoundOver, unless it is done."""
    if not future.done():
        future.set_exception(RoundOver(reason))
        future.exception()  # maybe nobody waits: without this asyncio complains


class Reducer(ABC):
    """Makes one vector out of what the members of one round send of each part that this peer reduces.

    Parts of different senders may come in any order, also before it is known who is to send.

    :param room: float32 [numel] for each part, which the results may lie in; what it holds does not matter
    """

    def __init__(self, room: Sequence[Tensor]) -> None:
        loop = asyncio.get_running_loop()
        self.room = room
        self.weights: Mapping[str, float] | None = None
        """Of the members that send anything, in samples; none until that is known."""
        self._results: list[asyncio.Future[Tensor]] = [loop.create_future() for _ in room]

    def expect(self, weights: Mapping[str, float]) -> None:
        """Who sends parts, and how much they count."""
        self.weights = weights
        for part in range(len(self.room)):
            self.reduce_if_complete(part)

    @abstractmethod
    def add(self, sender: str, part: int, values: Tensor, weight: float) -> None:
        """A member's values of a part, float32 [numel]; the caller will overwrite them."""

    @abstractmethod
    def reduce_if_complete(self, part: int) -> None:
        """Call `finish` with the result if everyone who is expected has sent this part, and it was not called yet."""

    def finish(self, part: int, result: Tensor) -> None:
        if not self._results[part].done():
            self._results[part].set_result(result)

    async def result(self, part: int) -> Tensor:
        """As soon as everyone has sent it; raises RoundOver if the round fails."""
        return await asyncio.shield(self._results[part])

    def made(self, part: int) -> Tensor:
        """The result, once everyone has sent the part."""
        return self._results[part].result()

    def abandon(self) -> None:
        """Let go of whoever still waits."""
        for result in self._results:
            let_go(result)


class MeanReducer(Reducer):
    """The mean weighted by samples; parts are added up as they come and forgotten."""

    def __init__(self, room: Sequence[Tensor]) -> None:
        super().__init__(room)
        self._received = [0] * len(room)

    def add(self, sender: str, part: int, values: Tensor, weight: float) -> None:
        if self._received[part]:
            self.room[part].add_(values, alpha=weight)
        else:
            torch.mul(values, weight, out=self.room[part])
        self._received[part] += 1
        self.reduce_if_complete(part)

    def reduce_if_complete(self, part: int) -> None:
        if self.weights and self._received[part] == len(self.weights):
            self._received[part] = 0
            self.finish(part, self.room[part].div_(sum(self.weights.values())))


class GatheringReducer(Reducer):
    """Reduces a part when all of it is there; until then that takes four bytes for each value of each member."""

    def __init__(self, room: Sequence[Tensor]) -> None:
        super().__init__(room)
        self._kept: list[dict[str, Tensor]] = [{} for _ in room]

    def add(self, sender: str, part: int, values: Tensor, weight: float) -> None:
        self._kept[part][sender] = values.clone()
        self.reduce_if_complete(part)

    def reduce_if_complete(self, part: int) -> None:
        kept = self._kept[part]
        if not self.weights or kept.keys() != self.weights.keys():
            return
        self._kept[part] = {}
        parts = [kept[sender] for sender in self.weights]  # the order of the roll, whatever came first
        self.reduce(parts, list(self.weights.values()), self.room[part])
        self.finish(part, self.room[part])

    @abstractmethod
    def reduce(self, parts: Sequence[Tensor], weights: Sequence[float], out: Tensor) -> None:
        """Make one of the members' parts, float32 [numel] each."""


class ClipReducer(GatheringReducer):
    """The mean weighted by samples of values that are clipped: see `trust.robust`."""

    def reduce(self, parts: Sequence[Tensor], weights: Sequence[float], out: Tensor) -> None:
        clipped_mean(parts, [int(weight) for weight in weights], out)


MakeReducer = Callable[[Sequence[Tensor]], Reducer]
"""For one round, given room for each part that this peer reduces."""


def reducer_of(trust: TrustConfig) -> MakeReducer:
    """What a run makes of the members' values."""
    return ClipReducer if trust.aggregator == "clip" else MeanReducer
