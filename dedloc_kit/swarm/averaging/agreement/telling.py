"""Whom a reducer tells of the roll, with its introductions, and of the certificate: each member hears them once.

They go from the leader to the reducers of its row, and to the other heads, who tell those of theirs; each reducer tells
its part of the others in its row. Reducers of a row know its introductions; those of the other rows come to them from
the owners of values there (`Reducing`).
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from dedloc_kit.swarm.averaging.agreement.roll import Held, Roll, hash_of
from dedloc_kit.swarm.averaging.streams.link import Link
from dedloc_kit.swarm.averaging.streams.messages import Says, introductions, read_introductions, say

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
        self._told: set[tuple[int, int]] = set()
        """Who was told the roll of which ballot."""
        self._given: dict[int, dict[int, bytes]] = {}
        """The hashes of the introductions that each was told."""
        self._early: dict[int, list[tuple[int, bytes]]] = {}
        """Introductions of a roll that is to come, by sender: how many, and the message."""

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
        down = self._round.links.down
        if held is not None:
            self.hand_on(held, members)
        if certificate is None and (held is None or known is None):
            return
        for member in set(members) & self._listeners() & down.keys():
            link = down[member]
            if certificate is not None:
                link.post(say(Says.CERTIFICATE, certificate))
            if held is not None and known is not None:
                signed = dict(zip(held.roll.counted, known.signed, strict=True))
                link.post(say(Says.ROLL, held), *self._introductions(member, signed, held.roll))

    def hand_on(self, held: Held, members: Collection[int]) -> None:
        """Tell of a roll at once those of these who are to hand it on."""
        for member in set(members).intersection(self._voter.heads.first_told()):
            self._hand_on(held, member)

    def nudge(self, owner: int) -> None:
        """Tell an owner in another row of the roll, since it does nothing."""
        if self._voter.held is not None and owner in self._round.links.down:
            self._hand_on(self._voter.held, owner)

    def _hand_on(self, held: Held, member: int) -> None:
        if (member, held.roll.ballot) not in self._told:
            self._told.add((member, held.roll.ballot))
            self._round.links.down[member].post(say(Says.ROLL, held))

    def _introductions(self, member: int, signed: Mapping[int, bytes], roll: Roll) -> list[bytes]:
        """As messages to a member; what it was told for another roll it still has."""
        given = self._given.setdefault(member, {})
        new = {m: each for m, each in signed.items() if given.get(m) != roll.introductions[m]}
        given.update({m: roll.introductions[m] for m in new})
        return introductions(roll.name, new)

    def tell_rows(self, signed: Mapping[int, bytes], roll: Roll) -> None:
        """Give those of this row to each other row: to a finisher there, by the owner here that sends it means."""
        row = self._round.row
        for other in range(len(self._round.plan.teams)):
            giver, taker = self._between(row, other, roll)
            if giver == self._round.mine and other != row:
                self._round.post(taker, *self._introductions(taker, signed, roll))

    def _between(self, row: int, other: int, roll: Roll) -> tuple[int, int]:
        """Who gives the introductions of a row to another one, and who takes them there; -1 if there is nobody."""
        plan = self._round.plan
        deal = plan.deal(roll.reducers)
        there = [n for n, finisher in enumerate(deal.finishers) if plan.rows[finisher] == other]
        if not there or not deal.owners[row]:
            return -1, -1
        number = there[row % len(there)]
        return deal.owners[row][number], deal.finishers[number]

    def awaited(self) -> set[int]:
        """Who should have introduced another row to this peer, or handed that on to it."""
        roll, row, mine = self._voter.roll, self._round.row, self._round.mine
        if roll is None or self._round.introductions is not None or mine not in roll.reducers:
            return set()
        missing = {self._round.plan.rows[member] for member in self._round.handshake.untold(roll)} - {row}
        pairs = (self._between(other, row, roll) for other in missing)
        return {giver if taker == mine else taker for giver, taker in pairs} - {-1}

    def hear_row(self, member: int, content: bytes) -> None:
        """Introductions of another row, for all of this one; raises ValueError."""
        for signed in self._right(member, content):
            if any(self._round.plan.rows[m] != self._round.plan.rows[member] for m in signed):
                raise ValueError("it introduces others than its row")
            roll = self._voter.roll
            for reducer in self._round.plan.row_reducers[self._round.row] if roll is not None else ():
                link = self._round.links.down.get(reducer)
                if link is not None and roll is not None:
                    link.post(*self._introductions(reducer, signed, roll))
            self._voter.introduced(signed)

    def hear(self, sender: int, content: bytes) -> None:
        """Introductions, from a reducer that has them already; raises ValueError."""
        for signed in self._right(sender, content):
            self._voter.introduced(signed)

    def _right(self, sender: int, content: bytes) -> list[dict[int, bytes]]:
        """Those on the roll; they wait if they are of one that this peer was not told yet."""
        name, signed = read_introductions(content)
        roll, right = self._voter.roll, dict[int, bytes]()
        if roll is not None:  # most of those on one roll are on the others as well
            known = dict(enumerate(roll.introductions))
            right = {m: each for m, each in signed.items() if hash_of(each) == known.get(m)}
        if roll is not None and name == roll.name:
            if len(right) < len(signed):
                raise ValueError("an introduction is not the one on the roll")
        else:  # of each member one, and another one if the roll is not the one before
            early = self._early.setdefault(sender, [])
            if sum(count for count, _ in early) + len(signed) <= 2 * len(self._round.plan.members):
                early.append((max(1, len(signed)), content))
        return [right] if right and self._round.introductions is None else []

    def take_early(self) -> None:
        """There is a roll: what came of it before."""
        early, self._early = self._early, {}
        for sender, contents in early.items():
            same = self._round.plan.rows[sender] == self._round.row
            for _, content in contents:
                with suppress(ValueError):  # whoever sent it is not the one that is being heard
                    (self.hear if same else self.hear_row)(sender, content)

    def certificate(self) -> None:
        """Tell its members how the round has ended."""
        told = {*self._voter.heads.first_told(), *self._listeners(), *self._asking}
        for member in told & self._round.links.down.keys():
            if self._voter.certificate is not None:
                self._round.links.down[member].post(say(Says.CERTIFICATE, self._voter.certificate))

    def _listeners(self) -> set[int]:
        """Of those who do not reduce, this reducer's part."""
        mine, living = self._round.mine, set(self._voter.living)
        if mine not in living:
            return self._untold
        team = self._round.plan.teams[self._round.row]
        reducers = [member for member in team if member in living]
        others = [member for member in team if member not in living]
        return {*others[reducers.index(mine) :: len(reducers)], *self._untold}
