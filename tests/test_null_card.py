"""A card that is not there takes its time by its own clock, and says how long the loop waits for it."""

import pytest
import torch
from torch import Tensor, nn

from benchmarks.lib.null_card import BACKWARD, CALL, FORWARD, OUTPUT, PINNED, NullCards, NullCopies, Waits, drive
from dedloc_kit.learning.task import Loss
from dedloc_kit.learning.train.computing.card import Batch, Card
from dedloc_kit.learning.train.flat_model import FlatModel

BLOCKS = 4
SLOW, FAST = 10.0, 1.0
"""Seconds of a microbatch."""


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(BLOCKS))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


class Loop:
    """A loop whose thread takes `launch` seconds for a block's forward pass, and no time for all else."""

    def __init__(self, launch: float, reads: bool = False) -> None:
        self.time, self.launch, self.reads = 0.0, launch, reads
        self.cards = NullCards([SLOW, FAST], clock=lambda: self.time)
        model = Blocks()
        drive(self.cards, model)
        for block in model.blocks:
            block.register_forward_hook(self._spend)
        self.copies = NullCopies(self.cards, scale=1000.0, host=1e9)
        self.card = Card(FlatModel(model, torch.device("cpu"), self.copies), self.loss)

    def _spend(self, *_: object) -> None:
        self.time += self.launch

    def loss(self, model: nn.Module, batch: Batch, step: int) -> Loss:
        self.cards.begin_microbatch()
        found: Tensor = model(batch["x"]).square().mean()
        if self.reads:
            assert found.item() >= 0.0
        self.cards.put_output()
        return Loss.of(found, len(batch["x"]))

    def step(self) -> None:
        assert self.card.submit({"x": torch.ones(2, 8)})
        self.card.results()

    def seconds(self, microbatches: int) -> list[float]:
        """Of a microbatch, on each card; the first ones, which are not counted, tell how many blocks there are."""
        self.step()
        with Waits(self.cards):
            self.step()
        for _ in range(3):
            self.step()
        begun = self.cards.now()
        for _ in range(microbatches):
            self.step()
        return [(end - begin) / microbatches for begin, end in zip(begun, self.cards.now(), strict=True)]


def test_shares_are_of_a_whole_microbatch() -> None:
    assert pytest.approx(1.0) == FORWARD + BACKWARD + OUTPUT


def test_a_slow_card_hides_the_loop_and_a_fast_one_waits_for_it() -> None:
    slow, fast = Loop(launch=1.0).seconds(20)
    assert slow == pytest.approx(SLOW, rel=1e-6)
    assert fast == pytest.approx(BLOCKS * 1.0, rel=1e-3)


def test_a_loop_that_looks_at_its_loss_leaves_the_card_idle_until_it_launches_again() -> None:
    loop = Loop(launch=1.0, reads=True)
    slow, _ = loop.seconds(20)
    assert slow == pytest.approx(SLOW + 1.0, rel=1e-6)
    before = loop.cards.waits
    loop.step()
    assert loop.cards.waits == before + 2


def test_copies_run_beside_the_kernels_and_a_snapshot_waits_for_those_before_it_alone() -> None:
    loop = Loop(launch=0.0)
    loop.seconds(2)
    loop.cards.wait()
    begun = loop.cards.now()
    loop.step()
    snapshot = loop.card.snapshot()
    assert snapshot is not None
    values = loop.card.replica.aligned.size + 2
    taken = [end - begin for begin, end in zip(begun, loop.cards.now(), strict=True)]
    assert taken == pytest.approx([each + 4000.0 * values / PINNED for each in (SLOW, FAST)], abs=10 * CALL)


def test_what_is_done_elsewhere_takes_the_loop_no_time() -> None:
    loop = Loop(launch=0.0)
    loop.seconds(2)
    begun, waits = loop.cards.now(), loop.cards.waits
    with loop.cards.elsewhere():
        loop.time += 5.0
        loop.card.snapshot()
    assert loop.cards.now() == pytest.approx(begun)
    assert loop.cards.waits == waits


def test_a_load_of_all_parameters_takes_the_loop_the_time_of_a_copy_in_memory() -> None:
    loop = Loop(launch=0.0)
    size = loop.card.replica.aligned.size
    begun = loop.cards.now()
    loop.card.load(torch.zeros(loop.card.replica.layout.size))
    taken = [end - begin for begin, end in zip(begun, loop.cards.now(), strict=True)]
    assert taken == pytest.approx([999 * 4.0 * size / 1e9 + CALL] * 2)
