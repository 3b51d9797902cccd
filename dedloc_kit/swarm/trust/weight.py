"""For how many samples each member of a round counts: for what it says, or for less.

A signature proves who claims samples, not that they were computed. What is reckoned here follows from what all members
see alike, in whole numbers, so all find the same.
"""

from collections.abc import Hashable, Mapping
from statistics import median_high
from typing import NamedTuple, Protocol, TypeVar

from dedloc_kit.config.run import RunConfig
from dedloc_kit.records.position import Position
from dedloc_kit.records.steps import LABEL, Contribution
from dedloc_kit.swarm.trust.pledge import Pledged

M = TypeVar("M", bound=Hashable)
MORE = 2
"""A member with standing counts for so many times as much as checks have confirmed: what it brings may vary."""
NEWCOMERS = 4
"""All members without standing count together for this part of what those with standing do."""
MAX_KNOWN = 2**14
"""Peers of whom what was confirmed is remembered."""


def weight_of(contribution: Contribution) -> int:
    """What its gradient is over, in `LABEL`ths of a label."""
    return LABEL * contribution.samples if contribution.weight is None else contribution.weight


class Claim(NamedTuple):
    """What one member brings, in samples."""

    samples: int
    confirmed: int = 0
    """As much as it has once brought and passed a check with, if it has standing (`standing`); else 0."""


class Weigh(Protocol):
    """From what the members of one group claim to what they count for, in samples."""

    def __call__(self, claims: Mapping[M, Claim], /) -> dict[M, int]: ...


def allowed(claims: Mapping[M, Claim]) -> dict[M, int]:
    """The smaller of what each member claims and what is usual.

    That is the median: fewer than half cannot move it beyond what one of the others claims. Who brings nothing belongs
    to it: else one claim would fill a batch to which nobody else has brought anything yet. So it takes half of the
    members to fill one.
    """
    most = median_high([claim.samples for claim in claims.values()] or [0])
    return {member: min(claim.samples, most) for member, claim in claims.items()}


def claimed(claims: Mapping[M, Claim]) -> dict[M, int]:
    """All that each member claims."""
    return {member: claim.samples for member, claim in claims.items()}


class Earned:
    """Weight is earned: whoever has passed its checks counts for at most `MORE` times what they have confirmed, and all
    newcomers together for a part of those. So fresh identities gain nothing, however many. As long as nobody has
    standing all are weighed in another way.
    """

    def __init__(self, otherwise: Weigh) -> None:
        self._otherwise = otherwise

    def __call__(self, claims: Mapping[M, Claim], /) -> dict[M, int]:
        known = {
            member: min(claim.samples, MORE * claim.confirmed) for member, claim in claims.items() if claim.confirmed
        }
        if not known:
            return self._otherwise(claims)
        usual, room = median_high(known.values()), sum(known.values()) // NEWCOMERS
        fresh = {member: min(claim.samples, usual) for member, claim in claims.items() if member not in known}
        together = max(room, sum(fresh.values()))
        weights = known | {member: samples * room // together for member, samples in fresh.items() if together}
        return {member: weights.get(member, 0) for member in claims}


def weighing(run: RunConfig) -> Weigh:
    """How a run weighs the members of a group."""
    usual: Weigh = allowed if run.trust.aggregator == "clip" else claimed
    return Earned(usual) if run.probation else usual


def claims_in(contributions: Mapping[M, Contribution]) -> dict[M, Claim]:
    """What these claim, each with what is confirmed of its author."""
    return {member: Claim(each.samples, confirmed(each)) for member, each in contributions.items()}


def confirmed(contribution: Contribution) -> int:
    """Of its author, as it has shown."""
    return contribution.confirmed if isinstance(contribution, Pledged) else 0


class Counting:
    """How much counts of what peers tell before a round, as far as this peer has seen what is confirmed of them.

    :param me: this peer's id
    """

    def __init__(self, weigh: Weigh = claimed, me: str = "") -> None:
        self._weigh, self._me = weigh, me
        self._confirmed: dict[str, int] = {}

    def saw(self, contributions: Mapping[str, Contribution]) -> set[str]:
        """What members have brought to a round, whether it counted or not. Returns those of whom more was confirmed
        before; who brings no samples shows nothing of that."""
        now = {peer: confirmed(contribution) for peer, contribution in contributions.items() if contribution.samples}
        less = {peer for peer, known in self._confirmed.items() if now.get(peer, known) < known}
        merged = {**{p: n for p, n in self._confirmed.items() if p not in now}, **{p: n for p, n in now.items() if n}}
        self._confirmed = dict(list(merged.items())[-MAX_KNOWN:])  # in one piece, for another thread may read it
        return less

    def samples(self, told: Mapping[str, Position]) -> int:
        """What counts of what this peer and others have."""
        known, claims = self._confirmed, dict[str, Claim]()
        for peer, at in told.items():
            # Who pauses brings nothing to a round and shows no standing there: newcomers do not wait for it.
            takes_part = at.samples or (at.samples_per_second and peer != self._me)
            claims[peer] = Claim(at.samples, known.get(peer, 0) if takes_part else 0)
        return sum(self._weigh(claims).values())
