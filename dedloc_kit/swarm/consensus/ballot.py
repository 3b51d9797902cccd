"""What the decider of one epoch collects, and what follows from it."""

from collections.abc import Iterable, Set
from dataclasses import dataclass

from dedloc_kit.records.record import PeerId
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.messages import Group, Options, Promised, Proposal, new_value
from dedloc_kit.swarm.consensus.records import Accepted, Commit, Epoch, Promise, Voter


@dataclass(frozen=True)
class UselessReducers:
    """These lack most of what others have; go on without them."""

    reducers: frozenset[PeerId]


@dataclass(frozen=True)
class NotEnough:
    """The samples that count are fewer than a batch. :ivar counted: places of those who were there"""

    counted: tuple[int, ...]


class Ballot:
    """One epoch, at its decider: promises, reports, one proposal, votes."""

    def __init__(
        self,
        instance: Instance,
        group: Group,
        epoch: Epoch,
        reducers: tuple[PeerId, ...],
        options: Options,
        ignored: Set[PeerId] = frozenset(),
    ) -> None:
        """
        :param ignored: members that named a value whose average nobody has delivered. Their promises do not count if
            they name a value: if a quorum has voted for it, the others are no quorum; if not, they may have lied
        """
        self.instance, self.group, self.epoch, self.reducers, self.options = instance, group, epoch, reducers, options
        self._ignored = ignored
        self.proposal: Proposal | None = None
        self.quorum: tuple[Promise, ...] = ()
        """The promises that the proposal stands on."""
        self.reports: dict[PeerId, frozenset[int]] = {}
        self._voters = {entry.peer: entry.voter for entry in group.members if entry.voter in instance.electorate}
        self._promises: dict[PeerId, Promised] = {}
        self._votes: dict[PeerId, Accepted] = {}

    @property
    def has_quorum(self) -> bool:
        """Whether a quorum has promised."""
        return self.instance.electorate.enough(each.promise.voter for each in self._promises.values())

    @property
    def missing(self) -> set[PeerId]:
        """Reducers that have not reported."""
        return set(self.reducers) - set(self.reports)

    @property
    def awaited(self) -> set[PeerId]:
        """Members whose report, promise or vote would help."""
        if self.proposal is not None:
            return set(self._voters) - set(self._votes)
        return self.missing | (set() if self.has_quorum else set(self._voters) - set(self._promises) - self._ignored)

    def is_hopeless(self, failed: Set[PeerId]) -> bool:
        """Whether no value can have a quorum in this epoch: too many voters have failed, or votes are split."""
        if self.proposal is None:
            lost = (self._ignored | failed) - set(self._promises)
            return not self.instance.electorate.enough(v for peer, v in self._voters.items() if peer not in lost)
        open_ = [voter for peer, voter in self._voters.items() if peer not in failed and peer not in self._votes]
        links = {each.link for each in self._votes.values()} or {""}
        return not any(self.instance.electorate.enough([*open_, *self._for(link)]) for link in links)

    def _for(self, link: str) -> list[Voter]:
        return [each.voter for each in self._votes.values() if each.link == link]

    def promise(self, member: PeerId, promised: Promised) -> None:
        """Count a voter's promise."""
        if member in self._voters and (member not in self._ignored or promised.promise.accepted is None):
            self._promises[member] = promised

    @property
    def namers(self) -> set[PeerId]:
        """Members whose promises name the old value that is proposed."""
        value = self.proposal.value if self.proposal is not None else None
        return {m for m, each in self._promises.items() if value and each.value and each.value.link == value.link}

    def needs_proof(self, promise: Promise) -> bool:
        """Whether this voter has accepted another value than is proposed."""
        value = self.proposal.value if self.proposal is not None else None
        return promise.accepted is not None and (value is None or promise.accepted.link != value.link)

    @property
    def proven(self) -> Proposal:
        """The proposal with the promises that it stands on."""
        assert self.proposal is not None
        return self.proposal.model_copy(update={"proof": self.quorum})

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
            if sum(self.options.weigh([self.group.members[place] for place in counted])) < self.options.minimum:
                return NotEnough(counted)
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
        """Count a member's first vote; returns the commit once a quorum has voted for one value of the proposal."""
        self._votes.setdefault(member, accepted)
        proposal = self.proposal
        if proposal is None or not self.instance.electorate.enough(self._for(accepted.link)):
            return None
        value = proposal.value
        if value is None:
            value = new_value(self.instance, self.group, proposal.counted, accepted.average, self.options)
        if value.link != accepted.link:
            return None
        return Commit(value=value, accepted=tuple(a for a in self._votes.values() if a.link == value.link))


def _epoch_of(promised: Promised) -> Epoch:
    accepted = promised.promise.accepted
    assert accepted is not None
    return accepted.epoch
