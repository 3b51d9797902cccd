"""Which stage peers hold another state than they should: one that is not loaded, or has drifted from the others'.

A sketch is no proof: who has heard another's can say the same. What a peer answers is compared as well (`checking`).
"""

from collections.abc import Mapping, Sequence

from dedloc_kit.learning.train.state.sketch import alike


def astray(held: Mapping[str, Sequence[float]], me: str) -> set[str]:
    """Of the peers of a stage who say that they hold the same step: who holds another state than this driver itself,
    or, where it holds none of that step, than most do. Nobody does where no state has more holders than another.

    :param held: the sketch of each, by peer id
    :param me: the driver's peer id
    """
    groups: list[list[str]] = []
    for peer, sketch in held.items():
        group = next((group for group in groups if alike(held[group[0]], sketch)), None)
        if group is None:
            groups.append(group := [])
        group.append(peer)
    most = max(map(len, groups), default=0)
    right = [group for group in groups if me in group] or [group for group in groups if len(group) == most]
    return set(held) - {peer for group in right for peer in group}
