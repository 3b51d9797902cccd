"""Which proposals and promises a participant believes."""

from collections.abc import Sequence
from dataclasses import dataclass

from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.messages import Group, Options, Promised, Proposal
from dedloc_kit.swarm.consensus.records import NO_VOTE, Value, Vote, Voter
from dedloc_kit.swarm.p2p.seams import Verifier


def check_membership(instance: Instance, group: Group, vote: Vote, options: Options, verifier: Verifier) -> None:
    """Raises ValueError unless the group may decide the instance, with the voter of this vote as a member."""
    group.check(instance, verifier)
    me = vote.voter.peer
    if me not in group.peers or vote.previous != instance.previous:
        raise ValueError("this peer is not a member, or votes in another instance")
    if group.members[group.peers.index(me)].voter not in (vote.voter, Voter(me, NO_VOTE)):
        raise ValueError("the group knows this peer as another voter")
    if group.first > vote.promised.number + options.max_jump:
        raise ValueError("the group's first epoch is too far ahead")


def check_places(places: Sequence[int], group: Group) -> None:
    """Raises ValueError unless these are places of members, once each and in their order."""
    if list(places) != sorted(set(places)) or (places and places[-1] >= len(group.members)):
        raise ValueError("those who count are no members of the group")


def check_old_value(instance: Instance, value: Value, options: Options, verifier: Verifier) -> None:
    """Raises ValueError unless an honest voter could have accepted this value: one liar may say that it has."""
    instance.check_value(value, verifier)
    if value.weights != options.weigh(value.counted):
        raise ValueError("other weights than the entries have")
    if value.samples < options.minimum:
        raise ValueError("fewer samples than a batch")


def check_promised(instance: Instance, promised: Promised, options: Options, verifier: Verifier) -> None:
    """Raises ValueError unless the promise is signed and the value is the one that its vote names."""
    instance.check_promise(promised.promise, verifier)
    accepted, value = promised.promise.accepted, promised.value
    if (accepted is None) != (value is None):
        raise ValueError("a vote comes with its value")
    if accepted is not None and value is not None:
        if (value.link, value.average) != (accepted.link, accepted.average):
            raise ValueError("another value than the vote names")
        check_old_value(instance, value, options, verifier)


@dataclass(frozen=True)
class ProposalCheck:
    """What a proposal has to fulfil in one round."""

    instance: Instance
    group: Group
    options: Options
    verifier: Verifier

    def valid(self, proposal: Proposal) -> None:
        """Raises ValueError unless the proposal could be one of an honest decider."""
        if not set(proposal.reducers) <= set(self.group.reducers) or not proposal.reducers:
            raise ValueError("reducers that are no reducers of the group")
        if proposal.value is not None:
            if proposal.counted:
                raise ValueError("both a new value and an old one")
            check_old_value(self.instance, proposal.value, self.options, self.verifier)
            return
        places = proposal.counted
        check_places(places, self.group)
        if sum(self.options.weigh([self.group.members[place] for place in places])) < self.options.minimum:
            raise ValueError("fewer samples than a batch")

    def proven(self, proposal: Proposal, vote: Vote) -> bool:
        """Whether a voter with this memory may vote for it.

        A voter that has accepted another value needs a quorum's promises for this epoch: the newest vote among them is
        for the proposed value, or there is none and the value is new.
        """
        link = proposal.value.link if proposal.value is not None else None
        if vote.accepted is None or vote.accepted.link == link:
            return True
        votes = [promise.accepted for promise in proposal.proof if promise.accepted is not None]
        newest = max(votes, key=lambda accepted: accepted.epoch, default=None)
        if (newest.link if newest is not None else None) != link:
            return False
        electorate = self.instance.electorate
        if any(promise.epoch != proposal.epoch or promise.voter not in electorate for promise in proposal.proof):
            return False
        if not self.instance.electorate.enough(promise.voter for promise in proposal.proof):
            return False
        try:
            for promise in proposal.proof:
                self.instance.check_promise(promise, self.verifier)
        except ValueError:
            return False
        return True
