"""What one member has of one epoch: parts of others, shares of the average, the proposal."""

from collections.abc import Set

from dedloc_kit.records.record import PeerId
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.messages import Group, Options, Proposal, Report, new_value
from dedloc_kit.swarm.consensus.records import Epoch, Value


class MemberEpoch:
    """Begins empty with each epoch that a member joins.

    :ivar incomplete: members of whom this reducer lacks parts
    :ivar lacking: reducers whose share of the average is not here
    :ivar average: the digest of the proposal's average, once it is whole
    """

    def __init__(self, group: Group, epoch: Epoch, reducers: tuple[PeerId, ...]) -> None:
        self.group, self.epoch, self.reducers = group, epoch, reducers
        self.incomplete, self.lacking = set(group.peers), set(reducers)
        self.proposal: Proposal | None = None
        self.average: str | None = None
        self._reported = self._accused = False

    def propose(self, proposal: Proposal) -> None:
        self.proposal = proposal

    def averaged(self, average: str | None) -> None:
        """The digest of what is held as the whole average; None to forget it."""
        self.average = average

    def complete(self, member: PeerId) -> None:
        """This reducer has all parts of a member."""
        self.incomplete.discard(member)

    def share(self, reducer: PeerId) -> None:
        """A reducer's share of the average has arrived."""
        self.lacking.discard(reducer)

    def report(self, gone: Set[PeerId]) -> Report | None:
        """Once: when everything of all others is here."""
        if self._reported or not self.incomplete <= gone:
            return None
        self._reported = True
        complete = tuple(place for place, peer in enumerate(self.group.peers) if peer not in self.incomplete)
        return Report(group=self.group.id, epoch=self.epoch, complete=complete)

    def accuse(self, gone: Set[PeerId]) -> Report | None:
        """Once: the reducers whose share will not come."""
        lacking = tuple(reducer for reducer in self.reducers if reducer in self.lacking & gone)
        if self._accused or not lacking:
            return None
        self._accused = True
        return Report(group=self.group.id, epoch=self.epoch, lacking=lacking)

    def value(self, instance: Instance, options: Options) -> Value | None:
        """The proposed value, once its average is here."""
        if self.proposal is None or self.average is None:
            return None
        if self.proposal.value is not None:
            return self.proposal.value
        return new_value(instance, self.group, self.proposal.counted, self.average, options)
