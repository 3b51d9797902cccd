"""Which group a member joins: that of the first reducer in rank that lives."""

from collections.abc import Set

from dedloc_kit.swarm.allreduce.plan import Plan
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.messages import Group


class Forming:
    """Of one member in one round.

    :ivar ranking: who makes the group and decides, in the order in which they take over from each other
    :ivar maker: whose group this peer has joined; None before
    :ivar since: when the first in rank that lives became that
    """

    def __init__(self, plan: Plan, instance: Instance) -> None:
        first = [place for place, peer in enumerate(plan.members) if peer == instance.coordinator]
        ranking = plan.ranking(instance.previous)
        self.ranking = (*first, *(reducer for reducer in ranking if reducer not in first))
        self.order = tuple(reducer for reducer in self.ranking if reducer in plan.reducers)
        """Of the reducers alone."""
        self.maker: int | None = None
        self.since = 0.0
        self._first: int | None = None
        self._groups: dict[int, Group] = {}

    def first(self, failed: Set[int]) -> int | None:
        """The first in rank that has not failed."""
        return next((member for member in self.ranking if member not in failed), None)

    def look(self, failed: Set[int], now: float) -> int | None:
        """The same; remembers when it became that."""
        first = self.first(failed)
        if first != self._first:
            self._first, self.since = first, now
        return first

    def keep(self, maker: int, group: Group) -> None:
        """A group of somebody before whom others are in rank. Raises ValueError if it is of nobody in rank."""
        if maker not in self.ranking:
            raise ValueError("a group of a member that makes none")
        self._groups[maker] = group

    def joined(self, maker: int) -> None:
        """This peer has joined this one's group."""
        self.maker = maker

    def due(self, failed: Set[int]) -> tuple[int, Group] | None:
        """The group to join now, and whose it is."""
        first = self.first(failed)
        if first is None or first == self.maker or first not in self._groups:
            return None
        return first, self._groups.pop(first)
