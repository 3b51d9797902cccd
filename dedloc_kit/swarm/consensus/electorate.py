"""Who decides on a step: those whose samples the last one counted, and the coordinator."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from dedloc_kit.swarm.consensus.records import NO_VOTE, PartReset, Value, Voter

_EXTRA = 5
"""The coordinator's vote is worth a fifth of all others together: it breaks ties."""


@dataclass(frozen=True)
class Electorate:
    """Voters and their weights. A quorum has more than half of all weight, the coordinator's included.

    After a crash of one voter of two the coordinator and the other one go on; of three equal voters two go on without
    the coordinator. Two quorums share a voter: enough against crashes and lost memory, not against voters that vote
    twice. If honest voters are divided evenly, any lying weight that talks to both halves can fork the chain.
    """

    weights: Mapping[Voter, int]
    coordinator: Voter | None

    @staticmethod
    def of_value(value: Value, coordinator: Voter | None) -> "Electorate":
        """A vote weighs the samples that counted, at most a third of the step (in thirds of a sample)."""
        most, pairs = value.samples, zip(value.counted, value.weights, strict=True)
        votes = {e.voter: min(3 * weight, most) for e, weight in pairs if e.voter.incarnation != NO_VOTE}
        return Electorate({voter: vote for voter, vote in votes.items() if vote}, coordinator)

    @staticmethod
    def of_reset(reset: PartReset, coordinator: Voter) -> "Electorate":
        return Electorate(dict(reset.voters), coordinator)

    def enough(self, voters: Iterable[Voter]) -> bool:
        """Whether these are a quorum. Two quorums always share a voter."""
        present = set(voters)
        total = sum(self.weights.values())
        votes = sum(weight for voter, weight in self.weights.items() if voter in present)
        if not total:
            return self.coordinator in present
        extra = total if self.coordinator in present else 0
        whole = _EXTRA * total + (total if self.coordinator is not None else 0)
        return 2 * (_EXTRA * votes + extra) > whole

    @property
    def peers(self) -> frozenset[str]:
        """Of all voters."""
        coordinator = () if self.coordinator is None else (self.coordinator.peer,)
        return frozenset((*(voter.peer for voter in self.weights), *coordinator))

    def enough_peers(self, peers: Collection[str], told: Mapping[str, int]) -> bool:
        """Whether these are a quorum, as far as known before they meet.

        :param told: incarnations that peers have told; another one than the voter's is of no use
        """
        voters = (*self.weights, *(() if self.coordinator is None else (self.coordinator,)))
        able = (voter for voter in voters if told.get(voter.peer, voter.incarnation) == voter.incarnation)
        return self.enough(voter for voter in able if voter.peer in peers)

    def __contains__(self, voter: Voter) -> bool:
        return voter in self.weights or (voter == self.coordinator and voter.incarnation != NO_VOTE)
