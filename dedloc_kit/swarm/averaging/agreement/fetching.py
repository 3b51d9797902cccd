"""Averages that their reducers cannot send any more: whoever holds them gives them to whoever lacks them."""

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from dedloc_kit.swarm.averaging.streams import messages
from dedloc_kit.swarm.averaging.streams.link import Link
from dedloc_kit.swarm.averaging.streams.messages import Says, say

if TYPE_CHECKING:
    from dedloc_kit.swarm.averaging.agreement.voter import Voter
    from dedloc_kit.swarm.averaging.allreduce import AllReduce


class Fetching:
    """Of one peer, for one roll after the other."""

    def __init__(self, round: "AllReduce", voter: "Voter") -> None:
        self._round, self._voter = round, voter
        self._plan, self._mine, self._links = round.plan, round.mine, round.links
        self._asked: set[tuple[int, int]] = set()
        """Whom for which."""
        self._wanted: dict[int, list[Link]] = {}
        """Who has asked for what this peer does not have yet."""
        self._given: set[tuple[Link, int]] = set()

    def begin(self) -> None:
        """There is another roll."""
        self._asked.clear()
        self._wanted.clear()
        self._given.clear()

    def gone(self, member: int) -> None:
        """What was asked of it may be asked again."""
        self._asked = {(source, number) for source, number in self._asked if source != member}

    def may_have(self, sender: int, number: int) -> bool:
        """Does this average of the roll come from this member?"""
        roll = self._voter.roll
        if roll is None:
            return False
        source = self._plan.deal(roll.reducers).source(number, self._round.row, self._mine)
        return sender == source or (sender, number) in self._asked

    def came(self, number: int) -> None:
        """Give it to those who have asked."""
        for link in self._wanted.pop(number, []):
            self.give([number], link)

    def give(self, numbers: Sequence[int], link: Link) -> None:
        """Send averages, as soon as this peer has them, each once."""
        roll, had = self._voter.roll, []
        for number in sorted(set(numbers) & set(range(len(self._plan.chunks)))):
            message = self._round.averages.messages[number]
            if message and roll is not None and (link, number) not in self._given:
                self._given.add((link, number))
                had.append(partial(messages.average, number, roll.name, message))
            elif not message and link not in self._wanted.setdefault(number, []):
                self._wanted[number].append(link)
        if had:
            link.post(*had)

    def fetch(self, silent: float = 0.0) -> None:
        """Ask for what is missing and does not come from its reducer: that is gone, or cut off from this peer alone.

        :param silent: seconds without an average after which reducers that live are not waited for either, if the
            average exists already
        """
        roll, averages = self._voter.roll, self._round.averages
        if roll is None or self._round.introductions is None:
            return
        deal, here = self._plan.deal(roll.reducers), set(self._voter.living) - self._links.dead
        exists = roll.average or self._voter.certified
        waited = exists and silent and averages.quiet(time.monotonic()) > silent
        missing = [
            number
            for number in averages.missing()
            if waited or deal.source(number, self._round.row, self._mine) not in here
        ]
        for place, (source, link) in enumerate(self._sources()):
            wanted = [number for number in missing if (source, number) not in self._asked]
            if wanted and (not place or waited):
                self._asked |= {(source, number) for number in wanted}
                averages.stir()  # the next one is asked if this one does not give them
                link.post(say(Says.FETCH, wanted))
            if wanted or not waited:
                return

    def _sources(self) -> list[tuple[int, Link]]:
        """The leader; as the leader, those who hold it; and of an average that a quorum has, any reducer."""
        voter, up, down = self._voter, self._links.up, self._links.down
        if voter.certified is None and voter.leading.ballot is not None:
            return [(holder, down[holder]) for holder in sorted(voter.leading.ballot.holders) if holder in down]
        reducers = dict.fromkeys((voter.leader, *(voter.ranking if voter.certified else ())))
        return [(reducer, up[reducer]) for reducer in reducers if reducer in up and reducer not in self._links.dead]
