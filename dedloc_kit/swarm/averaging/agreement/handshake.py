"""What the members of a group bring to an all-reduce: signed, and read alike by all of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.averaging.agreement.roll import Roll, hash_of
from dedloc_kit.swarm.trust.weight import Weigh, claimed, claims_in, in_rows


class GroupRefused(Exception):
    """The group must not take a step; all of its members see the same reason."""


@dataclass(frozen=True)
class Introductions:
    """What those on the roll brought: read alike by all members."""

    contributions: dict[str, Contribution]
    """By peer id; signatures are checked."""
    signed: tuple[bytes, ...]
    """The same as their authors signed them, in the order of the group."""
    weights: dict[int, int]
    """How many samples of each count, by its place in the group."""

    @property
    def samples(self) -> int:
        """All that count."""
        return sum(self.weights.values())


class Handshake:
    """Collects introductions: those that members give to this peer, and those on the roll.

    :param members: in the order of the group
    :param me: one of them
    :param introduction: this peer's own, signed
    :param introduced: checks a member's introduction and reads it; raises ValueError
    :param check: raises GroupRefused if a group with these introductions must not take a step
    :param weigh: how much of what the members of a row claim counts
    :param rows: of each member; one row if there are none
    """

    def __init__(
        self,
        members: Sequence[str],
        me: str,
        introduction: bytes,
        introduced: Callable[[str, bytes], Contribution],
        check: Callable[[Introductions], None],
        weigh: Weigh = claimed,
        rows: Sequence[int] = (),
    ) -> None:
        self.members, self.me, self._introduced, self.check = members, me, introduced, check
        self._weigh, self._rows = weigh, rows or (0,) * len(members)
        self.introduction = introduction
        self.mine = introduced(me, introduction)
        number = members.index(me)
        self.met = {number: self.mine}
        """Who has introduced itself to this peer, by its place in the group."""
        self.signed = {number: introduction}
        """The same as it came."""
        self.names = {number: hash_of(introduction)}
        """The hashes of those."""
        self._told: dict[int, bytes] = {}
        """Those on the roll, whoever told them."""

    def meet(self, member: int, introduction: bytes) -> None:
        """A member has come; raises ValueError."""
        self.met[member] = self._introduced(self.members[member], introduction)
        self.signed[member], self.names[member] = introduction, hash_of(introduction)

    def known(self, roll: Roll, members: Iterable[int] | None = None) -> dict[int, bytes] | None:
        """The introductions on the roll, of these members or of all, if all of them were given to this peer."""
        counted = [member for member in (roll.counted if members is None else members) if roll.introductions[member]]
        right = all(self.names.get(member) == roll.introductions[member] for member in counted)
        return {member: self.signed[member] for member in counted} if right else None

    def begin(self, roll: Roll) -> None:
        """A roll has come; most of what was told for the one before is on it as well."""
        names = roll.introductions
        self._told = {m: told for m, told in self._told.items() if names[m] in (b"", hash_of(told))}

    def untold(self, roll: Roll) -> list[int]:
        """Those on the roll whose introductions were not told to this peer yet."""
        return [member for member in roll.counted if member not in self._told]

    def tell(self, roll: Roll, signed: Mapping[int, bytes]) -> Introductions | None:
        """Some introductions on the roll, by member; all of them, once they are complete.

        Raises ValueError, before it keeps anything, if one is not that on the roll.
        """
        for member, introduction in signed.items():
            if not 0 <= member < len(self.members) or hash_of(introduction) != roll.introductions[member]:
                raise ValueError("an introduction is not the one on the roll")
        self._told.update(signed)
        if not self._told.keys() >= set(roll.counted):
            return None
        contributions = {
            self.members[member]: self.met[member]
            if member in self.met and self.signed[member] == self._told[member]
            else self._introduced(self.members[member], self._told[member])
            for member in roll.counted
        }
        weights = self.weights({m: contributions[self.members[m]] for m in roll.counted})
        return Introductions(contributions, tuple(self._told[member] for member in roll.counted), weights)

    def differing(self, roll: Roll) -> list[tuple[bytes, ...]]:
        """What those introduced themselves with to this peer, in another way than is on the roll, or who are not on it;
        and the one on the roll, if that was told. In an order that differs by round and is the same for all."""
        me, names = self.members.index(self.me), roll.introductions
        members = [member for member, name in self.names.items() if name != names[member] and member != me]
        members.sort(key=lambda member: hash_of(roll.group.encode(), self.members[member].encode()))
        told = {m: (self._told[m],) if m in self._told and hash_of(self._told[m]) == names[m] else () for m in members}
        return [(self.signed[member], *told[member]) for member in members]

    def weights(self, brought: Mapping[int, Contribution]) -> dict[int, int]:
        """How many samples of each of these members count: all of the roll that are in one row, or in all rows."""
        return in_rows(self._weigh, self._rows.__getitem__, claims_in(brought))
