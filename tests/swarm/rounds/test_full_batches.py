"""How much a batch holds, step after step: peers with real batches in a time of their own, which hear of each other as
late as peers on good lines do."""

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from dedloc_kit.learning.train.flat import SharedVector
from dedloc_kit.learning.train.gradients.gradients import Gradients
from dedloc_kit.records.progress import Progress
from dedloc_kit.swarm.rounds import batch
from dedloc_kit.swarm.rounds.batch import Batch
from dedloc_kit.swarm.trust.weight import Counting
from tests.learning.train.by_hand import give, model_of
from tests.swarm.harness import progress
from tests.tiny import tiny_run

TICK = 0.05
"""Seconds between two moments in which something may happen: so often the background looks while a group gathers."""
LOOK_SECONDS, STORE_SECONDS, CALL_SECONDS = 0.5, (0.05, 0.3), 0.1
"""Between two looks into the directory; until others can see what a peer stores; until all have begun once one has."""
MICROBATCH, UNEVEN = 8, 0.05
"""Samples, and the spread of the time that they take."""


class Peer:
    """One that computes, and what it has seen of the others.

    :param seconds: of a microbatch
    """

    def __init__(self, swarm: "Swarm", name: str, seconds: float) -> None:
        self.swarm, self.name, self.seconds = swarm, name, seconds
        self.replica = model_of(torch.nn.Parameter(torch.zeros(1)))
        self.gradients, vector = Gradients([self.replica]), SharedVector(self.replica.layout)
        self.state = SimpleNamespace(run=swarm.run, step=0, rewound=0, receipts=())
        self.batch = Batch(cast(Any, self.state), self.gradients, vector, cast(Any, self), Counting())
        self.begun = False
        self.computed = 0.0  # when the last microbatch was done
        self.ready: float | None = swarm.now + seconds * swarm.chance.random()  # none: it waits
        self.looked, self.look_due, self.news = swarm.now, swarm.now + LOOK_SECONDS * swarm.chance.random(), False
        self.seen: dict[str, Progress] = {}
        self.mine = SimpleNamespace(samples_per_second=MICROBATCH / seconds)

    def others(self) -> dict[str, Progress]:
        return self.seen

    def report_now(self) -> None:
        self.news = True

    def compute(self) -> None:
        now = self.swarm.now
        if self.ready is None:
            self.ready = None if self.batch.ahead else now + self._takes()
        while self.ready is not None and self.ready <= now:
            give(self.replica, samples=MICROBATCH, step=self.state.step)
            self.computed = self.ready
            self.ready = None if self.batch.ahead else self.ready + self._takes()

    def watch(self) -> bool:
        """Whether it has seen a full batch."""
        in_sync = {name: told for name, told in self.seen.items() if told.step == self.state.step}
        self.batch.watch(in_sync, [told for told in self.seen.values() if told.step == self.state.step - 1])
        return self.batch.samples + sum(told.samples for told in in_sync.values()) >= self.swarm.run.global_batch

    def talk(self) -> None:
        """See what the others have stored, and store what there is to say."""
        if self.news or self.look_due <= self.swarm.now:
            self.news, self.look_due, self.looked = False, self.swarm.now + LOOK_SECONDS, self.swarm.now
            self.seen = self.swarm.directory(self.name)
            told = progress(
                step=self.state.step,
                samples=self.batch.samples,
                samples_per_second=self.mine.samples_per_second,
                boundary_seconds=self.seconds,
                fixed=self.batch.fixed,
                computed=self.computed,
                time=self.swarm.now,
            )
            self.swarm.store(self.name, told)

    def _takes(self) -> float:
        return self.seconds * max(0.5, self.swarm.chance.gauss(1.0, UNEVEN))


class Swarm:
    """All of them, and what they hold after each step over the global batch.

    :param microbatches: seconds of each peer's
    :param batch: seconds that the global batch takes all of them
    :param round_: seconds of an all-reduce
    """

    def __init__(self, microbatches: Sequence[float], batch: float, round_: float, *, overfull: bool) -> None:
        self.now, self.chance, self.round = 1e9, random.Random(1), round_
        samples = round(batch * sum(MICROBATCH / seconds for seconds in microbatches))
        self.run = tiny_run(global_batch=samples, averaging={"allow_overflow": overfull})
        self._stored: list[tuple[float, str, Progress]] = []
        self.peers = [Peer(self, str(number), seconds) for number, seconds in enumerate(microbatches)]

    def store(self, name: str, told: Progress) -> None:
        self._stored.append((self.now + self.chance.uniform(*STORE_SECONDS), name, told))

    def directory(self, me: str) -> dict[str, Progress]:
        there: dict[str, Progress] = {}
        for at, name, told in self._stored:
            if at <= self.now and name != me and (name not in there or there[name].time < told.time):
                there[name] = told
        self._stored = [each for each in self._stored if each[0] > self.now - 2 * LOOK_SECONDS]
        return there

    def held(self, steps: int) -> list[float]:
        return [self._step() / self.run.global_batch for _ in range(steps)]

    def _step(self) -> int:
        begins = ends = float("inf")
        while self.now < ends:
            self.now += TICK
            for peer in self.peers:
                peer.compute()
                if not peer.begun and peer.watch():
                    begins = min(begins, self.now + CALL_SECONDS)
                peer.talk()
            if begins <= self.now:
                begins, ends = float("inf"), self.now + self.round
                for peer in self.peers:
                    peer.begun = True
                    if not peer.batch.fixed:
                        peer.batch.fix()
        samples = sum(peer.gradients.counter.in_flight for peer in self.peers)
        for peer in self.peers:
            peer.gradients.mark_applied()
            peer.state.step, peer.begun, peer.news = peer.state.step + 1, False, True
            peer.batch.open()
        return samples


def most_in_nine_of_ten(held: Sequence[float]) -> float:
    return sorted(held)[len(held) * 9 // 10 - 1]


@pytest.mark.parametrize(
    ("microbatches", "seconds", "round_seconds", "most"),
    [
        ([0.2, 0.3, 0.4, 0.5], 5.0, 1.0, 1.05),
        ([0.25] * 8, 5.0, 1.0, 1.05),
        ([0.1] * 4, 1.0, 0.3, 1.25),
        ([0.1] * 4, 1.0, 3.0, 1.25),
    ],
    ids=["uneven", "many", "short", "limited by rounds"],
)
def test_nine_steps_of_ten_hold_hardly_more_than_the_batch_unless_they_may(
    monkeypatch: pytest.MonkeyPatch, microbatches: list[float], seconds: float, round_seconds: float, most: float
) -> None:
    for overfull in (False, True):
        swarm = Swarm(microbatches, seconds, round_seconds, overfull=overfull)
        monkeypatch.setattr(batch, "get_dht_time", lambda swarm=swarm: swarm.now)
        monkeypatch.setattr(batch, "time", SimpleNamespace(monotonic=lambda swarm=swarm: swarm.now))
        held = swarm.held(steps=30)
        assert min(held) >= 1.0
        assert (most_in_nine_of_ten(held) <= most) != overfull
