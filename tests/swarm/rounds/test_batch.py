"""Which samples are in a batch, and when a device waits; what the others tell is written down here."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from dedloc_kit.learning.train.flat import SharedVector
from dedloc_kit.learning.train.gradients.gradients import Gradients
from dedloc_kit.records.progress import Progress
from dedloc_kit.swarm.rounds import batch
from dedloc_kit.swarm.rounds.batch import DISTRUSTED_STEPS, QUIET_SECONDS, Batch
from dedloc_kit.swarm.trust.weight import Counting
from tests.learning.train.by_hand import give, model_of
from tests.swarm.harness import progress
from tests.tiny import tiny_run

NOW = 1e9
RATE = 4.0
"""Samples per second of each peer."""


@pytest.fixture(autouse=True)
def _time_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "get_dht_time", lambda: NOW)


class Peer:
    """One of two that fill batches of 20 samples, in microbatches of one second."""

    def __init__(self, **averaging: Any) -> None:
        self.replica = model_of(torch.nn.Parameter(torch.zeros(1)))
        self.gradients, self.vector = Gradients([self.replica]), SharedVector(self.replica.layout)
        self.others: dict[str, Progress] = {}
        self.tracker = SimpleNamespace(
            mine=progress(step=0, samples_per_second=RATE),
            looked=NOW,
            others=lambda: self.others,
            report_now=lambda: None,
        )
        self.state = SimpleNamespace(run=tiny_run(global_batch=20, averaging=averaging), step=0, rewound=0, receipts=())
        self.batch = Batch(cast(Any, self.state), self.gradients, self.vector, cast(Any, self.tracker), Counting())

    def compute(self, samples: int, gradient: float = 0.0) -> None:
        give(self.replica, gradient, samples)

    def hear(self, samples: int, ago: float = 0.0, **more: Any) -> None:
        """The other one had so many samples, so many seconds ago."""
        self.tracker.looked = NOW
        told = {"step": 0, "samples": samples, "samples_per_second": RATE, "boundary_seconds": 1.0}
        told |= {"time": NOW - ago, "computed": NOW - ago} | more
        self.others = {"other": progress(**told)}
        self.watch()

    def watch(self, late: bool = False) -> None:
        told = self.others
        self.batch.watch({} if late else told, told.values() if late else ())


def test_what_is_computed_after_the_batch_is_full_is_for_the_next_one() -> None:
    me = Peer()
    me.compute(8, gradient=1.0)
    me.hear(8)
    assert not me.batch.fixed
    me.compute(4, gradient=4.0)
    me.watch()
    assert me.batch.fixed
    me.compute(6, gradient=100.0)
    me.watch()
    assert (me.batch.samples, me.gradients.counter.pending) == (12, 6)
    with me.vector.held() as mean:
        assert mean.tolist() == [2.0]


def test_a_device_is_ahead_by_its_share_of_what_all_compute() -> None:
    me = Peer()
    me.compute(8)
    me.hear(12, samples_per_second=4 * RATE)
    me.compute(3)
    assert not me.batch.ahead
    me.compute(1)  # a fifth of the batch after this one
    assert me.batch.ahead


@pytest.mark.parametrize(
    ("ago", "more", "full"),
    [
        (1.1, {}, False),  # its microbatch may be a little late
        (1.3, {}, True),
        (0.5, {"computed": NOW - 1.3}, True),  # it had begun it long before
        (0.5, {"computed": NOW - 9.0}, False),  # it stands still
        (1.3, {"fixed": True}, False),
        (QUIET_SECONDS + 1.0, {}, False),
        (-5.0, {}, False),  # its clock is wrong
        (1.1, {"computed": NOW + 1e6}, False),
        (1.1, {"boundary_seconds": 5e-324}, True),
    ],
)
def test_what_another_one_has_surely_computed_since_it_told_counts(
    ago: float, more: dict[str, Any], full: bool
) -> None:
    me = Peer()
    me.compute(8)
    me.hear(8, ago, **more)  # four more, and the batch is full
    assert me.batch.fixed == full


def test_a_part_that_was_fixed_too_early_takes_in_what_was_computed_meanwhile() -> None:
    me = Peer()
    me.compute(8, gradient=1.0)
    me.hear(8, ago=1.3)
    assert me.batch.fixed
    me.compute(4, gradient=7.0)
    assert me.batch.samples == 8
    me.hear(8, fixed=True)
    assert (me.batch.fixed, me.batch.samples) == (False, 12)
    me.watch()
    assert (me.batch.fixed, me.batch.samples, me.gradients.counter.pending) == (True, 12, 0)
    with me.vector.held() as mean:
        assert mean.tolist() == [3.0]


def test_who_is_about_to_finish_the_last_round_has_computed_about_as_long_as_this_peer() -> None:
    me = Peer()
    me.hear(0, samples_per_second=3 * RATE)
    me.compute(4)
    me.watch(late=True)
    assert not me.batch.fixed
    me.compute(1)
    me.watch(late=True)
    assert me.batch.fixed


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


def test_whoever_seems_to_compute_and_tells_of_nothing_holds_nobody_up_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    me, now = Peer(), 0.0
    monkeypatch.setattr(batch, "time", SimpleNamespace(monotonic=lambda: now))
    liar = {"samples_per_second": 1e9, "boundary_seconds": 0.0}
    me.compute(4)
    me.hear(0, ago=1.0, **liar)
    assert me.batch.fixed
    now = QUIET_SECONDS + 1.0
    for _ in range(2):
        me.hear(0, ago=1.0, **liar)
    assert not me.batch.fixed, "by now it would have told"
    me.state.step = DISTRUSTED_STEPS - 1
    me.hear(0, ago=1.0, **liar)
    assert not me.batch.fixed
    me.state.step = DISTRUSTED_STEPS
    me.hear(0, ago=1.0, **liar)
    assert me.batch.fixed, "it may try again"
