"""What the decider of one epoch collects, and what follows from it."""

from collections.abc import Iterable
from dataclasses import dataclass

from dedloc_kit.records.record import PeerId
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.messages import Group, Options, Promised, Proposal
from dedloc_kit.swarm.consensus.records import Accepted, Commit, Epoch, Promise


@dataclass(frozen=True)
class UselessReducers:
    """These lack most of what others have; go on without them."""

    reducers: frozenset[PeerId]


@dataclass(frozen=True)
class NotEnough:
    """The samples that count are fewer than a batch."""


class Ballot:
    """One epoch, at its decider: promises, reports, one proposal, votes."""

    def __init__(
        self, instance: Instance, group: Group, epoch: Epoch, reducers: tuple[PeerId, ...], options: Options
    ) -> None:
        self.instance, self.group, self.epoch, self.reducers, self.options = instance, group, epoch, reducers, options
        self.proposal: Proposal | None = None
        self.quorum: tuple[Promise, ...] = ()
        """The promises that the proposal stands on."""
        self.reports: dict[PeerId, frozenset[int]] = {}
        self._promises: dict[PeerId, Promised] = {}
        self._votes: dict[str, dict[PeerId, Accepted]] = {}

    @property
    def has_quorum(self) -> bool:
        """Whether a quorum has promised."""
        return self.instance.electorate.enough(each.promise.voter for each in self._promises.values())

    @property
    def missing(self) -> set[PeerId]:
        """Reducers that have not reported."""
        return set(self.reducers) - set(self.reports)

    def promise(self, member: PeerId, promised: Promised) -> None:
        self._promises[member] = promised

    def report(self, reducer: PeerId, complete: Iterable[int]) -> None:
        if reducer in self.reducers:
            self.reports[reducer] = frozenset(place for place in complete if place < len(self.group.members))

    def propose(self) -> Proposal | UselessReducers | NotEnough | None:
        """The proposal, once a quorum has promised and, unless somebody has accepted a value, all have reported."""
        if self.proposal is not None or not self.has_quorum:
            return None
        promises = tuple(each.promise for each in self._promises.values())
        voted = [each for each in self._promises.values() if each.promise.accepted is not None]
        if voted:
            newest = max(voted, key=_epoch_of)
            assert newest.value is not None
            link = newest.value.link
            holders = tuple(m for m, each in self._promises.items() if each.value and each.value.link == link)
            self.proposal = Proposal(
                group=self.group.id, epoch=self.epoch, reducers=self.reducers, value=newest.value, holders=holders
            )
        else:
            if self.missing:
                return None
            counted, useless = self._count()
            if useless:
                return UselessReducers(useless)
            if sum(self.group.members[place].samples for place in counted) < self.options.minimum:
                return NotEnough()
            self.proposal = Proposal(group=self.group.id, epoch=self.epoch, reducers=self.reducers, counted=counted)
        self.quorum = promises
        return self.proposal

    def _count(self) -> tuple[tuple[int, ...], frozenset[PeerId]]:
        """Members from whom all reducers have everything; and reducers that lack most of what others have."""
        everybody = frozenset[int]().union(*self.reports.values())
        useless = {reducer for reducer, has in self.reports.items() if 2 * len(has) < len(everybody)}
        common = everybody.intersection(*self.reports.values())
        members, coordinator = self.group.members, self.instance.coordinator
        counted = tuple(p for p in sorted(common) if members[p].samples or members[p].peer == coordinator)
        return counted, frozenset(useless - {self.epoch.decider})

    def accept(self, member: PeerId, accepted: Accepted) -> Commit | None:
        """Count a vote; returns the commit once a quorum has voted for one value of this epoch's proposal."""
        votes = self._votes.setdefault(accepted.link, {})
        votes[member] = accepted
        proposal = self.proposal
        if proposal is None or not self.instance.electorate.enough(each.voter for each in votes.values()):
            return None
        value = proposal.value
        if value is None:
            value = self.instance.value([self.group.members[p] for p in proposal.counted], accepted.average)
        if value.link != accepted.link:
            return None
        return Commit(value=value, accepted=tuple(votes.values()))


def _epoch_of(promised: Promised) -> Epoch:
    accepted = promised.promise.accepted
    assert accepted is not None
    return accepted.epoch
