"""What the members of a group bring to an all-reduce: signed, and read alike by all of them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dedloc_kit.records import Contribution
from dedloc_kit.swarm.averaging.reducer import let_go


@dataclass(frozen=True)
class Introductions:
    """What the members brought: read alike by all of them."""

    contributions: dict[str, Contribution]
    """By peer id; signatures are checked."""
    signed: tuple[bytes, ...]
    """The same as their authors signed them, in the order of the group."""

    @property
    def samples(self) -> int:
        return sum(contribution.samples for contribution in self.contributions.values())


class Handshake:
    """Collects the members' introductions, which they give to every reducer and which reducers tell each other.

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
        self._members, self._me, self._introduced, self.check = members, me, introduced, check
        self.introduction = introduction
        self.mine = introduced(me, introduction)
        self._met: dict[str, tuple[Contribution, bytes]] = {}
        self.result: asyncio.Future[Introductions] = asyncio.get_running_loop().create_future()
        self.all_met = asyncio.Event()
        """Has every member introduced itself to us? We may have been told what they bring before."""
        self.senders_met = asyncio.Event()
        """The same of those that bring samples."""

    def begin(self) -> Introductions | None:
        """This peer begins. Everyone's introductions, if they are complete with this."""
        return self.meet(self._me, self.introduction)

    def missing(self) -> list[str]:
        """Members that this peer has not heard of, unless it was told everything."""
        return [] if self.result.done() else [peer for peer in self._members if peer not in self._met]

    def absent_senders(self) -> list[str]:
        """Members that bring samples, as we were told, and have not come to us."""
        contributions = self.result.result().contributions
        return [peer for peer in self._members if peer not in self._met and contributions[peer].samples]

    def contribution_of(self, peer: str) -> Contribution | None:
        """What this member brings, once it has introduced itself to us."""
        return self._met[peer][0] if peer in self._met else None

    def meet(self, peer: str, introduction: bytes) -> Introductions | None:
        """A member has begun. Everyone's introductions, if they are complete with this; raises ValueError."""
        self._met[peer] = (self._introduced(peer, introduction), introduction)
        self._look_for_senders()
        if len(self._met) < len(self._members):
            return None
        self.all_met.set()
        return self.told(tuple(self._met[member][1] for member in self._members))

    def told(self, signed: tuple[bytes, ...]) -> Introductions | None:
        """The same as a reducer tells them; None if they were complete before. Raises ValueError."""
        if self.result.done():
            if self.result.exception() is None and self.result.result().signed != signed:
                raise ValueError("a member told different reducers different things")
            return None
        if len(signed) != len(self._members):
            raise ValueError("the introductions are not those of the group")
        contributions = {
            peer: self._introduced(peer, introduction) for peer, introduction in zip(self._members, signed, strict=True)
        }
        self.result.set_result(Introductions(contributions, signed))
        self._look_for_senders()
        return self.result.result()

    def fail(self, reason: Exception) -> None:
        """Whoever waits for the introductions gets RoundOver, unless they are complete."""
        let_go(self.result, str(reason))

    def _look_for_senders(self) -> None:
        if self.result.done() and self.result.exception() is None and not self.absent_senders():
            self.senders_met.set()
