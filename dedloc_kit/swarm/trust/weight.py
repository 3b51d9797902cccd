"""For how many samples each member of a round counts: for what it says, or for less.

A signature proves who claims samples, not that they were computed. What is reckoned here follows from what all members
see alike, in whole numbers, so all find the same.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median_high
from typing import Protocol, TypeVar

from dedloc_kit.run import TrustConfig

MOST_TO_CONFIRMED = 2
"""The same for what was confirmed of a member."""
NEWCOMERS = 4
"""All that nothing was confirmed of count at most for one part in so many of what the others count for."""

M = TypeVar("M", bound=Hashable)


class Weigh(Protocol):
    """From what the members of one group claim, in samples, to what they count for."""

    def __call__(self, claims: Mapping[M, int], /) -> dict[M, int]: ...


@dataclass(frozen=True)
class Standing:
    """What is known of members beyond their word.

    :ivar confirmed: samples that a member was found to have computed for one step; without any it is a newcomer
    :ivar suspended: who counts for nothing
    """

    confirmed: Mapping[Hashable, int] = field(default_factory=dict)
    suspended: frozenset[Hashable] = frozenset()


UNKNOWN = Standing()


def allowed(claims: Mapping[M, int], standing: Standing = UNKNOWN) -> dict[M, int]:
    """The smaller of what each member claims and what it may count for, in samples.

    As long as nothing was confirmed of anybody, that is what is usual, the median: fewer than half cannot move it
    beyond what one of the others claims. Who brings nothing belongs to it: else one claim would fill a batch to which
    nobody else has brought anything yet. So it takes half of the members to fill one. Later it is twice what was
    confirmed; newcomers share, as evenly as their claims allow, a quarter of what all others count for together,
    however many they are.
    """
    heard = {member: 0 if member in standing.suspended else claim for member, claim in claims.items()}
    most = {m: MOST_TO_CONFIRMED * standing.confirmed[m] for m in heard if standing.confirmed.get(m)}
    if not most:
        among = [claim for member, claim in claims.items() if member not in standing.suspended]
        return _at_most(heard, median_high(among or [0]))
    known = {member: min(heard[member], bound) for member, bound in most.items()}
    room = sum(known.values()) // NEWCOMERS
    newcomers = {member: claim for member, claim in heard.items() if member not in known}
    shared = _at_most(newcomers, _level(newcomers.values(), room))
    return {member: known[member] if member in known else shared[member] for member in claims}


def claimed(claims: Mapping[M, int]) -> dict[M, int]:
    """All that each member claims."""
    return dict(claims)


def weighing(trust: TrustConfig) -> Weigh:
    """How a run weighs the members of a group."""
    return allowed if trust.aggregate == "clip" else claimed


def in_rows(weigh: Weigh, row_of: Callable[[M], int], claims: Mapping[M, int]) -> dict[M, int]:
    """The same row by row: whoever averages a row does not know yet what the others claim."""
    weights: dict[M, int] = {}
    for row in set(map(row_of, claims)):
        weights |= weigh({member: claim for member, claim in claims.items() if row_of(member) == row})
    return {member: weights[member] for member in claims}


def _at_most(claims: Mapping[M, int], bound: int) -> dict[M, int]:
    return {member: min(claim, bound) for member, claim in claims.items()}


def _level(claims: Iterable[int], room: int) -> int:
    """The largest whole number that all claims can be cut to so that they fit in together."""
    left = sorted(claims)
    for place, claim in enumerate(left):
        share = room // (len(left) - place)
        if claim > share:
            return share
        room -= claim
    return left[-1] if left else 0
