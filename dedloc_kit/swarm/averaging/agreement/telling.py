"""Whom a reducer tells of the roll, with its introductions, and of the certificate: each member hears them once."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from dedloc_kit.swarm.averaging.link import Link
from dedloc_kit.swarm.averaging.messages import Says, introductions, say

if TYPE_CHECKING:
    from dedloc_kit.swarm.averaging.agreement.voter import Voter
    from dedloc_kit.swarm.averaging.allreduce import AllReduce


class Telling:
    """Of one reducer in one round."""

    def __init__(self, round: "AllReduce", voter: "Voter") -> None:
        self._round, self._voter = round, voter
        self._untold: set[int] = set()
        """Members whom nobody else can tell any more."""
        self._asking: set[int] = set()
        """Members that ask how the round has ended."""

    def ask(self, member: int, link: Link) -> None:
        """It wants to know how the round has ended, or will."""
        if self._voter.certificate is not None and member not in self._asking:
            link.post(say(Says.CERTIFICATE, self._voter.certificate))
        self._asking.add(member)

    def untold(self, member: int) -> None:
        """It hears nothing from whoever was to tell it."""
        if member not in self._untold:
            self._untold.add(member)
            self.roll((member,))

    def roll(self, members: Collection[int]) -> None:
        """Tell these, as far as this reducer is the one to do it, what it knows."""
        known, held, certificate = self._round.introductions, self._voter.held, self._voter.certificate
        if certificate is None and (held is None or known is None):
            return
        for member in set(members) & self._listeners() & self._round.links.down.keys():
            link = self._round.links.down[member]
            if certificate is not None:
                link.post(say(Says.CERTIFICATE, certificate))
            if held is not None and known is not None:
                link.post(say(Says.ROLL, held), *introductions(held.roll.name, known.signed))

    def certificate(self) -> None:
        """Tell its members how the round has ended."""
        for member in (self._listeners() | self._asking) & self._round.links.down.keys():
            if self._voter.certificate is not None:
                self._round.links.down[member].post(say(Says.CERTIFICATE, self._voter.certificate))

    def _listeners(self) -> set[int]:
        """Of those who do not reduce, this reducer's part."""
        mine, living = self._round.mine, self._voter.living
        if mine not in living:
            return self._untold
        others = sorted(set(range(len(self._round.plan.members))).difference(living))
        return {*others[living.index(mine) :: len(living)], *self._untold}
