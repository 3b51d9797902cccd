"""The microbatch is found by trying; a device and its memory are simulated by the loss function."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dedloc_kit.errors import UserError
from dedloc_kit.learning.task import Loss
from dedloc_kit.learning.train.computing.card import Card
from dedloc_kit.learning.train.computing.microbatch import Microbatches, find_microbatch, largest_microbatch
from dedloc_kit.learning.train.flat_model import FlatModel
from tests.tiny import tiny_run

CPU = torch.device("cpu")


class Device:
    """A clock that only computing moves, and a memory that holds so many samples."""

    def __init__(self, seconds: Callable[[int], float], memory: int = 1000) -> None:
        self.now, self.seconds, self.memory = 0.0, seconds, memory
        self.tried: list[int] = []

    def loss(self, model: nn.Module, batch: dict[str, Tensor], step: int) -> Loss:
        size = len(batch["x"])
        self.tried.append(size)
        if size > self.memory:
            raise torch.OutOfMemoryError
        self.now += self.seconds(size)
        return Loss.of(model(batch["x"]).square().mean(), size)

    def find(self, model: nn.Module | None = None, most: int = 64) -> int:
        card = Card(FlatModel(model or nn.Linear(4, 4), CPU), self.loss)
        return find_microbatch(card, {"x": torch.randn(most, 4)}, lambda: self.now)


class Blocks(nn.Module):
    """One block."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([self.block])

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.block(x)
        return result

    @property
    def checkpointed(self) -> bool:
        return "forward" in vars(self.block)


@pytest.mark.parametrize(
    ("seconds", "found"),
    [
        (lambda size: 0.01, 64),  # a fast device that is never busy: as many as are wanted
        (lambda size: 0.1 * size, 1),  # no faster with more
        (lambda size: 0.25 + 0.05 * size, 8),  # more would be faster, but take more than a second
        (lambda size: 0.05 + 0.01 * max(0, size - 16), 16),  # nothing is gained beyond what runs side by side
        (lambda size: 7.0 * size, 1),  # too slow even for one
    ],
)
def test_the_smallest_microbatch_is_taken_that_is_about_as_fast_as_any(
    seconds: Callable[[int], float], found: int
) -> None:
    device = Device(seconds)
    assert device.find() == found
    assert device.now < 8, "it takes some seconds only"


@pytest.mark.parametrize(("memory", "found"), [(1, 1), (11, 8), (64, 64)])
def test_the_memory_is_never_asked_for_more_than_it_refused(memory: int, found: int) -> None:
    device = Device(lambda size: 0.01, memory)
    assert device.find() == found
    assert sum(size > memory for size in device.tried) <= 1


def test_no_more_is_tried_than_is_wanted() -> None:
    device = Device(lambda size: 0.01)
    assert device.find(most=10) == 8
    assert max(device.tried) == 8


def test_a_trial_leaves_parameters_buffers_gradients_and_random_states_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    before = {name: values.clone() for name, values in model.state_dict().items()}
    state = torch.get_rng_state()
    device = Device(lambda size: 0.01, memory=8)
    wanted = {"x": torch.ones(16, 4)}
    replica = FlatModel(model, CPU)
    # One sample alone has no variance to normalise with.
    card = Card(replica, device.loss, prepare=lambda batch: {"x": batch["x"].repeat(2, 1)})
    assert find_microbatch(card, wanted, lambda: device.now) == 4
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())
    assert not replica.gradients.vector.any()


def test_blocks_are_checkpointed_where_not_even_one_sample_fits() -> None:
    class Full(Blocks):
        def forward(self, x: Tensor) -> Tensor:
            if not self.checkpointed:
                raise torch.OutOfMemoryError
            return super().forward(x)

    assert Device(lambda size: 0.01).find(Full(), most=4) == 4
    with pytest.raises(UserError, match="not even with one sample"):
        Device(lambda size: 0.01, memory=0).find()


class Checkpointed(Device):
    """Its memory holds 16 samples with checkpoints, and else 4, which then take as long as one."""

    def loss(self, model: nn.Module, batch: dict[str, Tensor], step: int) -> Loss:
        assert isinstance(model, Blocks)
        self.memory = 16 if model.checkpointed else 4
        return super().loss(model, batch, step)


@pytest.mark.parametrize(("gain", "found", "kept"), [(1.3, 8, True), (1.05, 4, False)])
def test_blocks_are_checkpointed_where_more_samples_at_once_are_much_faster(
    gain: float, found: int, kept: bool
) -> None:
    model = Blocks()
    device = Checkpointed(lambda size: 0.1 if size <= 4 else 0.1 * size / 4 / gain)
    assert device.find(model, most=16) == found
    assert model.checkpointed is kept


def test_a_batch_that_did_not_fit_comes_again_in_pieces_and_no_sample_is_lost() -> None:
    stream = ({"x": torch.arange(start, start + 8)} for start in itertools.count(0, 8))
    batches = Microbatches(stream)
    memory, seen, sizes = 8, list[int](), list[int]()
    for turn in range(14):
        memory = 3 if turn >= 2 else memory
        batch = next(batches)
        if len(batch["x"]) > memory:
            batches.put_back(batch, len(batch["x"]) // 2)
            continue
        seen += batch["x"].tolist()
        sizes.append(len(batch["x"]))
    assert seen == list(range(len(seen)))
    assert sizes == [8, 8] + [2] * 10


def test_one_microbatch_is_a_small_part_of_a_batch() -> None:
    assert largest_microbatch(tiny_run(global_batch=4096)) == 64
    assert largest_microbatch(tiny_run(global_batch=192)) == 24
    assert largest_microbatch(tiny_run(global_batch=4)) == 1


@pytest.mark.parametrize(
    ("local_batch", "devices", "most"),
    [(64, 1, 64), (32, 1, 32), (64, 2, 32), (4096, 8, 64), (48, 1, 16), (65, 1, 8), (500, 1, 64), (3, 1, 1), (1, 4, 1)],
)
def test_a_local_step_may_be_one_microbatch_and_is_hardly_overshot(local_batch: int, devices: int, most: int) -> None:
    run = tiny_run(global_batch=4096, averaging={"mode": "local-steps", "local_batch": local_batch})
    assert largest_microbatch(run, devices) == most
