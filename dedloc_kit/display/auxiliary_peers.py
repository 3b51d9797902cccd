"""Whether a run would gain from lent lines, in words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dedloc_kit.display.human import count

MUCH, LITTLE = 0.1, 0.05
"""Of the volunteers' time that is spent waiting: what is worth a word, and what is as good as none."""
MBIT = 1e6 / 8


@dataclass(frozen=True)
class AuxiliaryPeers:
    """Some who lend a line (`dedloc join --auxiliary`) and train nothing."""

    count: int
    line: float
    """Bytes per second in each direction."""


OFFERS = tuple(
    AuxiliaryPeers(number, line * MBIT) for line, most in ((100, 1), (1000, 5)) for number in range(1, most + 1)
)
"""In the order in which they are easier to find."""
ENDLESS = AuxiliaryPeers(1, 1e6 * MBIT)


def waiting(step: float, ideal: float) -> float:
    """Which part of the volunteers' time is spent so, in a step that would take `ideal` seconds without."""
    return max(0.0, 1.0 - ideal / step)


def gain(step: Callable[[Sequence[AuxiliaryPeers]], float], auxiliary: Sequence[AuxiliaryPeers]) -> str:
    """What a run with these auxiliary peers would gain from more; empty if that is little.

    :param step: seconds of a global step with such auxiliary peers
    """
    now, ideal = step(auxiliary), step([*auxiliary, ENDLESS])
    lost = waiting(now, ideal)
    if lost < MUCH:
        return ""
    left = [(waiting(step([*auxiliary, offer]), ideal), offer) for offer in OFFERS]
    enough = next((offer for rest, offer in left if rest <= LITTLE), None)
    rest, best = min(left, key=lambda found: found[0])
    if enough is None and lost - rest < MUCH:
        return ""
    offer = enough or best
    more = "more " if auxiliary else ""
    who = f"one {more}auxiliary peer" if offer.count == 1 else count(offer.count, f"{more}auxiliary peer")
    does = "would end that" if enough else f"would leave {_part(rest)}"
    line = "the coordinator's line" if not auxiliary else "the lines of the coordinator and the auxiliary peers"
    return (
        f"{_part(lost)} of your volunteers' time is spent waiting for {line}; {who} with "
        f"{offer.line / MBIT:g} Mbit/s {'each ' if offer.count > 1 else ''}{does} (dedloc join --auxiliary)"
    )


def _part(share: float) -> str:
    names = {0.25: "a quarter", 1 / 3: "a third", 0.5: "half", 2 / 3: "two thirds", 0.75: "three quarters"}
    nearest = min(names, key=lambda named: abs(named - share))
    return names[nearest] if abs(nearest - share) < 0.04 else f"{share:.0%}"
