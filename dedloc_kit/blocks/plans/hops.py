"""Which of a stage's peers gets a driver's next call: the one that is expected to be done first.

A driver goes by what it has measured itself, so nobody gains by what it claims. What a call takes on the line and what
it takes beside that are averaged apart: calls are of different sizes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

WEIGHT = 0.2
"""Of what came last in an exponential average."""
TRIED = 0.1
"""The share of calls for peers that have not been measured, or not for STALE seconds: the slow get another chance."""
STALE = 60.0
NEAR = 0.1
"""Who is later than the first by no more than that is an equal: calls spread over them."""


@dataclass(frozen=True)
class Measured:
    """Of one peer's calls; the averages are exponential.

    :ivar bytes: of a call, in both directions
    :ivar travelling: seconds of a call on the line
    :ivar computing: seconds of a call on the peer's device
    :ivar at: when it was last measured
    """

    bytes: float
    travelling: float
    computing: float
    at: float

    def expected(self, size: float, ahead: int) -> float:
        """Seconds until a call of that size is done with so many calls before it."""
        return (ahead + 1) * self.computing + size * self.travelling / self.bytes


def after(before: Measured | None, size: int, seconds: float, computed: float, ahead: int, now: float) -> Measured:
    """What is known of a peer after a call.

    :param size: bytes of the call, in both directions
    :param seconds: that the driver has measured from the call to the answer
    :param computed: seconds on the peer's device, as it says itself: whatever it leaves out has gone on the line
    :param ahead: `Hop.ahead` when the call was sent; what these took does not count
    """
    computed = min(max(0.0, computed), seconds / (ahead + 1))
    new = Measured(max(1, size), seconds - (ahead + 1) * computed, computed, now)
    if before is None:
        return new
    return Measured(
        before.bytes + WEIGHT * (new.bytes - before.bytes),
        before.travelling + WEIGHT * (new.travelling - before.travelling),
        before.computing + WEIGHT * (new.computing - before.computing),
        now,
    )


@dataclass(frozen=True)
class Hop:
    """A peer of the stage as a driver sees it.

    :ivar calls: of this driver that it has not answered
    :ivar queue: calls that are not done there, of all drivers, as it says itself
    :ivar oldest: seconds since the first of `calls` was sent
    """

    name: str
    measured: Measured | None = None
    calls: int = 0
    queue: int = 0
    oldest: float = 0.0

    @property
    def ahead(self) -> int:
        """Calls that come before another one."""
        return max(self.calls, self.queue)

    def expected(self, size: float) -> float:
        """Seconds until it would be done; who is silent for longer than it used to take is not expected sooner."""
        assert self.measured is not None
        return max(self.measured.expected(size, self.ahead), self.oldest)

    def untried(self, now: float) -> bool:
        """Is it time to try it, with one call?"""
        return self.calls == 0 and (self.measured is None or now >= self.measured.at + STALE)


def choose(hops: Sequence[Hop], size: float, now: float, chance: float) -> Hop:
    """Who gets the call.

    :param hops: the peers of the stage, at least one
    :param chance: drawn from 0 up to before 1
    """
    known = [hop for hop in hops if hop.measured is not None]
    untried = [hop for hop in hops if hop.untried(now)]
    if untried and (chance < TRIED or not known):
        return _of(untried, chance / (TRIED if known else 1.0))
    if not known:
        fewest = min(hop.calls for hop in hops)
        return _of([hop for hop in hops if hop.calls == fewest], chance)
    soonest = min(hop.expected(size) for hop in known)
    equals = [hop for hop in known if hop.expected(size) <= (1 + NEAR) * soonest]
    return _of(equals, (chance - TRIED) / (1 - TRIED) if untried else chance)


def _of(hops: Sequence[Hop], chance: float) -> Hop:
    return hops[min(len(hops) - 1, int(len(hops) * chance))]
