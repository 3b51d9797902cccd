"""Which members of a group still take part. Failures are found by silence: a slow line is not a dead peer."""

from collections.abc import Iterable, Set
from typing import NamedTuple

from dedloc_kit.records.record import PeerId
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.messages import Group, Options


class Wait(NamedTuple):
    """For how long a peer is waited for.

    :ivar patiences: of silence
    :ivar share: of the round's limit for one stage, however alive the peer seems: it may trickle on purpose
    """

    patiences: int
    share: float


# Rising along the chain of those who wait for each other, so that the cause is given up before its victims.
FOR_DATA = Wait(1, 1 / 6)
"""Parts at a reducer, or a reducer's share at a member."""
FOR_AVERAGE = Wait(2, 1 / 6)
"""The average of a value that somebody has accepted, from those who hold it, at the decider."""
FOR_WORD = Wait(2, 1 / 3)
"""Reports, promises and votes, at the decider."""
FOR_DECIDER = Wait(2, 1 / 2)
BEFORE_RIVAL = Wait(1, 1 / 2)
"""The decider, at a member that hears of another one's epoch."""


class Liveness:
    """What one member knows of the others in one round.

    :ivar failed: members that are waited for no longer, and get no messages
    :ivar ranking: members that may decide, in the order in which they take over
    """

    def __init__(self, instance: Instance, group: Group, options: Options) -> None:
        self.failed: set[PeerId] = set()
        first = [instance.coordinator] if instance.coordinator in group.peers else []
        self.ranking = (*first, *(r for r in group.reducers if r != instance.coordinator))
        self._instance, self._group, self._options = instance, group, options
        self._useless: set[PeerId] = set()
        self._at: dict[PeerId, float] = {}
        self._since = 0.0

    # Silence

    def begin(self, now: float) -> None:
        """Another stage, an epoch or a proposal: silence before it does not count."""
        self._since = now

    def hear(self, member: PeerId, now: float) -> None:
        self._at[member] = now

    def gone(self, members: Iterable[PeerId], wait: Wait, now: float) -> set[PeerId]:
        """Those of them that need not be waited for any longer."""
        if now - self._since >= wait.share * self._options.limit:
            return set(members)
        heard_by = now - wait.patiences * self._options.patience
        at, since = self._at, self._since
        return {each for each in members if each in self.failed or max(at.get(each, since), since) <= heard_by}

    # Who is left

    def fail(self, members: Set[PeerId]) -> None:
        self.failed |= members

    def drop_reducers(self, reducers: Set[PeerId]) -> None:
        """They reduce no longer in this round, and remain members."""
        self._useless |= reducers

    @property
    def members(self) -> tuple[PeerId, ...]:
        return tuple(peer for peer in self._group.peers if peer not in self.failed)

    @property
    def reducers(self) -> tuple[PeerId, ...]:
        return tuple(peer for peer in self._group.reducers if peer not in self.failed | self._useless)

    @property
    def end(self) -> str | None:
        """Why the round cannot go on, if it cannot."""
        if all(peer in self.failed for peer in self.ranking):
            return "no reducer is left"
        voters = (entry.voter for entry in self._group.members if entry.peer not in self.failed)
        return None if self._instance.electorate.enough(voters) else "too few voters are left"

    def may_take_over(self, member: PeerId, decider: PeerId, now: float) -> bool:
        """Whether an epoch's decider may be replaced by a member: by one before it in rank, or if all before are gone.

        Else one liar that opens epochs would keep everybody from a commit.
        """
        place = self.ranking.index(member)
        before = set(self.ranking[:place])
        return decider not in before or self.gone(before, BEFORE_RIVAL, now) == before

    def next_decider(self, decider: PeerId) -> PeerId | None:
        """An epoch's decider, or who takes over from it."""
        return next((peer for peer in (decider, *self.ranking) if peer not in self.failed), None)
