"""What the members of a group bring to an all-reduce: signed, and read alike by all of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dedloc_kit.records import Contribution
from dedloc_kit.swarm.averaging.agreement.roll import Roll, hash_of


class GroupRefused(Exception):
    """The group must not take a step; all of its members see the same reason."""


@dataclass(frozen=True)
class Introductions:
    """What those on the roll brought: read alike by all members."""

    contributions: dict[str, Contribution]
    """By peer id; signatures are checked."""
    signed: tuple[bytes, ...]
    """The same as their authors signed them, in the order of the group."""

    @property
    def samples(self) -> int:
        return sum(contribution.samples for contribution in self.contributions.values())


class Handshake:
    """Collects introductions: those that members give to this peer, and those on the roll.

    :param members: in the order of the group
    :param me: one of them
    :param introduction: this peer's own, signed
    :param introduced: checks a member's introduction and reads it; raises ValueError
    :param check: raises GroupRefused if a group with these introductions must not take a step
    """

    def __init__(
        self,
        members: Sequence[str],
        me: str,
        introduction: bytes,
        introduced: Callable[[str, bytes], Contribution],
        check: Callable[[Introductions], None],
    ) -> None:
        self.members, self.me, self._introduced, self.check = members, me, introduced, check
        self.introduction = introduction
        self.mine = introduced(me, introduction)
        number = members.index(me)
        self.met = {number: self.mine}
        """Who has introduced itself to this peer, by its place in the group."""
        self.signed = {number: introduction}
        """The same as it came."""
        self.names = {number: hash_of(introduction)}
        """The hashes of those."""
        self._told: list[bytes] = []

    def meet(self, member: int, introduction: bytes) -> None:
        """A member has come; raises ValueError."""
        self.met[member] = self._introduced(self.members[member], introduction)
        self.signed[member], self.names[member] = introduction, hash_of(introduction)

    def known(self, roll: Roll) -> list[bytes] | None:
        """The introductions on the roll, if all of them were given to this peer."""
        right = all(self.names.get(member) == roll.introductions[member] for member in roll.counted)
        return [self.signed[member] for member in roll.counted] if right else None

    @property
    def told_so_far(self) -> int:
        """How many of those on the roll are known."""
        return len(self._told)

    def begin(self) -> None:
        """A roll has come; what was told for another one is of no use."""
        self._told = []

    def tell(self, roll: Roll, signed: Sequence[bytes]) -> Introductions | None:
        """The next introductions on the roll; all of them, once they are complete.

        Raises ValueError, before it keeps anything, if one is not that on the roll.
        """
        for introduction in signed:
            at = len(self._told)
            if at >= len(roll.counted) or not isinstance(introduction, bytes):
                raise ValueError("more introductions than there are members on the roll")
            if hash_of(introduction) != roll.introductions[roll.counted[at]]:
                raise ValueError("an introduction is not the one on the roll")
            self._told.append(introduction)
        if len(self._told) < len(roll.counted):
            return None
        contributions = {
            self.members[member]: self.met[member]
            if self.signed.get(member) == introduction
            else self._introduced(self.members[member], introduction)
            for member, introduction in zip(roll.counted, self._told, strict=True)
        }
        return Introductions(contributions, tuple(self._told))
