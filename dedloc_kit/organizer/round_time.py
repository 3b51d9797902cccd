"""How long a round takes over given lines: in a formula what `benchmarks/rounds.py` finds with the real all-reduce.

Reducers average nothing before it is agreed who counts, so gradients and averages travel one after the other. In both
halves a reducer of the share s has s times a vector to exchange with each other member, and every other value of its
own; whoever cannot be reached has all of its own. With the shares dealt out at best a half takes as long as the slowest
line needs for its own values, or all reducers together for everyone's (DeDLOC, section 3.2).
"""

from collections.abc import Sequence
from dataclasses import dataclass

SHARE_OF_LINE = 1 / 1.4
"""What an all-reduce makes of a line: with four hosts on 25 to 100 Mbit/s it took 1.2 to 1.4 times as long as its bytes
alone would, with 16 to 128 simulated members 1.3 to 1.5 times (benchmarks/README.md)."""
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
    :ivar gives: they have gradients, and may vanish; the coordinator does not
    """

    count: int
    rate: float
    reachable: bool
    gives: bool = True


@dataclass(frozen=True)
class RoundTime:
    """Of one round, in seconds.

    :ivar collecting: until reducers have the gradients
    :ivar averaging: until everyone has the averages
    :ivar telling: what is said on the way there
    :ivar streams: of the processor of a member that reduces
    :ivar vanishing: what those who vanish in the middle cost, on average over rounds
    """

    collecting: float
    averaging: float
    telling: float
    streams: float
    vanishing: float

    @property
    def network(self) -> float:
        return self.collecting + self.averaging + self.telling


def round_time(lines: Sequence[Line], gradients: float, averages: float, stay: float = STAY) -> RoundTime:
    """Of a round of one group with these members.

    :param gradients: bytes of a whole vector, as they are sent
    :param averages: the same of their averages
    :param stay: seconds until a member vanishes, on average
    """
    members = sum(line.count for line in lines)
    reducers = sum(line.count for line in lines if line.reachable)
    mortal = sum(line.count for line in lines if line.reachable and line.gives)
    collecting = half_seconds([line for line in lines if line.gives], lines, gradients) / SHARE_OF_LINE
    averaging = half_seconds(lines, lines, averages) / SHARE_OF_LINE
    telling = TOLD_BYTES * members / min(line.rate for line in lines) / SHARE_OF_LINE
    streams = STREAM_SECONDS * (members - 1 + reducers - 1)
    # A dead member is waited for; after a dead reducer all averages are made and sent once more.
    deaths = members * (collecting + averaging + telling + streams) / stay
    vanishing = min(1.0, deaths) * PATIENCE + deaths * mortal / members * averaging
    return RoundTime(collecting, averaging, telling, streams, vanishing)


def half_seconds(own: Sequence[Line], lines: Sequence[Line], size: float) -> float:
    """The least time in which these exchange their own values of a vector of so many bytes with the reducers."""
    members = sum(line.count for line in lines)
    besides = (members - 1) / members
    slowest = max(size * (besides if line.reachable else 1.0) / line.rate for line in own)
    return max(slowest, (members - 1) * size / sum(line.count * line.rate for line in lines if line.reachable))
