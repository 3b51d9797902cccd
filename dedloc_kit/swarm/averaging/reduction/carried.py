"""What the lines of those have carried who average for others and give no samples themselves.

Nobody claims it, neither they nor those they serve: it follows from what all members of a round agree on. The plan and
the roll say who reduced which chunk and who counts; each of these has signed what it gave, and a quorum that it holds
the average.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from dedloc_kit.swarm.averaging.reduction.plan import Plan

WHOLE = 0.01
"""Who gave this part of a step's samples, or more, counts as one who was served, and whoever gave less as so much less:
friends of a lender that give next to nothing bring it next to nothing, and no step counts for more than a hundred."""


def carried(
    plan: Plan, reducers: Collection[int], lenders: Collection[int], weights: Mapping[int, int], sizes: Sequence[int]
) -> dict[int, int]:
    """Bytes of each lender, by its place in the group.

    :param reducers: those that live, as the roll has it
    :param lenders: those on the roll who gave no samples
    :param weights: how many samples of each member on the roll count
    :param sizes: of each chunk, bytes of a member's part and of the average together
    """
    whole, served, found = WHOLE * sum(weights.values()), defaultdict[int, float](float), defaultdict[int, float](float)
    for member, weight in weights.items():
        served[plan.rows[member]] += min(1.0, weight / whole) if weight else 0.0
    for row, owners in enumerate(plan.deal(reducers).owners):
        for owner, size in zip(owners, sizes, strict=bool(owners)):
            if owner in lenders:
                found[owner] += size * served[row]
    return {owner: round(size) for owner, size in found.items()}
