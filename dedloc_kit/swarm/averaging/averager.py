"""The training's side of averaging: what a group says until it stands; begin, call off."""

import itertools
from concurrent.futures import Future

from dedloc_kit.learning.train.flat import SharedVector
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.allreduce.streams import Patience
from dedloc_kit.swarm.averaging.result import RoundResult
from dedloc_kit.swarm.averaging.service import AveragingService, Start
from dedloc_kit.swarm.gathering.messages import Attempt, Carried, Join, Verdict
from dedloc_kit.swarm.gathering.service import GatheringService
from dedloc_kit.swarm.network.host import Host


class PendingGroup:
    """A group that waits for its members to begin, or averages."""

    def __init__(self, number: int, attempt: Attempt, result: Future[RoundResult], called: Future[None]) -> None:
        self.number, self.members, self._result, self._called = number, attempt.peers, result, called

    @property
    def called(self) -> bool:
        """Has a member begun, who so thinks that the batch is full?"""
        return self._called.done() and self._called.exception() is None

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

    # Until a group stands

    def ask(self, leader: str, join: Join) -> None:
        """Ask a peer to lead this one."""
        self._host.call(GatheringService.ask, leader, join)

    def answer(self, peer: str, verdict: Verdict) -> None:
        """Tell a peer that has asked this one."""
        self._host.call(GatheringService.answer, peer, verdict)

    def leave(self, leader: str) -> None:
        """Follow this leader no more."""
        self._host.call(GatheringService.leave, leader)

    def heard(self) -> Future[list[Carried]]:
        """What other peers say next."""
        return self._host.call(GatheringService.heard)

    # A round

    def stand(self, attempt: Attempt) -> PendingGroup:
        """A group stands; it averages when its members `begin`."""
        number = next(self._numbers)
        result = self._host.call(AveragingService.average, number, attempt)
        return PendingGroup(number, attempt, result, self._host.call(AveragingService.called, number))

    def begin(
        self,
        group: PendingGroup,
        mine: Contribution,
        patience: Patience,
        limit: float,
        work: tuple[bytes, ...] = (),
    ) -> None:
        """Average with the group.

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
