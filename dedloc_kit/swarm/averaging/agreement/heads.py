"""Who speaks with the leader for a row: its head, and what goes through it.

The head of a row is the best ranked of its reducers that is not gone, so the leader is the head of its own row. What
members say to the leader goes up through their head, what it says to all comes down through it; all that counts in an
agreement is signed by its author. In a group of one row the leader is the only head, and everybody hears it directly.
"""

import hashlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dedloc_kit.swarm.averaging.agreement.roll import Answer, Reported, Votes
from dedloc_kit.swarm.averaging.streams import messages
from dedloc_kit.swarm.averaging.streams.link import Link
from dedloc_kit.swarm.averaging.streams.messages import Says

if TYPE_CHECKING:
    from dedloc_kit.swarm.averaging.agreement.voter import Voter
    from dedloc_kit.swarm.averaging.allreduce import AllReduce

NUDGED, LACKED, UNFINISHED, UNTOLD, STUCK = 1, 2, 3, 4, 5
"""Who gets no average may wait for somebody who waits for another. So these are found out from the first one on, each
so many times the patience after the roll: who may not know the roll is told it, then somebody complains of who sends no
mean or introduction, then of a finisher that sends no average; then the leader gives up owners that hand none on in its
row, and at last is given up itself."""

UPWARD = frozenset({Says.REPORT, Says.ANSWER, Says.ACKNOWLEDGEMENT})


class Heads:
    """As one peer sees them."""

    def __init__(self, round: "AllReduce", voter: "Voter", votes: Votes) -> None:
        self._round, self._voter, self._votes = round, voter, votes
        self._plan, self._mine, self._links = round.plan, round.mine, round.links
        self._ranked = [[r for r in voter.ranking if self._plan.rows[r] == row] for row in range(len(round.plan.teams))]
        self._handed_up: dict[tuple[int, Says], tuple[int, bytes]] = {}
        """The newest of what members said to the leader, by author: in which ballot, and the message."""
        self._since: dict[int, tuple[int, float]] = {}
        """Who is the head of each row, and since when."""
        self._guests: set[int] = set()
        """Members of other rows that follow this peer."""
        self._complaints: dict[int, set[int]] = {}
        """Of which reducers of other rows each has complained."""

    # Who it is

    def of(self, row: int) -> int | None:
        """The head of a row, as far as is known here, also from what the leader says of who reduces."""
        living = self._voter.living
        return next((r for r in self._ranked[row] if r in living and r not in self._links.dead), None)

    @property
    def mine(self) -> bool:
        """Is this peer the head of its row?"""
        return self.of(self._round.row) == self._mine

    def to_follow(self) -> int | None:
        """The head of the row; as the head, the leader. Where a row has none left its members disperse among those that
        are; if none is, whoever called the last ballot without the others lied or is gone, and the ranking holds."""
        head = self.of(self._round.row)
        if head not in (None, self._mine):
            return head
        ranked: Sequence[int] = self._voter.ranking
        others = set(self._voter.living) - self._links.dead
        if head is None and others:
            me = self._plan.members[self._mine]
            ranked = sorted(others, key=lambda r: hashlib.sha256(f"{me} {self._plan.members[r]}".encode()).digest())
        return next((r for r in ranked if r not in self._links.dead), None)

    def living(self) -> tuple[int, ...]:
        """Who can reduce: of its own row this peer knows it, of others as far as it was told."""
        known = set(self._voter.living)
        return tuple(
            r
            for r in self._plan.reducers
            if r not in self._links.dead and (self._plan.rows[r] == self._round.row or r in known)
        )

    def overdue(self, start: float) -> list[int]:
        """Heads of other rows that should have come to this leader by now."""
        found, now = [], time.monotonic()
        for row in range(len(self._plan.teams)):
            head = self.of(row)
            if row == self._round.row or head is None:
                continue
            if self._since.get(row, (-1, 0.0))[0] != head:
                self._since[row] = head, now
            if not self.came(head) and now - self._since[row][1] > start:
                found.append(head)
        return found

    def came(self, head: int) -> bool:
        """Has the head of another row come to follow this peer?"""
        return head in self._guests and head in self._links.down

    def wait_anew(self) -> None:
        """The others have only begun to find out that this peer leads."""
        self._since.clear()

    def present(self) -> set[int]:
        """Members that this leader can reach, directly or through their head, as far as it knows."""
        there = {row for row in range(len(self._plan.teams)) if self.of(row) is not None}
        return {m for m, row in enumerate(self._plan.rows) if row in there} - self._links.lost

    # What goes down

    def below(self) -> list[Link]:
        """Of those to whom this peer hands on what the leader calls."""
        if self._voter.leader == self._mine:
            return list(self._links.down.values())
        team = self._plan.teams[self._round.row] if self.mine else ()
        guests = {*team, *self._guests}
        return [link for member, link in self._links.down.items() if member in guests]

    def is_below(self, member: int) -> bool:
        link = self._links.down.get(member)
        return link is not None and link in self.below()

    def first_told(self) -> list[int]:
        """To whom this peer hands on a roll or a certificate at once: as the leader to the other heads, as the head to
        the reducers of the row."""
        told: list[int] = []
        if self._voter.leader == self._mine:
            told += [head for row in range(len(self._plan.teams)) if (head := self.of(row)) is not None]
        if self.mine:
            told += [r for r in self._plan.row_reducers[self._round.row] if r in self._voter.living]
        return [r for r in dict.fromkeys(told) if r != self._mine and r in self._links.down]

    def follows(self, member: int) -> None:
        """A member has no better one to follow than this peer."""
        if self._plan.rows[member] != self._round.row:
            self._guests.add(member)

    # What goes up

    def hear(self, member: int, says: Says, content: bytes) -> None:
        """What a member says to the leader, or hands on to it; raises ValueError."""
        ballot, author = 0, member
        match says:
            case Says.REPORT:
                author, ballot, names = self._votes.reported(messages.record(Reported, content))
                if any(m >= len(self._plan.rows) or self._plan.rows[m] != self._plan.rows[author] for m in names):
                    raise ValueError("it reports of those that are not of its row")
            case Says.ANSWER:
                author, promise = self._votes.promised(messages.record(Answer, content).promise)
                ballot = promise.ballot
            case Says.ACKNOWLEDGEMENT:
                author, acknowledgement = self._votes.acknowledged(content)
                ballot = acknowledgement.ballot
            case _:
                raise ValueError(f"a member says {says.name}")
        if author != member and self._plan.one_row:
            raise ValueError("it speaks for another")
        if self._plan.one_row or self._voter.leader == self._mine:
            self._voter.leading.hear(author, says, content)
        elif self._handed_up.get((author, says), (-1, b""))[0] < ballot:
            self._handed_up[author, says] = ballot, bytes([says]) + content
            link = self._links.up.get(self._voter.leader)
            if link is not None and self.mine:
                link.post(bytes([says]) + content)

    def hand_up_again(self, link: Link) -> None:
        """There is a stream to another leader, or there was none before."""
        for reducer in {reducer for made in self._complaints.values() for reducer in made}:
            link.post(messages.say(Says.GONE, [reducer]))
        if self._plan.one_row or not self.mine:
            return
        dead = [r for r in self._plan.row_reducers[self._round.row] if r in self._links.dead]
        if dead:
            link.post(messages.say(Says.GONE, dead))
        for ballot, message in self._handed_up.values():
            if ballot >= self._voter.ballot:
                link.post(message)

    def tell_gone(self, reducer: int) -> None:
        """The leader cannot see it itself."""
        link = self._links.up.get(self._voter.leader)
        if self.mine and link is not None and self._plan.rows[reducer] == self._round.row:
            link.post(messages.say(Says.GONE, [reducer]))

    def complain(self, reducer: int) -> None:
        """Of an owner in another row, who does not send this finisher what it should."""
        self._take_complaint(self._mine, reducer)

    def take_gone(self, member: int, reducers: Sequence[int]) -> None:
        """The head of a row says of whom there nothing comes, or a finisher complains of an owner in another row.

        Raises ValueError for what neither may say.
        """
        rows, reducing = self._plan.rows, set(self._plan.reducers)
        if not reducers or not {member, *reducers} <= reducing:
            raise ValueError("it says that others than reducers are gone, or is none itself")
        row = rows[member]
        if len(reducers) == 1 and rows[reducers[0]] != row:
            self._take_complaint(member, reducers[0])
            return
        if {rows[reducer] for reducer in reducers} != {row}:
            raise ValueError("it says of others than its row that they are gone")
        head = self.of(row)
        if head != member and head in self._links.down and head not in reducers:
            return  # it is not for this one to say so
        for reducer in set(reducers) - {member}:
            if reducer not in self._links.down or self._links.silent(reducer) > self._round.patience.usual:
                self._round.bury(reducer, "is gone, as the head of its row says", blame=False)

    def _take_complaint(self, member: int, reducer: int) -> None:
        """It is believed, for it costs little: but one of each reducer, and as many of a head as its row has reducers,
        so that nobody can send them all away. Whoever leads knows of itself that it is here."""
        made, row = self._complaints.setdefault(member, set()), self._plan.rows[member]
        near = row == self._round.row
        if not near and (self._voter.leader != self._mine or self.of(row) != member):
            return  # it has a head of its own to tell
        if reducer in made or len(made) >= (1 if near else len(self._plan.row_reducers[row])):
            return
        made.add(reducer)
        if self._voter.leader == self._mine:
            self._believe(reducer)
        elif self._voter.leader in self._links.up:
            self._links.up[self._voter.leader].post(messages.say(Says.GONE, [reducer]))

    def _believe(self, reducer: int) -> None:
        if reducer != self._mine:
            self._round.named.add(self._plan.members[reducer])
            self._round.bury(reducer, "sends another row nothing of use, as that says", blame=False)
