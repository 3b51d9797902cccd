"""How long a round takes over given lines: in a formula what `benchmarks/rounds.py` finds with the real all-reduce.

Reducers average nothing before it is agreed who counts, so gradients and averages travel one after the other. In both
halves a reducer of the share s has s times a vector to exchange with each other member, and every other value of its
own; whoever cannot be reached has all of its own. With the shares dealt out at best a half takes as long as the slowest
line needs for its own values, or all reducers together for everyone's (DeDLOC, section 3.2).

Where there are rows, the same holds in each of them: the reducers of a row have only its members to serve, and clients
are spread so that no row has much more to do for its bandwidth than others. Between the halves the owners of the same
values in all rows average these.
"""

import math
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
ROW, MOST_ROWS = 64, 32
"""How swarms are divided: see `swarm/directory/rows.py`, with which a test compares this."""
MIN_REDUCERS = 2
"""A row with fewer joins another one (`swarm/averaging/row_meeting.py`)."""
MEAN_SIZE = 2.0
"""Of a row's mean, which travels in 8 bits, by that of gradients in 4 bits; it is little, so this serves for all."""
STREAMS_BETWEEN = 3
"""Of a reducer, for each other row: 10, 16 and 27 more than within its own were the most with 2, 4 and 8 rows."""


@dataclass(frozen=True)
class Line:
    """Members that are alike.

    :ivar rate: bytes per second, in each direction
    :ivar reachable: they reduce
    :ivar gives: they have gradients, and may vanish; the coordinator and helpers do not
    """

    count: int
    rate: float
    reachable: bool
    gives: bool = True


@dataclass(frozen=True)
class RoundTime:
    """Of one round, in seconds.

    :ivar rows: in which it is
    :ivar collecting: until reducers have the gradients
    :ivar averaging: until everyone has the averages
    :ivar telling: what is said on the way there
    :ivar streams: of the processor of a member that reduces
    :ivar vanishing: what those who vanish in the middle cost, on average over rounds
    """

    rows: int
    collecting: float
    averaging: float
    telling: float
    streams: float
    vanishing: float

    @property
    def network(self) -> float:
        return self.collecting + self.averaging + self.telling


def round_time(lines: Sequence[Line], gradients: float, averages: float, stay: float = STAY) -> RoundTime:
    """Of a round with these members, in one group or in as many rows as the swarm would make of them.

    :param gradients: bytes of a whole vector, as they are sent
    :param averages: the same of their averages
    :param stay: seconds until a member vanishes, on average
    """
    members = sum(line.count for line in lines)
    reducers = sum(line.count for line in lines if line.reachable)
    mortal = sum(line.count for line in lines if line.reachable and line.gives)
    rows = rows_of(members, reducers)
    collecting = half_seconds([line for line in lines if line.gives], lines, gradients, rows) / SHARE_OF_LINE
    between = (rows - 1) / rows * (MEAN_SIZE * gradients + averages) / row_rate(lines, rows)
    averaging = (between + half_seconds(lines, lines, averages, rows)) / SHARE_OF_LINE
    telling = TOLD_BYTES * members / min(line.rate for line in lines) / SHARE_OF_LINE
    streams = STREAM_SECONDS * ((members + reducers) / rows - 2 + STREAMS_BETWEEN * (rows - 1))
    # A dead member is waited for. When a reducer dies, all averages are made and sent once more, in all rows: what was
    # there of them is lost, by the last one who dies meanwhile.
    silence = min(1.0, members * (collecting + averaging + telling + streams) / stay) * PATIENCE
    lost = averaging + math.expm1(-averaging * mortal / stay) * stay / mortal if mortal else 0.0
    return RoundTime(rows, collecting, averaging, telling, streams, silence + lost)


def rows_of(members: int, reducers: int) -> int:
    """Into how many rows so many members are divided, of whom so many reduce."""
    rows = 1 if members <= ROW else min(MOST_ROWS, 2 ** math.ceil(math.log2(members / ROW)))
    return min(rows, max(1, reducers // MIN_REDUCERS))


def half_seconds(own: Sequence[Line], lines: Sequence[Line], size: float, rows: int = 1) -> float:
    """The least time in which these exchange their own values of a vector of so many bytes with the reducers."""
    members = sum(line.count for line in lines) / rows
    besides = (members - 1) / members
    slowest = max(size * (besides if line.reachable else 1.0) / line.rate for line in own)
    others = min(members - 1, sum(line.count for line in own) / rows)
    return max(slowest, others * size / row_rate(lines, rows))


def row_rate(lines: Sequence[Line], rows: int = 1) -> float:
    """Bytes per second of all reducers of a row together."""
    return sum(line.count * line.rate for line in lines if line.reachable) / rows
