"""Many peers of one swarm, of whom each has told the directory of itself; the DHT is a dictionary that counts what it
hands out."""

import random
from collections import Counter
from typing import Any

import pytest
from hivemind.utils import MSGPackSerializer, get_dht_time

from dedloc_kit.learning.train.state.state import Position
from dedloc_kit.records.progress import Progress
from dedloc_kit.swarm.directory.directory import Directory
from dedloc_kit.swarm.directory.rows import Division
from dedloc_kit.swarm.directory.summaries import Summaries
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.incidents import Incidents
from dedloc_kit.swarm.network.kinds import PROGRESS, cells_of
from dedloc_kit.swarm.trust import weight
from tests.swarm.harness import RUN_ID, PlainDHT, a_signer, belief, progress

STEP, BATCH, SIGNATURE = 300, 100_000, 358
NOW = Position(STEP, "ab")
LIVES = 600.0
"""Seconds that a record lives here, for a thousand peers on a slow machine."""


class Counting(PlainDHT):
    """It knows how many bytes it has handed out, and how often of which keys."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.of_keys: Counter[str] = Counter()

    def get(self, key: str, **how: object) -> Any:
        found = super().get(key, **how)
        entries = found.result(0.0).value if found.result(0.0) is not None else {}
        self.of_keys[key] += 1
        self.bytes += sum(len(k) + len(MSGPackSerializer.dumps(e.value)) + SIGNATURE for k, e in entries.items())
        return found


class Many:
    """Peers of which each has told the directory of itself, and the rows' speakers of their rows.

    :param members: each at this step, with a sample; three in ten can be reached
    :param rows: into how many they are divided; as many as usual if it is not said
    """

    def __init__(self, members: int, rows: int | None = None, step: int = STEP) -> None:
        self.dht: Any = Counting()
        self.signers = [a_signer(number) for number in range(members)]
        self.organizer = self.signers[0]
        usual = max(1, 2 ** ((members - 1) // 64).bit_length())  # 32 to 64 in each
        self.step, self.division = step, Division(rows or usual, step)
        self.says = {s.peer: self._says(number, s.peer) for number, s in enumerate(self.signers)}
        for signer in self.signers:
            self.publish(signer)
        self.summarise()

    def _says(self, number: int, peer: str) -> Progress:
        reached = number % 10 < 3
        return progress(
            step=self.step,
            round="ab",
            samples=0 if number == 0 else 1,
            follower=number == 0,
            client_mode=not reached,
            addresses=(f"/ip4/203.0.113.7/tcp/31337/p2p/{peer}",) if reached else (),
            device="NVIDIA T4, 15 GB",
            name="Asha from Bangalore",
            team="Delta",
            session="ab" * 8,
            sketch=(1.0,) * 4,
            upload=1e6,
            time=get_dht_time(),
        )

    def tell(self, row: int, **values: Any) -> None:
        """All of a row but the organizer tell this of themselves from now on, and its speaker of the row."""
        for signer in self.row(row):
            if signer is self.organizer:
                continue
            self.says[signer.peer] = self.says[signer.peer].model_copy(update=values)
            self.publish(signer)
        self.summarise(row)

    def publish(self, signer: Any) -> None:
        said = self.says[signer.peer]
        directory = Directory(self.dht, PROGRESS, RUN_ID, reject=pytest.fail, seconds=LIVES)
        cells = cells_of(signer.peer, said.step) if self.division.rows > 1 else ()
        directory.store(
            signer, said, peers=0, cells=cells, to_all=signer is self.organizer, copied=self.division.copied
        )

    def row(self, number: int) -> list[Any]:
        return [signer for signer in self.signers if self.division.row_of(signer.peer) == number]

    def summarise(self, *rows: int) -> None:
        for number in rows or self.rows:
            row = {signer.peer: self.says[signer.peer] for signer in self.row(number)}
            for signer in self.row(number):
                others = {peer: said for peer, said in row.items() if peer != signer.peer}
                a_summary_by(self.dht, signer).tell(row[signer.peer], others, self.division, weight.Counting())

    def tracker(self, signer: Any, step: int = STEP) -> Tracker:
        """One that has looked at all rows before it had the state, has reported and looked again."""
        mine = belief(signer.peer, self.organizer.peer)
        tracker = Tracker(self.dht, signer, RUN_ID, BATCH, (), Incidents(), mine)
        division = Division(self.division.rows, step)
        tracker.refresh()
        tracker.report(self.says[signer.peer].model_copy(update={"step": step}), 1.0, division)
        self.dht.bytes = 0
        tracker.refresh()
        return tracker

    def volunteers(self) -> list[Any]:
        """One in each row."""
        return [random.Random(row).choice([s for s in self.row(row) if s is not self.organizer]) for row in self.rows]

    @property
    def rows(self) -> range:
        return range(self.division.rows)


def a_summary_by(dht: Any, signer: Any) -> Summaries:
    return Summaries(dht, signer, RUN_ID, BATCH, pytest.fail, LIVES)
