"""What the lines of those have carried who average for others and give no samples themselves.

Nobody claims it: the coordinator has seen who reduced which chunk, and the commit says who gave samples.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

WHOLE = 0.01
"""Who gave this part of a step's samples, or more, counts as one who was served, and whoever gave less as so much less:
friends of a lender that give next to nothing bring it next to nothing, and no step counts for more than a hundred."""


def carried(
    owners: Sequence[str], lenders: Collection[str], weights: Mapping[str, int], sizes: Sequence[int]
) -> dict[str, int]:
    """Bytes of each lender, by peer.

    :param owners: of each chunk, who averaged it
    :param lenders: members that gave no samples
    :param weights: how many samples of each counted
    :param sizes: of each chunk, bytes of a member's part and of the average together
    """
    whole, found = WHOLE * sum(weights.values()), defaultdict[str, float](float)
    served = sum(min(1.0, weight / whole) for weight in weights.values() if weight)
    for owner, size in zip(owners, sizes, strict=True):
        if owner in lenders:
            found[owner] += size * served
    return {owner: round(size) for owner, size in found.items()}
