"""What peers that are divided into rows know of the other rows: what some of each row's peers say of it.

One of a row speaks for it, for all ask for all that is said. Two others, who know the row as well, speak too if it is
silent or wrong; then the middle counts, so that no single one can make a row out to be more or less than it is. Who
said what did not come true is not counted for a while, as a peer that boasts of its own samples is not. Whatever is
said here decides only whom a round waits for and when it is tried: a step needs the samples that its members bring, and
more than half of those who brought the last one.
"""

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median, median_low
from typing import Any

from hivemind import DHT
from hivemind.utils import get_dht_time

from dedloc_kit.learning.train.state.state import START, Position
from dedloc_kit.records.progress import Progress, RowSummary
from dedloc_kit.swarm.directory.directory import Directory
from dedloc_kit.swarm.directory.rows import Division
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.kinds import EPOCH, SUMMARIES
from dedloc_kit.swarm.trust.weight import Counting

SPEAKERS = 3
"""Of each row, at most."""
LATER_SECONDS = 3.0
"""After a step, until another one speaks if the first does not."""
STALE_SECONDS = 8.0
"""What was said so much earlier than the last word on a row does not count beside it; and the first is silent."""
WRONG = 2.0
"""By this factor a summary may be off: a row is counted by each at another moment."""
MOST_PEERS = 2.0
"""A row is believed to have so many times the peers of the median one; ids are spread over rows by chance."""


@dataclass(frozen=True)
class Row:
    """What is believed of another row."""

    speakers: tuple[str, ...]
    """Who says it, the first one first."""
    able: tuple[str, ...]
    """Who of it can be asked who leads it."""
    peers: int
    """That hold the state."""
    samples: int
    """Toward the next global step."""
    samples_per_second: float
    filling: float
    """Of these, how many still go into it."""
    boundary_seconds: float
    time: float
    """When it was said (DHT time)."""


def speakers(peers: Iterable[str], step: int) -> list[str]:
    """Those of a row's peers who speak for it, of all who can be reached: in an epoch mostly the same ones."""
    return sorted(peers, key=lambda peer: _rank(peer, step))[:SPEAKERS]


def _rank(peer: str, step: int) -> bytes:
    return hashlib.sha256(f"speaks {step // EPOCH} {peer}".encode()).digest()


class Summaries:
    """Those of the other rows, and what this peer says of its own.

    :param seconds: how long one stays
    """

    def __init__(
        self, dht: DHT, signer: Signer, run_id: str, global_batch: int, reject: Callable[[str], None], seconds: float
    ) -> None:
        self._signer, self._run_id, self._global_batch, self._seconds = signer, run_id, global_batch, seconds
        self._directory = Directory(dht, SUMMARIES, run_id, reject=reject, check=self._check, seconds=seconds)
        self._told: dict[str, RowSummary] = {}
        self._position, self._since = START, 0.0

    def look(self, timeout: float, age: float | None, copy: int | None = None) -> None:
        """Fetch them; see `Directory.look`."""
        found = self._directory.look(peers=1, timeout=timeout, age=age, copy=copy)
        if copy is not None and not found:  # the others are few by now
            found = self._directory.look(peers=1, timeout=timeout, age=age)
        self._told = {peer: said for peer, said in found.items() if said is not None and peer != self._signer.peer}

    def told(self) -> dict[str, RowSummary]:
        """All that are not over, by their author's id."""
        now = float(get_dht_time())
        return {peer: said for peer, said in self._told.items() if said.time + self._seconds > now}

    def tell(self, mine: Progress, row: Mapping[str, Progress], division: Division, counting: Counting) -> Any:
        """If this peer is one of those who speak for its row, say how far the row is; a future, none if it is not.

        :param row: the others of the row, who hold the same state
        :param counting: how much of what they claim counts
        """
        if Position(mine.step, mine.round) != self._position:
            self._position, self._since = Position(mine.step, mine.round), time.monotonic()
        able = [peer for peer, progress in row.items() if not progress.client_mode]
        first = speakers([*able, self._signer.peer], mine.step)
        if mine.client_mode or self._signer.peer not in first:
            return None
        everyone = [mine, *row.values()]
        summary = RowSummary(
            run_id=self._run_id,
            step=mine.step,
            round=mine.round,
            rows=division.rows,
            row=division.row_of(self._signer.peer),
            able=tuple(first),
            peers=len(everyone),
            samples=counting.samples(mine.samples, row),
            samples_per_second=sum(progress.samples_per_second for progress in everyone),
            filling=sum(progress.samples_per_second for progress in everyone if not progress.fixed),
            boundary_seconds=max(progress.boundary_seconds for progress in everyone),
            addresses=mine.addresses,
            reached=mine.reached,
            time=get_dht_time(),
        )
        before = first[: first.index(self._signer.peer)]
        if before and self._said_by(before, summary):
            return None
        return self._directory.store(self._signer, summary, peers=1, copied=division.copied)

    def _said_by(self, before: Collection[str], mine: RowSummary) -> bool:
        """Has one of these said what this peer would say, or does it still have the time to?"""
        if time.monotonic() < self._since + LATER_SECONDS:
            return True
        said = [self._told[peer] for peer in before if peer in self._told]
        return any(_agree(other, mine) for other in said if other.time > mine.time - STALE_SECONDS)

    def believed(self, division: Division, position: Position, counts: Callable[[str, float], bool]) -> dict[int, Row]:
        """What is believed of the other rows that hold this state, by their numbers.

        :param counts: does what a peer told then count?
        """
        mine = division.row_of(self._signer.peer)
        said: defaultdict[int, dict[str, RowSummary]] = defaultdict(dict)
        for peer, summary in self.told().items():
            there = summary.rows == division.rows and (summary.step, summary.round) == position
            if there and summary.row != mine and counts(peer, summary.time):
                said[summary.row][peer] = summary
        rows = {number: self._middle(told, position.step) for number, told in said.items()}
        for number, row in rows.items():
            rows[number] = replace(row, able=tuple(peer for peer in row.able if division.row_of(peer) == number))
        most = round(MOST_PEERS * median([row.peers for row in rows.values()])) if rows else 0
        return {number: replace(row, peers=min(row.peers, most)) for number, row in rows.items()}

    def _middle(self, told: Mapping[str, RowSummary], step: int) -> Row:
        """Of what a row's first speakers say."""
        newest = min(get_dht_time(), max(summary.time for summary in told.values()))
        first = speakers([peer for peer in told if told[peer].time > newest - STALE_SECONDS], step)
        said = [told[peer] for peer in first]
        return Row(
            speakers=tuple(first),
            able=tuple(dict.fromkeys([*first, *(peer for summary in said for peer in summary.able)])),
            peers=median_low(summary.peers for summary in said),
            samples=min(self._global_batch, median_low(summary.samples for summary in said)),  # more fill no batch
            samples_per_second=median_low(summary.samples_per_second for summary in said),
            filling=median_low(summary.filling for summary in said),
            boundary_seconds=median_low(summary.boundary_seconds for summary in said),
            time=median_low(summary.time for summary in said),
        )

    def _check(self, summary: RowSummary) -> None:
        if summary.time > get_dht_time() + self._seconds:
            raise ValueError("RowSummary: from the future")


def _agree(one: RowSummary, other: RowSummary) -> bool:
    """Do they say nearly the same of a row?"""
    if (one.step, one.round, one.rows, one.row) != (other.step, other.round, other.rows, other.row):
        return False
    slack = STALE_SECONDS * other.samples_per_second + 1  # they were not said at the same moment
    counts = ((one.peers, other.peers, 1.0), (one.samples, other.samples, slack))
    return all(a <= WRONG * b + more and b <= WRONG * a + more for a, b, more in counts)
