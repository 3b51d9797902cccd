"""How long a round takes over given lines: in a formula what `benchmarks/rounds.py` finds with the real all-reduce.

A reducer of the share s has s times a vector to exchange with each other member, and every other value of its own;
whoever cannot be reached has all of its own. With the shares dealt out at best a round takes as long as the slowest
line needs for its own values, or all reducers together for everyone's (DeDLOC, section 3.2).

Averages travel while gradients still do, and what a line carries up and down counts each for itself: of local steps
that go up sparse the averages alone decide.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

SHARE_OF_LINE = 1 / 1.3
"""What an all-reduce makes of a line where nothing else is on its way: with four hosts on 25 to 100 Mbit/s it took 1.2
to 1.4 times as long as its bytes alone would (benchmarks/README.md)."""
SHARE_OF_BOTH_WAYS = 1 / 1.15
"""The same where gradients and averages travel at once, beside what is left over when the last gradients have come:
simulated rounds of 7 to 64 members took 0.93 to 1.2 times as long as this says (benchmarks/README.md)."""
PART_BYTES = 131_072 * 4.13 / 8
"""Of a message of averages in 4 bits. A reducer's last one cannot go before all have sent what it is made of."""
TOLD_BYTES = 2_200.0
"""What a peer sends beside that, for each member: introductions, rolls, certificates (1,250 with 16 members, 1,900 with
64, 2,700 with 256, as benchmarks/README.md has it)."""
STREAM_SECONDS = 0.004
"""Of the processor, for each stream of a member: as 64 volunteers on two cores have shown."""
PATIENCE = 3.0
"""Seconds of silence after which somebody is gone, where nothing took longer before."""
STAY = 4 * 3600.0
"""Seconds until a volunteer vanishes without a word: an estimate."""


@dataclass(frozen=True)
class Line:
    """Members that are alike.

    :ivar rate: bytes per second, in each direction
    :ivar reachable: they reduce
    :ivar gives: they have gradients, and may vanish; the coordinator and auxiliary peers do not
    """

    count: int
    rate: float
    reachable: bool
    gives: bool = True


@dataclass(frozen=True)
class RoundTime:
    """Of one round, in seconds.

    :ivar exchanging: gradients and averages
    :ivar averaging: averages alone
    :ivar telling: what is said on the way there
    :ivar streams: of the processor of a member that reduces
    :ivar vanishing: what those who vanish in the middle cost, on average over rounds
    """

    exchanging: float
    averaging: float
    telling: float
    streams: float
    vanishing: float

    @property
    def network(self) -> float:
        return self.exchanging + self.telling


def round_time(lines: Sequence[Line], gradients: float, averages: float, stay: float = STAY) -> RoundTime:
    """Of a round with these members.

    :param gradients: bytes of a whole vector, as they are sent
    :param averages: the same of their averages
    :param stay: seconds until a member vanishes, on average
    """
    members, reducers = _count(lines), _count([line for line in lines if line.reachable])
    mortal = sum(line.count for line in lines if line.reachable and line.gives)
    averaging = half_seconds(lines, lines, averages) / SHARE_OF_LINE
    last = min(1.0, reducers * PART_BYTES / averages) * half_seconds(lines, lines, averages)
    exchanging = (both_ways_seconds(lines, gradients, averages) + last) / SHARE_OF_BOTH_WAYS
    telling = TOLD_BYTES * members / min(line.rate for line in lines) / SHARE_OF_LINE
    streams = STREAM_SECONDS * (members + reducers - 2)
    # A dead member is waited for. When a reducer dies, all averages are made and sent once more: what was there of them
    # is lost, by the last one who dies meanwhile.
    silence = min(1.0, members * (exchanging + telling + streams) / stay) * PATIENCE
    lost = averaging + math.expm1(-averaging * mortal / stay) * stay / mortal if mortal else 0.0
    return RoundTime(exchanging, averaging, telling, streams, silence + lost)


def both_ways_seconds(lines: Sequence[Line], gradients: float, averages: float) -> float:
    """The least time in which a group exchanges gradients and averages if they travel at once.

    What all reducers send, and get, together is the same however the shares are dealt out, but for what those who give
    gradients reduce of their own.
    """
    reducers = [line for line in lines if line.reachable]
    both = [line for line in reducers if line.gives]
    own = rate_of(both) / rate_of(reducers)  # of each vector, what those who give reduce, as their lines are
    up = (_count(lines) - 1) * averages + (_count(both) - own) * gradients
    down = (_count([line for line in lines if line.gives]) - own) * gradients + (_count(reducers) - 1) * averages
    slowest = max((max(gradients, averages) if line.gives else averages) / line.rate for line in lines)
    return max(slowest, max(up, down) / rate_of(reducers))


def half_seconds(own: Sequence[Line], lines: Sequence[Line], size: float) -> float:
    """The least time in which these exchange their own values of a vector of so many bytes with the reducers."""
    members = _count(lines)
    besides = (members - 1) / members
    slowest = max(size * (besides if line.reachable else 1.0) / line.rate for line in own)
    return max(slowest, min(members - 1, _count(own)) * size / rate_of(lines))


def rate_of(lines: Sequence[Line]) -> float:
    """Bytes per second of all reducers together."""
    return sum(line.count * line.rate for line in lines if line.reachable)


def _count(lines: Sequence[Line]) -> int:
    return sum(line.count for line in lines)
