"""Whether a run would gain from lent lines, in words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dedloc_kit.display.human import count

MUCH, LITTLE = 0.1, 0.05
"""Of the volunteers' time that is spent waiting: what is worth a word, and what is as good as none."""
MBIT = 1e6 / 8


@dataclass(frozen=True)
class Helpers:
    """Some who lend a line (`dedloc join --auxiliary`) and train nothing."""

    count: int
    line: float
    """Bytes per second in each direction."""


OFFERS = tuple(Helpers(number, line * MBIT) for line, most in ((100, 1), (1000, 5)) for number in range(1, most + 1))
"""In the order in which they are easier to find."""
ENDLESS = Helpers(1, 1e6 * MBIT)


def waiting(step: float, ideal: float) -> float:
    """Which part of the volunteers' time is spent so, in a step that would take `ideal` seconds without."""
    return max(0.0, 1.0 - ideal / step)


def gain(step: Callable[[Sequence[Helpers]], float], helpers: Sequence[Helpers]) -> str:
    """What a run with these helpers would gain from more; empty if that is little.

    :param step: seconds of a global step with such helpers
    """
    now, ideal = step(helpers), step([*helpers, ENDLESS])
    lost = waiting(now, ideal)
    if lost < MUCH:
        return ""
    left = [(waiting(step([*helpers, offer]), ideal), offer) for offer in OFFERS]
    enough = next((offer for rest, offer in left if rest <= LITTLE), None)
    rest, best = min(left, key=lambda found: found[0])
    if enough is None and lost - rest < MUCH:
        return ""
    offer = enough or best
    more = "more " if helpers else ""
    who = f"one {more}helper" if offer.count == 1 else count(offer.count, f"{more}helper")
    does = "would end that" if enough else f"would leave {_part(rest)}"
    line = "the coordinator's line" if not helpers else "the lines of the coordinator and the helpers"
    return (
        f"{_part(lost)} of your volunteers' time is spent waiting for {line}; {who} with "
        f"{offer.line / MBIT:g} Mbit/s {'each ' if offer.count > 1 else ''}{does} (dedloc join --auxiliary)"
    )


def _part(share: float) -> str:
    names = {0.25: "a quarter", 1 / 3: "a third", 0.5: "half", 2 / 3: "two thirds", 0.75: "three quarters"}
    nearest = min(names, key=lambda named: abs(named - share))
    return names[nearest] if abs(nearest - share) < 0.04 else f"{share:.0%}"
