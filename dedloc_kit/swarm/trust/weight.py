"""For how many samples each member of a round counts: for what it says, or for less.

A signature proves who claims samples, not that they were computed. What is reckoned here follows from what all members
see alike, in whole numbers, so all find the same.
"""

from collections.abc import Callable, Hashable, Mapping
from statistics import median_high
from typing import Protocol, TypeVar

from dedloc_kit.run import TrustConfig

M = TypeVar("M", bound=Hashable)


class Weigh(Protocol):
    """From what the members of one group claim, in samples, to what they count for."""

    def __call__(self, claims: Mapping[M, int], /) -> dict[M, int]: ...


def allowed(claims: Mapping[M, int]) -> dict[M, int]:
    """The smaller of what each member claims and what is usual, in samples.

    That is the median: fewer than half cannot move it beyond what one of the others claims. Who brings nothing belongs
    to it: else one claim would fill a batch to which nobody else has brought anything yet. So it takes half of the
    members to fill one.
    """
    most = median_high(claims.values() or [0])
    return {member: min(claim, most) for member, claim in claims.items()}


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
