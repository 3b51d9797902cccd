"""The signed entries that members of a group bring to this peer, and the group that they make."""

from collections.abc import Callable, Iterable

from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.allreduce.plan import Plan
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.messages import Group
from dedloc_kit.swarm.consensus.records import Entry
from dedloc_kit.swarm.p2p.seams import Verifier

CheckEntry = Callable[[Entry], None]
"""Raises ValueError for a contribution that no honest peer can have made."""


class Introductions:
    """Of one round.

    :ivar met: entries as their authors gave them to this peer, by place in the group
    """

    def __init__(self, instance: Instance, plan: Plan, verifier: Verifier, check: CheckEntry) -> None:
        self._instance, self._plan, self._verifier, self._check = instance, plan, verifier, check
        self.met: dict[int, Entry] = {}
        self._promised: dict[int, int] = {}

    def meet(self, member: int, introduction: bytes) -> None:
        """A member brings its entry. Raises ValueError unless it is its own, for this step and believable."""
        promised, entry = wire.read_introduction(introduction)
        self.admit(member, promised, entry)

    def admit(self, member: int, promised: int, entry: Entry) -> None:
        """The same, however it came."""
        if entry.peer != self._plan.members[member]:
            raise ValueError("an entry of another peer")
        self._instance.check_entry(entry, self._verifier)
        self._check(entry)
        self.met[member], self._promised[member] = entry, promised

    def forget(self, member: int) -> None:
        self.met.pop(member, None)

    def group(self, order: Iterable[int], nonce: bytes) -> Group:
        """The group of all that have come.

        :param order: reducers, as they take over from each other
        :param nonce: 16 random bytes
        """
        return Group(
            run_id=self._instance.run_id,
            part=self._instance.part,
            step=self._instance.step,
            previous=self._instance.previous,
            nonce=nonce.hex(),
            members=tuple(self.met[member] for member in sorted(self.met)),
            reducers=tuple(self._plan.members[member] for member in order if member in self.met),
            first=1 + max(self._promised[member] for member in self.met),
        )

    def check(self, group: Group) -> None:
        """Raises ValueError unless another peer's group is of members of this round, with believable entries."""
        if not set(group.peers) <= set(self._plan.members):
            raise ValueError("a group with members from elsewhere")
        reducers = {self._plan.members[reducer] for reducer in self._plan.reducers}
        if not set(group.reducers) <= reducers:
            raise ValueError("a group with reducers that do not reduce")
        for entry in group.members:
            if entry != self.met.get(self._plan.members.index(entry.peer)):
                self._check(entry)

    def same(self, member: int, group: Group) -> bool:
        """Whether a member brought to this peer what it brought to the group."""
        entry = self.met.get(member)
        return entry is not None and entry in group.members

    def differing(self, group: Group) -> list[tuple[Entry, Entry]]:
        """What members brought to this peer and to the group, where that differs: evidence against them."""
        of = {entry.peer: entry for entry in group.members}
        pairs = ((entry, of.get(entry.peer)) for entry in self.met.values())
        return [(mine, other) for mine, other in pairs if other is not None and other.digest != mine.digest]
