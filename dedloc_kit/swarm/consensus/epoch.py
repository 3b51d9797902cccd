"""What one member has of one epoch: parts of others, shares of the average, the proposal."""

from collections.abc import Set

from dedloc_kit.records.record import PeerId
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.messages import Group, Proposal, Report
from dedloc_kit.swarm.consensus.records import Epoch, Value


class MemberEpoch:
    """Begins empty with each epoch that a member joins.

    :ivar average: the digest of the proposal's average, once it is whole
    :ivar since: when it began, or when the proposal came
    """

    def __init__(self, group: Group, epoch: Epoch, reducers: tuple[PeerId, ...], since: float) -> None:
        self.group, self.epoch, self.reducers, self.since = group, epoch, reducers, since
        self.proposal: Proposal | None = None
        self.average: str | None = None
        self._complete: set[int] = set()
        self._shares: set[PeerId] = set()
        self._reported = False

    def propose(self, proposal: Proposal, now: float) -> None:
        self.proposal, self.since = proposal, now

    def averaged(self, average: str | None) -> None:
        """The digest of what is held as the whole average; None to forget it."""
        self.average = average

    def complete(self, member: PeerId) -> None:
        """This reducer has all parts of a member."""
        if member in self.group.peers:
            self._complete.add(self.group.peers.index(member))

    def share(self, reducer: PeerId) -> None:
        """A reducer's share of the average has arrived."""
        self._shares.add(reducer)

    def report(self, failed: Set[PeerId], waited_enough: bool) -> Report | None:
        """Once: when everything of all that have not failed is here, or enough was waited."""
        peers = enumerate(self.group.peers)
        awaited = any(place not in self._complete and peer not in failed for place, peer in peers)
        if self._reported or (awaited and not waited_enough):
            return None
        self._reported = True
        return Report(group=self.group.id, epoch=self.epoch, complete=tuple(sorted(self._complete)))

    def accusation(self, me: PeerId) -> Report:
        """Reducers whose share has not come."""
        lacking = tuple(r for r in self.reducers if r not in self._shares and r != me)
        return Report(group=self.group.id, epoch=self.epoch, lacking=lacking)

    def value(self, instance: Instance) -> Value | None:
        """The proposed value, once its average is here."""
        if self.proposal is None or self.average is None:
            return None
        if self.proposal.value is not None:
            return self.proposal.value
        return instance.value([self.group.members[place] for place in self.proposal.counted], self.average)
