"""What the accumulator and the vector hold of a batch, and when a device waits."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from dedloc_kit.learning.train.flat import SharedVector
from dedloc_kit.learning.train.gradients.gradients import Gradients
from dedloc_kit.records.position import Position
from dedloc_kit.swarm.gathering.peers import PeerTable
from dedloc_kit.swarm.rounds.batch import Batch
from dedloc_kit.swarm.trust.weight import Counting
from tests.learning.train.by_hand import give, model_of
from tests.swarm.gathering.positions import chain, position
from tests.tiny import tiny_run

RATE = 4.0
"""Samples per second of each peer."""


class Peer:
    """One of two that fill batches of 20 samples."""

    def __init__(self, **averaging: Any) -> None:
        self.replica = model_of(torch.nn.Parameter(torch.zeros(1)))
        self.gradients, self.vector = Gradients([self.replica]), SharedVector(self.replica.layout)
        self.at = 0.0
        self.table = PeerTable("me")
        peers = SimpleNamespace(me="me", table=self.table, lock=threading.RLock(), now=lambda: self.at)
        tracker: Any = SimpleNamespace(peers=peers, mine=None, report_now=lambda: None)
        run = tiny_run(global_batch=20, averaging=averaging)
        state = SimpleNamespace(run=run, step=0, rewound=0, receipts=())
        self.batch = Batch(
            *(cast(Any, state), self.gradients, self.vector, tracker, chain("me", "other"), Counting()),
            lambda: position(self.at, samples=self.batch.samples, samples_per_second=RATE),
        )

    def compute(self, samples: int, gradient: float = 0.0) -> None:
        give(self.replica, gradient, samples)

    def hear(self, samples: int | None, rate: float = RATE) -> None:
        """The other one has so many samples; None: it leaves."""
        self.at += 1.0
        told: Position | None = None
        if samples is not None:
            told = position(self.at, samples=samples, samples_per_second=rate, boundary_seconds=1.0)
        self.table.look({"other": told}, self.at)
        self.batch.update(None)


def test_what_is_computed_after_the_batch_is_full_is_for_the_next_one() -> None:
    me = Peer()
    me.compute(8, gradient=1.0)
    me.hear(8)
    assert not me.batch.fixed
    me.compute(4, gradient=4.0)
    me.batch.update(None)
    assert me.batch.fixed
    me.compute(6, gradient=100.0)
    me.batch.update(None)
    assert (me.batch.samples, me.gradients.counter.pending) == (12, 6)
    with me.vector.held() as mean:
        assert mean.tolist() == [2.0]


def test_a_device_is_ahead_by_its_share_of_what_all_compute() -> None:
    me = Peer()
    me.compute(8)
    me.hear(12, rate=4 * RATE)
    me.compute(3)
    assert not me.batch.ahead
    me.compute(1)  # a fifth of the batch after this one
    assert me.batch.ahead


def test_a_part_that_was_fixed_too_early_takes_in_what_was_computed_meanwhile() -> None:
    me = Peer()
    me.compute(8, gradient=1.0)
    me.hear(12)
    assert me.batch.fixed
    me.compute(4, gradient=7.0)
    assert me.batch.samples == 8
    me.hear(None)
    assert (me.batch.fixed, me.batch.samples) == (False, 12)
    me.hear(8)
    assert (me.batch.fixed, me.batch.samples, me.gradients.counter.pending) == (True, 12, 0)
    with me.vector.held() as mean:
        assert mean.tolist() == [3.0]


@pytest.mark.parametrize(("allow_overflow", "waits"), [(False, True), (True, False)])
def test_a_device_waits_once_it_has_computed_its_share_of_the_batch_after_the_full_one(
    allow_overflow: bool, waits: bool
) -> None:
    me = Peer(allow_overflow=allow_overflow)
    me.compute(10)
    me.hear(10)
    assert me.batch.fixed == (not allow_overflow)
    if allow_overflow:
        me.batch.fix()  # the round begins
    me.compute(9)
    assert not me.batch.ahead
    me.compute(1)
    assert me.batch.ahead == waits
    me.batch.open()
    assert not me.batch.ahead, "the step is taken"


def test_samples_beside_the_batch_are_none_of_it() -> None:
    me = Peer()
    me.batch.holds(lambda: 20, lambda: 3)
    me.compute(13)
    me.hear(9)
    assert (me.batch.samples, me.batch.said, me.batch.fixed) == (10, 20, False)
    me.hear(10)
    assert (me.batch.samples, me.batch.fixed) == (10, True)
