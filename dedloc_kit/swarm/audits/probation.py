"""Who has passed enough checks to count in full, and how the organizer lets it know."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from dedloc_kit.records.record import Base64, Record
from dedloc_kit.swarm.network.service import Endpoint, RecordService
from dedloc_kit.swarm.trust.pledge import Pledged
from dedloc_kit.swarm.trust.weight import MAX_KNOWN, MORE, Weigh, claims_in

GIVE_SECONDS = 30.0


class _Passed(NamedTuple):
    checks: int
    samples: int
    """Of the largest contribution among them."""
    step: int
    """Of the newest one."""


class Probation:
    """What checks have confirmed of each peer. Not for several threads at once.

    Nobody is given standing before those who would have it are more than half of a step: until then all count alike.

    :param needed: checks that a newcomer has to pass; with 0 nobody is a newcomer
    :param weigh: how members of a step are weighed
    """

    def __init__(self, needed: int, weigh: Weigh) -> None:
        self._needed, self.weigh = needed, weigh
        self._passed: dict[str, _Passed] = {}
        self._begun = False

    def passed(self, peer: str, pledged: Pledged) -> None:
        """A contribution of a peer has passed a check."""
        before = self._of(peer)
        self._passed.pop(peer, None)
        self._passed[peer] = _Passed(
            before.checks + 1, max(before.samples, pledged.samples), max(before.step, pledged.step)
        )
        for old in list(self._passed)[:-MAX_KNOWN]:
            del self._passed[old]

    def untried(self, pledged: Pledged) -> bool:
        """Does its author claim more than it has shown so far to be able to?"""
        return bool(self._needed) and pledged.samples > MORE * pledged.confirmed

    def due(self, contributions: Mapping[str, Pledged]) -> dict[str, int]:
        """Who is to be told after a step how much is confirmed of it."""
        for peer, each in contributions.items():
            known = self._of(peer)
            if each.confirmed > known.samples:  # the organizer knew it before it was started anew
                self._passed[peer] = _Passed(max(self._needed, known.checks), each.confirmed, known.step)
                self._begun = True
        earned = {peer: self._of(peer).samples for peer in contributions if self._of(peer).checks >= self._needed > 0}
        weights = self.weigh(claims_in(contributions))
        self._begun = self._begun or 2 * sum(weights[peer] for peer in earned) > sum(weights.values())
        if not self._begun:
            return {}
        return {peer: samples for peer, samples in earned.items() if samples > contributions[peer].confirmed}

    def convicted(self, peer: str) -> int:
        """It begins anew. Returns the global step of its newest contribution that has passed a check; 0 if none has."""
        step = self._of(peer).step
        self._passed.pop(peer, None)
        return step

    def _of(self, peer: str) -> _Passed:
        return self._passed.get(peer, _Passed(0, 0, 0))


class Given(Record):
    """Bring this to every round from now on."""

    standing: Base64


class Taken(Record):
    """The answer."""


class StandingService(RecordService[Given, Taken]):
    """The organizer gives a peer its standing; on the organizer's side it gives others theirs.

    :param take: raises ValueError unless it is the organizer's, of this peer
    """

    name = "standing"
    question, reply = Given, Taken

    def __init__(self, endpoint: Endpoint, organizer: str, take: Callable[[str], None]) -> None:
        self._endpoint, self._organizer, self._take = endpoint, organizer, take

    async def answer(self, peer: str, question: Given) -> Taken:
        if peer != self._organizer:
            raise ValueError(f"{peer} is not the organizer")
        self._take(question.standing)
        return Taken()

    async def give(self, peer: str, standing: str) -> None:
        """Raises NoAnswer."""
        await self._endpoint.ask(peer, self, Given(standing=standing), GIVE_SECONDS)
