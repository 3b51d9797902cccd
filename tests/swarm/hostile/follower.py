"""A hostile peer as a process of its own: it says that it holds a state, and serves one that it has made up.

Reads one JSON line on standard input: who it is and what it claims; the next lines are further claims. It goes on
telling the last one. It speaks the real protocols, with the code of honest peers.
"""

import json
import queue
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from hivemind.utils import get_dht_time

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.learning.train.state.orders import RATE, REWOUND
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.progress import Progress
from dedloc_kit.records.state import StateInfo
from dedloc_kit.records.steps import Contribution, Receipt
from dedloc_kit.swarm.chain import files
from dedloc_kit.swarm.chain.anchor import Anchor
from dedloc_kit.swarm.chain.branch import Anchored
from dedloc_kit.swarm.consensus.records import PartReset, Reset, Voter
from dedloc_kit.swarm.directory.contributions import publish
from dedloc_kit.swarm.directory.directory import Directory
from dedloc_kit.swarm.directory.tracker import TIME_TO_LIVE
from dedloc_kit.swarm.membership.joining import Entry
from dedloc_kit.swarm.network.kinds import PROGRESS
from dedloc_kit.swarm.network.node import addresses_of
from dedloc_kit.swarm.p2p.adapters import KeySigner
from dedloc_kit.swarm.peer import exchange_of
from dedloc_kit.swarm.rounds.finished_step import receipt_of
from dedloc_kit.swarm.transfer.service import StateSource
from tests.tiny import TinyTask

FORGED = 0.666
REPEAT_SECONDS = 1.0


class Liar:
    def __init__(self, who: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        self.run = parse_run(who["run"])
        config = PeerConfig(folder=Path(who["folder"]), swarm_host="127.0.0.1", client_mode=False)
        entry = Entry(self.run, config, who["peers"], who["organizer"])
        self.node, self.signer = entry.start(entry.surroundings()), entry.signer
        task = TinyTask(self.run)
        self.state = TrainingState(
            task.model(),
            lambda model: build_optimizer(self.run.optimizer, task.groups(model)),
            self.run,
        )
        self.state.flat.fill_(FORGED)
        self.sketch: tuple[float, ...] = ()
        source = StateSource(self.served, lambda: self.state.info)
        self.exchange = exchange_of(self.node, self.signer, self.run, self.state.layout, source, config.folder)
        self.exchange.transfers.share(True)
        self.progress = Directory(self.node, PROGRESS, self.run.run_id, reject=lambda _: None, seconds=TIME_TO_LIVE)
        self.addresses = addresses_of(self.node)

    @contextmanager
    def served(self) -> Iterator[tuple[dict[str, Any], list[torch.Tensor]]]:
        receipts = [receipt.model_dump() for receipt in self.state.receipts]
        metadata = {"info": self.state.info.model_dump(), "receipts": receipts, "anchor": self.state.anchor}
        yield metadata, self.state.tensors()

    def claim(self, step: int, round: str, sketch: list[float]) -> None:
        """Tell everyone that this is the state that it holds; what it serves says so too."""
        self.state.step, self.state.rounds = step, (round,) if round else ()
        self.sketch = tuple(sketch)
        self.tell()

    def rewind(self, donor: str, rate: float, ahead: int) -> None:
        """The same of the donor's state with another rate, as one that took over an earlier one in that very step or a
        later one, by a reset of its own."""
        found = self.exchange.transfers.download_state(
            [donor],
            self.state.tensors(),
            on_version=lambda _: True,
            on_progress=lambda *_: None,
            stop=threading.Event(),
        )
        assert found is not None
        metadata, tensors = found
        info, step = StateInfo.parse(metadata["info"]), metadata["info"]["step"] + ahead
        reset = self.reset(info, step)
        rounds = (*info.rounds, reset.link) if ahead else info.rounds
        receipts = [Receipt.parse(values) for values in metadata["receipts"] if values["step"] < step]
        forged = receipt_of(reset, get_dht_time())
        named = dict(zip(self.state.copy()[0], tensors, strict=True))
        named |= {RATE: torch.tensor([rate], dtype=torch.float64), REWOUND: torch.tensor([step if rate != 1 else 0])}
        anchor = Anchored(anchor=Anchor(part="", reset=reset, coordinator=reset.coordinator))
        info = StateInfo(run_id=info.run_id, step=step, rounds=rounds)
        encoded = files.encode(anchor) if ahead else metadata["anchor"]
        self.state.load(list(named.values()), info, [*receipts, forged], encoded)
        self.sketch = self.state.sketch
        self.tell()

    def reset(self, info: StateInfo, step: int) -> Reset:
        """As if it were the organizer, and a person had chosen an earlier state for this step."""
        part = PartReset(part="", previous=info.rounds[-1], state="a" * 64)
        voter = Voter(self.signer.peer, 1)
        reset = Reset(run_id=info.run_id, term=99, step=step + 1, parts=(part,), coordinator=voter, chosen=True)
        return reset.signed(KeySigner(self.signer))

    def tell(self) -> None:
        """Tell everyone which state it holds, as if on the branch of the others."""
        others = self.progress.look(peers=1, timeout=10.0, age=None)
        others.pop(self.signer.peer, None)
        term = max((told.term for told in others.values() if told is not None), default=(0, ""))
        told = Progress(
            run_id=self.run.run_id,
            step=self.state.step,
            round=self.state.round,
            term=term,
            samples=0,
            samples_per_second=0.0,
            boundary_seconds=0.0,
            sketch=self.sketch,
            follower=True,
            client_mode=False,
            addresses=self.addresses,
            device="x",
            name="liar",
            time=get_dht_time(),
        )
        self.progress.store(self.signer, told, peers=1).result(10.0)

    def give(self, samples: int, **values: Any) -> None:
        """Say that it gave so much."""
        given = Contribution(
            run_id=self.run.run_id,
            session="ab",
            samples=samples,
            session_samples=samples,
            loss=1.0,
            name="liar",
            time=get_dht_time(),
            **values,
        )
        publish(self.node, self.signer, given, peers=1)


def answer(values: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def main() -> None:
    liar = Liar(json.loads(sys.stdin.readline()))
    answer({"peer": liar.signer.peer})
    jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=deque, args=(map(jobs.put, map(json.loads, sys.stdin)), 0), daemon=True).start()
    claimed = False
    while True:
        try:
            job = jobs.get(timeout=REPEAT_SECONDS)
        except queue.Empty:
            job = {}
        if "samples" in job:
            liar.give(**job)
        elif job:
            claimed = True
            (liar.rewind if "donor" in job else liar.claim)(**job)
        elif claimed:
            liar.tell()
        if job:
            answer({"done": True})


if __name__ == "__main__":
    main()
