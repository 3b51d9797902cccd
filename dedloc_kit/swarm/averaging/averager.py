"""The training's side of averaging: gather a group, begin, call off."""

import itertools
from concurrent.futures import Future

from dedloc_kit.learning.train.flat import SharedVector
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.allreduce.streams import Patience
from dedloc_kit.swarm.averaging.matchmaking.group import GroupRequest
from dedloc_kit.swarm.averaging.result import RoundResult
from dedloc_kit.swarm.averaging.service import AveragingService, Found, Start
from dedloc_kit.swarm.network.host import Host


class PendingGroup:
    """A group that is being found, waits for its members to begin, or averages."""

    def __init__(self, number: int, result: Future[RoundResult], found: Future[Found], called: Future[None]) -> None:
        self.number, self._result, self._found, self._called = number, result, found, called

    @property
    def called(self) -> bool:
        """Has a member begun, who so thinks that the batch is full?"""
        return self._called.done() and self._called.exception() is None

    @property
    def members(self) -> frozenset[str] | None:
        """None while the group is being found or if it was not."""
        return self._found.result().members if self._stands else None

    @property
    def seconds(self) -> float:
        """What it took to find the group."""
        return self._found.result().seconds

    @property
    def _stands(self) -> bool:
        return self._found.done() and self._found.exception() is None

    @property
    def done(self) -> bool:
        return self._result.done()

    def result(self) -> RoundResult:
        """Waits for it; a process that has died is a failed round."""
        try:
            return self._result.result()
        except Exception as error:
            return RoundResult("failed", detail=repr(error)[:200])


class Averager:
    """Averages a vector with other peers, weighted by samples.

    :param vector: this peer's mean gradient (FlatLayout), which a complete round replaces by the average
    :param host: where the AveragingService lives
    """

    def __init__(self, vector: SharedVector, host: Host) -> None:
        self.vector, self._host = vector, host
        self._numbers = itertools.count()

    def gather(self, request: GroupRequest) -> PendingGroup:
        """Look for the group that will take a global step; it averages when its members `begin`."""
        number = next(self._numbers)
        result = self._host.call(AveragingService.average, number, request)
        found, called = (
            self._host.call(AveragingService.found, number),
            self._host.call(AveragingService.called, number),
        )
        return PendingGroup(number, result, found, called)

    def widen(self, group: PendingGroup, request: GroupRequest) -> None:
        """Look from now on as this says, if the group is still being found."""
        self._host.call(AveragingService.widen, group.number, request)

    def begin(
        self,
        group: PendingGroup,
        mine: Contribution,
        patience: Patience,
        limit: float,
        work: tuple[bytes, ...] = (),
    ) -> None:
        """Average with the group as soon as it stands.

        :param limit: seconds for the whole all-reduce
        :param work: a line for each microbatch (`pledge.Work`) where members are checked
        """
        self._host.call(AveragingService.begin, group.number, Start(mine, patience, limit, work))

    def call_off(self, group: PendingGroup) -> None:
        """Leave the group, unless its round has begun."""
        self._host.call(AveragingService.call_off, group.number)

    def put_back(self) -> None:
        """The average of a round that left this peer out was taken: what it brought goes into the next one."""
        self._host.call(AveragingService.put_back).result()

    def forget_feedback(self) -> None:
        """Another state was loaded: what compression lost on the way to the old one is of no use."""
        self._host.call(AveragingService.forget_feedback)
