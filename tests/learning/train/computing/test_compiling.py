"""A compiled card gives what a plain one gives; whatever goes wrong with compiling costs no sample."""

import itertools
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dedloc_kit.learning.models.packed_attention import document_bounds, packed_attention
from dedloc_kit.learning.task import Batch, create_task
from dedloc_kit.learning.tasks.batches import batches_of
from dedloc_kit.learning.train.computing.card import Card
from dedloc_kit.learning.train.computing.cards import Callbacks, Cards
from dedloc_kit.learning.train.computing.checkpointing import Compile
from dedloc_kit.learning.train.computing.compiling import CompiledCard, compiler
from dedloc_kit.learning.train.flat_model import FlatModel
from dedloc_kit.learning.train.gradient_sum import Snapshot
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.learning.train.state.replica import Replica
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.learning.types import Loss
from tests.learning.every_task import run_of, write_data
from tests.learning.train.computing.test_card import CPU, batch, loss, model
from tests.tiny import tiny_run

Call = Callable[..., Any]
ROWS, LENGTH, WIDTH = 2, 12, 8


def clock(*seconds: float) -> Callable[[], float]:
    """Each of the tries takes so long, one after the other."""
    times = itertools.chain.from_iterable((0.0, each) for each in seconds)
    return lambda: next(times)


FASTER, SLOWER = (2.0, 2.0, 9.0, 1.0), (2.0, 2.0, 9.0, 3.0)
"""Seconds of two tries without and two with compiled code."""


def compiled(compile: Compile) -> CompiledCard:
    return CompiledCard(FlatModel(model(), CPU), loss, compile=compile)


def snapshot(card: Card) -> Snapshot:
    made = card.snapshot()
    assert made is not None
    return made


def summed(card: Card, sizes: tuple[int, ...]) -> Snapshot:
    for size in sizes:
        assert card.submit(batch(size))
    card.finish()
    return snapshot(card)


def same(found: Snapshot, expected: Snapshot) -> bool:
    return found.samples == expected.samples and all(map(torch.equal, found.gradients, expected.gradients))


def no_compiler(forward: Call) -> Call:
    def call(*_: Tensor) -> Tensor:
        raise RuntimeError("no C++ compiler was found\nand more lines")

    return call


def wrong(forward: Call) -> Call:
    return lambda x: 1.1 * forward(x)


def hungry(forward: Call) -> Call:
    def call(x: Tensor) -> Tensor:
        raise torch.OutOfMemoryError

    return call


def of_four_samples(forward: Call) -> Call:
    def call(x: Tensor) -> Tensor:
        if len(x) != 4:
            raise TypeError(f"cannot compile for {len(x)} samples")
        made: Tensor = forward(x)
        return made

    return call


@pytest.mark.parametrize(
    ("compile", "seconds", "reason"),
    [
        (no_compiler, FASTER, "no C++ compiler was found"),
        (wrong, FASTER, "its gradient is off by"),
        (hungry, FASTER, "out of memory"),
        (lambda forward: forward, SLOWER, "takes 1.50 times as long"),
    ],
)
def test_what_cannot_be_compiled_trains_without_after_one_warning(
    compile: Compile, seconds: tuple[float, ...], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    card = compiled(compile)
    assert card.compile([batch(), batch()], clock(*seconds)) == 1.0
    (record,) = caplog.records
    assert reason in record.getMessage()
    assert "\n" not in record.getMessage()
    assert same(summed(card, (4, 4)), summed(Card(FlatModel(model(), CPU), loss), (4, 4)))


def test_a_microbatch_that_compiled_code_fails_at_is_computed_without_it(caplog: pytest.LogCaptureFixture) -> None:
    card = compiled(of_four_samples)
    assert card.compile([batch(), batch()], clock(*FASTER)) == 2.0
    found = summed(card, (4, 3, 4, 2))
    assert same(found, summed(Card(FlatModel(model(), CPU), loss), (4, 3, 4, 2)))
    (record,) = caplog.records
    assert "cannot compile for 3 samples" in record.getMessage()


def test_others_microbatches_are_computed_without_compiled_code() -> None:
    card = compiled(of_four_samples)
    card.compile([batch(), batch()], clock(*FASTER))
    found = card.measure(batch(3))
    plain = Card(FlatModel(model(), CPU), loss)
    assert found == plain.measure(batch(3))
    assert torch.equal(card.replica.gradients.vector, plain.replica.gradients.vector)


class Counted:
    """A backend of torch's compiler that only counts what it is given."""

    graphs = 0

    def __call__(self, graph: Any, inputs: list[Tensor]) -> Call:
        self.graphs += 1
        call: Call = graph.forward
        return call


class PackedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.given, self.made = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor, bounds: Tensor) -> Tensor:
        query, key, value = self.given(hidden).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        made: Tensor = self.made(packed_attention(self, query, key, value, bounds)[0].flatten(2))
        return hidden + made


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(PackedLayer() for _ in range(3))

    def forward(self, hidden: Tensor, bounds: Tensor) -> Tensor:
        hidden = self.first(hidden)
        for layer in self.layers:
            hidden = layer(hidden, bounds[None, None, None])
        return hidden


def packed(lengths: tuple[int, ...]) -> Batch:
    positions = torch.cat([torch.arange(length) for length in lengths]).view(ROWS, LENGTH)
    values = torch.randn(ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(len(lengths)))
    return {"hidden": values, "bounds": document_bounds(positions)}


def packed_loss(model: nn.Module, batch: Batch, step: int) -> Loss:
    hidden = batch["hidden"]
    return Loss.of(functional.mse_loss(model(hidden, batch["bounds"]), hidden.roll(1, 1)), len(hidden))


def test_layers_and_documents_do_not_compile_anew_in_training() -> None:
    backend = Counted()
    torch.manual_seed(0)
    compile = partial(torch.compile, backend=backend, fullgraph=True)
    card = CompiledCard(FlatModel(Packed(), CPU), packed_loss, compile=compile)
    assert card.compile([packed((12, 12)), packed((5, 7, 12))], clock(*FASTER)) == 2.0
    made = backend.graphs
    assert made <= 2, "one for all layers, and one for any number of documents"
    for lengths in ((12, 3, 4, 5), (6, 6, 6, 6), (3, 9, 2, 2, 2, 6)):
        assert card.submit(packed(lengths))
    assert backend.graphs == made


def test_the_batches_that_cards_are_compiled_with_come_again() -> None:
    run = tiny_run()
    state = TrainingState(model(), lambda m: build_optimizer(run.optimizer, [{"params": list(m.parameters())}]), run)
    given = (batch(size) for size in itertools.repeat(4))
    caller = Callbacks(lambda _: None, lambda _: False)
    cards = Cards([Replica(state, CPU)], [loss], given, caller, in_step=True, compile=no_compiler)
    assert cards.compile() == [1.0]
    assert [each.samples for _ in range(3) for each in cards.compute()] == [4, 4, 4]
    cards.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        write_data(Path(made))
        yield Path(made)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "checkpointed"), [("albert", False), ("causal", True)])
def test_torchs_compiler_changes_no_loss_and_no_gradient(name: str, checkpointed: bool, folder: Path) -> None:
    run = run_of(name, folder)
    task = create_task(run)
    batches = list(itertools.islice(batches_of(run, task, 4, 0, print), 3))
    plain = Card(FlatModel(task.model(), CPU), task.loss, prepare=task.prepare)
    made = compiler(folder / "compiled")
    card = CompiledCard(FlatModel(task.model(), CPU), task.loss, prepare=task.prepare, compile=made)
    names = list(card.model.state_dict())
    if checkpointed:
        card.checkpointing.begin()
    assert card.compile(batches[:2], clock(*FASTER)) == 2.0
    assert list(card.model.state_dict()) == names
    for each in batches:
        assert card.submit(each)
        assert plain.submit(each)
        (found,), (expected,) = card.results(), plain.results()
        assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    mine, theirs = (torch.cat([each.flatten() for each in snapshot(one).gradients]) for one in (card, plain))
    assert float((mine - theirs).norm() / theirs.norm()) < 1e-5
