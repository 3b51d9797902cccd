"""How much a batch holds, step after step, of peers that hear of each other as late as peers on good lines do."""

import random
from collections.abc import Sequence

import pytest

from dedloc_kit.records.position import Position
from dedloc_kit.swarm.gathering.batch import BatchFilling, Fix
from dedloc_kit.swarm.gathering.peers import PeerTable
from tests.swarm.consensus.table import decided, entry
from tests.swarm.gathering.positions import chain, position

TICK = 0.05
"""Seconds between two moments in which something may happen: so often the background looks while a group gathers."""
LOOK_SECONDS, STORE_SECONDS, CALL_SECONDS = 0.5, (0.05, 0.3), 0.1
"""Between two looks into the directory; until others can see what a peer stores; until all have begun once one has."""
MICROBATCH, UNEVEN = 8, 0.05
"""Samples, and the spread of the time that they take."""


class Peer:
    """One that computes, and what it has seen of the others.

    :ivar samples: of its part; :ivar later: computed after that was fixed
    :ivar ready: when its microbatch is done; none if it waits
    """

    def __init__(self, swarm: "Swarm", name: str, seconds: float, overflow: bool) -> None:
        """:param seconds: of a microbatch"""
        self.swarm, self.name, self.seconds = swarm, name, seconds
        self.chain, self.table = chain(*swarm.names), PeerTable(name)
        self.samples = self.later = 0
        self.begun = False
        self.computed = 0.0
        self.ready: float | None = seconds * swarm.chance.random()
        self.look_due, self.news = LOOK_SECONDS * swarm.chance.random(), False
        self.batch = BatchFilling(name, position(0), self.chain, self.table, swarm.batch, overflow=overflow)

    def position(self) -> Position:
        return position(
            self.swarm.now,
            self.chain.head.previous,
            samples=self.samples,
            samples_per_second=MICROBATCH / self.seconds,
            boundary_seconds=self.seconds,
            computed=position(self.computed).time if self.computed else 0.0,
            fixed=self.batch.fixed,
        )

    def compute(self) -> None:
        now = self.swarm.now
        if self.ready is None:
            self.ready = None if self.is_ahead() else now + self._takes()
        while self.ready is not None and self.ready <= now:
            if self.batch.fixed:
                self.later += MICROBATCH
            else:
                self.samples += MICROBATCH
            self.computed = self.ready
            self.ready = None if self.is_ahead() else self.ready + self._takes()

    def is_ahead(self) -> bool:
        return self.batch.is_ahead(self.later, self.swarm.now)

    def watch(self) -> bool:
        """Whether it has seen a full batch."""
        for effect in self.batch.update(self.position(), self.swarm.now):
            if isinstance(effect, Fix):
                self.news = True
            else:
                self._take_later()
        return self.batch.samples(self.swarm.now) >= self.swarm.batch

    def _take_later(self) -> None:
        self.samples, self.later = self.samples + self.later, 0

    def step(self) -> int:
        """Its samples in the step that all take now."""
        given, self.samples = self.samples, 0
        self._take_later()
        head, names = self.chain.head, self.swarm.names
        self.chain.adopt([decided(head, tuple(entry(head, name) for name in names), " ".join(names))])
        self.batch.open(self.position())
        self.begun, self.news = False, True
        return given

    def talk(self) -> None:
        """See what the others have stored, and store what there is to say."""
        if self.news or self.look_due <= self.swarm.now:
            self.news, self.look_due = False, self.swarm.now + LOOK_SECONDS
            self.table.look(self.swarm.directory(self.name), self.swarm.now)
            self.swarm.store(self.name, self.position())

    def _takes(self) -> float:
        return self.seconds * max(0.5, self.swarm.chance.gauss(1.0, UNEVEN))


class Swarm:
    """All of them, and what they hold after each step over the global batch.

    :param microbatches: seconds of each peer's
    :param batch: seconds that the global batch takes all of them
    :param round_: seconds of an all-reduce
    """

    def __init__(self, microbatches: Sequence[float], batch: float, round_: float, *, overflow: bool) -> None:
        self.now, self.chance, self.round = 0.0, random.Random(1), round_
        self.batch = round(batch * sum(MICROBATCH / seconds for seconds in microbatches))
        self.names = [f"p{number}" for number in range(len(microbatches))]
        self._stored: list[tuple[float, str, Position]] = []
        pairs = zip(self.names, microbatches, strict=True)
        self.peers = [Peer(self, name, seconds, overflow) for name, seconds in pairs]

    def store(self, name: str, told: Position) -> None:
        self._stored.append((self.now + self.chance.uniform(*STORE_SECONDS), name, told))

    def directory(self, me: str) -> dict[str, Position | None]:
        there: dict[str, Position | None] = {}
        for at, name, told in self._stored:
            known = there.get(name)
            if at <= self.now and name != me and (known is None or known.time < told.time):
                there[name] = told
        self._stored = [each for each in self._stored if each[0] > self.now - 2 * LOOK_SECONDS]
        return there

    def held(self, steps: int) -> list[float]:
        return [self._step() / self.batch for _ in range(steps)]

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
                    peer.begun = peer.batch.fixed = True
        return sum(peer.step() for peer in self.peers)


def most_in_nine_of_ten(held: Sequence[float]) -> float:
    return sorted(held)[len(held) * 9 // 10 - 1]


@pytest.mark.parametrize(
    ("microbatches", "seconds", "round_seconds", "most"),
    [
        ([0.2, 0.3, 0.4, 0.5], 5.0, 1.0, 1.12),
        ([0.25] * 8, 5.0, 1.0, 1.12),
        ([0.1] * 4, 1.0, 0.3, 1.25),
        ([0.1] * 4, 1.0, 3.0, 1.25),
    ],
    ids=["uneven", "many", "short", "limited by rounds"],
)
def test_nine_steps_of_ten_hold_hardly_more_than_the_batch_unless_they_may(
    microbatches: list[float], seconds: float, round_seconds: float, most: float
) -> None:
    for overflow in (False, True):
        held = Swarm(microbatches, seconds, round_seconds, overflow=overflow).held(steps=30)
        assert min(held) >= 1.0
        assert (most_in_nine_of_ten(held) <= most) != overflow
